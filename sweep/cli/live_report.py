"""``sweep report --live``: the page of a study is written again while the study runs."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from reports import write_report
from sweep.config.errors import InputError
from sweep.records.store.lock import is_held

# A page takes about a second of one core, which the trainings on the same machine lack meanwhile.
INTERVAL_SECONDS = 30


def write_live(
    folder: Path, out: Path | None, announce: Callable[[str], None], interval_seconds: float = INTERVAL_SECONDS
) -> None:
    """Writes the page of the study in ``folder`` whenever its records have changed, at most once an interval, until the
    process that runs the study has ended; of a process on another host that is not known, and it follows until it is
    interrupted. ``announce`` receives a line with the path of the first page, or that the
    study does not run.

    Raises:
        InputError: ``folder`` is no study's folder.
    """
    if not (folder / "study.sqlite").is_file():
        raise InputError(f"sweep report --live: {folder} is not a study's folder; it follows a study that runs there.")
    if not is_held(folder):
        announce("sweep report --live: the study does not run; its report is written once.")
    seen: object = None
    while is_held(folder):
        state = _read_state(folder)
        if state != seen:
            page = write_report(folder, out=out, formats=(), refresh_seconds=max(1, round(interval_seconds)))
            if seen is None:
                announce(f"report, written again every {interval_seconds:.0f} s while the study runs: {page}")
            seen = state
        time.sleep(interval_seconds)


def _read_state(folder: Path) -> list[tuple[str, int, int]]:
    # each commit changes the database or its log
    found = []
    for path in sorted(folder.glob("study.sqlite*")):
        with contextlib.suppress(FileNotFoundError):  # the log is removed when its last user closes it
            status = path.stat()
            found.append((path.name, status.st_mtime_ns, status.st_size))
    return found
