"""Beside the main picture, over the effective batch size: the tuned accuracy, and the time of the training and to a
common accuracy."""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from reports.first.answer_marks import AnswerMarks, known_bounds
from reports.first.label_places import Box
from reports.first.log_axis import LogAxis, make_axis, make_error_axis
from reports.first.picture_frame import (
    PictureSize,
    draw_accuracy_axis,
    draw_time_ticks,
    draw_titles,
    find_time_unit,
    place_accuracy,
    wrap_picture,
)
from reports.first.svg_elements import draw_mark, element, hue_of, join, polyline, write
from reports.labels import format_estimate, format_value, metric_label
from sweep.analysis.answer import TunedBatch, TunedModel
from sweep.analysis.statistics import Interval

SIZE = PictureSize(360.0, 212.0)
_BATCH_PIXELS = 30.0  # least distance of two numbers below the axis
Place = Callable[[float], float]


def draw_tuned_accuracies(found: AnswerMarks, finding: str) -> Markup:
    """The accuracy that was reached at each batch size, with the tolerance below the best one of each model."""
    area, axis = SIZE.area, make_error_axis(found.errors, SIZE.area)
    x = _make_batch_axis(found, area)
    parts = [draw_accuracy_axis(axis, area), _draw_batch_ticks(found, x, area)]
    parts.append(draw_titles(area, name_accuracy(found), "Effective batch size"))
    parts.append(_draw_band(found, axis, area))

    def up(accuracy: float) -> float:
        return place_accuracy(axis, accuracy)

    for model in found.models:
        parts += _draw_series(found, model, "val_accuracy", x, up)
    parts.append(_write_below(found, x, area))
    return wrap_picture(SIZE, "tuned", finding, parts)


def draw_batch_times(found: AnswerMarks, models: Sequence[TunedModel], finding: str) -> Markup:
    """Training time, and time to the common accuracy where it is known, with the line of ideal scaling."""
    area, seconds = SIZE.area, list_seconds(found)
    unit = find_time_unit(seconds)
    axis = make_axis([each * unit.factor for each in seconds], area.bottom, area.top)
    x = _make_batch_axis(found, area)

    def up(value: float) -> float:
        return axis.place(value * unit.factor)

    parts = [draw_time_ticks(axis, area, is_down=True), _draw_batch_ticks(found, x, area)]
    parts.append(draw_titles(area, name_time(found, models, unit.suffix), "Effective batch size"))
    parts.append(_draw_ideal(found, x, up))
    for model in found.models:
        parts += _draw_series(found, model, "train_seconds", x, up)
        parts.append(_draw_times_to_target(found, model, x, up))
    return wrap_picture(SIZE, "times", finding, parts)


def name_accuracy(found: AnswerMarks) -> str:
    """What the picture of tuned accuracies shows."""
    shown = f"{100 * found.tolerance:.3g}"
    return f"Tuned accuracy (%); band: within {shown} {'point' if shown == '1' else 'points'} of the best"


def name_time(found: AnswerMarks, models: Sequence[TunedModel], suffix: str) -> str:
    """What the picture of times shows, in the unit ``suffix``."""
    reached = {point.model for point in found.curve if math.isfinite(point.seconds_to_target.median)}
    targets = {format_value("fraction", each.target_accuracy) for each in models if each.model in reached}
    name = f"Training time ({suffix})"
    name += "; dashed: ideal 1/B" if len({point.batch for point in found.curve}) > 1 else ""
    return f"{name}; dotted: to {targets.pop() if len(targets) == 1 else 'a target'}" if targets else name


def _make_batch_axis(found: AnswerMarks, area: Box) -> LogAxis:
    batches = [float(point.batch) for point in found.curve]
    return LogAxis(low=min(batches) / 1.25, high=max(batches) * 1.25, start=area.left, end=area.right)


def _draw_batch_ticks(found: AnswerMarks, axis: LogAxis, area: Box) -> Markup:
    parts, last = [], -math.inf
    for batch in sorted({point.batch for point in found.curve}):
        x = axis.place(batch)
        if x - last >= _BATCH_PIXELS:
            parts.append(write(str(batch), x, area.bottom + 16, "tick x-tick", "middle"))
            last = x
    return join(parts)


def points_of(found: AnswerMarks, model: str) -> list[TunedBatch]:
    """The tuned batch sizes of a model in ascending order."""
    return sorted((point for point in found.curve if point.model == model), key=lambda point: point.batch)


def _draw_band(found: AnswerMarks, axis: LogAxis, area: Box) -> Markup:
    best = max(point.accuracy.median for point in found.curve)
    top, bottom = (place_accuracy(axis, value) for value in (best, best - found.tolerance))
    return element("rect", x=area.left, y=top, width=area.right - area.left, height=bottom - top, class_="band")


def _draw_series(found: AnswerMarks, model: str, name: str, x: LogAxis, up: Place) -> list[Markup]:
    # a mark with its interval for each batch, joined by a line; below the cut of the axis a mark lies at its end
    # (_write_below)
    points, shape = points_of(found, model), found.models.index(model)
    values = [value_of(point, name) for point in points]
    places = [(x.place(point.batch), up(value.median)) for point, value in zip(points, values, strict=True)]
    parts = [polyline(places, "series")] if len(places) > 1 else []
    for point, value, (across, height) in zip(points, values, places, strict=True):
        hue = hue_of(point.batch, found.batches)
        lower, upper = (up(bound) for bound in known_bounds(value))
        parts.append(element("path", d=f"M{across:.1f},{lower:.1f}V{upper:.1f}", class_="interval hue", style=hue))
        kind = f"mark hue{'' if point.num_seeds else ' hollow'}"
        drawn = draw_mark(across, height, shape, kind, _describe_point(point, name), point.number)
        parts.append(element("g", drawn, style=hue))
    return parts


def _write_below(found: AnswerMarks, x: LogAxis, area: Box) -> Markup:
    # the true values above the marks that lie at the lower end, because they are below the cut
    below: dict[int, list[str]] = {}
    for point in found.curve:
        if point.accuracy.median < found.cut:
            below.setdefault(point.batch, []).append(f"{100 * point.accuracy.median:.0f}")
    texts = {batch: f"▾ {', '.join(dict.fromkeys(shown))} %" for batch, shown in below.items()}
    return join([write(text, x.place(batch), area.bottom - 9, "remark", "middle") for batch, text in texts.items()])


def value_of(point: TunedBatch, name: str) -> Interval:
    """The estimate of accuracy or training time."""
    return point.accuracy if name == "val_accuracy" else point.seconds


def _describe_point(point: TunedBatch, name: str) -> str:
    value, interval = format_estimate(name, *value_of(point, name))
    shown = f"{value} ({interval})" if interval else value
    return f"Effective batch size {point.batch}, {point.model}: {metric_label(name).lower()} {shown}"


def list_seconds(found: AnswerMarks) -> list[float]:
    """All times that the picture of times holds."""
    bounds = [bound for point in found.curve for bound in known_bounds(point.seconds)]
    targets = [point.seconds_to_target.median for point in found.curve]
    return [*bounds, *(value for value in targets if math.isfinite(value))]


def _draw_ideal(found: AnswerMarks, x: LogAxis, up: Place) -> Markup:
    corners = [(x.place(batch), up(seconds)) for batch, seconds in list_ideal_times(found)]
    return polyline(corners, "ideal") if corners else Markup("")


def list_ideal_times(found: AnswerMarks) -> list[tuple[float, float]]:
    """Two batch sizes with their times if time were proportional to 1 / batch, from the smallest batch of the first
    model on until the edge of the picture; none of a single batch size."""
    if len({point.batch for point in found.curve}) == 1:
        return []
    first = points_of(found, found.models[0])[0]
    last, least = max(point.batch for point in found.curve), min(list_seconds(found))
    end = min(float(last), first.batch * first.seconds.median / least)
    return [(batch, first.seconds.median * first.batch / batch) for batch in (float(first.batch), end)]


def _draw_times_to_target(found: AnswerMarks, model: str, x: LogAxis, up: Place) -> Markup:
    known = [point for point in points_of(found, model) if math.isfinite(point.seconds_to_target.median)]
    places = [(x.place(point.batch), up(point.seconds_to_target.median)) for point in known]
    dots = [element("circle", cx=across, cy=height, r=2.5, class_="target") for across, height in places]
    return join([polyline(places, "series target-line"), *dots] if len(places) > 1 else dots)
