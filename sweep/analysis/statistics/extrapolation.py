"""Bounds on the end of a learning curve, learned from the curves of trials that were trained to their end.

A curve holds costs (smaller is better) over the share of its schedule, from above 0 to 1. No form is assumed: the
plausible rest of a curve is bounded by how others continued from the same share.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from sweep.analysis.statistics.intervals import median_errors
from sweep.analysis.statistics.pareto import Values

_GRID = 101  # shares at which curves are kept
NUM_CURVES = 1000  # the latest are kept
# A bound that holds for this many independent curves fails for the next in 1 of 21 cases, before any margin for noise.
NUM_NEAREST = 20
MARGIN = 3.0  # standard deviations of the noise between two seeds


@final
class CurveFamily:
    """Whole curves of one quantity. ``is_share``: it is between 0 and 1, counted on a finite number of samples."""

    def __init__(self, *, is_share: bool = False) -> None:
        self._is_share = is_share
        self._shares = np.linspace(0.0, 1.0, _GRID)
        self._costs = np.empty((0, _GRID))
        self._roughness: list[float] = []

    def __len__(self) -> int:
        return len(self._costs)

    def add(self, shares: Sequence[float], costs: Sequence[float]) -> None:
        """Adds a complete curve; ``shares`` and ``costs`` have shape ``[points]``, shares ascend, the last is taken as
        1."""
        if not np.isfinite(costs).all() or not len(costs):
            return
        known = np.array([*shares[:-1], 1.0])
        # a curve has no value before its first evaluation
        row = np.where(self._shares >= known[0] - 1e-9, np.interp(self._shares, known, costs), np.nan)
        self._costs = np.vstack([self._costs, row])[-NUM_CURVES:]
        self._roughness = [*self._roughness, _measure_roughness(known, np.asarray(costs))][-NUM_CURVES:]

    def best_end(self, share: float, cost: float) -> float:
        """The smallest end that is plausible for a curve with ``cost`` at ``share``; -inf where too little is known.

        It is the better of two, less a margin for noise: ``cost`` less the largest gain that any of the nearest curves
        still made, and the best end of a curve that was no better at this share.
        """
        known = self._known_at(share)
        if known is None:
            return -np.inf
        at, ends = known
        from_behind = np.min(ends[at >= cost], initial=np.inf)
        by_gain = cost - np.max(_nearest_gains(at, ends, cost))
        return float(min(by_gain, from_behind, cost) - MARGIN * np.sqrt(2.0) * self.noise())

    def likely_end(self, share: float, cost: float) -> float:
        """The median end of a curve with ``cost`` at ``share``; ``cost`` itself where too little is known."""
        known = self._known_at(share)
        return cost if known is None else float(cost - np.median(_nearest_gains(*known, cost)))

    def end_error(self, share: float, cost: float) -> float:
        """The standard error of :meth:`likely_end`: how differently the nearest curves continued from this share, and
        the error of their median. Infinite where too little is known."""
        known = self._known_at(share)
        if known is None:
            return np.inf
        gains = _nearest_gains(*known, cost)
        error = float(median_errors(np.array([len(gains)]))[0])
        return float(gains.std(ddof=1) * np.hypot(1.0, error))

    def noise(self) -> float:
        """Standard deviation of an end between seeds, as far as single curves show it: how much they vary towards
        their end and, for a share, the binomial error of counting it on as many samples as its resolution implies."""
        roughness = float(np.sqrt(np.mean(np.square(self._roughness)))) if self._roughness else 0.0
        return float(np.hypot(roughness, self._counting()))

    def _counting(self) -> float:
        ends = np.unique(np.round(self._costs[:, -1], 9))
        if not self._is_share or len(ends) < 2:
            return 0.0
        middle = float(np.clip(np.median(np.abs(ends)), 0.0, 1.0))
        return float(np.sqrt(middle * (1.0 - middle) * np.diff(ends).min()))

    def _known_at(self, share: float) -> tuple[Values, Values] | None:
        # costs at the share and at the end of the curves that reach back to it; None where these are too few
        place = min(max(share, 0.0), 1.0) * (_GRID - 1)
        low = int(place)
        high = min(low + 1, _GRID - 1)
        at = self._costs[:, low] + (place - low) * (self._costs[:, high] - self._costs[:, low])
        known = np.isfinite(at)
        return (at[known], self._costs[known, -1]) if known.sum() >= NUM_NEAREST else None


def _nearest_gains(at: Values, ends: Values, cost: float) -> Values:
    nearest = np.argsort(np.abs(at - cost), kind="stable")[:NUM_NEAREST]
    return np.asarray(at[nearest] - ends[nearest])


def _measure_roughness(shares: Values, costs: Values) -> float:
    # how far evaluations of the last third are from the line between their neighbors
    late = costs[shares >= 2.0 / 3.0]
    if len(late) < 3:
        return 0.0
    bends = late[:-2] - 2.0 * late[1:-1] + late[2:]
    return float(np.sqrt(np.mean(bends**2) / 6.0))
