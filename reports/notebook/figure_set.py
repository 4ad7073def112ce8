"""The figures of a study's records, which a notebook shows one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from reports.evidence import gather_evidence
from reports.figure import Absent, Figure
from reports.figures.all_figures import make_figures
from reports.first.answer_figure import AnswerFigure
from reports.first.answer_panels import make_answer_figure
from reports.first.first_texts import describe_first
from reports.notebook.view import View, ViewPart, write_html
from sweep.config.errors import InputError, describe_unknown
from sweep.config.units import format_count
from sweep.records.frames.frames import load_frames
from sweep.records.frames.study_frames import Frames


@final
@dataclass(frozen=True)
class FigureSet(Mapping[str, Figure | AnswerFigure]):
    """The figures of a report by name, as data; a notebook draws the one that a cell returns. ``absent`` are those that
    the records cannot fill, each with what to record."""

    figures: dict[str, Figure | AnswerFigure]
    absent: tuple[Absent, ...]

    def __getitem__(self, name: str) -> Figure | AnswerFigure:
        if name not in self.figures:
            raise InputError(f"{describe_unknown('figure', name, self.figures)} Absent ones are in .absent.")
        return self.figures[name]

    def __contains__(self, name: object) -> bool:
        return name in self.figures

    def get(self, name: str, default: Any = None) -> Any:
        """The figure ``name``; ``default`` where it is absent."""
        return self.figures.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __repr__(self) -> str:
        return f"FigureSet({', '.join(self.figures)})"

    def _repr_html_(self) -> str:
        rows = tuple(
            ((name, ""), (figure.title, figure.finding if isinstance(figure, Figure) else ""))
            for name, figure in self.figures.items()
        )
        absent = tuple((f"{each.title}: {each.remedy}", "") for each in self.absent)
        parts = (
            ViewPart(heads=("Name", "Figure"), rows=rows),
            ViewPart(head="Not in these records", items=absent) if absent else ViewPart(),
        )
        return write_html(View(format_count(len(rows), "figure"), "", parts))


def collect_figures(records: Frames | str | Path) -> FigureSet:
    """The figures that ``sweep report`` draws, as data; in a notebook one that a cell returns is drawn.

    Args:
        records: frames of one study with their evaluations, or the path or URL to load them from.

    Raises:
        InputError: no records there, or frames without evaluations.
    """
    frames = load_frames(records, evaluations=True) if isinstance(records, str | Path) else records
    if frames.evaluations is None:
        raise InputError("the evaluations were not loaded; use load_frames(place, evaluations=True).")
    evidence = gather_evidence(frames)
    answer = make_answer_figure(evidence, describe_first(evidence))
    made = make_figures(evidence)
    drawn: list[Figure | AnswerFigure] = [*([answer] if isinstance(answer, AnswerFigure) else []), *made.figures]
    absent = [*([answer] if isinstance(answer, Absent) else []), *made.absent]
    return FigureSet({figure.name: figure for figure in drawn}, tuple(absent))
