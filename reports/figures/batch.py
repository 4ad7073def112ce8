"""Figures over the batch size: the map with the learning rate, the critical batch, and memory, throughput and device
load against the micro batch."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.evidence import Evidence, format_column, keep_finite
from reports.figure import Absent, Axis, Figure, Heat, Intervals, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.figures.marks import GLOBAL_BATCH
from reports.labels import (
    OUTCOME_NAMES,
    TOO_UNCERTAIN,
    format_setting,
    format_value,
    is_too_uncertain,
)
from reports.layout import NUM_SERIES
from sweep.analysis.costs import find_longest_curve, parse_shapes, ran_micro_batches
from sweep.analysis.critical_batch import CriticalBatch, StepsEstimate, estimate_by_noise, estimate_by_steps
from sweep.analysis.statistics import Values, read_numbers, read_text
from sweep.config.metrics import METRICS, format_count
from sweep.config.trial import key_label
from sweep.records.quality import name_flags

RATE = "optimizer.lr"
_MAX_BATCHES = 14
_NUM_RATES = 10
_MAX_MODELS = 4
_HEAT_TITLE = "Batch size against learning rate"


def make_heat_map(evidence: Evidence) -> list[Figure] | Absent:
    """The median of the first quality objective by effective batch size and learning rate, a panel for each model."""
    objective = next(
        (name for name in evidence.objectives if not evidence.metric(name).is_cost), evidence.objectives[0]
    )
    ended, measured = evidence.unfinished, np.isfinite(read_numbers(evidence.search, objective))
    trials = evidence.search[measured]
    both = pd.concat([trials, ended])
    batches = _cell_edges(read_numbers(both, GLOBAL_BATCH), _MAX_BATCHES)
    rates = _cell_edges(read_numbers(both, f"config.{RATE}"), _NUM_RATES)
    if len(batches) < 3 or len(rates) < 3 or not len(trials):
        return Absent(_HEAT_TITLE, "requires trials at two or more batch sizes and learning rates: sweep both.")
    models = sorted(set(format_column(evidence.search, "model.name"))) if "model.name" in evidence.swept else [""]
    if len(models) > _MAX_MODELS:
        models = [""]
    reached = keep_finite(read_numbers(evidence.search, objective))
    # the range of single trials, which contains all medians
    grid = _Grid(evidence, objective, batches, rates, (float(reached.min()), float(reached.max())))
    panels = [_draw_grid(grid, _of_model(trials, model), _of_model(ended, model), model) for model in models]
    label = evidence.metric(objective).label.lower()
    caption = (
        f"{marks.describe_search(len(measured))}. Color: the median "
        f"{label} of a cell; its hover text gives n and the best trial. Marks: cells in "
        "which no trial completed."
    )
    return [Figure(name="batch_and_rate", title=_HEAT_TITLE, caption=caption, panels=tuple(panels))]


class _Grid(NamedTuple):
    """The edges of the cells, batches along x and rates along y, and the range of the color scale."""

    evidence: Evidence
    objective: str
    batches: Values
    rates: Values
    span: tuple[float, float]


def _of_model(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    # an empty list of truths would choose columns
    return frame[np.array(format_column(frame, "model.name"), dtype=object) == model] if model else frame


def _cell_edges(values: Values, limit: int) -> Values:
    """Edges of cells on a logarithmic scale, a cell for each distinct value where there are at most ``limit``."""
    distinct = np.unique(keep_finite(values[values > 0]))
    if not len(distinct):
        return distinct
    if len(distinct) > limit:
        return np.geomspace(distinct[0], distinct[-1] * (1 + 1e-9), limit + 1)
    return np.concatenate([[distinct[0] / 2], np.sqrt(distinct[1:] * distinct[:-1]), [distinct[-1] * 2]])


def _draw_grid(grid: _Grid, trials: pd.DataFrame, ended: pd.DataFrame, title: str) -> Panel:
    """The panel of the complete ``trials`` and of those that ``ended`` otherwise."""
    cells = _rows_by_cell(grid, trials)
    layers: list[Layer] = [_color_cells(grid, cells, trials)] if cells else []
    worst: dict[str, list[tuple[int, int, int]]] = {}  # by outcome: row, column and trial of cells without a color
    outcomes, numbers = ended["outcome"].tolist(), marks.trial_numbers(ended)
    for cell, rows in sorted(_rows_by_cell(grid, ended).items()):
        if cell not in cells:
            usual = Counter(outcomes[row] for row in rows).most_common(1)[0][0]
            worst.setdefault(usual, []).append((*cell, numbers[rows[-1]]))
    for outcome, failures in worst.items():
        up, across, owners = zip(*failures, strict=True)
        layers.append(
            Points(
                name=f"{OUTCOME_NAMES[outcome]}, none complete", role=outcome, x=marks.to_floats(across),
                y=marks.to_floats(up), texts=tuple(grid.evidence.texts[number] for number in owners), trials=owners,
            )
        )  # fmt: skip
    x_axis, y_axis = (
        Axis(label=key_label(key), ticks=_cell_ticks(edges, read_numbers(grid.evidence.trials, column)))
        for key, column, edges in ((GLOBAL_BATCH, GLOBAL_BATCH, grid.batches), (RATE, f"config.{RATE}", grid.rates))
    )
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)


def _rows_by_cell(grid: _Grid, frame: pd.DataFrame) -> dict[tuple[int, int], list[int]]:
    """Rows of ``frame`` by their cell (row, column)."""
    column = np.searchsorted(grid.batches, read_numbers(frame, GLOBAL_BATCH), side="right") - 1
    row = np.searchsorted(grid.rates, read_numbers(frame, f"config.{RATE}"), side="right") - 1
    is_inside = (column >= 0) & (column < len(grid.batches) - 1) & (row >= 0) & (row < len(grid.rates) - 1)
    members: dict[tuple[int, int], list[int]] = {}
    for trial in np.flatnonzero(is_inside):
        members.setdefault((int(row[trial]), int(column[trial])), []).append(int(trial))
    return members


def _color_cells(grid: _Grid, cells: dict[tuple[int, int], list[int]], trials: pd.DataFrame) -> Heat:
    metric, shape = grid.evidence.metric(grid.objective), (len(grid.rates) - 1, len(grid.batches) - 1)
    values = np.full(shape, None, dtype=object)
    texts, owners = np.full(shape, "", dtype=object), np.full(shape, -1, dtype=object)
    y, numbers = read_numbers(trials, grid.objective), marks.trial_numbers(trials)
    for cell, rows in cells.items():
        best = min(rows, key=lambda row: (metric.sign * y[row], row))
        values[cell], owners[cell] = float(np.nanmedian(y[rows])), numbers[best]
        median, top = (format_value(metric.unit, value) for value in (values[cell], y[best]))
        texts[cell] = f"{format_count(len(rows), 'trial')}, median {median}\nbest {top}: trial {numbers[best]}"
    members = ((numbers[row], *cell) for cell, rows in cells.items() for row in rows)
    tables = {"values": values, "texts": texts, "trials": owners}
    return Heat(
        name=f"median {metric.label.lower()}", role="heat", unit=metric.unit, span=grid.span,
        members=tuple(member for member in members if member[0] in grid.evidence.texts),
        **{name: tuple(map(tuple, table)) for name, table in tables.items()},
    )  # fmt: skip


def _cell_ticks(edges: Values, values: Values) -> tuple[tuple[float, str], ...]:
    distinct = np.unique(keep_finite(values[values > 0]))
    middles = distinct if len(distinct) == len(edges) - 1 else np.sqrt(edges[1:] * edges[:-1])
    step = 1 if len(middles) <= 12 else 2
    return tuple(
        (float(position), format_setting(float(f"{value:.2g}" if value < 1 else f"{value:.4g}")))
        for position, value in list(enumerate(middles))[::step]
    )


# The critical batch size.

_CRITICAL_TITLE = "Critical batch size"
_ESTIMATES = {"steps": "critical batch by steps to the target", "noise": "gradient noise scale over the training"}
_ROLES = {"steps": "series-1", "noise": "series-2"}
_BEYOND = 4.0  # times the drawn batches, where an interval is cut


def make_batch_regimes(evidence: Evidence) -> list[Figure] | Absent:
    """Steps and samples to the target with the law and its regimes, and with the noise scale where it is known."""
    if evidence.candidates is None:
        return Absent(_CRITICAL_TITLE, "requires a complete trial.")
    records = evidence.candidates.records
    steps, noise = estimate_by_steps(records), estimate_by_noise(records)
    if isinstance(steps, str):
        return Absent(_CRITICAL_TITLE, f"requires steps to a target. {_ESTIMATES['steps'].capitalize()}: {steps}.")
    batches = {"steps": steps.batch}
    missing = f" {_ESTIMATES['noise'].capitalize()}: {noise}." if isinstance(noise, str) else ""
    if isinstance(noise, CriticalBatch):
        batches["noise"] = noise
    caption = (
        f"{' '.join(_describe_estimate(name, batch) for name, batch in batches.items())}{missing} "
        "Line: the law S = S_min (1 + B_crit / B) of McCandlish et al. 2018. Dotted: perfect scaling ends where a "
        "target takes 20 % more samples than the fewest, maximal data parallelism begins where it takes 20 % more "
        "steps (regimes of Shallue et al. 2018). "
        "The two are not estimates of one number: the first is of whole trainings, the second of single steps."
    )
    panels = _draw_law(steps, batches)
    return [Figure(name="critical_batch", title=_CRITICAL_TITLE, caption=caption, panels=panels)]


def _describe_estimate(name: str, batch: CriticalBatch) -> str:
    bounds = (batch.low, batch.high)
    interval = ""
    if all(map(math.isfinite, bounds)) and is_too_uncertain("samples", *bounds):
        interval = f" (interval {TOO_UNCERTAIN})"
    elif any(map(math.isfinite, bounds)):
        low, high = (f"{bound:,.0f}" if math.isfinite(bound) else "not known" for bound in bounds)
        interval = f" ({low} to {high})"
    return f"{_ESTIMATES[name].capitalize()}: {batch.value:,.0f} samples{interval}; {batch.detail}."


def _draw_law(estimate: StepsEstimate, batches: dict[str, CriticalBatch]) -> tuple[Panel, ...]:
    tuned, law = estimate.tuned, estimate.law
    sizes = np.array([*tuned.batches, *(batch.value for batch in batches.values())])
    span = float(sizes.min()), float(sizes.max())
    axis, path = marks.make_batch_axis(key_label(GLOBAL_BATCH), sizes), np.geomspace(*span, 60)
    texts = tuple(
        f"effective batch size {batch:,.0f}: {steps:,.0f} steps to the target"
        for batch, steps in zip(tuned.batches, tuned.steps, strict=True)
    )

    def draw(label: str, power: float) -> Panel:
        # steps times the batch to the ``power``: 0 for steps, 1 for samples
        line = marks.to_floats(path), marks.to_floats(law.steps_at(path) * path**power)
        layers: list[Layer] = [Lines(name="law", role="series-0", segments=(line,))]
        for text, border in (("perfect to", law.perfect_until), ("maximal from", law.maximal_from)):
            layers.append(Rule(axis="x", value=border, text=f"{text} {border:,.0f}"))
        x, y = marks.to_floats(tuned.batches), marks.to_floats(tuned.steps * tuned.batches**power)
        layers.append(Points(name="fewest steps at this batch", role="complete", x=x, y=y, texts=texts))
        for name, batch in batches.items():
            height = float(law.steps_at(np.array([batch.value]))[0]) * batch.value**power
            layers.append(_draw_estimate(name, batch, height, span))
        title = f"{label}: {format_count(len(tuned.batches), 'effective batch size')}"
        return Panel(x=axis, y=Axis(label=label, scale="log"), layers=tuple(layers), title=title)

    return draw("Steps to the target", 0.0), draw("Samples to the target", 1.0)


def _draw_estimate(name: str, batch: CriticalBatch, height: float, span: tuple[float, float]) -> Intervals:
    low, high = (bound if math.isfinite(bound) else batch.value for bound in (batch.low, batch.high))
    return Intervals(
        name=_ESTIMATES[name], role=_ROLES[name], x=(batch.value,), y=(height,), y_low=(height,), y_high=(height,),
        x_low=(min(max(low, span[0] / _BEYOND), batch.value),),
        x_high=(max(min(high, span[1] * _BEYOND), batch.value),),
        texts=(_describe_estimate(name, batch),),
    )  # fmt: skip


# Against the micro batch.


def make_memory(evidence: Evidence) -> list[Figure] | Absent:
    """Peak memory of trials and probes, and the device's limit."""
    title = "Memory against the micro batch"
    series = _series(evidence, "peak_memory_bytes")
    if not series:
        return Absent(title, "requires trials that measured the peak memory.")
    layers: list[Layer] = [points for trials in series for points in trials.points]
    layers += _probes(evidence, "peak_memory_bytes")
    drawn = max((max(layer.y) for layer in layers if isinstance(layer, Points)), default=0.0)
    layers += marks.device_limits("y", marks.read_limits(evidence), drawn)
    caption = f"{_how_many(series)}. "
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
    for trials in series:
        layers += trials.points
        curve = find_longest_curve(trials.frame, trials.x, trials.y)
        if curve is None or len(curve.sizes) < 2:
            continue
        path = marks.to_floats(curve.sizes), marks.to_floats(curve.rates)
        layers.append(Lines(name=f"{curve.name}: median", role=trials.role, segments=(path,)))
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


class _Series(NamedTuple):
    """The trials of one model: their ``frame``, micro batches ``x`` and measured ``y``, of shape ``[n]``, and marks."""

    name: str
    role: str
    frame: pd.DataFrame
    x: Values
    y: Values
    points: list[Points]


def _series(evidence: Evidence, name: str) -> list[_Series]:
    """The complete trials that measured ``name``, by model; all in one series where there are too many models."""
    trials = evidence.trials
    is_measured = np.isfinite(read_numbers(trials, name)) & np.isfinite(ran_micro_batches(trials))
    frame = trials[is_measured & (read_text(trials, "outcome") == "complete")]
    if not len(frame):
        return []
    models = format_column(frame, "model.name")
    names = sorted(set(models))
    if len(names) > NUM_SERIES:
        names, models = ["trial"], ["trial"] * len(frame)
    series = []
    for index, model in enumerate(names):
        rows, role = frame[np.array(models) == model], f"series-{index}"
        x, y = ran_micro_batches(rows), read_numbers(rows, name)
        shown = np.where(rows["detailed"].to_numpy(dtype=bool), x, np.nan)
        points = marks.trial_points(model, role, evidence, marks.trial_numbers(rows), shown, y)
        series.append(_Series(model, role, rows, x, y, points))
    return series


def _how_many(series: Sequence[_Series]) -> str:
    total = sum(len(trials.x) for trials in series)
    drawn = sum(len(points.x) for trials in series for points in trials.points)
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
    flags = read_text(frame.iloc[rows], "quality_flags")
    warnings = [f"\nQuality warnings: {name_flags(text)}" if text else "" for text in flags]
    values = [format_value(METRICS[name].unit, value) + text for value, text in zip(y[rows], warnings, strict=True)]
    probes = zip(models, x[rows], values, strict=True)
    texts = tuple(f"Probe of {model}, micro batch {micro:.0f}: {value}" for model, micro, value in probes)
    across, up = marks.to_floats(x[rows]), marks.to_floats(y[rows])
    return [Points(name="probe: a few steps", role="probe", x=across, y=up, texts=texts)]
