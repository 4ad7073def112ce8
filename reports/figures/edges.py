"""The edge of a panel, where trials without a value are drawn."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from reports.evidence import keep_finite
from reports.figure import Rule
from reports.figures.marks import Scale, Values
from reports.labels import OUTCOME_NAMES
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.config.metrics import METRICS


class Edge(NamedTuple):
    """Positions of marks without a value on one axis, by outcome, and of the line that separates them."""

    places: dict[str, float]
    rule: float

    def place_rows(self, frame: pd.DataFrame) -> Values:
        """The place of each row of ``frame`` by its outcome, shape ``[len(frame)]``."""
        return np.array([self.places.get(outcome, self.rule) for outcome in frame["outcome"]], dtype=np.float64)


def place_edge(values: Values, sign: float, scale: Scale, outcomes: Sequence[str], step: float = 0.0) -> Edge:
    """Places beyond the worst of ``values``; ``sign`` is -1 where larger is better.

    ``step`` is the share of the range between the places of two outcomes, so that they do not hide each other.

    Raises:
        ValueError: no value is finite.
    """
    finite = keep_finite(values[values > 0] if scale == "log" else values)
    if not len(finite):
        raise ValueError("an edge requires a finite value; none was given")
    moved = np.log(finite) if scale == "log" else finite
    worst = float((moved * sign).max())
    spread = float(np.ptp(moved)) or abs(worst) or 1.0
    present = [name for name in OUTCOME_NAMES if name in outcomes]
    marks = [sign * (worst + share * spread) for share in (0.06, *(0.12 + step * k for k in range(len(present))))]
    rule, *places = [math.exp(mark) for mark in marks] if scale == "log" else marks
    return Edge(dict(zip(present, places, strict=True)), rule)


def read_used(frame: pd.DataFrame, name: str) -> Values:
    """What an unfinished trial had used of time or memory; NaN for quality and for what was not measured."""
    return read_numbers(frame, name) if METRICS[name].is_cost else np.full(len(frame), np.nan)


def fill_with_edge(values: Values, frame: pd.DataFrame, edge: Edge) -> Values:
    """``values`` with the edge's places where they are missing."""
    return np.where(np.isfinite(values), values, edge.place_rows(frame))


def make_rule(axis: Literal["x", "y"], edge: Edge) -> Rule:
    """The line beyond which marks without a value are drawn."""
    return Rule(axis=axis, value=edge.rule, text="no value")
