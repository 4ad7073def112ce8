"""Measurements by micro batch, and the one from which throughput no longer grows."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.statistics.column_reading import read_text
from sweep.analysis.statistics.pareto import Values

KNEE_SHARE = 0.95  # of the best throughput
# Whose throughputs have nothing in common: a knee of all of them would be that of none.
_APART = ("model.name", "model.norm", "precision.dtype", "optimizer.name")


class ThroughputCurve(NamedTuple):
    """The median ``rates`` (images per second) at the distinct micro batches ``sizes``, both of shape ``[k]``, of the
    trials of one model, normalization, precision and optimizer, which ``name`` gives; ``num_trials`` is their number,
    ``num_others`` that of other combinations."""

    name: str
    sizes: Values
    rates: Values
    num_trials: int
    num_others: int

    @property
    def knee(self) -> int:
        """The row of the throughput knee."""
        return find_throughput_knee(self.sizes, self.rates)


def group_medians(x: Values, y: Values) -> tuple[Values, Values]:
    """The distinct ``x`` in order and the median of ``y`` at each; values where either is not finite are left out."""
    known = np.isfinite(x) & np.isfinite(y)
    levels = np.unique(x[known])
    return levels, np.array([np.median(y[known & (x == level)]) for level in levels])


def find_throughput_knee(sizes: Values, rates: Values) -> int:
    """The row of the throughput knee: the smallest of ``sizes`` whose rate is within 5 % of the best.

    ``sizes`` are distinct micro batches, ``rates`` their images per second; both are finite and of shape ``[n]`` with
    ``n >= 1``.
    """
    rows = np.flatnonzero(rates >= KNEE_SHARE * rates.max())
    return int(rows[np.argmin(sizes[rows])])


def find_longest_curve(trials: pd.DataFrame, sizes: Values, rates: Values) -> ThroughputCurve | None:
    """The throughput of the combination of model, normalization, precision and optimizer with the most micro batches,
    and of these the one with the most trials; None without a measurement. All of shape ``[trials]``."""
    columns = [read_text(trials, f"config.{key}").tolist() for key in _APART]
    names = np.array([", ".join(filter(None, row)) for row in zip(*columns, strict=True)], dtype=object)
    known = np.isfinite(sizes) & np.isfinite(rates)
    combinations = sorted(set(names[known]))
    curves = []
    for name in combinations:
        chosen = known & (names == name)
        levels, medians = group_medians(sizes[chosen], rates[chosen])
        curves.append(ThroughputCurve(name, levels, medians, int(chosen.sum()), len(combinations) - 1))
    return max(curves, key=lambda curve: (len(curve.sizes), curve.num_trials), default=None)
