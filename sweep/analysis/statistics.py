"""Statistics of columns: fronts, scales, medians with intervals, the spread between seeds, and paired estimates.

Here belongs what is computed from arrays and columns without knowing a study."""

import math
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import moocore
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import digamma, gammaln, nctdtr, ndtri, polygamma, stdtr, stdtrit  # scipy.stats imports slowly

from sweep.config.metrics import METRICS, NoiseScale
from sweep.config.trial import Scalar

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]
CONFIDENCE = 0.95
# Standard deviation of the median of n values of a normal distribution with standard deviation 1, n = 1 ... 16
# (order statistics, by 600,000 draws); beyond, sqrt(pi / (2 n + pi - 2)) is right to 3 %.
_MEDIAN_ERRORS = (
    1.0, 0.7071, 0.6698, 0.5460, 0.5356, 0.4638, 0.4589, 0.4100, 0.4072, 0.3718, 0.3709, 0.3426, 0.3419, 0.3200, 0.3190,
    0.3000,
)  # fmt: skip
Numbers = npt.NDArray[np.int64]
Verdict = Literal["supported", "contradicted", "undecided", "not tested", "not measured"]
SIGNIFICANT = 1 - CONFIDENCE
POWER = 0.8  # probability that a planned study finds an effect of the size that matters
_MOST_REPETITIONS = 1000
# Spreads between seeds: so many are compared, each is at least such a share of the pooled variance (few equal values
# are luck), and their prior has at least such degrees of freedom.
_FEWEST_SPREADS, _LEAST_SHARE, _LEAST_DEGREES = 4, 0.01, 3.0
# Seeds with which a failed one can be told; the median deviation from the median of three, over the standard deviation.
_FEWEST_TO_FAIL, _USUAL_DEVIATION, _FAR = 3, 0.7, 5.0


def non_dominated(values: Values, signs: npt.ArrayLike | None = None) -> Mask:
    """Rows that no other row dominates, being better in one objective and at least equal in all; equal rows are kept.

    Returns shape ``[n]``. O(n log n) for up to three objectives.
    """
    costs, finite = _costs(values, signs)
    mask = np.zeros(len(costs), dtype=np.bool_)
    if finite.any():
        mask[finite] = moocore.is_nondominated(costs[finite], keep_weakly=True)
    return mask


def front_rank(values: Values, signs: npt.ArrayLike | None = None) -> npt.NDArray[np.int64]:
    """0 on the front, 1 on the front of the rest, and so on; -1 for rows with a missing value. Shape ``[n]``."""
    costs, finite = _costs(values, signs)
    ranks = np.full(len(costs), -1, dtype=np.int64)
    if finite.any():
        ranks[finite] = moocore.pareto_rank(costs[finite])
    return ranks


def reference_point(values: Values, signs: npt.ArrayLike | None = None, margin: float = 0.1) -> Values:
    """The worst finite value of each objective, moved out by ``margin`` of its range; shape ``[m]``, signs undone.

    Hypervolumes can be compared only under one reference point. Raises ``ValueError``: no row is complete."""
    costs, finite = _costs(values, signs)
    if not finite.any():
        raise ValueError("a reference point requires one row without missing values")
    known = costs[finite]
    worst, spread = known.max(axis=0), np.ptp(known, axis=0)
    step = np.where(spread > 0, spread, np.maximum(np.abs(worst), 1.0)) * margin
    return np.asarray((worst + step) * _signs(signs, costs.shape[1]), dtype=np.float64)


def hypervolume(values: Values, reference: npt.ArrayLike, signs: npt.ArrayLike | None = None) -> float:
    """The volume between the front of ``values`` and ``reference``, in the product of the objectives' units.

    Exact (C. M. Fonseca, L. Paquete, M. Lopez-Ibanez, 2006, as implemented by moocore); 0.0 when nothing reaches the
    reference point.
    """
    costs, finite = _costs(values, signs)
    limit = np.asarray(reference, dtype=np.float64) * _signs(signs, costs.shape[1])
    inside = finite & (costs < limit).all(axis=1)
    return float(moocore.hypervolume(costs[inside], ref=limit)) if inside.any() else 0.0


def front_probabilities(draws: Values, signs: npt.ArrayLike | None = None) -> Values:
    """The probability of each configuration of being on the Pareto front: the share of ``draws`` (shape ``[draws, n,
    m]``) of plausible true values in which it is. Shape ``[n]``."""
    return np.asarray(np.mean([non_dominated(draw, signs) for draw in draws], axis=0), dtype=np.float64)


def _signs(signs: npt.ArrayLike | None, width: int) -> Values:
    return np.ones(width) if signs is None else np.asarray(signs, dtype=np.float64)


def _costs(values: Values, signs: npt.ArrayLike | None) -> tuple[Values, Mask]:
    table = np.asarray(values, dtype=np.float64)
    costs = table * _signs(signs, table.shape[1])
    return costs, np.asarray(np.isfinite(costs).all(axis=1), dtype=np.bool_)


def read_numbers(frame: pd.DataFrame, name: str) -> Values:
    """A numeric column as floats, NaN where it is missing; all NaN without such a column. Shape ``[len(frame)]``."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values = frame[name]
    if values.dtype == np.float64:
        return values.to_numpy()
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def read_text(frame: pd.DataFrame, name: str) -> Texts:
    """A column of text, "" where it is missing; all "" without such a column. Shape ``[len(frame)]``."""
    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame[name].to_numpy(dtype=object, na_value="")


def most_common(values: Texts) -> tuple[str, int]:
    """The most frequent of ``values`` (shape ``[n]``), in alphabetical order among equals, and how many are others."""
    names, counts = np.unique(values.astype(str), return_counts=True)
    if not len(names):
        return "", 0
    return str(names[np.argmax(counts)]), int(counts.sum() - counts.max())


def plain_value(value: object) -> Scalar:
    """A cell of a configuration as Python's own type; None for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | bool) else str(plain)


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
    """The density at each of ``values``, of the same shape; the normal density for 0 ``degrees``."""
    squares = values**2
    if degrees == 0:
        return np.asarray(np.exp(-squares / 2) / np.sqrt(2 * np.pi))
    height = np.exp(gammaln((degrees + 1) / 2) - gammaln(degrees / 2)) / np.sqrt(degrees * np.pi)
    return np.asarray(height * np.exp(-(degrees + 1) / 2 * np.log1p(squares / degrees)))


def seed_interval(
    values: npt.ArrayLike, spread: Spread | None = None, confidence: float = CONFIDENCE, known_variance: float = 0.0
) -> Interval:
    """Median of a few seeds' ``values`` (shape ``[n]``) and its interval by Student's t distribution.

    The half width is t(degrees) * sd * e(n), with e(n) the standard deviation of the median of n standard normal
    values. With ``spread``, pooled over configurations, three seeds are enough for a useful interval and one seed
    has one; without it the values' own spread serves. Assumes that seeds scatter evenly around the truth.

    ``known_variance`` is the variance of an error that all seeds have in common: that the images leave, without which
    the interval is about seeds on these images, or that of an uncertain time.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
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
    """Degrees of freedom of variances ``total`` whose part ``estimated`` has ``degrees`` and whose rest is known
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


class Scale(NamedTuple):
    """``forward`` from the metric's unit, ``backward`` to it, element by element. ``is_ratio``: a difference on the
    scale is a ratio."""

    forward: Callable[[Values], Values]
    backward: Callable[[Values], Values]
    is_ratio: bool = False


LINEAR = Scale(lambda values: values, lambda values: values)
LOG = Scale(
    lambda values: np.log(np.where(values > 0, values, np.nan)),
    lambda values: np.exp(np.clip(values, -600, 600)),  # what a float can hold
    is_ratio=True,
)
# asin(sqrt(p)) makes the variance of a binomial share independent of p (Anscombe 1948)
_ANGLE = Scale(
    lambda shares: np.asarray(np.arcsin(np.sqrt(np.clip(shares, 0.0, 1.0)))),
    lambda angles: np.asarray(np.sin(np.clip(angles, 0.0, np.pi / 2)) ** 2),
)
SCALES: dict[NoiseScale, Scale] = {"linear": LINEAR, "log": LOG, "angle": _ANGLE}


def scale_of(name: str) -> Scale:
    """The scale that the metric ``name`` declares."""
    return SCALES[METRICS[name].scale]


def difference_unit(name: str) -> str:
    """The unit of a difference between two values of the metric ``name``: "ratio" where they are compared by it."""
    return "ratio" if scale_of(name).is_ratio else METRICS[name].unit


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Complete trials by configuration. ``members`` (shape ``[trials]``) is each trial's configuration, in the order of
    first appearance; ``first`` (shape ``[size]``) the first trial of each; ``is_confirm`` those of :func:`find_fresh`;
    ``is_basis`` the trials that its values rest on: the confirming ones, otherwise the first search trial, because the
    seed that was picked overestimates."""

    members: Numbers
    first: Numbers
    is_confirm: Mask
    is_basis: Mask

    @property
    def size(self) -> int:
        return len(self.first)

    @property
    def confirmed(self) -> Mask:
        """Which configurations have a confirming trial; shape ``[size]``."""
        return np.bincount(self.members, self.is_confirm, minlength=self.size) > 0

    def medians(self, values: Values) -> tuple[Values, Numbers]:
        """Median of each configuration's finite basis values and how many they are, both of shape ``[size]``."""
        rows = np.flatnonzero(self.is_basis & np.isfinite(values))
        rows = rows[np.lexsort((values[rows], self.members[rows]))]
        counts = np.bincount(self.members[rows], minlength=self.size).astype(np.int64)
        starts = np.cumsum(counts) - counts
        medians = np.full(self.size, np.nan)
        some = counts > 0
        ordered = values[rows]
        low = ordered[(starts + (counts - 1) // 2)[some]]
        high = ordered[(starts + counts // 2)[some]]
        medians[some] = low + (high - low) / 2
        return medians, counts

    def seed_spread(self, values: Values) -> Spread:
        """The spread of ``values`` (shape ``[trials]``) between confirming seeds, pooled over the configurations."""
        return pooled_spread(np.where(self.is_confirm, values, np.nan), self.members)

    def moderate_spread(self, values: Values) -> tuple[Values, Values]:
        """The standard deviation of ``values`` (shape ``[trials]``) between the confirming seeds of each configuration,
        drawn toward the others as far as these are alike, and its degrees of freedom; shapes ``[size]``. NaN without a
        repeated value. The prior is by Smyth 2004 (Statistical Applications in Genetics and Molecular Biology 3,
        article 3, section 6.2). The degrees of freedom assume equal spreads where they differ no more than by chance.
        """
        known = self.is_confirm & np.isfinite(values)
        counts = np.bincount(self.members[known], minlength=self.size)
        means = np.bincount(self.members[known], values[known], minlength=self.size) / np.maximum(counts, 1)
        away = (values[known] - means[self.members[known]]) ** 2
        squares, degrees = np.bincount(self.members[known], away, minlength=self.size), np.maximum(counts - 1.0, 0.0)
        total = float(degrees.sum())
        if not squares.sum() > 0:
            return np.full(self.size, 0.0 if total else np.nan), np.full(self.size, total)
        pooled = float(squares.sum() / total)
        repeated = degrees > 0
        own, half = np.maximum(squares[repeated] / degrees[repeated], _LEAST_SHARE * pooled), degrees[repeated] / 2
        logs = np.log(own) - digamma(half) + np.log(half)
        excess = float(logs.var(ddof=1) - polygamma(1, half).mean()) if repeated.sum() >= _FEWEST_SPREADS else 0.0
        if excess <= 0:  # no more different than by chance
            return np.full(self.size, math.sqrt(pooled)), np.full(self.size, total)
        prior_half = max(_invert_trigamma(excess), _LEAST_DEGREES / 2)
        prior = math.exp(float(logs.mean()) + float(digamma(prior_half)) - math.log(prior_half))
        both = 2 * prior_half + degrees
        return np.sqrt((2 * prior_half * prior + squares) / both), both

    def basis_of(self, configuration: int) -> Numbers:
        """The rows of the trials that a configuration's values rest on; shape ``[seeds]``."""
        return np.flatnonzero(self.is_basis & (self.members == configuration))

    def basis_values(self, values: Numbers) -> list[tuple[int, ...]]:
        """The values of the trials that each configuration's values rest on, in order; ``size`` tuples."""
        rows = np.flatnonzero(self.is_basis)
        rows = rows[np.argsort(self.members[rows], kind="stable")]
        ends = np.cumsum(np.bincount(self.members[rows], minlength=self.size)).tolist()
        every = values[rows].tolist()
        return [tuple(every[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _invert_trigamma(value: float) -> float:
    # Newton's method on 1 / trigamma, which is convex (Smyth 2004, appendix)
    x = 0.5 + 1.0 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        x += trigamma * (1.0 - trigamma / value) / float(polygamma(2, x))
    return x


def find_failed(values: Values, grouping: Grouping) -> Mask:
    """Which confirming trials failed: their ``values`` (shape ``[trials]``, larger is better) are far below those of
    the other seeds of their configuration, of three or more, and these are close together. Shape ``[trials]``.

    Far is five times the larger of the usual deviation from the median and of the best seed's.
    """
    known = grouping.is_confirm & np.isfinite(values)
    own = pd.Series(np.where(known, values, np.nan)).groupby(grouping.members)
    medians = own.transform("median").where(own.transform("count") >= _FEWEST_TO_FAIL).to_numpy()
    away = np.abs(values - medians)[known]
    usual = float(np.median(away[away > 0])) / _USUAL_DEVIATION if (away > 0).any() else 0.0
    limit = medians - _FAR * np.maximum(usual, own.transform("max").to_numpy() - medians)
    return np.asarray(known & (values < limit))


def find_fresh(trials: pd.DataFrame, groups: Numbers) -> Mask:
    """Which trials confirm a configuration by a seed that did not choose it: the confirming phase; in records
    without one, all trials of configurations (by ``groups``, shape ``[trials]``) that the search trained with several
    seeds. Shape ``[trials]``."""
    is_confirm = np.asarray(read_text(trials, "phase") == "confirm", dtype=np.bool_)
    if is_confirm.any():
        return is_confirm
    seeds = pd.Series(read_numbers(trials, "seed")).groupby(groups)
    return np.asarray(seeds.transform("nunique") > 1, dtype=np.bool_)


def group_configurations(done: pd.DataFrame, groups: Numbers) -> Grouping:
    """The complete trials ``done`` by their number in ``groups`` (shape ``[len(done)]``)."""
    members = np.asarray(pd.factorize(groups)[0], dtype=np.int64)
    first = np.unique(members, return_index=True)[1]
    is_confirm = find_fresh(done, members)
    confirmed = np.bincount(members, is_confirm, minlength=len(first)) > 0
    is_first = np.zeros(len(done), dtype=np.bool_)
    is_first[first] = True
    is_basis = np.where(confirmed[members], is_confirm, is_first)
    return Grouping(members=members, first=first, is_confirm=is_confirm, is_basis=is_basis)


def varying_keys(trials: pd.DataFrame) -> tuple[str, ...]:
    """The keys of the configuration, but for the seed, that have several values in ``trials``."""
    names = [name for name in trials.columns if name.startswith("config.") and name != "config.seed"]
    cells = trials[names].to_numpy(dtype=object, copy=True)  # of all columns at once: pandas takes long for each
    cells[pd.isna(cells)] = None
    pairs = zip(names, (cells != cells[:1]).any(axis=0), strict=True)
    return tuple(name.removeprefix("config.") for name, varies in pairs if varies)


def configuration_groups(
    trials: pd.DataFrame, ignored: Collection[str] = (), switches: Collection[str] = ()
) -> Numbers:
    """The same number for trials whose configuration is equal but for the seed and the keys ``ignored``; of the keys
    ``switches`` only whether they are on (neither missing nor 0 nor false) counts. Shape ``[len(trials)]``."""
    keys = [key for key in varying_keys(trials) if key not in ignored]
    if not keys:
        return np.zeros(len(trials), dtype=np.int64)
    names = [f"config.{key}" for key in keys if key in switches]
    is_on = {name: np.nan_to_num(read_numbers(trials, name)) != 0 for name in names}
    varying = [f"config.{key}" for key in keys]
    numbers = trials[varying].assign(**is_on).groupby(varying, dropna=False, sort=False).ngroup()
    return np.asarray(numbers.to_numpy(), dtype=np.int64)


class Estimate(NamedTuple):
    """``value`` with its standard error by Student's t with ``degrees``; NaN where there is too little.

    ``is_ratio``: value and error are logarithms of a ratio.
    """

    value: float
    error: float
    degrees: float
    n: int
    is_ratio: bool = False


class Region(NamedTuple):
    """What a claim allows, in the effect's own unit; infinite bounds are open."""

    low: float
    high: float


NOTHING = Estimate(np.nan, np.nan, 0, 0)


class Measurement(NamedTuple):
    """An effect, of ratios its logarithm; ``detail`` names what it rests on. ``region`` is what a claim allows where
    that depends on the records, ``reason`` why there is no estimate with an error."""

    estimate: Estimate = NOTHING
    detail: str = ""
    region: Region | None = None
    reason: str = ""


def log_ratio(first: Values, second: Values) -> Values:
    """The logarithm of ``first / second``, both of shape ``[n]``; NaN where one is missing or not above 0."""
    usable = (first > 0) & (second > 0) & np.isfinite(first) & np.isfinite(second)
    return np.log(np.where(usable, first, np.nan) / np.where(usable, second, np.nan))


def mean_estimate(values: npt.ArrayLike, is_ratio: bool = False) -> Estimate:
    """The mean of independent differences (for ratios: of their logarithms), shape ``[n]``; a paired t test's."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    n = len(known)
    if n < 2:
        return Estimate(float(known[0]) if n else np.nan, np.nan, 0, n, is_ratio)
    return Estimate(float(known.mean()), float(known.std(ddof=1) / np.sqrt(n)), n - 1, n, is_ratio)


def slope_estimate(x: Values, y: Values, weights: Values | None = None) -> Estimate:
    """The slope of a weighted straight line through the points, shape ``[n]``; 3 points or more have an error."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    w = np.ones(len(x)) if weights is None else weights[known]
    n = len(x)
    if n < 3 or np.ptp(x) == 0:
        return NOTHING._replace(n=n)
    mean_x, mean_y = np.average(x, weights=w), np.average(y, weights=w)
    scatter = float(np.sum(w * (x - mean_x) ** 2))
    slope = float(np.sum(w * (x - mean_x) * (y - mean_y)) / scatter)
    residuals = y - mean_y - slope * (x - mean_x)
    variance = float(np.sum(w * residuals**2) / (n - 2))
    return Estimate(slope, float(np.sqrt(variance / scatter)), n - 2, n)


class _LinearFit(NamedTuple):
    """Least squares: ``values`` of shape ``[k]``, their ``covariance`` of shape ``[k, k]`` and its degrees."""

    values: Values
    covariance: Values
    degrees: int


def fit_linear(design: Values, y: Values) -> _LinearFit | None:
    """``y`` (shape ``[n]``) by the columns of ``design`` (shape ``[n, k]``); None where the columns depend on one
    another, or are as many as the points.

    The covariance is HC3 (MacKinnon & White 1985): it also holds where points scatter unevenly or bend away from the
    law, as an accuracy does beyond its best rate.
    """
    n, k = design.shape
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    if rank < k or n <= k:
        return None
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    squares = ((y - design @ solution) / np.maximum(1 - leverage, 1e-9)) ** 2
    return _LinearFit(np.asarray(solution), inverse @ (design.T * squares) @ design @ inverse, n - k)


def fit_curve(
    law: Callable[..., Values],
    x: Values,
    y: Values,
    start: Sequence[float],
    bounds: tuple[object, object] = (-np.inf, np.inf),
) -> tuple[Values, Values] | None:
    """Parameters of ``law(x, *parameters)`` and their standard errors, both of shape ``[len(start)]``."""
    from scipy import optimize  # a third of a second, which a report without curves need not wait

    with warnings.catch_warnings():
        warnings.simplefilter("error", optimize.OptimizeWarning)
        try:
            parameters, covariance = optimize.curve_fit(law, x, y, p0=start, bounds=bounds, maxfev=5000)
        except (RuntimeError, ValueError, optimize.OptimizeWarning):
            return None
    errors = np.sqrt(np.diag(covariance))
    return (parameters, errors) if np.isfinite(errors).all() else None


def confidence_interval(estimate: Estimate, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """The estimate and its bounds in the effect's own unit."""
    half = np.nan
    if estimate.degrees > 0:
        half = t_quantile(confidence, estimate.degrees) * estimate.error
    bounds = np.array([estimate.value, estimate.value - half, estimate.value + half])
    value, low, high = (LOG.backward(bounds) if estimate.is_ratio else bounds).tolist()
    return value, low, high


def assess_region(estimate: Estimate, region: Region) -> tuple[Verdict, float]:
    """The verdict that the estimate leans to and the p-value of the test that would reject its opposite.

    Inside the region: both bounds must be rejected (two one-sided tests, Schuirmann 1987); outside: the nearer one.
    """
    if not estimate.degrees > 0 or not np.isfinite(estimate.value):
        return "undecided", 1.0
    with np.errstate(divide="ignore"):  # a ratio's open bound is 0
        low, high = (np.log(np.array(region)) if estimate.is_ratio else np.array(region)).tolist()
    above_low, below_high = _beyond(estimate, estimate.value - low), _beyond(estimate, high - estimate.value)
    if low <= estimate.value <= high:
        return "supported", max(above_low, below_high)
    outside = low - estimate.value if estimate.value < low else estimate.value - high
    return "contradicted", _beyond(estimate, outside)


def _beyond(estimate: Estimate, distance: float) -> float:
    # one-sided p-value of a distance from a bound
    if np.isinf(distance):
        return 0.0
    if estimate.error == 0:
        return 0.0 if distance > 0 else 1.0
    return float(t_upper_tail(distance / estimate.error, estimate.degrees))


def weigh_extremes(num_tried: int, num_drawn: int, num_known: int) -> Values:
    """The probabilities with which the first, second, ... of ``num_tried`` values in order is the most extreme of
    ``num_drawn``, drawn without replacement: of the i-th C(n - i, m - 1) / C(n, m) (Dodge et al. 2019, who report the
    expected best of equally many trials). Shape ``[num_known]``."""
    ways = math.comb(num_tried, num_drawn)
    return np.array([math.comb(num_tried - i, num_drawn - 1) / ways for i in range(1, num_known + 1)])


def correct_holm(p_values: npt.ArrayLike) -> Values:
    """p-values corrected for their number, in the given order (Holm 1979)."""
    given = np.asarray(p_values, dtype=np.float64)
    n = len(given)
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * (n - np.arange(n)))
    corrected = np.empty(n)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


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
