"""Figures over the batch size: the map with the learning rate, the critical batch, and memory, throughput and device
load against the micro batch."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.evidence import Evidence, format_column, keep_finite
from reports.figure import Absent, Axis, Figure, Floats, Heat, Intervals, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.figures.marks import GLOBAL_BATCH
from reports.labels import (
    OUTCOME_NAMES,
    TOO_UNCERTAIN,
    format_metric,
    format_setting,
    format_value,
    is_too_uncertain,
    metric_label,
)
from reports.layout import NUM_SERIES
from sweep.analysis.costs import find_longest_curve, group_medians, parse_shapes, ran_micro_batches
from sweep.analysis.critical_batch import (
    CriticalBatch,
    CriticalBatches,
    Regimes,
    StepsEstimate,
    estimate_critical_batches,
    refit_steps,
)
from sweep.analysis.statistics import Values, read_numbers, read_text
from sweep.config.metrics import METRICS, format_count
from sweep.config.trial import key_label

RATE = "optimizer.lr"
_MAX_BATCHES = 14
_NUM_RATES = 10
_MAX_MODELS = 4
_HEAT_TITLE = "Batch size against learning rate"


def make_heat_map(evidence: Evidence) -> list[Figure] | Absent:
    """The median of the first quality objective by effective batch size and learning rate, a panel for each model."""
    objective = next((name for name in evidence.objectives if not METRICS[name].is_cost), evidence.objectives[0])
    ended, measured = evidence.unfinished, np.isfinite(read_numbers(evidence.search, objective))
    trials = evidence.search[measured]
    both = pd.concat([trials, ended])
    batches = _bins(read_numbers(both, GLOBAL_BATCH), _MAX_BATCHES)
    rates = _bins(read_numbers(both, f"config.{RATE}"), _NUM_RATES)
    if len(batches) < 3 or len(rates) < 3 or not len(keep_finite(read_numbers(trials, objective))):
        return Absent(_HEAT_TITLE, "requires trials at two or more batch sizes and learning rates: sweep both.")
    models = sorted(set(format_column(evidence.search, "model.name"))) if "model.name" in evidence.swept else [""]
    if len(models) > _MAX_MODELS:
        models = [""]
    cells = _Cells(evidence, objective, batches, rates)
    panels = [cells.make_panel(_of(trials, model), _of(ended, model), model) for model in models]
    caption = (
        f"{marks.describe_search(len(measured))}. Color: the median "
        f"{metric_label(objective).lower()} of a cell; its hover text gives n and the best trial. Marks: cells in "
        "which no trial completed."
    )
    return [Figure(name="batch_and_rate", title=_HEAT_TITLE, caption=caption, panels=tuple(panels))]


def _of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    # an empty list of truths would choose columns
    return frame[np.array(format_column(frame, "model.name"), dtype=object) == model] if model else frame


def _bins(values: marks.Values, limit: int) -> marks.Values:
    """Edges of cells on a logarithmic scale, each distinct value a cell of its own where there are few."""
    found = np.unique(keep_finite(values[values > 0]))
    if not len(found):
        return found
    if len(found) > limit:
        return np.geomspace(found[0], found[-1] * (1 + 1e-9), limit + 1)
    between = np.sqrt(found[1:] * found[:-1])
    return np.concatenate([[found[0] / 2], between, [found[-1] * 2]])


class _Cells:
    """The cells of one figure: batches along x, rates along y."""

    def __init__(self, evidence: Evidence, objective: str, batches: marks.Values, rates: marks.Values) -> None:
        self.evidence, self.objective = evidence, objective
        self.batches, self.rates = batches, rates
        reached = keep_finite(read_numbers(evidence.search, objective))
        self.span = (float(reached.min()), float(reached.max()))  # of single trials, so at least that of the medians

    def make_panel(self, trials: pd.DataFrame, ended: pd.DataFrame, title: str) -> Panel:
        """The panel of the complete ``trials`` and of those that ``ended`` otherwise."""
        cells = self._members(trials)
        layers: list[Layer] = [self._heat(cells, trials)] if cells else []
        layers += self._failures(self._members(ended), ended, set(cells))
        every = self.evidence.trials
        x_ticks = _ticks(self.batches, read_numbers(every, GLOBAL_BATCH))
        y_ticks = _ticks(self.rates, read_numbers(every, f"config.{RATE}"))
        x_axis, y_axis = Axis(label=key_label(GLOBAL_BATCH), ticks=x_ticks), Axis(label=key_label(RATE), ticks=y_ticks)
        return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)

    def _members(self, frame: pd.DataFrame) -> dict[tuple[int, int], list[int]]:
        """Rows of ``frame`` by their cell (row, column)."""
        at = np.searchsorted(self.batches, read_numbers(frame, GLOBAL_BATCH), side="right") - 1
        up = np.searchsorted(self.rates, read_numbers(frame, f"config.{RATE}"), side="right") - 1
        inside = (at >= 0) & (at < len(self.batches) - 1) & (up >= 0) & (up < len(self.rates) - 1)
        members: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero(inside):
            members.setdefault((int(up[row]), int(at[row])), []).append(int(row))
        return members

    def _heat(self, cells: dict[tuple[int, int], list[int]], trials: pd.DataFrame) -> Heat:
        shape = (len(self.rates) - 1, len(self.batches) - 1)
        values = np.full(shape, None, dtype=object)
        texts, numbers = np.full(shape, "", dtype=object), np.full(shape, -1, dtype=object)
        y, names = read_numbers(trials, self.objective), marks.trial_numbers(trials)
        for cell, rows in cells.items():
            best = min(rows, key=lambda row: (METRICS[self.objective].sign * y[row], row))
            values[cell], numbers[cell] = float(np.nanmedian(y[rows])), names[best]
            shown = [format_metric(self.objective, value) for value in (values[cell], y[best])]
            texts[cell] = f"{format_count(len(rows), 'trial')}, median {shown[0]}\nbest {shown[1]}: trial {names[best]}"
        tables = {"values": values, "texts": texts, "trials": numbers}
        members = ((names[row], *cell) for cell, rows in cells.items() for row in rows)
        return Heat(
            name=f"median {metric_label(self.objective).lower()}",
            role="heat",
            unit=METRICS[self.objective].unit,
            members=tuple(member for member in members if member[0] in self.evidence.texts),
            span=self.span,
            **{name: tuple(map(tuple, table)) for name, table in tables.items()},
        )

    def _failures(
        self, cells: dict[tuple[int, int], list[int]], ended: pd.DataFrame, complete: set[tuple[int, int]]
    ) -> list[Points]:
        worst: dict[str, list[tuple[int, int, int]]] = {}
        outcome, names = ended["outcome"].tolist(), marks.trial_numbers(ended)
        for (row, at), rows in sorted(cells.items()):
            if (row, at) not in complete:
                usual = Counter(outcome[each] for each in rows).most_common(1)[0][0]
                worst.setdefault(usual, []).append((at, row, names[rows[-1]]))
        return [
            Points(
                name=f"{OUTCOME_NAMES[name]}, none complete", role=name, x=marks.to_floats([at for at, _, _ in places]),
                y=marks.to_floats([row for _, row, _ in places]),
                texts=tuple(self.evidence.texts[number] for _, _, number in places),
                trials=tuple(number for _, _, number in places),
            )
            for name, places in worst.items()
        ]  # fmt: skip


def _ticks(edges_of: marks.Values, values: marks.Values) -> tuple[tuple[float, str], ...]:
    inside = np.unique(keep_finite(values[values > 0]))
    few = len(inside) == len(edges_of) - 1
    middles = inside if few else np.sqrt(edges_of[1:] * edges_of[:-1])
    step = 1 if len(middles) <= 12 else 2
    return tuple(
        (float(i), format_setting(float(f"{v:.2g}" if v < 1 else f"{v:.4g}")))
        for i, v in list(enumerate(middles))[::step]
    )


_CRITICAL_TITLE = "Critical batch size"
_NAMES = {
    "steps": "critical batch by steps to the target",
    "noise": "gradient noise scale over the training",
}
_ROLES = {"steps": "series-1", "noise": "series-2"}
_BEYOND = 4.0  # times the drawn batches, where an interval is cut


def make_batch_regimes(evidence: Evidence) -> list[Figure] | Absent:
    """Steps and samples to the target with the law and its regimes; without it, the other estimates alone."""
    if evidence.candidates is None:
        return Absent(_CRITICAL_TITLE, "requires a complete trial.")
    found = estimate_critical_batches(evidence.candidates.records)
    known = {name: _batch_of(each) for name, each in found._asdict().items() if not isinstance(each, str)}
    if not known:
        return Absent(_CRITICAL_TITLE, f"requires one of two measurements. {_list_missing(found)}")
    panels = _draw_law(found.steps, known) if isinstance(found.steps, StepsEstimate) else (_draw_rows(known),)
    caption = " ".join([*(_describe(name, batch) for name, batch in known.items()), _list_missing(found)])
    if isinstance(found.steps, StepsEstimate):
        caption += (
            "Line: the law S = S_min (1 + B_crit / B) of McCandlish et al. 2018; dashed: at both ends of the interval "
            "of B_crit. Dotted: perfect scaling ends where a target takes 20 % more samples than the fewest, maximal "
            "data parallelism begins where it takes 20 % more steps (regimes of Shallue et al. 2018). "
        )
    caption += "The two are not estimates of one number: the first is of whole trainings, the second of single steps."
    return [Figure(name="critical_batch", title=_CRITICAL_TITLE, caption=caption, panels=panels)]


def _batch_of(found: StepsEstimate | CriticalBatch) -> CriticalBatch:
    return found.batch if isinstance(found, StepsEstimate) else found


def _list_missing(found: CriticalBatches) -> str:
    missing = {name: each for name, each in found._asdict().items() if isinstance(each, str)}
    return "".join(f"{_NAMES[name].capitalize()}: {reason}. " for name, reason in missing.items())


def _describe(name: str, batch: CriticalBatch) -> str:
    interval = ""
    if math.isfinite(batch.low + batch.high) and is_too_uncertain("samples", batch.low, batch.high):
        interval = f" (interval {TOO_UNCERTAIN})"
    elif any(map(math.isfinite, (batch.low, batch.high))):
        interval = f" ({_word(batch.low)} to {_word(batch.high)})"
    return f"{_NAMES[name].capitalize()}: {batch.value:,.0f} samples{interval}; {batch.detail}."


def _word(bound: float) -> str:
    return f"{bound:,.0f}" if math.isfinite(bound) else "not known"


def _draw_law(found: StepsEstimate, known: dict[str, CriticalBatch]) -> tuple[Panel, ...]:
    tuned, law = found.tuned, found.law
    sizes = np.array([*tuned.batches, *(batch.value for batch in known.values())])
    axis = marks.make_batch_axis(key_label(GLOBAL_BATCH), sizes)
    path = np.geomspace(sizes.min(), sizes.max(), 60)
    bounds = [bound for bound in (found.batch.low, found.batch.high) if math.isfinite(bound) and bound > 0]
    ends = [refit_steps(tuned.batches, tuned.steps, bound) for bound in bounds]
    num = format_count(len(tuned.batches), "effective batch size")

    def draw(label: str, power: float) -> Panel:
        # steps times the batch to the ``power``: 0 for steps, 1 for samples
        layers: list[Layer] = [
            Lines(name="law", role="series-0", segments=(_line(path, law.steps_at(path), power),)),
            *_draw_ends([_line(path, end.steps_at(path), power) for end in ends]),
            *_draw_borders(law),
            _draw_tuned(found, power),
            *(_mark(name, batch, law, (sizes.min(), sizes.max()), power) for name, batch in known.items()),
        ]
        return Panel(x=axis, y=Axis(label=label, scale="log"), layers=tuple(layers), title=f"{label}: {num}")

    return draw("Steps to the target", 0.0), draw("Samples to the target", 1.0)


def _line(path: Values, steps: Values, power: float) -> tuple[Floats, Floats]:
    return marks.to_floats(path), marks.to_floats(steps * path**power)


def _draw_ends(segments: list[tuple[Floats, Floats]]) -> list[Lines]:
    name = "law at the ends of the 95 % interval"
    return [Lines(name=name, role="faint", segments=tuple(segments), dashed=True)] if segments else []


def _draw_borders(law: Regimes) -> list[Rule]:
    borders = {"perfect to": law.perfect_until, "maximal from": law.maximal_from}
    return [Rule(axis="x", value=value, text=f"{text} {value:,.0f}") for text, value in borders.items()]


def _draw_tuned(found: StepsEstimate, power: float) -> Points:
    tuned = found.tuned
    heights = tuned.steps * tuned.batches**power
    pairs = zip(tuned.batches, tuned.steps, strict=True)
    texts = tuple(f"effective batch size {batch:,.0f}: {steps:,.0f} steps to the target" for batch, steps in pairs)
    x, y = marks.to_floats(tuned.batches), marks.to_floats(heights)
    return Points(name="fewest steps at this batch", role="complete", x=x, y=y, texts=texts)


def _mark(name: str, batch: CriticalBatch, law: Regimes, span: tuple[float, float], power: float) -> Intervals:
    height = float(law.steps_at(np.array([batch.value]))[0]) * batch.value**power
    return _interval(name, batch, height, span)


def _interval(name: str, batch: CriticalBatch, height: float, span: tuple[float, float]) -> Intervals:
    least, most = span[0] / _BEYOND, span[1] * _BEYOND
    low, high = (bound if math.isfinite(bound) else batch.value for bound in (batch.low, batch.high))
    return Intervals(
        name=_NAMES[name],
        role=_ROLES[name],
        x=(batch.value,),
        y=(height,),
        x_low=(min(max(low, least), batch.value),),
        x_high=(max(min(high, most), batch.value),),
        y_low=(height,),
        y_high=(height,),
        texts=(_describe(name, batch),),
    )


def _draw_rows(known: dict[str, CriticalBatch]) -> Panel:
    # without steps to a target there is no height to draw them at
    values = [bound for batch in known.values() for bound in batch[:3] if math.isfinite(bound)]
    axis = marks.make_batch_axis(key_label(GLOBAL_BATCH), np.array(values))
    ticks = tuple((float(row), _NAMES[name]) for row, name in enumerate(known))
    sizes = [batch.value for batch in known.values()]
    layers = [
        _interval(name, batch, float(row), (min(sizes), max(sizes))) for row, (name, batch) in enumerate(known.items())
    ]
    return Panel(x=axis, y=Axis(label="", ticks=ticks), layers=tuple(layers))


_DEVICE_METRICS = ("gpu_utilization", "power_watts", "energy_joules", "temperature_celsius")


def make_memory(evidence: Evidence) -> list[Figure] | Absent:
    """Peak memory of trials and probes with a straight line through each model's, and the device's limit."""
    title = "Memory against the micro batch"
    series = _series(evidence, "peak_memory_bytes")
    if not series:
        return Absent(title, "requires trials that measured the peak memory.")
    layers: list[Layer] = []
    slopes = []
    for each in series:
        layers += each.points
        line = fit_line(each.x, each.y)
        if line is not None:
            layers.append(Lines(name=f"{each.name}: straight line", role=each.role, segments=(line[0],), dashed=True))
            slopes.append(f"{each.name} {format_value('bytes', line[1])} per sample")
    layers += [*_probes(evidence, "peak_memory_bytes"), *_limit(evidence, layers)]
    caption = f"{_how_many(series)}. "
    caption += f"Slope of the line: {'; '.join(slopes)}. " if slopes else ""
    caption += "Marks of one model at one micro batch differ where other swept parameters do (precision, optimizer)."
    panel = Panel(x=_micro_axis(evidence), y=Axis(label="Peak memory", unit="bytes"), layers=tuple(layers))
    return [Figure(name="memory", title=title, caption=caption, panels=(panel,))]


def make_throughput(evidence: Evidence) -> list[Figure] | Absent:
    """Images per second with the median and the knee, the smallest micro batch near the best, of each model's
    combination of norm, precision and optimizer with the most micro batches."""
    title = "Throughput against the micro batch"
    series = _series(evidence, "images_per_second")
    if not series:
        return Absent(title, "requires trials that measured the throughput.")
    layers: list[Layer] = []
    knees = []
    for each in series:
        layers += each.points
        curve = find_longest_curve(each.trials, each.x, each.y)
        if curve is None or len(curve.sizes) < 2:
            continue
        path = marks.to_floats(curve.sizes), marks.to_floats(curve.rates)
        layers.append(Lines(name=f"{curve.name}: median", role=each.role, segments=(path,)))
        at, rate = float(curve.sizes[curve.knee]), float(curve.rates[curve.knee])
        words = f"{curve.name}: knee at micro batch {at:.0f}, {format_value('images/second', rate)}"
        layers.append(Points(name="knee", role="knee", x=(at,), y=(rate,), texts=(words,)))
        knees.append(f"{curve.name}: {at:.0f}")
    layers += _probes(evidence, "images_per_second")
    caption = f"{_how_many(series)}. "
    if knees:
        caption += f"The knee is the smallest micro batch whose median is within 5 % of the best: {'; '.join(knees)}. "
    caption += "Accumulation and the device also affect throughput."
    panel = Panel(x=_micro_axis(evidence), y=Axis(label="Throughput", unit="images/second"), layers=tuple(layers))
    return [Figure(name="throughput", title=title, caption=caption, panels=(panel,))]


def make_device(evidence: Evidence) -> list[Figure] | Absent:
    """The monitor's measurements of the device: a panel for each quantity that was recorded."""
    title = "Device utilization and power"
    panels, num = [], 0
    for name in _DEVICE_METRICS:
        series = _series(evidence, name)
        if not series:
            continue
        layers = tuple(points for each in series for points in each.points)
        values = np.concatenate([each.y for each in series])
        y_axis = marks.metric_axis(name, values)
        panels.append(Panel(x=_micro_axis(evidence), y=y_axis, layers=layers, title=metric_label(name)))
        num = max(num, len(keep_finite(values)))
    if not panels:
        return Absent(title, "requires trials on a GPU that NVML can monitor.")
    caption = f"{format_count(num, 'trial')} with device monitoring, during training only."
    return [Figure(name="device", title=title, caption=caption, panels=tuple(panels))]


def fit_line(x: marks.Values, y: marks.Values) -> tuple[tuple[Floats, Floats], float] | None:
    """The least-squares line through the medians, its ends and its slope; None with fewer than three distinct x."""
    at, middle = group_medians(x, y)
    if len(at) < 3:
        return None
    slope, base = (float(value) for value in np.polyfit(at, middle, 1))
    path = np.geomspace(at[0], at[-1], 40)  # a straight line is bent on a logarithmic axis
    return (marks.to_floats(path), marks.to_floats(base + slope * path)), slope


class _Series(NamedTuple):
    """The ``trials`` of one model: their micro batches ``x`` and measured ``y``, of shape ``[n]``, and the marks."""

    name: str
    role: str
    trials: pd.DataFrame
    x: marks.Values
    y: marks.Values
    points: list[Points]


def _series(evidence: Evidence, name: str) -> list[_Series]:
    """The trials that measured ``name`` and ran here, by model: the first few models apart."""
    trials = evidence.trials
    known_rows = np.isfinite(read_numbers(trials, name)) & np.isfinite(ran_micro_batches(trials))
    frame = trials[known_rows & (read_text(trials, "outcome") == "complete")]
    if not len(frame):
        return []
    models = format_column(frame, "model.name")
    names = sorted(set(models))
    if len(names) > NUM_SERIES:
        names, models = ["trial"], ["trial"] * len(frame)
    found = []
    for index, model in enumerate(names):
        part, role = frame[[each == model for each in models]], f"series-{index}"
        x, y = ran_micro_batches(part), read_numbers(part, name)
        shown = np.where(part["detailed"].to_numpy(dtype=bool), x, np.nan)
        points = marks.trial_points(model, role, evidence, marks.trial_numbers(part), shown, y)
        found.append(_Series(model, role, part, x, y, points))
    return found


def _how_many(series: Sequence[_Series]) -> str:
    total = sum(len(each.x) for each in series)
    drawn = sum(len(points.x) for each in series for points in each.points)
    return format_count(total, "complete trial") + ("" if drawn == total else f", {drawn:,} of them drawn")


def _micro_axis(evidence: Evidence) -> Axis:
    return marks.make_batch_axis("micro batch", keep_finite(ran_micro_batches(evidence.trials)))


def _probes(evidence: Evidence, name: str) -> list[Points]:
    """What was measured without training, by shape."""
    frame = evidence.frames.probes
    x, y = read_numbers(frame, "micro_batch"), read_numbers(frame, name)
    rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(rows):
        return []
    models = [str(facts.get("model.name", "")) for facts in parse_shapes(frame.iloc[rows])]
    values = [format_value(METRICS[name].unit, value) for value in y[rows]]
    known = zip(models, x[rows], values, strict=True)
    texts = tuple(f"Probe of {model}, micro batch {at:.0f}: {value}" for model, at, value in known)
    at, up = marks.to_floats(x[rows]), marks.to_floats(y[rows])
    return [Points(name="probe: a few steps, alone", role="probe", x=at, y=up, texts=texts)]


def _limit(evidence: Evidence, layers: Sequence[Layer]) -> list[Rule]:
    """The device's memory, where it is known and not far beyond what is drawn."""
    limits = keep_finite(read_numbers(evidence.frames.environments, "device_memory_bytes"))
    drawn = max((max(layer.y) for layer in layers if isinstance(layer, Points)), default=0.0)
    return marks.device_limits("y", np.unique(limits[(limits > 0) & (limits < 20 * drawn)]))
