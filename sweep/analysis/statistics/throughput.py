"""The micro batch from which throughput no longer grows."""

import numpy as np

from sweep.analysis.statistics.pareto import Values

KNEE_SHARE = 0.95  # of the best throughput


def find_throughput_knee(sizes: Values, rates: Values) -> int:
    """The row of the throughput knee: the smallest of ``sizes`` whose rate is within 5 % of the best.

    ``sizes`` are distinct micro batches, ``rates`` their images per second; both are finite and of shape ``[n]`` with
    ``n >= 1``.
    """
    rows = np.flatnonzero(rates >= KNEE_SHARE * rates.max())
    return int(rows[np.argmin(sizes[rows])])
