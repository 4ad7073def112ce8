"""Medians with confidence intervals, and the spread between seeds."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# scipy.stats takes half a second to import, a sixth of what a report of 1,000 trials may take
from scipy.special import gammaln, stdtr, stdtrit

from sweep.analysis.statistics.pareto import Values

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000

# Standard deviation of the median of n values of a normal distribution with standard deviation 1, n = 1 ... 16
# (order statistics, by 600,000 draws); beyond, sqrt(pi / (2 n + pi - 2)) is right to 3 %.
_MEDIAN_ERRORS = (
    1.0, 0.7071, 0.6698, 0.5460, 0.5356, 0.4638, 0.4589, 0.4100, 0.4072, 0.3718, 0.3709, 0.3426, 0.3419, 0.3200, 0.3190,
    0.3000,
)  # fmt: skip


class Interval(NamedTuple):
    """A median of ``n`` values with its interval; the bounds are NaN where the spread is not known."""

    median: float
    low: float
    high: float
    n: int


class Spread(NamedTuple):
    """Standard deviation between the seeds of one configuration, and its degrees of freedom."""

    sd: float
    degrees: int


def t_quantile(confidence: float, degrees: float) -> float:
    """Half the width, in standard errors, of a two-sided interval of that ``confidence``."""
    return float(stdtrit(degrees, (1 + confidence) / 2))


def t_upper_tail(values: npt.ArrayLike, degrees: npt.ArrayLike) -> Values:
    """The probability of exceeding each of ``values``, by one number of ``degrees`` or one each; of their shape."""
    return np.asarray(stdtr(degrees, -np.asarray(values, dtype=np.float64)), dtype=np.float64)


def t_density(values: Values, degrees: float) -> Values:
    """The density at each of ``values``, of the same shape; that of the normal distribution for 0 ``degrees``."""
    squares = values**2
    if degrees == 0:
        return np.asarray(np.exp(-squares / 2) / np.sqrt(2 * np.pi))
    height = np.exp(gammaln((degrees + 1) / 2) - gammaln(degrees / 2)) / np.sqrt(degrees * np.pi)
    return np.asarray(height * np.exp(-(degrees + 1) / 2 * np.log1p(squares / degrees)))


def median_interval(
    values: npt.ArrayLike, confidence: float = CONFIDENCE, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """Median of the finite ``values`` (shape ``[n]``) and its percentile bootstrap interval (Efron, 1979).

    For many repeats of one measurement. It is at most as wide as the values' range: of 3 values it covers the truth in
    about 75 % of the cases, not 95 %, so few seeds require :func:`seed_interval`.
    """
    known = _finite(values)
    n = len(known)
    if n < 2:
        return Interval(float(known[0]) if n else np.nan, np.nan, np.nan, n)
    draws = np.random.default_rng(seed).integers(0, n, size=(num_resamples, n))
    medians = np.median(known[draws], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(known)), float(low), float(high), n)


def seed_interval(
    values: npt.ArrayLike,
    spread: Spread | None = None,
    confidence: float = CONFIDENCE,
    known_variance: float = 0.0,
) -> Interval:
    """Median of a few seeds' ``values`` (shape ``[n]``) and its interval by Student's t distribution.

    The half width is t(degrees) * sd * e(n), with e(n) the standard deviation of the median of n standard normal
    values. With ``spread``, pooled over configurations, three seeds are enough for a useful interval and one seed
    has one; without it the values' own spread serves. Assumes that seeds scatter evenly around the truth.

    ``known_variance`` is that of an error that all seeds have in common: of the images they are judged on, without
    which the interval is of seeds on these images, or of a time that is no evidence.
    """
    known = _finite(values)
    n = len(known)
    if n == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    own = spread or Spread(float(np.std(known, ddof=1)) if n > 1 else np.nan, n - 1)
    median = float(np.median(known))
    half = half_width(own, float(median_errors(np.array([n]))[0]), confidence, known_variance)
    return Interval(median, median - half, median + half, n)


def half_width(spread: Spread, error: float, confidence: float = CONFIDENCE, known_variance: float = 0.0) -> float:
    """Half of an interval's width for an estimate whose error is ``error`` standard deviations, and beside it one of
    ``known_variance``; NaN without degrees."""
    if spread.degrees < 1:
        return np.nan
    estimated = (spread.sd * error) ** 2
    degrees = float(combine_degrees(spread.degrees, estimated, estimated + known_variance))
    return t_quantile(confidence, degrees) * float(np.sqrt(estimated + known_variance))


def combine_degrees(degrees: float, estimated: npt.ArrayLike, total: npt.ArrayLike) -> Values:
    """Degrees of freedom of variances ``total`` of which the part ``estimated`` has ``degrees`` and the rest is known
    (Satterthwaite 1946, Welch 1947); of their shape, at most a million. 0 where ``degrees`` is."""
    part, whole = np.asarray(estimated, dtype=np.float64), np.asarray(total, dtype=np.float64)
    ratio = np.divide(whole, part, out=np.full(whole.shape, 1e3), where=part > 0)
    return np.asarray(np.minimum(degrees * np.minimum(ratio, 1e3) ** 2, 1e6))


def median_errors(counts: npt.NDArray[np.int64]) -> Values:
    """Standard deviation of the median of n standard normal values for every n in ``counts``; NaN for n < 1."""
    table = np.array((np.nan, *_MEDIAN_ERRORS))
    few = table[np.clip(counts, 0, len(_MEDIAN_ERRORS))]
    many = np.sqrt(np.pi / (2 * np.maximum(counts, 1) + np.pi - 2))
    return np.where(counts > len(_MEDIAN_ERRORS), many, few)


def pooled_spread(values: Values, groups: npt.NDArray[np.int64]) -> Spread:
    """The standard deviation within groups, pooled over all of them; 0 degrees of freedom without a repeated value.

    ``values`` and ``groups`` have shape ``[n]``; values that are not finite are left out.
    """
    finite = np.isfinite(values)
    known, names = values[finite], groups[finite]
    if not len(known):
        return Spread(np.nan, 0)
    _, members, counts = np.unique(names, return_inverse=True, return_counts=True)
    means = np.bincount(members, known) / counts
    degrees = len(known) - len(counts)
    squares = float(np.sum((known - means[members]) ** 2))
    return Spread(float(np.sqrt(squares / degrees)), degrees) if degrees else Spread(np.nan, 0)


def _finite(values: npt.ArrayLike) -> Values:
    known = np.asarray(values, dtype=np.float64)
    return np.asarray(known[np.isfinite(known)])
