"""Memory, throughput, utilization and power against the micro batch size."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.describe import format_column
from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Figure, Floats, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.labels import format_value, metric_label
from reports.palette import NUM_SERIES
from sweep.analysis.costs import find_longest_curve, group_medians, parse_shapes, ran_micro_batches
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

DEVICE_METRICS = ("gpu_utilization", "power_watts", "energy_joules", "temperature_celsius", "cpu_load_by_others")


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
    for name in DEVICE_METRICS:
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
