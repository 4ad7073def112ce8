"""Writes the report of a study: the page and a picture of each figure."""

import ctypes
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.figure import FORMATS, Absent, Figure, Format, Paper
from sweep.config.errors import InputError, describe_unknown, hide_credentials

if TYPE_CHECKING:
    from sweep.records.frames import Frames


_SCREEN = Paper()
_MAX_PROCESSES = 4
_INLINE_INCHES = (11.0, 4.2)  # widths of the answer's picture on the page, which shows the one that fits
_PR_SET_PDEATHSIG = 1


def write_report(
    records: "Frames | str | Path",
    out: str | Path | None = None,
    study: str | None = None,
    formats: Sequence[str] = ("png",),
    paper: Paper = _SCREEN,
) -> Path:
    """Writes ``report.html`` and a picture of each figure beside it, also while the study runs.

    Args:
        records: frames of one study with their evaluations, or the path or URL to load them from.
        out: the folder to write into, by default the study's own; a path that ends in ``.html`` names the page itself.
        study: the one to report where the records hold several.
        formats: of the pictures: png, svg, pdf.
        paper: what the pictures are for, which gives their width.

    Returns:
        The path of the page.

    Raises:
        InputError: there are no records, there is no such format, or the folder cannot be written.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(describe_unknown("format of a picture", name, FORMATS))
    forms = [form for form in FORMATS if form in formats]
    with _start_drawing() as pool, _without_collector():  # processes start while the records are read
        if not isinstance(records, str | Path):
            return _write_all(records, _page_path("", out), forms, pool, paper)
        from sweep.records.loading import load_frames

        frames = load_frames(records, study=study, evaluations=True)
        names = frames.studies["study"].tolist()
        if len(names) > 1:
            place = hide_credentials(records)
            raise InputError(f"{place}: a report is about one study; name one of {', '.join(sorted(names))}.")
        return _write_all(frames, _page_path(records, out), forms, pool, paper)


@contextmanager
def _without_collector() -> Iterator[None]:
    # Python's collector would traverse a million rows repeatedly and free nothing: a fifth of the time
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _start_drawing() -> Iterator[ProcessPoolExecutor | None]:
    """Processes that draw, because matplotlib takes longer than all the rest. None where this process has threads, with
    which a fork is not safe, or no second processor: then it draws by itself."""
    count = min(_MAX_PROCESSES, len(os.sched_getaffinity(0)))
    if threading.active_count() > 1 or count < 2:
        yield None
        return
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork"), initializer=_import_drawing) as pool:
        pool.submit(int)  # begins all processes, before pandas and scipy are here
        yield pool


def _import_drawing() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from reports import draw  # noqa: F401


def _write_all(
    frames: "Frames", page_path: Path, forms: Sequence[Format], pool: ProcessPoolExecutor | None, paper: Paper
) -> Path:
    # imported late, so that the other processes begin before pandas and scipy are here
    from reports.evidence import gather_evidence
    from reports.figures.all_figures import make_figures
    from reports.page.page import render_page

    # begins a job, and gives what waits for its result
    begin: Callable[..., Callable[[], Any]] = (lambda *job: pool.submit(*job).result) if pool else partial
    inline: list[Callable[[], str]] = []
    pictures: dict[str, Callable[[], bytes]] = {}  # by name of their file

    def begin_drawing(figure: Figure) -> None:
        if figure.name == "answer":  # first, because the page waits for these
            inline.extend(begin(_draw_inline, figure, inches) for inches in _INLINE_INCHES)
        pictures.update((f"{figure.name}.{form}", begin(_draw_picture, figure, form, paper)) for form in forms)

    evidence = gather_evidence(frames)
    made = make_figures(evidence, begin_drawing)
    page = render_page(evidence, made, [draw() for draw in inline])
    try:
        page_path.parent.mkdir(parents=True, exist_ok=True)
        _write(page_path, page.encode())
        for name, draw in pictures.items():
            _write(page_path.with_name(name), draw())
        for form in FORMATS if isinstance(made.answer, Absent) else ():  # of an earlier report, which does not hold
            page_path.with_name(f"answer.{form}").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{page_path}: cannot be written: {error.strerror}. Choose another folder by --out.") from None
    return page_path


def _draw_picture(figure: Figure, form: Format, paper: Paper) -> bytes:
    from reports.draw import draw_picture

    return draw_picture(figure, form, paper)


def _draw_inline(figure: Figure, inches: float) -> str:
    from reports.draw import draw_inline

    return draw_inline(figure, inches)


def _page_path(path: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        given = Path(out)
        return given if given.suffix == ".html" else given / "report.html"
    if "://" in str(path):
        raise InputError(f"{hide_credentials(path)}: records in a database have no folder; choose one with --out DIR.")
    records = Path(path)
    return (records if records.is_dir() else records.parent) / "report.html"


def _write(path: Path, data: bytes) -> None:
    # a reader sees the old file or the new one, never a part
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
