"""The image to share: the pictures of the first screen as data, from the same marks."""

import math

from reports.evidence import Evidence
from reports.figure import Absent
from reports.first.answer_figure import AnswerFigure, AnswerPanel, Curve, PictureAxis, Spot
from reports.first.answer_marks import AnswerMarks, Mark, collect_marks, known_bounds, label_of, time_bounds
from reports.first.batch_pictures import (
    list_ideal_times,
    list_seconds,
    name_accuracy,
    name_time,
    points_of,
    value_of,
)
from reports.first.first_texts import FirstTexts
from reports.first.log_axis import error_of
from reports.first.picture_frame import find_time_unit
from reports.first.pictures_of_answer import describe_legend
from reports.first.svg_elements import colors_of
from reports.first.tradeoff_picture import describe_below, describe_floor
from sweep.analysis.answer import TunedBatch, TunedModel

_TITLE = "Image of the answer"


def make_answer_figure(evidence: Evidence, first: FirstTexts) -> AnswerFigure | Absent:
    """The image with the texts ``first``; what to record where nothing can be recommended yet."""
    found, answer = collect_marks(evidence), evidence.answer.batch_size
    if found is None or answer is None or answer.named.number is None:
        remedy = f"; run {first.command}." if first.command else "."
        return Absent(_TITLE, f"requires a recommended batch size, of which there is none yet{remedy}")
    return AnswerFigure(
        title=first.headline,
        subtitle="\n".join(filter(None, (first.comparison, first.certainty))),
        caption=f"{describe_legend(found)}\n{' · '.join(first.provenance)}.",
        panels=(_make_tradeoff(found), _make_accuracies(found), _make_times(found, answer.models)),
    )


def _make_tradeoff(found: AnswerMarks) -> AnswerPanel:
    seconds = [bound for mark in found.shown for bound in time_bounds(mark)]
    unit, labeled = find_time_unit(seconds), found.labeled
    others = [mark for mark in found.shown if mark not in labeled]
    corners, held = found.front_line, tuple(value * unit.factor for value in seconds)
    return AnswerPanel(
        x=PictureAxis(f"Training time ({unit.suffix}), log{_name_edge(found)}", "log", held),
        y=PictureAxis("Validation accuracy (%), on an error scale", "error", tuple(found.errors)),
        spots=tuple(_make_spot(found, mark, unit.factor, mark in labeled) for mark in (*labeled, *others)),
        curves=(
            Curve("floor", (min(held), max(held)), (error_of(found.floor),) * 2),
            Curve("front", tuple(x * unit.factor for x, _ in corners), tuple(error_of(y) for _, y in corners)),
        ),
        edge=tuple((mark.seconds.median * unit.factor, _color(found, mark.batch)) for mark in found.below),
        floor_text=describe_floor(found),
    )


def _name_edge(found: AnswerMarks) -> str:
    return f"; ticks at the edge: {describe_below(found)}" if found.below else ""


def _make_spot(found: AnswerMarks, mark: Mark, factor: float, is_labeled: bool) -> Spot:
    x, y = mark.seconds.median, mark.accuracy.median
    bounds = known_bounds(mark.accuracy) if mark.num_seeds else (y, y)
    low, high = min(time_bounds(mark)), max(time_bounds(mark))
    return Spot(
        x=x * factor,
        y=error_of(y),
        x_bounds=(low * factor, high * factor),
        y_bounds=(error_of(bounds[1]), error_of(bounds[0])),
        color=_color(found, mark.batch),
        shape=found.models.index(mark.model),
        is_filled=mark.num_seeds > 0,
        is_named=mark.is_named,
        label=label_of(mark) if is_labeled else "",
    )


def _make_accuracies(found: AnswerMarks) -> AnswerPanel:
    best = max(point.accuracy.median for point in found.curve)
    spots = [_make_tuned_spot(found, point, "val_accuracy", 1.0) for point in found.curve]
    return AnswerPanel(
        x=_make_batch_axis(found),
        y=PictureAxis(name_accuracy(found), "error", tuple(found.errors)),
        spots=tuple(spots),
        curves=_join_models(found, "val_accuracy", 1.0),
        band=(error_of(best), error_of(best - found.tolerance)),
    )


def _make_times(found: AnswerMarks, models: tuple[TunedModel, ...]) -> AnswerPanel:
    seconds = list_seconds(found)
    unit = find_time_unit(seconds)
    ideal = list_ideal_times(found)
    return AnswerPanel(
        x=_make_batch_axis(found),
        y=PictureAxis(name_time(found, models, unit.suffix), "log", tuple(value * unit.factor for value in seconds)),
        spots=tuple(_make_tuned_spot(found, point, "train_seconds", unit.factor) for point in found.curve),
        curves=(
            Curve("ideal", tuple(x for x, _ in ideal), tuple(y * unit.factor for _, y in ideal)),
            *_join_models(found, "train_seconds", unit.factor),
            *_join_targets(found, unit.factor),
        ),
    )


def _make_batch_axis(found: AnswerMarks) -> PictureAxis:
    return PictureAxis("Effective batch size", "batch", tuple(sorted({float(point.batch) for point in found.curve})))


def _make_tuned_spot(found: AnswerMarks, point: TunedBatch, name: str, factor: float) -> Spot:
    value = value_of(point, name)
    y, *bounds = (_height(each, name, factor) for each in (value.median, *known_bounds(value)))
    return Spot(
        x=float(point.batch),
        y=y,
        x_bounds=(float(point.batch),) * 2,
        y_bounds=(min(bounds), max(bounds)),
        color=_color(found, point.batch),
        shape=found.models.index(point.model),
        is_filled=point.num_seeds > 0,
    )


def _join_models(found: AnswerMarks, name: str, factor: float) -> tuple[Curve, ...]:
    curves = []
    for model in found.models:
        points = points_of(found, model)
        heights = tuple(_height(value_of(point, name).median, name, factor) for point in points)
        curves.append(Curve("series", tuple(float(point.batch) for point in points), heights))
    return tuple(curves)


def _join_targets(found: AnswerMarks, factor: float) -> tuple[Curve, ...]:
    curves = []
    for model in found.models:
        known = [point for point in points_of(found, model) if math.isfinite(point.seconds_to_target.median)]
        heights = tuple(point.seconds_to_target.median * factor for point in known)
        curves.append(Curve("target", tuple(float(point.batch) for point in known), heights))
    return tuple(curves)


def _height(value: float, name: str, factor: float) -> float:
    return error_of(value) if name == "val_accuracy" else value * factor


def _color(found: AnswerMarks, batch: int) -> str:
    return colors_of(batch, found.batches)[0]
