"""Trial outcomes, the time of the trials by phase, and the memory of a step by part."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Bars, Figure, Layer, Panel, Points
from reports.figures.marks import (
    Rows,
    Values,
    device_limits,
    outcome_points,
    parameter_axis,
    stack_bars,
    swept_parameters,
    to_floats,
)
from reports.labels import OUTCOME_NAMES, format_value
from sweep.analysis.costs import parse_shapes
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.metrics import format_count
from sweep.records.records import MEMORY_LABELS, MEMORY_PARTS

_MAP_TITLE = "Outcomes over the search space"
_MAX_COMPLETE = 300
PARTS = (
    ("setup", "set-up"), ("compile", "compilation"), ("warmup", "warm-up"), ("memory", "measuring memory"),
    ("data_wait", "waiting for data"), ("step", "training steps"), ("eval", "evaluation"),
    ("checkpoint", "checkpoints"), ("diagnostics", "diagnostics"), ("other", "other (start, cut short)"),
)  # fmt: skip
_MEASURED = ("setup", "compile", "warmup", "memory", "data_wait", "eval", "checkpoint", "diagnostics")


def make_outcomes(evidence: Evidence) -> list[Figure] | Absent:
    """How many trials ended how, search and confirm apart."""
    counts = evidence.count_outcomes()
    if not counts:
        return Absent("Trial outcomes", "requires a trial; none is recorded.")
    if set(counts) == {"complete"}:
        return Absent("Trial outcomes", f"has nothing to show: all {counts['complete']:,} are complete.")
    names = list(counts)[::-1]  # the most frequent on top
    axis = Axis(label="", ticks=tuple((float(row), OUTCOME_NAMES.get(name, name)) for row, name in enumerate(names)))
    parts = []
    for phase in ("search", "confirm"):
        chosen = evidence.trials["outcome"][(evidence.trials["phase"] == phase).to_numpy(dtype=bool)]
        lengths = np.array([float((chosen == name).sum()) for name in names])
        parts.append((phase, f"{phase}_phase", lengths, [f"{int(n)} {phase}" for n in lengths]))
    caption = f"{format_count(len(evidence.trials), 'trial')}, by outcome and phase."
    panel = Panel(x=Axis(label="Trials"), y=axis, layers=_seen(stack_bars(parts)))
    return [Figure(name="outcomes", title="Trial outcomes", caption=caption, panels=(panel,))]


def make_outcome_map(evidence: Evidence) -> list[Figure] | Absent:
    """A panel for each parameter with a row for each outcome; only where a trial ended in another way than complete."""
    complete = evidence.detailed[(evidence.detailed["outcome"] == "complete").to_numpy(dtype=bool)]
    frame = pd.concat([evidence.unfinished, complete.tail(_MAX_COMPLETE)])
    present = [name for name in OUTCOME_NAMES if name and (frame["outcome"] == name).any()]
    if not set(present) - {"complete"}:
        return Absent(_MAP_TITLE, "has nothing to show: every trial that ended is complete.")
    axis = Axis(label="", ticks=tuple((float(row), OUTCOME_NAMES[name]) for row, name in enumerate(present)))
    # a fixed spread by trial number, so that equal settings do not hide each other; not that of the choices along x
    spread = (read_numbers(frame, "number") * 0.7548777 % 1.0 - 0.5) * 0.5
    rows = np.array([present.index(name) for name in frame["outcome"]], dtype=np.float64) + spread
    panels = []
    for key in swept_parameters(evidence):
        x_axis, place = parameter_axis(evidence, key)
        layers: list[Layer] = list(outcome_points(evidence, frame, place(frame), rows))
        if layers:
            panels.append(Panel(x=x_axis, y=axis, layers=tuple(layers)))
    if not panels:
        return Absent(_MAP_TITLE, "requires a swept parameter.")
    caption = f"{format_count(len(frame), 'trial')}, by outcome and parameter value. {_shares(evidence)}"
    return [Figure(name="where_outcomes", title=_MAP_TITLE, caption=caption, panels=tuple(panels))]


def _shares(evidence: Evidence) -> str:
    ended = {name: count for name, count in evidence.count_outcomes().items() if name}
    total = sum(ended.values())
    return f"{100 * ended.get('complete', 0) / total:.0f} % of all {total:,} that ended are complete."


def make_time_ledger(evidence: Evidence) -> list[Figure] | Absent:
    """Seconds by what they were spent on; reused trials cost nothing here and are left out."""
    trials = evidence.trials[read_text(evidence.trials, "reused_from") == ""]
    rows = [*_spent_by_outcome(trials), ("attempts cut short", _lost(evidence))]
    rows = [(label, parts) for label, parts in rows if sum(parts.values()) > 0][::-1]
    if not rows:
        return Absent("Time by phase", "requires a trial that ran here and measured its wall-clock time.")
    spent = [parts for _, parts in rows]
    axis = Axis(label="", ticks=tuple((float(row), label) for row, (label, _) in enumerate(rows)))
    stacked = []
    for part, name in PARTS:
        lengths = np.array([parts[part] for parts in spent])
        stacked.append((name, part, lengths, [f"{name}: {format_value('seconds', length)}" for length in lengths]))
    total = float(np.sum([lengths for _, _, lengths, _ in stacked], axis=0).sum())
    num_timed = int(np.isfinite(read_numbers(trials, "total_seconds")).sum())
    caption = (
        f"Sum over {format_count(num_timed, 'trial')} that ran here: {format_value('seconds', total)}. "
        "Training time is waiting for data plus training steps."
    )
    panel = Panel(x=Axis(label="Time", unit="seconds"), y=axis, layers=_seen(stack_bars(stacked)))
    return [Figure(name="time_ledger", title="Time by phase", caption=caption, panels=(panel,))]


def _spent_by_outcome(trials: pd.DataFrame) -> list[tuple[str, dict[str, float]]]:
    outcomes, phases, spent = read_text(trials, "outcome"), read_text(trials, "phase"), parts_of(trials)
    rows = [(f"complete, {phase}", (outcomes == "complete") & (phases == phase)) for phase in ("search", "confirm")]
    rows += [(name, outcomes == key) for key, name in OUTCOME_NAMES.items() if key not in ("", "complete")]
    return [(label, {part: float(np.nansum(spent[part][chosen])) for part in spent}) for label, chosen in rows]


def parts_of(trials: pd.DataFrame) -> dict[str, Values]:
    """Seconds of each trial by what they were spent on, each of shape ``[len(trials)]``; NaN without a total.

    Training steps are the training time less the waiting for data; what the total has beyond all parts is "other".
    """
    total = read_numbers(trials, "total_seconds")
    parts = {name: np.nan_to_num(read_numbers(trials, f"{name}_seconds")) for name in _MEASURED}
    parts["step"] = np.maximum(0.0, np.nan_to_num(read_numbers(trials, "clock_seconds")) - parts["data_wait"])
    parts["other"] = np.maximum(0.0, total - sum(parts.values()))
    return {name: np.where(np.isfinite(total), values, np.nan) for name, values in parts.items()}


def _lost(evidence: Evidence) -> dict[str, float]:
    """Seconds of attempts that did not end by themselves: their trials were begun again."""
    lost = evidence.frames.attempts[read_text(evidence.frames.attempts, "cause") != ""]
    return dict.fromkeys((part for part, _ in PARTS), 0.0) | {
        "other": float(np.nansum(read_numbers(lost, "busy_seconds")))
    }


def _seen(layers: list[Bars]) -> tuple[Bars, ...]:
    return tuple(layer for layer in layers if any(layer.lengths))


_MEMORY_TITLE = "Memory breakdown"
_MAX_PANELS = 6
MAX_ROWS = 16
_NEAR = 20  # times what is drawn: a limit beyond that would press everything against the axis


@dataclass(frozen=True, kw_only=True)
class _Estimates:
    """Every shape whose memory was estimated: its facts, ``parts`` in bytes (shape ``[n, 6]``), the peak that was
    ``measured`` (NaN where nothing of it ran) and the number of its trial in ``trials`` (-1 where there is none)."""

    facts: list[dict[str, Any]]
    parts: Values
    measured: Values
    trials: Rows

    @property
    def errors(self) -> Values:
        """How far each estimate is off, as a share of what was measured; only of what ran."""
        return keep_finite(np.abs(self.parts.sum(axis=1) / self.measured - 1))


def make_memory_breakdown(evidence: Evidence) -> list[Figure] | Absent:
    """A panel for each model with a bar for each micro batch, the device's limit, and how far the estimates are off."""
    found = _estimates(evidence)
    if not found.facts:
        return Absent(
            _MEMORY_TITLE,
            "requires memory estimates, which a run adds at its end where training took a minute or longer: run the "
            "study again. sweep cost shows them without a study.",
        )
    limits = read_numbers(evidence.frames.environments, "device_memory_bytes")
    limits = np.unique(limits[limits > 0])  # a processor has none of its own
    panels = [_panel(found, rows, name, limits) for name, rows in _groups(found.facts)]
    return [Figure(name="memory_parts", title=_MEMORY_TITLE, caption=_caption(found, limits), panels=tuple(panels))]


def _estimates(evidence: Evidence) -> _Estimates:
    probes = evidence.frames.probes
    every = np.stack([read_numbers(probes, f"forecast_{part}_bytes") for part in MEMORY_PARTS], axis=1)
    rows = np.flatnonzero(np.isfinite(every).all(axis=1))
    probes = probes.iloc[rows]
    complete = evidence.trials[(evidence.trials["outcome"] == "complete").to_numpy(dtype=bool)]
    peaks, numbers = read_numbers(complete, "peak_memory_bytes"), complete["number"].to_numpy(dtype=np.int64)
    places = dict(zip(_shapes_on_devices(probes), range(len(rows)), strict=True))
    of_shape = np.array([places.get(each, -1) for each in _shapes_on_devices(complete)], dtype=np.int64)
    of_shape[~np.isfinite(peaks)] = -1
    measured, owners = read_numbers(probes, "peak_memory_bytes"), np.full(len(rows), -1, dtype=np.int64)
    for row in np.unique(of_shape[of_shape >= 0]):
        at = np.flatnonzero(of_shape == row)
        measured[row], owners[row] = np.median(peaks[at]), numbers[at[0]]
    return _Estimates(facts=parse_shapes(probes), parts=every[rows], measured=measured, trials=owners)


def _shapes_on_devices(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(read_text(rows, "shape_digest"), read_text(rows, "device"), strict=True))


def _groups(facts: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """The shapes of each model that differ in nothing but the size of a step: those that are most."""
    kinds = [_without_size(each) for each in facts]
    counts = Counter(kinds)
    chosen: dict[str, tuple[tuple[str, Any], ...]] = {}
    for kind in sorted(counts, key=lambda kind: (-counts[kind], repr(kind))):
        chosen.setdefault(str(dict(kind).get("model.name", "")), kind)
    made = []
    for name, kind in sorted(chosen.items())[:_MAX_PANELS]:
        rows = [row for row, each in enumerate(kinds) if each == kind]
        made.append((name, sorted(rows, key=lambda row: _size(facts[row]))[:MAX_ROWS]))
    return made


def _without_size(facts: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in facts.items() if key not in ("batch.micro", "batch.accumulation"))


def _size(facts: dict[str, Any]) -> tuple[int, int]:
    return int(facts.get("batch.micro", 0)), int(facts.get("batch.accumulation", 1))


def _panel(found: _Estimates, rows: list[int], name: str, limits: Values) -> Panel:
    labels = [_label(found.facts[row]) for row in rows]
    stacked = []
    for part, lengths, every in zip(MEMORY_PARTS, found.parts[rows].T, found.parts.T, strict=True):
        if every.max() > 0:  # used by any model, so that the legend has one order
            shown = [f"{MEMORY_LABELS[part]} {format_value('bytes', length)}" for length in lengths]
            texts = [f"{name}, micro batch {label}: {text}" for label, text in zip(labels, shown, strict=True)]
            stacked.append((MEMORY_LABELS[part], part, lengths, texts))
    near = limits[limits < _NEAR * found.parts[rows].sum(axis=1).max()]
    layers: list[Layer] = [*stack_bars(stacked), *_measured(found, rows, labels), *device_limits("x", near)]
    axis = Axis(label="", ticks=tuple((float(place), label) for place, label in enumerate(labels)))
    x_axis = Axis(label="Memory of a step", unit="bytes")
    return Panel(x=x_axis, y=axis, layers=tuple(layers), title=f"{name}, by micro batch")


def _label(facts: dict[str, Any]) -> str:
    micro, several = _size(facts)
    return f"{micro}, accumulated" if several > 1 else str(micro)


def _measured(found: _Estimates, rows: list[int], labels: list[str]) -> list[Points]:
    places = [place for place, row in enumerate(rows) if np.isfinite(found.measured[row])]
    if not places:
        return []
    peaks = [float(found.measured[rows[place]]) for place in places]
    texts = (
        f"Micro batch {labels[place]}: measured {format_value('bytes', peak)}, estimated "
        f"{format_value('bytes', float(found.parts[rows[place]].sum()))}"
        for place, peak in zip(places, peaks, strict=True)
    )
    owners = tuple(int(found.trials[rows[place]]) for place in places)
    trials, up = owners if min(owners) >= 0 else (), to_floats(places)
    return [Points(name="measured peak", role="measured", x=tuple(peaks), y=up, texts=tuple(texts), trials=trials)]


def _caption(found: _Estimates, limits: Values) -> str:
    num_shapes = format_count(len(found.facts), "shape")
    text = f"Bars: estimates without training for {num_shapes} (model, micro batch, precision, optimizer); diamonds: "
    text += "the measured peak. "
    errors = found.errors
    if len(errors):
        worst, middle = (f"{100 * float(each):.1f} %" for each in (errors.max(), np.median(errors)))
        trained = format_count(len(errors), "trained shape")
        text += f"Relative error {middle} (median), {worst} (maximum) over {trained}. "
    else:
        text += "None of them was trained, so the error of the estimates is unknown. "
    if len(limits):
        text += f"The device has {' or '.join(format_value('bytes', float(limit)) for limit in limits)}. "
    return f"{text}Each model is shown with its most frequent settings; learning rate and seed do not affect memory."
