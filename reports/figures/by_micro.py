"""Memory, throughput, utilization and power against the micro batch size."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from reports.describe import format_column
from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Figure, Floats, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.labels import format_value, metric_label
from reports.palette import NUM_SERIES
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.throughput import find_throughput_knee
from sweep.analysis.trial_shapes import parse_shapes, ran_micro_batches
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

DEVICE_METRICS = ("gpu_utilization", "power_watts", "energy_joules", "temperature_celsius", "cpu_load_by_others")


def make_memory(evidence: Evidence) -> list[Figure] | Absent:
    """Peak memory of trials and probes with a straight line through each model's, and the device's limit."""
    title = "Memory against the micro batch"
    series = _series(evidence, "peak_memory_bytes")
    if not series:
        return Absent(title, "requires trials that measured peak_memory_bytes.")
    layers: list[Layer] = []
    slopes = []
    for index, (name, frame) in enumerate(series):
        x, y = ran_micro_batches(frame), read_numbers(frame, "peak_memory_bytes")
        line = fit_line(x, y)
        layers += marks.trial_points(name, f"series-{index}", evidence, *_shown(frame, x, y))
        if line is not None:
            layers.append(
                Lines(name=f"{name}: straight line", role=f"series-{index}", segments=(line[0],), dashed=True)
            )
            slopes.append(f"{name} {format_value('bytes', line[1])} per sample")
    layers += [*_probes(evidence, "peak_memory_bytes"), *_limit(evidence, layers)]
    caption = f"{_how_many(series)}. "
    caption += f"Slope of the line: {'; '.join(slopes)}. " if slopes else ""
    caption += "Other swept parameters (precision, optimizer) spread the marks of a model."
    panel = Panel(x=_micro_axis(evidence), y=Axis(label="Peak memory", unit="bytes"), layers=tuple(layers))
    return [Figure(name="memory", title=title, caption=caption, panels=(panel,))]


def make_throughput(evidence: Evidence) -> list[Figure] | Absent:
    """Images per second with each model's median and its knee, the smallest micro batch near the best."""
    title = "Throughput against the micro batch"
    series = _series(evidence, "images_per_second")
    if not series:
        return Absent(title, "requires trials that measured images_per_second.")
    layers: list[Layer] = []
    knees = []
    for index, (name, frame) in enumerate(series):
        x, y = ran_micro_batches(frame), read_numbers(frame, "images_per_second")
        layers += marks.trial_points(name, f"series-{index}", evidence, *_shown(frame, x, y))
        at, middle = group_medians(x, y)
        if len(at) < 2:
            continue
        layers.append(
            Lines(
                name=f"{name}: median",
                role=f"series-{index}",
                segments=((marks.to_floats(at), marks.to_floats(middle)),),
            )
        )
        knee = find_throughput_knee(at, middle)
        words = f"{name}: knee at micro batch {at[knee]:.0f}, {format_value('images/second', middle[knee])}"
        layers.append(Points(name="knee", role="knee", x=(float(at[knee]),), y=(float(middle[knee]),), texts=(words,)))
        knees.append(f"{name} {at[knee]:.0f}")
    layers += _probes(evidence, "images_per_second")
    caption = f"{_how_many(series)}. "
    if knees:
        caption += f"The knee is the smallest micro batch whose median is within 5 % of the best: {', '.join(knees)}. "
    panel = Panel(x=_micro_axis(evidence), y=Axis(label="Throughput", unit="images/second"), layers=tuple(layers))
    return [
        Figure(
            name="throughput",
            title=title,
            caption=caption + "Accumulation and device also affect throughput.",
            panels=(panel,),
        )
    ]


def make_device(evidence: Evidence) -> list[Figure] | Absent:
    """The monitor's measurements of the device: a panel for each quantity that was recorded."""
    title = "Device utilization and power"
    panels, num = [], 0
    for name in DEVICE_METRICS:
        series = _series(evidence, name)
        if not series:
            continue
        layers: list[Layer] = []
        for index, (model, frame) in enumerate(series):
            x, y = ran_micro_batches(frame), read_numbers(frame, name)
            layers += marks.trial_points(model, f"series-{index}", evidence, *_shown(frame, x, y))
        values = np.concatenate([read_numbers(frame, name) for _, frame in series])
        panels.append(
            Panel(
                x=_micro_axis(evidence),
                y=marks.metric_axis(name, values),
                layers=tuple(layers),
                title=metric_label(name),
            )
        )
        num = max(num, len(keep_finite(values)))
    if not panels:
        return Absent(title, "requires trials on a GPU that NVML can monitor.")
    caption = f"{format_count(num, 'trial')} with device monitoring, during training only."
    return [Figure(name="device", title=title, caption=caption, panels=tuple(panels))]


def group_medians(x: marks.Values, y: marks.Values) -> tuple[marks.Values, marks.Values]:
    """The distinct x in order with the median y at each; only where both are finite."""
    good = np.isfinite(x) & np.isfinite(y)
    at = np.unique(x[good])
    return at, np.array([np.median(y[good & (x == value)]) for value in at])


def fit_line(x: marks.Values, y: marks.Values) -> tuple[tuple[Floats, Floats], float] | None:
    """The least-squares line through the medians, its ends and its slope; None with fewer than three distinct x."""
    at, middle = group_medians(x, y)
    if len(at) < 3:
        return None
    slope, base = (float(value) for value in np.polyfit(at, middle, 1))
    path = np.geomspace(at[0], at[-1], 40)  # a straight line is bent on a logarithmic axis
    return (marks.to_floats(path), marks.to_floats(base + slope * path)), slope


def _series(evidence: Evidence, name: str) -> list[tuple[str, pd.DataFrame]]:
    """The trials that measured ``name`` and ran here, by model: the first few models apart."""
    trials = evidence.trials
    known_rows = np.isfinite(read_numbers(trials, name)) & np.isfinite(ran_micro_batches(trials))
    frame = trials[known_rows & (read_text(trials, "outcome") == "complete")]
    if not len(frame):
        return []
    models = format_column(frame, "model.name")
    names = sorted(set(models))
    if len(names) > NUM_SERIES:
        return [("trial", frame)]
    return [(model, frame[[each == model for each in models]]) for model in names]


def _shown(frame: pd.DataFrame, x: marks.Values, y: marks.Values) -> tuple[tuple[int, ...], marks.Values, marks.Values]:
    return marks.trial_numbers(frame), np.where(frame["detailed"].to_numpy(dtype=bool), x, np.nan), y


def _how_many(series: Sequence[tuple[str, pd.DataFrame]]) -> str:
    total = sum(len(frame) for _, frame in series)
    drawn = sum(int(frame["detailed"].sum()) for _, frame in series)
    return format_count(total, "complete trial") + ("" if drawn == total else f", {drawn:,} of them drawn")


def _micro_axis(evidence: Evidence) -> Axis:
    return marks.make_batch_axis("micro batch", keep_finite(ran_micro_batches(evidence.trials)))


def _probes(evidence: Evidence, name: str) -> list[Points]:
    """What was measured without training, by shape."""
    frame = evidence.probes
    x, y = read_numbers(frame, "micro_batch"), read_numbers(frame, name)
    rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(rows):
        return []
    models = [str(facts.get("model.name", "")) for facts in parse_shapes(frame.iloc[rows])]
    values = [format_value(METRICS[name].unit, value) for value in y[rows]]
    texts = (
        f"Probe of {model}, micro batch {at:.0f}: {value}"
        for model, at, value in zip(models, x[rows], values, strict=True)
    )
    return [
        Points(
            name="probe, no training",
            role="probe",
            x=marks.to_floats(x[rows]),
            y=marks.to_floats(y[rows]),
            texts=tuple(texts),
        )
    ]


def _limit(evidence: Evidence, layers: Sequence[Layer]) -> list[Rule]:
    """The device's memory, where it is known and not far beyond what is drawn."""
    limits = keep_finite(read_numbers(evidence.environments, "device_memory_bytes"))
    drawn = max((max(layer.y) for layer in layers if isinstance(layer, Points)), default=0.0)
    near = [float(limit) for limit in np.unique(limits) if 0 < limit < 20 * drawn]
    return [Rule(axis="y", value=limit, text=f"memory of the device: {format_value('bytes', limit)}") for limit in near]
