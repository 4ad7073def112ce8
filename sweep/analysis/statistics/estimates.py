"""From estimates to verdicts: tests of a claimed region, corrected for being many."""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sweep.analysis.statistics.intervals import CONFIDENCE, t_quantile, t_upper_tail
from sweep.analysis.statistics.pareto import Values
from sweep.analysis.statistics.scales import LOG

Verdict = Literal["supported", "contradicted", "undecided", "not tested", "not measured"]
SIGNIFICANT = 1 - CONFIDENCE


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


class LinearFit(NamedTuple):
    """Least squares: ``values`` of shape ``[k]``, their ``covariance`` of shape ``[k, k]`` and its degrees."""

    values: Values
    covariance: Values
    degrees: int


def fit_linear(design: Values, y: Values) -> LinearFit | None:
    """``y`` (shape ``[n]``) by the columns of ``design`` (shape ``[n, k]``); None where the columns depend on one
    another, or are as many as the points.

    The covariance is HC3 (MacKinnon & White 1985): it also holds where points scatter unevenly or bend away from the
    law, as an accuracy does beyond its best rate.
    """
    n, k = design.shape
    found, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    if rank < k or n <= k:
        return None
    inverse = np.linalg.inv(design.T @ design)
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    squares = ((y - design @ found) / np.maximum(1 - leverage, 1e-9)) ** 2
    return LinearFit(np.asarray(found), inverse @ (design.T * squares) @ design @ inverse, n - k)


def share_explained(x: Values, columns: Values) -> float:
    """Which share of the variance of ``x`` (shape ``[n]``) the ``columns`` (shape ``[n, k]``) account for."""
    design = np.column_stack([np.ones(len(x)), columns])
    residuals = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
    total = float(np.sum((x - x.mean()) ** 2))
    return 1.0 - float(np.sum(residuals**2)) / total if total > 0 else 1.0


def fit_curve(
    law: Callable[..., Values],
    x: Values,
    y: Values,
    start: Sequence[float],
    bounds: tuple[object, object] | None = None,
) -> tuple[Values, Values] | None:
    """Parameters of ``law(x, *parameters)`` and their standard errors, both of shape ``[len(start)]``."""
    from scipy import optimize  # a third of a second, which a report without curves need not wait

    with warnings.catch_warnings():
        warnings.simplefilter("error", optimize.OptimizeWarning)
        try:
            limits = (-np.inf, np.inf) if bounds is None else bounds
            found, covariance = optimize.curve_fit(law, x, y, p0=start, bounds=limits, maxfev=5000)
        except (RuntimeError, ValueError, optimize.OptimizeWarning):
            return None
    errors = np.sqrt(np.diag(covariance))
    return (found, errors) if np.isfinite(errors).all() else None


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


def correct_holm(p_values: npt.ArrayLike) -> Values:
    """p-values corrected for their number, in the given order (Holm 1979)."""
    given = np.asarray(p_values, dtype=np.float64)
    n = len(given)
    order = np.argsort(given, kind="stable")
    stepped = np.maximum.accumulate(given[order] * (n - np.arange(n)))
    corrected = np.empty(n)
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected
