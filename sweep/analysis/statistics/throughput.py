"""Measurements by micro batch, and the one from which throughput no longer grows."""

import numpy as np

from sweep.analysis.statistics import Values

KNEE_SHARE = 0.95  # of the best throughput


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
