"""Trial outcomes, and the time of the trials by phase."""

import numpy as np
import pandas as pd

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Bars, Figure, Layer, Panel
from reports.figures.marks import Values, outcome_points, stack_bars
from reports.figures.positions import parameter_axis, swept_parameters
from reports.labels import OUTCOME_NAMES, format_value
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.units import format_count

MAP_TITLE = "Outcomes over the search space"
MAX_COMPLETE = 300
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
    frame = pd.concat([evidence.unfinished, complete.tail(MAX_COMPLETE)])
    present = [name for name in OUTCOME_NAMES if name and (frame["outcome"] == name).any()]
    if not set(present) - {"complete"}:
        return Absent(MAP_TITLE, "has nothing to show: every trial that ended is complete.")
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
        return Absent(MAP_TITLE, "requires a swept parameter.")
    caption = f"{format_count(len(frame), 'trial')}, by outcome and parameter value. {_shares(evidence)}"
    return [Figure(name="where_outcomes", title=MAP_TITLE, caption=caption, panels=tuple(panels))]


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
