"""Axes of parameters: scale and ticks follow from the way the study declares a parameter."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Axis
from reports.figures.marks import Values, make_batch_axis
from reports.labels import format_setting, key_label
from sweep.analysis.statistics import Mask, plain_value, read_numbers

GLOBAL_BATCH = "global_batch_size"
JITTER = 0.18


def swept_parameters(evidence: Evidence) -> tuple[str, ...]:
    """The swept keys, after the effective batch size where more than one ``batch.*`` key determines it."""
    batch = [key for key in evidence.swept if key.startswith("batch.")]
    return (GLOBAL_BATCH, *evidence.swept) if len(batch) > 1 else evidence.swept


class AxisPosition:
    """Maps rows to positions on the axis of one key; ``positions`` are those of its choices, None of a number."""

    def __init__(self, column_name: str, positions: dict[object, int] | None) -> None:
        self.column_name = column_name
        self.positions = positions

    def __call__(self, frame: pd.DataFrame, chosen: Mask | None = None) -> Values:
        """Positions of shape ``[len(frame)]``, NaN where the key has no value. A choice is looked up for the
        rows of ``chosen`` (shape ``[len(frame)]``) only."""
        if self.positions is None:
            return read_numbers(frame, self.column_name)
        rows = np.arange(len(frame)) if chosen is None else np.flatnonzero(chosen)
        at = [self.positions.get(category_key(value), math.nan) for value in frame[self.column_name].iloc[rows]]
        # a fixed spread by trial number, so that equal settings do not hide each other
        spread = (read_numbers(frame, "number")[rows] * 0.618034 % 1.0 - 0.5) * 2 * JITTER
        positions = np.full(len(frame), np.nan)
        positions[rows] = np.array(at, dtype=np.float64) + spread
        return positions


def category_key(value: object) -> object:
    """A cell as a key of a dictionary: None where it is missing; 1 and True are two categories."""
    value = plain_value(value)
    return (type(value).__name__, value) if isinstance(value, bool) else value


def parameter_axis(evidence: Evidence, key: str) -> tuple[Axis, AxisPosition]:
    """The axis of a key as its parameter was written in the study: choices side by side, powers of two as ticks."""
    name = key if key == GLOBAL_BATCH else f"config.{key}"
    label = key_label(key)
    parameter = evidence.frames.spec.space.get(key) if evidence.frames.spec else None
    form = parameter.form if parameter else "log2" if key == GLOBAL_BATCH else _guess_form(evidence.trials, name)
    if form == "choice":
        values = list(parameter.choice or ()) if parameter else _list_values(evidence.trials, name)
        positions = {category_key(value): index for index, value in enumerate(values)}
        ticks = tuple((float(index), format_setting(value)) for index, value in enumerate(values))
        return Axis(label=label, ticks=ticks), AxisPosition(name, positions)
    if form == "log2":
        used = keep_finite(read_numbers(evidence.trials, name))
        return make_batch_axis(label, used), AxisPosition(name, None)
    return Axis(label=label, scale="log" if form == "log" else "linear"), AxisPosition(name, None)


def _list_values(trials: pd.DataFrame, name: str) -> list[object]:
    found = {category_key(value): plain_value(value) for value in trials[name]}
    return sorted(found.values(), key=lambda value: (str(type(value)), value if _is_number(value) else str(value)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _guess_form(trials: pd.DataFrame, name: str) -> str:
    values: Sequence[object] = _list_values(trials, name)
    if len(values) <= 6 or not all(_is_number(value) for value in values if value is not None):
        return "choice"
    finite = keep_finite(read_numbers(trials, name))
    return "log" if finite.min() > 0 and finite.max() > 50 * finite.min() else "float"
