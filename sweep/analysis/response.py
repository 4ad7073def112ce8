"""The response of a metric to the settings: how settings become numbers, and a Gaussian process over them.

There are two fits, because they answer different questions. The sampler predicts untried points of all models, from
single trainings and before the spread between seeds is known (:mod:`sweep.search.cost_aware`). The answer, here, is
about the configurations of one model that were tried, whose means have the errors of their seeds and of the images.

In the answer a polynomial of the second degree and a Gaussian process over the effective batch size, the learning rate
and whatever else was swept, with deviations that only close neighbors share, are conditioned on all trainings. So a
neighbor's seeds inform about a configuration that has one, and the best of many is not taken for better than it is: all
that was looked at is in the joint distribution. The errors of the images are largely common to all.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import chdtr

from sweep.analysis.comparable import ACCURACY, ComparableTrials
from sweep.analysis.posterior import Posterior, draw_normal, drop_negative
from sweep.analysis.statistics import Numbers, Spread, Values, read_numbers, read_text, scale_of

Floats = npt.NDArray[np.float64]

_MAX_FITTED = 120  # points that the hyperparameters are fitted on: the cost grows with their cube
_JITTER = 1e-8
# Logarithms of the length scales, of the signal's and of the noise's deviation: means and deviations of their priors
# (of the signal the deviation), for features that span 0 to 1 and targets of deviation 1. They regularize a fit to few
# points.
_LENGTH, _SIGNAL_DOUBT, _NOISE = (np.log(0.7), 0.8), 0.7, (np.log(0.1), 1.2)
_BOUNDS = ((-3.5, 3.5), (-4.0, 2.5), (-7.0, 2.5))
_FEWEST = 6  # configurations of a model from which on its response is fitted
_REACH = 0.15  # accuracies so far below the best are no part of the response: what diverged tells nothing about the top
_WIDE = 8.0  # ratio of the largest to the smallest value from which on a setting counts by its logarithm
_NEIGHBORHOOD = 0.1  # of a setting's range: what deviates from the smooth response is shared by so close neighbors
_REGION, _PRIOR_DEGREES = 0.2, 6.0  # of a setting's range: where the spread between seeds is about the same
# The coefficients of the square part and the deviation from the smooth response, in units of the seeds' spread, before
# anything is known, and the doubt of the latter.
_USUAL_SQUARE, _USUAL_ROUGH, _DOUBT = 5.0, 0.2, 0.7
_IMPLAUSIBLE = 0.05  # probability
_FEWEST_DEGREES = 3  # of freedom that the seeds' spread is taken to have where it is assumed


def encode_number(value: float, low: float, high: float) -> float:
    """Where ``value`` is between ``low`` and ``high``, from 0 to 1; by its logarithm where they are far apart."""
    if low > 0 and high / low >= _WIDE:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low if high > low else 1.0)


def encode_name(name: Hashable, names: Sequence[Hashable]) -> list[float]:
    """A corner of a simplex for each of ``names``, so that all have the distance 1 from each other."""
    return [math.sqrt(0.5) if name == each else 0.0 for each in names]


@dataclass(frozen=True)
class Deviation:
    """What ``y`` deviates from the smooth function by: its covariance is ``shape`` (a matrix ``[n, n]``) times the
    square of a standard deviation that is fitted. The prior of the standard deviation is lognormal with the median
    ``usual`` (in the unit of ``y``) and the standard deviation ``doubt`` of its logarithm."""

    shape: Floats
    usual: float
    doubt: float


@final
class GaussianProcess:
    """Fitted to ``x`` of shape ``[n, d]`` and ``y`` of shape ``[n]``; ``start`` are the hyperparameters of an earlier
    fit, which are then kept. ``errors``, shape ``[n]``, are known standard errors of single ``y``. ``deviations`` are
    what is fitted beside the smooth function: by default a noise that is independent for each ``y``. The prior of the
    smooth function's deviation has the median ``usual_signal``, in the unit of ``y``; by default the
    deviation of ``y``.
    """

    def __init__(
        self,
        x: Floats,
        y: Floats,
        start: Floats | None = None,
        errors: Floats | None = None,
        deviations: Sequence[Deviation] = (),
        usual_signal: float | None = None,
    ) -> None:
        self._x, self.mean = x, float(y.mean())  # of the function, before anything is known
        spread = float(y.std())
        self._scale = spread if spread > 0 else 1.0
        target = (y - self.mean) / self._scale
        known = _JITTER + (np.zeros(len(y)) if errors is None else (errors / self._scale) ** 2)
        parts = [Deviation(each.shape, each.usual / self._scale, each.doubt) for each in deviations]
        parts = parts or [Deviation(np.eye(len(y)), float(np.exp(_NOISE[0])), _NOISE[1])]
        usual = 1.0 if usual_signal is None else usual_signal / self._scale
        data = _Data(x=x, y=target, known=known, parts=parts, usual_signal=usual)
        self.parameters = _fit(data) if start is None else start
        kernel = data.covariance(self.parameters)[0]
        self._factor = cho_factor(kernel, lower=True)
        self._weights = cho_solve(self._factor, target)

    @property
    def deviations(self) -> list[float]:
        """The fitted standard deviation of each of the deviations, in the unit of ``y``."""
        return [float(size) for size in self._scale * np.exp(self.parameters[self._x.shape[1] + 1 :])]

    def covariance(self, x: Floats) -> Floats:
        """The prior covariance of the function, without noise, between the rows of ``x``; shape ``[k, k]``."""
        return self._scale**2 * _matern(x, x, self.parameters)[0]

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the function, without noise, at each row of ``x``; shapes ``[k]``."""
        cross = _matern(x, self._x, self.parameters)[0]
        mean = cross @ self._weights
        half = solve_triangular(self._factor[0], cross.T, lower=True, check_finite=False)
        variance = np.exp(2.0 * self.parameters[x.shape[1]]) - np.einsum("ij,ij->j", half, half)
        return self.mean + self._scale * mean, self._scale * np.sqrt(np.maximum(variance, 1e-12))


@dataclass(frozen=True, kw_only=True)
class _Data:
    """What is fitted: places ``[n, d]``, targets ``[n]`` of deviation 1, their known variances ``[n]``, the parts of
    their deviations, and the usual deviation of the smooth function."""

    x: Floats
    y: Floats
    known: Floats
    parts: Sequence[Deviation]
    usual_signal: float

    def pick(self, rows: npt.NDArray[np.int64]) -> "_Data":
        parts = [Deviation(each.shape[np.ix_(rows, rows)], each.usual, each.doubt) for each in self.parts]
        return replace(self, x=self.x[rows], y=self.y[rows], known=self.known[rows], parts=parts)

    def covariance(self, parameters: Floats, with_slopes: bool = False) -> tuple[Floats, list[Floats]]:
        """Of the targets, shape ``[n, n]``, with its slopes along the ``parameters``: the logarithms of the length
        scales, of the signal's deviation and of those of the parts."""
        signal, slopes = _matern(self.x, self.x, parameters, with_slopes)
        sizes = np.exp(2.0 * parameters[self.x.shape[1] + 1 :])
        added = [size * part.shape for size, part in zip(sizes, self.parts, strict=True)]
        whole = signal + np.sum(added, axis=0)
        whole[np.diag_indices_from(whole)] += self.known
        return whole, [*slopes, 2.0 * signal, *(2.0 * each for each in added)] if with_slopes else []


def _fit(data: _Data) -> Floats:
    from scipy.optimize import minimize  # 0.4 s, which a page without a fit does not need

    width = data.x.shape[1]
    if len(data.x) > _MAX_FITTED:
        data = data.pick(np.linspace(0, len(data.x) - 1, _MAX_FITTED).astype(np.int64))
    center = np.array(
        [_LENGTH[0]] * width + [float(np.log(data.usual_signal))] + [float(np.log(part.usual)) for part in data.parts]
    )
    spread = np.array([_LENGTH[1]] * width + [_SIGNAL_DOUBT] + [part.doubt for part in data.parts])
    bounds = [_BOUNDS[0]] * width + [_BOUNDS[1]] + [_BOUNDS[2]] * len(data.parts)
    limits = np.array(bounds)
    result = minimize(
        _loss,
        np.clip(center, limits[:, 0], limits[:, 1]),
        args=(data, center, spread),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    return np.asarray(result.x, dtype=np.float64)


def _loss(parameters: Floats, data: _Data, center: Floats, spread: Floats) -> tuple[float, Floats]:
    """Minus the logarithm of the posterior density, and its gradient (equations 5.8 and 5.9)."""
    kernel, slopes = data.covariance(parameters, with_slopes=True)
    factor = cho_factor(kernel, lower=True)
    weights = cho_solve(factor, data.y)
    away = (parameters - center) / spread
    value = 0.5 * float(data.y @ weights) + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(away @ away)
    inner = cho_solve(factor, np.eye(len(data.y))) - np.outer(weights, weights)
    return value, np.array([0.5 * float(np.sum(inner * slope)) for slope in slopes]) + away / spread


def _matern(one: Floats, other: Floats, parameters: Floats, with_slopes: bool = False) -> tuple[Floats, list[Floats]]:
    # with its slopes along the logarithms of the length scales; what follows the signal's deviation is not read
    width = one.shape[1]
    scales = np.exp(-parameters[:width])
    left, right = one * scales, other * scales
    squares = np.maximum((left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2.0 * left @ right.T, 0.0)
    root = np.sqrt(5.0 * squares)
    decay = np.exp(2.0 * parameters[width] - root)
    kernel = (1.0 + root + root**2 / 3.0) * decay
    if not with_slopes:
        return kernel, []
    common = 5.0 / 3.0 * (1.0 + root) * decay
    return kernel, [common * np.subtract.outer(left[:, i], right[:, i]) ** 2 for i in range(width)]


def draw_response(
    records: ComparableTrials, rows: Numbers, draws: Values, estimates: Values, generator: np.random.Generator
) -> tuple[Values, Values]:
    """``draws`` (shape ``[draws, k]``) of the accuracies of the configurations ``rows`` on new images, and their
    ``estimates`` (shape ``[k]``), with those of the response of each model in their place, where it can be fitted."""
    draws, estimates = draws.copy(), estimates.copy()
    names = read_text(records.frame, "config.model.name")[rows]
    for name in dict.fromkeys(names.tolist()):
        near = (names == name) & (estimates >= np.nanmax(estimates) - _REACH)
        if near.sum() >= _FEWEST and records.posterior(ACCURACY).spread.sd > 0:
            response = _fit_response(records, rows[near], len(draws), generator)
            if response is not None:
                draws[:, near], estimates[near] = response
    return draws, estimates


def _fit_response(
    records: ComparableTrials, rows: Numbers, num_draws: int, generator: np.random.Generator
) -> tuple[Values, Values] | None:
    # joint draws and posterior means; None where the accuracies have no smooth response
    posterior, scale = records.posterior(ACCURACY), scale_of(ACCURACY)
    means, counts, squares = _summarize_trainings(records, rows)
    features = _encode_settings(records, rows)
    variances = _estimate_variances(counts, squares / posterior.spread.sd**2, features)
    of_images = posterior.covariance(rows) - np.diag((posterior.spread.sd * posterior.errors[rows]) ** 2)
    k = len(rows)
    # what all configurations share changes no order
    common = max(float((of_images.sum() - np.trace(of_images)) / (k * (k - 1))), 0.0)
    apart = drop_negative(of_images - common)
    parts = _expect_deviations(posterior, features, variances)
    process = GaussianProcess(
        features, means, errors=np.sqrt(apart.diagonal()), deviations=parts, usual_signal=posterior.spread.sd
    )
    if _is_contradicted(posterior.spread, process.deviations[-1], float(means.std())):
        return None
    square, rough, seeds = (size**2 * part.shape for size, part in zip(process.deviations, parts, strict=True))
    noise = seeds + apart
    prior = process.covariance(features) + square + rough
    gain = np.linalg.solve(prior + noise, prior).T
    middle = process.mean + gain @ (means - process.mean)
    # the seeds' spread is known from few repeats, and so are the sizes of the parts, which are taken for known
    degrees = max(posterior.spread.degrees, _FEWEST_DEGREES)
    factor = np.sqrt(degrees / generator.chisquare(degrees, (num_draws, 1)))
    away = draw_normal(prior - gain @ prior, num_draws, generator)
    shift = np.sqrt(common) * generator.standard_normal((num_draws, 1))
    return scale.backward(middle + factor * away + shift), scale.backward(middle)


def _is_contradicted(spread: Spread, fitted: float, whole: float) -> bool:
    # the fit takes what configurations deviate by for the luck of seeds, and repeats of equal settings scatter so much
    # less that its probability is below _IMPLAUSIBLE (chi square test); ``whole`` is what they deviate by in all
    if not spread.degrees or not fitted > whole / 2 > 0:
        return False
    return bool(chdtr(spread.degrees, spread.degrees * (spread.sd / fitted) ** 2) < _IMPLAUSIBLE)


def _expect_deviations(posterior: Posterior, features: Values, variances: Values) -> list[Deviation]:
    # of the response from a constant: its square part, what only neighbors share, and the seeds' errors of the means
    sd, degrees = posterior.spread.sd, posterior.spread.degrees
    doubt = np.sqrt(0.5 / max(degrees, _FEWEST_DEGREES))  # of the logarithm of a standard deviation
    return [
        Deviation(_expand_squares(features), _USUAL_SQUARE * sd, 1.0),
        Deviation(_correlate_neighbors(features), _USUAL_ROUGH * sd, _DOUBT),
        Deviation(np.diag(variances), sd, float(doubt)),
    ]


def _expand_squares(features: Values) -> Values:
    # the covariance of a polynomial of the second degree with random coefficients: near its top a response is one
    centered = 2.0 * features - 1.0
    width = centered.shape[1]
    squares = [centered[:, i] * centered[:, j] for i in range(width) for j in range(i, width)]
    terms = np.stack([np.ones(len(centered)), *centered.T, *squares], axis=1)
    return np.asarray(terms @ terms.T)


def _correlate_neighbors(features: Values) -> Values:
    # Ornstein-Uhlenbeck: rough, so that nothing but the closest is told by a neighbor
    distances = np.linalg.norm(features[:, None] - features[None, :], axis=-1)
    return np.asarray(np.exp(-distances / _NEIGHBORHOOD))


def _summarize_trainings(records: ComparableTrials, rows: Numbers) -> tuple[Values, Values, Values]:
    # the mean accuracy on its scale, the number of trainings, and the sum of their squared deviations from the mean; of
    # all trainings, those of the search too: that they were looked at is part of the joint distribution
    values = scale_of(ACCURACY).forward(read_numbers(records.done, ACCURACY))
    known, size = np.isfinite(values), records.grouping.size
    members, values = records.grouping.members[known], values[known]
    counts = np.bincount(members, minlength=size).astype(np.float64)
    means = np.bincount(members, values, minlength=size) / np.maximum(counts, 1.0)
    squares = np.bincount(members, (values - means[members]) ** 2, minlength=size).astype(np.float64)
    return means[rows], counts[rows], squares[rows]


def _estimate_variances(counts: Values, squares: Values, features: Values) -> Values:
    """The variance of each mean of ``counts`` trainings, shape ``[k]``, where the pooled spread between seeds is 1. The
    spread of a region is measured by the repeats there, drawn toward the pooled one as if by ``_PRIOR_DEGREES``
    repeats, and at least the pooled one, because a few repeats of a region are too few to tell that it is smaller."""
    distances = np.linalg.norm(features[:, None] - features[None, :], axis=-1)
    weights = np.exp(-0.5 * (distances / _REGION) ** 2)
    degrees = weights @ np.maximum(counts - 1.0, 0.0)
    ratios = np.maximum((_PRIOR_DEGREES + weights @ squares) / (_PRIOR_DEGREES + degrees), 1.0)
    return np.asarray(ratios / counts)


def _encode_settings(records: ComparableTrials, rows: Numbers) -> Values:
    """The settings of the configurations ``rows`` as numbers from 0 to 1, shape ``[k, d]``: the effective batch size,
    then what was swept beside ``batch.*`` and the model; names are corners of a simplex with sides of 1."""
    frame = records.frame
    keys = [key for key in records.swept if not key.startswith("batch.") and key != "model.name"]
    features = []
    for column in ("global_batch_size", *(f"config.{key}" for key in keys if f"config.{key}" in frame)):
        numbers = read_numbers(frame, column)[rows]
        if np.isfinite(numbers).all():
            low, high = float(numbers.min()), float(numbers.max())
            features.append(np.array([[encode_number(value, low, high)] for value in numbers.tolist()]))
        else:
            names = read_text(frame, column)[rows].tolist()
            features.append(np.array([encode_name(name, list(dict.fromkeys(names))) for name in names]))
    table = np.concatenate(features, axis=1)
    varied = np.ptp(table, axis=0) > 0
    return table[:, varied] if varied.any() else np.zeros((len(rows), 1))
