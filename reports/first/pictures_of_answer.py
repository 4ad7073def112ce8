"""The pictures of the first screen with their captions."""

from dataclasses import dataclass

from markupsafe import Markup

from reports.evidence import Evidence
from reports.first.answer_marks import AnswerMarks, collect_marks
from reports.first.batch_pictures import draw_batch_times, draw_tuned_accuracies
from reports.first.first_texts import format_points
from reports.first.svg_elements import SHAPE_NAMES
from reports.first.tradeoff_picture import NARROW, WIDE, draw_tradeoff
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.config.units import format_count


@dataclass(frozen=True)
class FirstPictures:
    """Each picture as an SVG element; ``tradeoff`` in two sizes, of which the style sheet shows one."""

    tradeoff: tuple[Markup, ...]
    beside: tuple[Markup, ...]
    caption: str


def draw_first_pictures(evidence: Evidence, finding: str) -> FirstPictures | None:
    """The pictures of ``evidence.answer``, each named by ``finding``; None where there is no estimate to draw."""
    found, answer = collect_marks(evidence), evidence.answer.batch_size
    if found is None or answer is None:
        return None
    name = f"{finding} Validation accuracy against training time: {format_count(len(found.shown), 'configuration')}"
    name += f", {len(found.below)} more below the axis." if found.below else "."
    return FirstPictures(
        tradeoff=tuple(draw_tradeoff(found, size, name) for size in (WIDE, NARROW)),
        beside=(
            draw_tuned_accuracies(found, f"{finding} Tuned validation accuracy by effective batch size."),
            draw_batch_times(found, answer.models, f"{finding} Training time by effective batch size."),
        ),
        caption=describe_legend(found),
    )


def describe_legend(found: AnswerMarks) -> str:
    """What number, color, shape, ring and line of a picture stand for."""
    shapes = [f"{SHAPE_NAMES[index % len(SHAPE_NAMES)]}: {model}" for index, model in enumerate(found.models)]
    confirmed = any(mark.num_seeds for mark in found.marks)
    fresh = " of those with fresh seeds" if confirmed else ""
    parts = [
        "Number and color: effective batch size",
        ", ".join(shapes),
        "filled: trained again with fresh seeds, with 95 % intervals; hollow: one seed of the search"
        if confirmed
        else "hollow: one seed of the search",
        *(["ring: recommended"] if any(mark.is_named for mark in found.marks) else []),
        *([f"line: Pareto front of accuracy and time{fresh}"] if len(found.front_line) > 1 else []),
        f"dotted: least useful accuracy, {format_points(ACCURACY_MARGIN)} below the best",
    ]
    hidden = (
        f" {format_count(found.num_hidden, 'configuration')} without an estimate not shown." if found.num_hidden else ""
    )
    return f"{'; '.join(parts)}. Values are the estimates behind the recommendation.{hidden}"
