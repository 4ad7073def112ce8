"""How many repetitions a test requires to find an effect of a given size."""

import math
from collections.abc import Sequence

from scipy.special import nctdtr, ndtri, stdtrit

POWER = 0.8  # probability that a planned study finds an effect of the size that matters
_MOST_REPETITIONS = 1000


def count_repetitions(
    distances: Sequence[tuple[float, float]], spread: float, lost: int, alpha: float, fewest: int
) -> int:
    """The fewest repetitions with which the one-sided t test at level ``alpha`` finds an effect at each of the
    ``distances`` from a bound with the power beside it, by the noncentral t distribution (Cohen 1988, chapter 2).

    The mean of n repetitions has the standard error ``spread`` / sqrt(n) with n - ``lost`` degrees of freedom.
    """
    for count in range(max(fewest, lost + 1), _MOST_REPETITIONS):
        degrees = count - lost
        threshold = float(stdtrit(degrees, 1 - alpha))
        shifts = [(distance * math.sqrt(count) / spread, power) for distance, power in distances]
        if all(1 - float(nctdtr(degrees, shift, threshold)) >= power for shift, power in shifts):
            return count
    level = float(ndtri(1 - alpha))  # with so many degrees of freedom t is normal
    roots = [(level + float(ndtri(power))) * spread / distance for distance, power in distances]
    return max(_MOST_REPETITIONS, math.ceil(max(roots) ** 2))
