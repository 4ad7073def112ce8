"""The throughput curve of one recipe among the trials of several.

Apart from :mod:`sweep.analysis.statistics.throughput`, which a probe imports too: frames take longer to import.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.statistics import Values, read_text
from sweep.analysis.statistics.throughput import find_throughput_knee, group_medians

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


def find_longest_curve(trials: pd.DataFrame, sizes: Values, rates: Values) -> ThroughputCurve | None:
    """The throughput of the combination of model, normalization, precision and optimizer with the most micro batches,
    and of these the one with the most trials; None without a measurement. All of shape ``[trials]``."""
    columns = [read_text(trials, f"config.{key}").tolist() for key in _APART]
    names = np.array([_name_combination(*row) for row in zip(*columns, strict=True)], dtype=object)
    known = np.isfinite(sizes) & np.isfinite(rates)
    combinations = sorted(set(names[known]))
    curves = []
    for name in combinations:
        chosen = known & (names == name)
        levels, medians = group_medians(sizes[chosen], rates[chosen])
        curves.append(ThroughputCurve(name, levels, medians, int(chosen.sum()), len(combinations) - 1))
    return max(curves, key=lambda curve: (len(curve.sizes), curve.num_trials), default=None)


def _name_combination(model: str, norm: str, *others: str) -> str:
    return ", ".join(filter(None, (model, f"{norm} norm" if norm else "", *others)))
