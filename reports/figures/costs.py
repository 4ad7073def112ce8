"""The time of the trials by phase, and the memory of a step by part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Bars, Figure, Layer, Panel, Points
from reports.figures.marks import Rows, device_limits, read_limits, stack_bars, to_floats
from reports.labels import OUTCOME_NAMES, format_value
from sweep.analysis.costs import parse_shapes
from sweep.analysis.statistics import Values, read_numbers, read_text
from sweep.config.metrics import format_count
from sweep.records.records import MEMORY_LABELS, MEMORY_PARTS

PARTS = (
    ("setup", "set-up"), ("compile", "compilation"), ("warmup", "warm-up"), ("memory", "measuring memory"),
    ("data_wait", "waiting for data"), ("step", "training steps"), ("eval", "evaluation"),
    ("checkpoint", "checkpoints"), ("diagnostics", "diagnostics"), ("other", "other (start, cut short)"),
)  # fmt: skip
_MEASURED = ("setup", "compile", "warmup", "memory", "data_wait", "eval", "checkpoint", "diagnostics")


def make_time_ledger(evidence: Evidence) -> list[Figure] | Absent:
    """Seconds by what they were spent on; reused trials cost nothing here and are left out."""
    trials = evidence.trials[read_text(evidence.trials, "reused_from") == ""]
    outcomes, phases, spent = read_text(trials, "outcome"), read_text(trials, "phase"), parts_of(trials)
    groups = [(f"complete, {phase}", (outcomes == "complete") & (phases == phase)) for phase in ("search", "confirm")]
    groups += [(name, outcomes == key) for key, name in OUTCOME_NAMES.items() if key not in ("", "complete")]
    rows = [(label, {part: float(np.nansum(spent[part][is_in])) for part in spent}) for label, is_in in groups]
    attempts = evidence.frames.attempts  # one with a cause did not end by itself: its trial was begun again
    lost = np.nansum(read_numbers(attempts, "busy_seconds")[read_text(attempts, "cause") != ""])
    rows.append(("attempts cut short", dict.fromkeys(spent, 0.0) | {"other": float(lost)}))
    rows = [(label, seconds) for label, seconds in rows if sum(seconds.values()) > 0][::-1]
    if not rows:
        return Absent("Time by phase", "requires a trial that ran here and measured its wall-clock time.")
    axis = Axis(label="", ticks=tuple((float(row), label) for row, (label, _) in enumerate(rows)))
    stacked = []
    for part, name in PARTS:
        lengths = np.array([seconds[part] for _, seconds in rows])
        stacked.append((name, part, lengths, [f"{name}: {format_value('seconds', length)}" for length in lengths]))
    total = float(sum(lengths.sum() for _, _, lengths, _ in stacked))
    num_timed = int(np.isfinite(read_numbers(trials, "total_seconds")).sum())
    caption = (
        f"Sum over {format_count(num_timed, 'trial')} that ran here: {format_value('seconds', total)}. "
        "Training time is waiting for data plus training steps."
    )
    panel = Panel(x=Axis(label="Time", unit="seconds"), y=axis, layers=_seen(stack_bars(stacked)))
    return [Figure(name="time_ledger", title="Time by phase", caption=caption, panels=(panel,))]


def parts_of(trials: pd.DataFrame) -> dict[str, Values]:
    """Seconds of each trial by what they were spent on, each of shape ``[len(trials)]``; NaN without a total.

    Training steps are the training time less the waiting for data; what the total has beyond all parts is "other".
    """
    total = read_numbers(trials, "total_seconds")
    parts = {name: np.nan_to_num(read_numbers(trials, f"{name}_seconds")) for name in _MEASURED}
    parts["step"] = np.maximum(0.0, np.nan_to_num(read_numbers(trials, "clock_seconds")) - parts["data_wait"])
    parts["other"] = np.maximum(0.0, total - sum(parts.values()))
    return {name: np.where(np.isfinite(total), values, np.nan) for name, values in parts.items()}


def _seen(layers: list[Bars]) -> tuple[Bars, ...]:
    return tuple(layer for layer in layers if any(layer.lengths))


# The memory of a step.

_MEMORY_TITLE = "Memory breakdown"
_MAX_PANELS = 6
MAX_ROWS = 16
_SIZE_KEYS = ("batch.micro", "batch.accumulation")


@dataclass(frozen=True, kw_only=True)
class _Estimates:
    """Every shape whose memory was estimated: its facts, ``parts`` in bytes (shape ``[n, 6]``), the ``measured`` peak
    (NaN where no trial of the shape ran) and the number of such a trial in ``trials`` (-1 without one)."""

    facts: list[dict[str, Any]]
    parts: Values
    measured: Values
    trials: Rows


def make_memory_breakdown(evidence: Evidence) -> list[Figure] | Absent:
    """A panel for each model with a bar for each micro batch, the device's limit, and the error of the estimates."""
    estimates = _read_estimates(evidence)
    if not estimates.facts:
        return Absent(
            _MEMORY_TITLE,
            "requires memory estimates, which a run adds at its end where training took a minute or longer: run the "
            "study again. sweep cost shows them without a study.",
        )
    limits = read_limits(evidence)
    panels = [_draw_memory(estimates, rows, model, limits) for model, rows in _group_by_model(estimates.facts)]
    caption = (
        f"Bars: estimates without training for {format_count(len(estimates.facts), 'shape')} (model, micro batch, "
        "precision, optimizer); diamonds: the measured peak. "
    )
    errors = keep_finite(np.abs(estimates.parts.sum(axis=1) / estimates.measured - 1))
    if len(errors):
        caption += (
            f"Relative error {100 * float(np.median(errors)):.1f} % (median), {100 * errors.max():.1f} % (maximum) "
            f"over {format_count(len(errors), 'trained shape')}. "
        )
    else:
        caption += "None of them was trained, so the error of the estimates is unknown. "
    if len(limits):
        caption += f"The device has {' or '.join(format_value('bytes', float(limit)) for limit in limits)}. "
    caption += "Each model is shown with its most frequent settings; learning rate and seed do not affect memory."
    return [Figure(name="memory_parts", title=_MEMORY_TITLE, caption=caption, panels=tuple(panels))]


def _read_estimates(evidence: Evidence) -> _Estimates:
    probes = evidence.frames.probes
    parts = np.stack([read_numbers(probes, f"forecast_{part}_bytes") for part in MEMORY_PARTS], axis=1)
    rows = np.flatnonzero(np.isfinite(parts).all(axis=1))
    probes = probes.iloc[rows]
    trials = evidence.trials[(evidence.trials["outcome"] == "complete").to_numpy(dtype=bool)]
    peaks, numbers = read_numbers(trials, "peak_memory_bytes"), trials["number"].to_numpy(dtype=np.int64)
    measured, owners = read_numbers(probes, "peak_memory_bytes"), np.full(len(probes), -1, dtype=np.int64)
    row_of = {shape: row for row, shape in enumerate(_shapes_on_devices(probes))}
    row_of_trial = np.array([row_of.get(shape, -1) for shape in _shapes_on_devices(trials)], dtype=np.int64)
    row_of_trial[~np.isfinite(peaks)] = -1
    for row in np.unique(row_of_trial[row_of_trial >= 0]):
        of_shape = np.flatnonzero(row_of_trial == row)
        measured[row], owners[row] = np.median(peaks[of_shape]), numbers[of_shape[0]]
    return _Estimates(facts=parse_shapes(probes), parts=parts[rows], measured=measured, trials=owners)


def _shapes_on_devices(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(read_text(rows, "shape_digest"), read_text(rows, "device"), strict=True))


def _group_by_model(facts: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """For each model the shapes with its most frequent settings, which differ in the size of a step alone, by size."""
    members: dict[tuple[str, str], list[int]] = {}
    for row, shape in enumerate(facts):
        settings = repr({key: value for key, value in shape.items() if key not in _SIZE_KEYS})
        members.setdefault((str(shape.get("model.name", "")), settings), []).append(row)
    groups: dict[str, list[int]] = {}
    for (model, _), rows in sorted(members.items(), key=lambda item: (-len(item[1]), item[0])):
        groups.setdefault(model, sorted(rows, key=lambda row: _step_size(facts[row]))[:MAX_ROWS])
    return sorted(groups.items())[:_MAX_PANELS]


def _step_size(shape: dict[str, Any]) -> tuple[int, int]:
    return int(shape.get("batch.micro", 0)), int(shape.get("batch.accumulation", 1))


def _draw_memory(estimates: _Estimates, rows: list[int], model: str, limits: Values) -> Panel:
    sizes = [_step_size(estimates.facts[row]) for row in rows]
    labels = [f"{micro}, accumulated" if accumulation > 1 else str(micro) for micro, accumulation in sizes]
    stacked = []
    for part, lengths, of_all in zip(MEMORY_PARTS, estimates.parts[rows].T, estimates.parts.T, strict=True):
        if of_all.max() > 0:  # used by any model, so that the legend has one order
            texts = [
                f"{model}, micro batch {label}: {MEMORY_LABELS[part]} {format_value('bytes', length)}"
                for label, length in zip(labels, lengths, strict=True)
            ]
            stacked.append((MEMORY_LABELS[part], part, lengths, texts))
    sums, peaks, trials = estimates.parts[rows].sum(axis=1), estimates.measured[rows], estimates.trials[rows]
    layers: list[Layer] = [*stack_bars(stacked)]
    heights = np.flatnonzero(np.isfinite(peaks))
    if len(heights):
        texts = [
            f"Micro batch {labels[at]}: measured {format_value('bytes', float(peaks[at]))}, estimated "
            f"{format_value('bytes', float(sums[at]))}"
            for at in heights
        ]
        layers.append(
            Points(
                name="measured peak", role="measured", x=to_floats(peaks[heights]), y=to_floats(heights),
                texts=tuple(texts), trials=tuple(trials[heights].tolist()) if trials[heights].min() >= 0 else (),
            )
        )  # fmt: skip
    layers += device_limits("x", limits, sums.max())
    y_axis = Axis(label="", ticks=tuple((float(height), label) for height, label in enumerate(labels)))
    x_axis = Axis(label="Memory of a step", unit="bytes")
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=f"{model}, by micro batch")
