"""Writes the report of a study: the page and a picture of each figure."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from reports.figure import FORMATS, Absent, Figure, Format, Paper
from reports.first.answer_figure import ANSWER_NAME, AnswerFigure
from reports.print.painter import Painter, Task
from sweep.config.errors import InputError, describe_unknown, hide_credentials

if TYPE_CHECKING:
    from sweep.records.frames.study_frames import Frames

_SCREEN = Paper()


def write_report(
    path: str | Path,
    out: str | Path | None = None,
    study: str | None = None,
    formats: Sequence[str] = ("png",),
    paper: Paper = _SCREEN,
    refresh_seconds: int = 0,
) -> Path:
    """Writes ``report.html`` and a picture of each figure beside it; returns the path of the page.

    ``path`` is what :func:`sweep.records.frames.frames.load_frames` takes. ``out`` is the folder to write into, by
    default the study's own; a path that ends in ``.html`` names the page itself. ``study`` picks one where the records
    hold several. ``formats`` are those of the pictures: png, svg, pdf; ``paper`` is their width. With
    ``refresh_seconds`` a browser reads the page again after that time.
    Works while the study runs.

    Raises:
        InputError: there are no records, there is no such format, or the folder cannot be written.
    """
    from sweep.records.frames.frames import load_frames

    forms = _check(formats)
    with _painter(forms) as painter, _without_collector():  # it starts while the records are read
        frames = load_frames(path, study=study, evaluations=True)
        names = frames.studies["study"].tolist()
        if len(names) > 1:
            raise InputError(
                f"{hide_credentials(path)}: a report is about one study; name one of {', '.join(sorted(names))}."
            )
        return _write_all(frames, _page_path(path, out), forms, painter, paper, refresh_seconds)


def write_frames_report(
    frames: "Frames", page_path: Path, formats: Sequence[str] = ("png",), paper: Paper = _SCREEN
) -> Path:
    """:func:`write_report` for frames that are loaded already."""
    forms = _check(formats)
    with _painter(forms) as painter, _without_collector():
        return _write_all(frames, page_path, forms, painter, paper)


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


def _painter(forms: Sequence[str]) -> AbstractContextManager[Painter | None]:
    if not forms:
        return nullcontext()
    try:
        return Painter()
    except OSError:  # no further process can be started: this one draws
        return nullcontext()


def _write_all(
    frames: "Frames",
    page_path: Path,
    forms: Sequence[Format],
    painter: Painter | None,
    paper: Paper,
    refresh_seconds: int = 0,
) -> Path:
    # imported late, so that the other process starts before pandas and scipy are here
    from reports.evidence import gather_evidence
    from reports.figures.all_figures import make_figures
    from reports.first.answer_panels import make_answer_figure
    from reports.first.first_texts import describe_first
    from reports.page.html import render_page

    tasks: list[Task] = []

    def ready(figure: Figure | AnswerFigure) -> None:
        for form in forms:
            tasks.append((figure, form, paper))
            if painter is not None:
                painter.send_task(tasks[-1])

    evidence = gather_evidence(frames)
    answer = make_answer_figure(evidence, describe_first(evidence))
    if isinstance(answer, AnswerFigure):
        ready(answer)
    made = make_figures(evidence, ready)
    if isinstance(answer, Absent):
        made.absent.append(answer)
    try:
        page_path.parent.mkdir(parents=True, exist_ok=True)
        _write(page_path, render_page(evidence, made, refresh_seconds).encode())
        pictures = painter.collect_pictures() if painter is not None else []
        for (figure, form, _), picture in zip(tasks, pictures or map(_drawn_here, tasks), strict=True):
            _write(page_path.with_name(f"{figure.name}.{form}"), picture)
        if isinstance(answer, Absent):
            _remove_answers(page_path)
    except OSError as error:
        raise InputError(f"{page_path}: cannot be written: {error.strerror}. Choose another folder by --out.") from None
    return page_path


def _remove_answers(page_path: Path) -> None:
    # what an earlier report recommended does not hold any longer
    for form in FORMATS:
        page_path.with_name(f"{ANSWER_NAME}.{form}").unlink(missing_ok=True)


def _drawn_here(task: Task) -> bytes:
    from reports.print.pictures import draw_picture

    return draw_picture(*task)


def _check(formats: Sequence[str]) -> list[Format]:
    for name in formats:
        if name not in FORMATS:
            raise InputError(describe_unknown("format of a picture", name, FORMATS))
    return [form for form in FORMATS if form in formats]


def _page_path(path: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        given = Path(out)
        return given if given.suffix == ".html" else given / "report.html"
    if "://" in str(path):
        raise InputError(f"{hide_credentials(path)}: records in a database have no folder; choose one with --out DIR.")
    place = Path(path)
    return (place if place.is_dir() else place.parent) / "report.html"


def _write(path: Path, data: bytes) -> None:
    # a reader sees the old file or the new one, never a part
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
