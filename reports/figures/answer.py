"""The picture of the answer: accuracy against training time, and both over the effective batch size.

Accuracies lie on an error scale, the logarithm of 1 - accuracy with the least error at the top: 99 % is half of the
errors of 98 %. Another quality lies on a linear one, the best at the top too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reports.evidence import Evidence, read_interval
from reports.figure import Absent, Axis, Figure, Floats, Intervals, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.labels import format_estimate, format_metric, metric_label
from reports.layout import list_even_ticks, log_ticks
from reports.texts import describe_first
from sweep.analysis.answer import TunedBatch, TunedModel
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.gain import turn_interval
from sweep.analysis.statistics import Interval, non_dominated, read_numbers
from sweep.config.metrics import IMAGES, Quality, format_count

_TITLE = "Picture of the answer"
_LEAST_ERROR = 1e-4  # an accuracy of 100 % has no place on an error scale


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """One configuration with its estimates, the accuracy, or the gain that another ``quality`` is, among them;
    ``num_seeds`` are fresh ones, ``is_tuned`` where it is the best of its effective batch size."""

    number: int
    model: str
    batch: int
    num_seeds: int
    accuracy: Interval
    seconds: Interval
    is_front: bool
    is_tuned: bool
    is_named: bool
    quality: Quality

    @property
    def text(self) -> str:
        """The hover text."""
        shown = turn_interval(self.accuracy, self.quality)
        pairs = [
            format_estimate(self.quality.column, *shown, self.quality), format_estimate("train_seconds", *self.seconds)
        ]  # fmt: skip
        values = ", ".join(f"{value} ({interval})" if interval else value for value, interval in pairs)
        seeds = format_count(self.num_seeds, "fresh seed") if self.num_seeds else "one seed of the search"
        return f"Effective batch size {self.batch}, {self.model}, trial {self.number}: {values}, {seeds}"


@dataclass(frozen=True, kw_only=True)
class AnswerMarks:
    """``marks`` in the order of their numbers; ``curve`` of the tuned batches; ``models`` in the order of the curve;
    ``floor`` is the least useful accuracy; ``tolerance`` of accuracy; ``num_hidden`` configurations that could not win
    and have no estimate. All accuracies are gains of the ``quality``."""

    marks: tuple[_Mark, ...]
    curve: tuple[TunedBatch, ...]
    models: tuple[str, ...]
    floor: float
    tolerance: float
    num_hidden: int
    quality: Quality

    @property
    def is_log(self) -> bool:
        """Whether errors lie on a logarithmic scale."""
        return self.quality.unit == "fraction" and self.quality.sign > 0

    def error(self, accuracy: float) -> float:
        """The place of an accuracy on the axis, whose top is the least."""
        return _error(accuracy) if self.is_log else -accuracy

    def errors(self, accuracy: Interval) -> Interval:
        """The same with its interval."""
        middle, low, high = map(self.error, accuracy[:3])
        return Interval(middle, high, low, accuracy.n)

    def show(self, accuracy: float) -> str:
        """An accuracy as a text."""
        return format_metric(self.quality.column, self.quality.sign * accuracy, self.quality)

    def find_ends(self, cut: float, *, has_edge: bool) -> tuple[float, float, float, float]:
        """The ends of an axis down to ``cut``: see :func:`_find_ends`."""
        if self.is_log:
            return _find_ends(self.least, cut, has_edge=has_edge)
        most = max(self.error(cut), self.least + self.tolerance)
        room = 0.1 * (most - self.least)
        edge = most + room * has_edge
        return self.least - 0.5 * room, most, edge, edge + 0.6 * room

    @property
    def least(self) -> float:
        """The least error that there is to draw."""
        values = [*(mark.accuracy for mark in self.marks), *(point.accuracy for point in self.curve)]
        return min(self.error(self.floor), *(self.error(_bounds(value)[1]) for value in values))

    @cached_property
    def cut(self) -> float:
        """The least accuracy that is drawn at its height: no useful one, none of a batch's best, and none that the axis
        has room for lies below."""
        ordered = sorted(self.marks, key=lambda mark: -mark.accuracy.median)
        best = {(mark.model, mark.batch): mark for mark in reversed(ordered)}.values()
        main = [mark.accuracy for mark in ordered if mark.accuracy.median >= self.floor or mark.is_tuned]
        main += [*(mark.accuracy for mark in best), *(point.accuracy for point in self.curve)]
        cut = min(self.floor, *(_bounds(value)[0] for value in main))
        for mark in ordered:
            if self.error(mark.accuracy.median) <= self.find_ends(cut, has_edge=True)[3]:
                cut = min(cut, _bounds(mark.accuracy)[0])
        return cut

    def shade(self, batch: float) -> float:
        """Where an effective batch size lies on the color scale: from 0 to 1, even over its logarithm."""
        sizes = [*(math.log2(mark.batch) for mark in self.marks), *(math.log2(point.batch) for point in self.curve)]
        low, high = min(sizes), max(sizes)
        return (math.log2(batch) - low) / (high - low) if high > low else 0.5


def make_answer(evidence: Evidence) -> Figure | Absent:
    """The picture of the first screen, and to share; what to record where there is no estimate to draw."""
    drawn, answer, first = collect_marks(evidence), evidence.answer.batch_size, describe_first(evidence)
    if drawn is None or answer is None:
        remedy = f"; run {first.command}." if first.command else "."
        return Absent(_TITLE, f"requires an estimate of {evidence.answer.quality.noun} and time{remedy}")
    finding = " ".join(filter(None, (first.comparison, first.certainty)))
    hidden = f" {format_count(drawn.num_hidden, 'configuration')} without an estimate not shown."
    return Figure(
        name="answer",
        title=first.headline,
        caption="Number and color: effective batch size. Values are the estimates behind the recommendation."
        f"{hidden if drawn.num_hidden else ''}\n{' · '.join(first.provenance)}.",
        finding=finding,
        panels=(_draw_tradeoff(drawn), _draw_accuracies(drawn), _draw_times(drawn, answer.models)),
        is_led=True,
    )


def collect_marks(evidence: Evidence) -> AnswerMarks | None:
    """What there is to draw; None without an estimate of accuracy and time."""
    answer, frame, quality = evidence.answer.batch_size, evidence.configurations, evidence.answer.quality
    if answer is None or not {f"{quality.column}_n", "train_seconds_n"} <= {*frame.columns}:
        return None
    usable = np.isfinite(read_numbers(frame, f"{quality.column}_n")) & (read_numbers(frame, "train_seconds") > 0)
    chosen = frame[usable].sort_values("number", kind="stable")
    drawn = (point for point in answer.curve if point.seconds.median > 0)
    curve = tuple(replace(point, accuracy=turn_interval(point.accuracy, quality)) for point in drawn)
    if not len(chosen) or not curve:
        return None
    families = dict(zip(evidence.trials["number"].tolist(), evidence.trials["family"].tolist(), strict=True))
    tuned = {families[point.number] for point in curve}
    named = None if answer.named.number is None else families[answer.named.number]
    # the front is of those with fresh seeds, where there are any: the best of many single trials is biased upward
    confirmed = chosen["confirmed"].to_numpy(dtype=bool)
    table = np.stack(
        [-quality.sign * read_numbers(chosen, quality.column), read_numbers(chosen, "train_seconds")], axis=1
    )
    front = non_dominated(np.where(confirmed[:, None] | ~confirmed.any(), table, np.nan))
    items = [
        _Mark(
            number=int(row["number"]),
            model=str(row["config.model.name"]),
            batch=int(row["global_batch_size"]),
            num_seeds=int(row["num_seeds"]) if row["confirmed"] else 0,
            accuracy=turn_interval(read_interval(row, quality.column), quality),
            seconds=read_interval(row, "train_seconds"),
            is_front=bool(is_front),
            is_tuned=families[row["number"]] in tuned,
            is_named=families[row["number"]] == named,
            quality=quality,
        )
        for (_, row), is_front in zip(chosen.iterrows(), front, strict=True)
    ]
    least, tolerance = evidence.answer.limits.min_accuracy, evidence.answer.tolerated
    margin = quality.resize(ACCURACY_MARGIN, tolerance)
    return AnswerMarks(
        marks=tuple(items),
        curve=curve,
        models=tuple(dict.fromkeys([*(point.model for point in curve), *(mark.model for mark in items)])),
        floor=least if least is not None else max(mark.accuracy.median for mark in items) - margin,
        tolerance=tolerance,
        num_hidden=int((~usable).sum()),
        quality=quality,
    )


def _draw_tradeoff(drawn: AnswerMarks) -> Panel:
    shown = [mark for mark in drawn.marks if mark.accuracy.median >= drawn.cut]
    below = [mark for mark in drawn.marks if mark.accuracy.median < drawn.cut]
    quality = drawn.quality
    axis, edge = _make_error_axis(drawn, quality.label, has_edge=bool(below))
    useful = f"useful {quality.noun}: {drawn.show(drawn.floor)} or {'more' if quality.sign > 0 else 'less'}"
    layers: list[Layer] = [Rule(axis="y", value=drawn.error(drawn.floor), text=useful)]
    if below:
        ends = [drawn.show(pick(mark.accuracy.median for mark in below)) for pick in (min, max)]
        side = "below" if quality.sign > 0 else "above"
        text = f"{format_count(len(below), 'configuration')} {side}: {' to '.join(dict.fromkeys(ends))}"
        cut = drawn.error(drawn.cut)
        layers.append(Rule(axis="y", value=math.sqrt(cut * edge) if drawn.is_log else (cut + edge) / 2, text=text))
    layers += [
        Points(
            name="", role="beyond", x=(mark.seconds.median,), y=(edge,), texts=(mark.text,), trials=(mark.number,),
            shade=drawn.shade(mark.batch),
        )
        for mark in below
    ]  # fmt: skip
    front = sorted((mark for mark in shown if mark.is_front), key=lambda mark: mark.seconds.median)
    path = marks.make_steps(
        np.array([mark.seconds.median for mark in front]),
        np.array([drawn.error(mark.accuracy.median) for mark in front]),
    )
    if front and (not drawn.is_log or max(max(values) / min(values) for values in path) > 1.01):  # else under a mark
        layers.append(Lines(name=f"Pareto front of {quality.noun} and time", role="best", segments=(path,)))
    for mark in sorted(shown, key=lambda mark: (not mark.is_named, not mark.is_tuned, not mark.is_front, mark.number)):
        label = f"batch {mark.batch}" if mark.is_named else str(mark.batch) if mark.is_tuned or mark.is_front else ""
        seconds, errors = mark.seconds, drawn.errors(mark.accuracy)
        if not mark.num_seeds:  # one seed has an estimate, but no interval of its own
            seconds, errors = _fix(seconds.median), _fix(errors.median)
        layers.append(_make_mark(drawn, mark, seconds, errors, mark.text, label))
        if mark.is_named:
            layers.append(Points(name="recommended", role="ring", x=(seconds.median,), y=(errors.median,)))
    times = [mark.seconds if mark.num_seeds else _fix(mark.seconds.median) for mark in drawn.marks]
    time = _make_time_axis([second for each in times for second in _bounds(each)])
    title = "Accuracy on an error scale" if drawn.is_log and quality.noun == "accuracy" else quality.label
    return Panel(x=time, y=axis, layers=tuple(layers), title=title)


def _draw_accuracies(drawn: AnswerMarks) -> Panel:
    best, quality = max(point.accuracy.median for point in drawn.curve), drawn.quality
    axis, _ = _make_error_axis(drawn, "Accuracy" if quality.noun == "accuracy" else quality.label, has_edge=False)
    name = f"within {quality.format_size(drawn.tolerance)} of the best"
    layers: list[Layer] = [
        Rule(axis="y", value=drawn.error(best), end=drawn.error(best - drawn.tolerance), name=name, role="band")
    ]
    for _, points in _by_model(drawn.curve):
        path = _sizes(points), tuple(drawn.error(point.accuracy.median) for point in points)
        layers.append(Lines(name="", role="tuned", segments=(path,)))
        for point in points:
            text = _describe_point(point, quality.column, turn_interval(point.accuracy, quality), quality)
            layers.append(_make_mark(drawn, point, _fix(point.batch), drawn.errors(point.accuracy), text))
    return Panel(x=_make_batch_axis(drawn), y=axis, layers=tuple(layers))


def _draw_times(drawn: AnswerMarks, models: Sequence[TunedModel]) -> Panel:
    layers: list[Layer] = []
    bounds = [(*_bounds(point.seconds), point.seconds_to_target.median) for point in drawn.curve]
    times = [second for seconds in bounds for second in seconds if second > 0]  # NaN is not
    first = next(points for _, points in _by_model(drawn.curve))
    sizes = {point.batch for point in drawn.curve}
    if len(sizes) > 1:  # from the smallest batch of the first model, within what is drawn
        start, seconds = float(first[0].batch), first[0].seconds.median
        end = min(float(max(sizes)), start * seconds / min(times))
        ideal = (start, end), (seconds, seconds * start / end)
        if end > start * (max(sizes) / start) ** 0.1:  # else too short to be seen
            layers.append(Lines(name="ideal: time falls as 1 / batch", role="faint", segments=(ideal,), dashed=True))
    for _, points in _by_model(drawn.curve):
        layers.append(
            Lines(name="", role="tuned", segments=((_sizes(points), tuple(point.seconds.median for point in points)),))
        )
        for point in points:
            text = _describe_point(point, "train_seconds", point.seconds)
            layers.append(_make_mark(drawn, point, _fix(point.batch), point.seconds, text))
    layers += _draw_times_to_target(
        drawn.curve, {model.model: model.target_accuracy for model in models}, drawn.quality
    )
    return Panel(x=_make_batch_axis(drawn), y=_make_time_axis(times), layers=tuple(layers))


def _draw_times_to_target(curve: Sequence[TunedBatch], targets: Mapping[str, float], quality: Quality) -> list[Layer]:
    reached = _by_model([point for point in curve if math.isfinite(point.seconds_to_target.median)])
    if not reached:
        return []
    shown = [
        format_metric(quality.column, targets[model], quality) + f" ({model})" * (len(targets) > 1)
        for model, _ in reached
    ]
    name, items = f"time to {', '.join(shown)}", [point for _, points in reached for point in points]
    paths = [(_sizes(points), tuple(each.seconds_to_target.median for each in points)) for _, points in reached]
    segments = tuple(path for path in paths if len(path[0]) > 1)
    texts = tuple(_describe_point(point, "seconds_to_target", point.seconds_to_target) for point in items)
    times = tuple(point.seconds_to_target.median for point in items)
    marked = Points(name="" if segments else name, role="tuned", x=_sizes(items), y=times, texts=texts)
    return [Lines(name=name, role="tuned", segments=segments, dashed=True), marked] if segments else [marked]


def _make_mark(
    drawn: AnswerMarks, item: _Mark | TunedBatch, x: Interval, y: Interval, text: str, label: str = ""
) -> Intervals:
    (x_low, x_high), (y_low, y_high) = _bounds(x), _bounds(y)
    kind, end = ("fresh seeds, 95 % intervals", "") if item.num_seeds else ("one seed of the search", "-open")
    return Intervals(
        name=f"{item.model}: {kind}", role=f"series-{drawn.models.index(item.model)}{end}",
        x=(x.median,), x_low=(x_low,), x_high=(x_high,), y=(y.median,), y_low=(y_low,), y_high=(y_high,),
        texts=(text,), trials=(item.number,), labels=(label,) if label else (), shade=drawn.shade(item.batch),
    )  # fmt: skip


def _make_error_axis(drawn: AnswerMarks, label: str, *, has_edge: bool) -> tuple[Axis, float]:
    """The axis of accuracies, and the height at its lower end for those below the cut."""
    top, most, edge, end = drawn.find_ends(drawn.cut, has_edge=has_edge)
    unit = {"fraction": " (%)", "nats": " (nats)"}.get(drawn.quality.unit, "")
    if not drawn.is_log:
        factor = 100.0 if drawn.quality.unit == "fraction" else 1.0
        even = [(tick, f"{-drawn.quality.sign * tick * factor:.6g}") for tick in list_even_ticks(drawn.least, most)]
        return Axis(label=label + unit, scale="linear", ticks=tuple(even), bounds=(end, top)), edge
    ticks = [(tick, f"{round(100 * (1 - tick), 6):g}") for tick in log_ticks(drawn.least, most)]
    ticks = [(tick, text if tick > _LEAST_ERROR else f"\u2265 {text}") for tick, text in ticks]
    return Axis(label=label + unit, scale="log", ticks=tuple(ticks), bounds=(end, top)), edge


def _find_ends(least: float, cut: float, *, has_edge: bool) -> tuple[float, float, float, float]:
    """Errors on an axis for errors from ``least``: its first end, the last tick, the marks below the cut, its end."""
    most = max(_error(cut), 1.3 * least)
    room = (most / least) ** 0.1
    edge = most * room if has_edge else most
    return least / max(room**0.5, 1.11), most, edge, max(edge * room**0.6, 1.12 * edge)


def _make_time_axis(times: Sequence[float]) -> Axis:
    low, high = min(times), max(times)
    room = max((high / low) ** 0.05, 1.1)  # matplotlib shows a decade around a single time
    return Axis(label=metric_label("train_seconds"), unit="seconds", scale="log", bounds=(low / room, high * room))


def _make_batch_axis(drawn: AnswerMarks) -> Axis:
    sizes = sorted({float(point.batch) for point in drawn.curve})
    ticks = [sizes[0]]
    for size in sizes:
        if size >= 1.6 * ticks[-1]:
            ticks.append(size)
    bounds = (sizes[0] / 1.25, sizes[-1] * 1.25)
    return Axis(label="Effective batch size", scale="log", ticks=tuple((t, f"{t:g}") for t in ticks), bounds=bounds)


def _by_model(curve: Sequence[TunedBatch]) -> list[tuple[str, list[TunedBatch]]]:
    models = list(dict.fromkeys(point.model for point in curve))
    return [
        (model, sorted((point for point in curve if point.model == model), key=lambda point: point.batch))
        for model in models
    ]


def _sizes(points: Sequence[TunedBatch]) -> Floats:
    return tuple(float(point.batch) for point in points)


def _describe_point(point: TunedBatch, name: str, value: Interval, quality: Quality = IMAGES) -> str:
    shown, interval = format_estimate(name, *value, quality)
    text = f"{metric_label(name, quality).lower()} {shown}{f' ({interval})' if interval else ''}"
    return f"Effective batch size {point.batch}, {point.model}: {text}"


def _bounds(value: Interval) -> tuple[float, float]:
    """The bounds of an interval; the value itself where there are none."""
    return value[1:3] if math.isfinite(value.low + value.high) else (value.median, value.median)


def _fix(value: float) -> Interval:
    return Interval(float(value), math.nan, math.nan, 0)


def _error(accuracy: float) -> float:
    return max(1.0 - accuracy, _LEAST_ERROR)  # NaN stays
