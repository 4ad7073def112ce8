"""A study that Python code runs, in a notebook with its progress."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.cli.display import Display, NotebookSurface, is_notebook
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.search.session import Options
from sweep.search.tuner import Event

if TYPE_CHECKING:
    from sweep.search.session import Session


def run_study(study: StudySpec | str | Path, options: Options | None = None) -> Path:
    """Runs or resumes a study to its end and returns its folder, which :func:`sweep.load_frames` reads.

    Writes records and no report. In a notebook the cell shows the progress, in one output that is replaced; elsewhere
    nothing is printed.

    Args:
        study: a study, the path of its TOML file, or the name of a shipped one.
        options: where and how it runs; by default in processes on this machine, with records under ``runs``.

    Raises:
        InputError: the study cannot run as it is.
        KeyboardInterrupt: after Ctrl-C or the interruption of the cell, when what was trained has written a checkpoint;
            the same call resumes.
        SystemExit: likewise after SIGTERM (143) and SIGUSR1 (75). Both in the main thread only, which gets signals.
    """
    spec = study if isinstance(study, StudySpec) else load_study(study)
    with warnings.catch_warnings():  # of Optuna's progress bars, which are not used
        warnings.filterwarnings("ignore", message="IProgress not found")
        from sweep.search.session import run_study as run_quietly
    if not is_notebook():
        return run_quietly(spec, options)
    return run_quietly(spec, replace(options or Options(), resumed_by="the same cell again"), _show_in_cell)


@contextmanager
def _show_in_cell(session: "Session") -> Iterator[Callable[[Event], None]]:
    records = session.store.trial_records(session.spec.name)
    surface = NotebookSurface()
    with Display(session.spec, records, resumed_by=session.options.resumed_by, surface=surface) as display:
        yield display.show
