"""The response of a metric to the settings: how settings become numbers, and a Gaussian process over them.

There are two fits, because they answer different questions. The sampler predicts untried points of all models, from
single trainings and before the spread between seeds is known (:mod:`sweep.search.cost_aware`). The answer, here, is
about one model: its configurations that were tried, whose means have the errors of their seeds and of the images, and
the settings of the space that were not.

In the answer a polynomial of the second degree and a Gaussian process over the effective batch size, the learning rate
and whatever else was swept, with deviations that only close neighbors share, are conditioned on all trainings. So a
neighbor's seeds inform about a configuration that has one, and the best of many is not taken for better than it is: all
that was looked at is in the joint distribution. The errors of the images are largely common to all.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import chdtr

from sweep.analysis.comparable import SECONDS, ComparableTrials
from sweep.analysis.posterior import Posterior, draw_normal, drop_negative
from sweep.analysis.statistics import (
    Mask,
    Numbers,
    Spread,
    Texts,
    Values,
    non_dominated,
    plain_value,
    read_numbers,
    read_text,
)
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import FEWEST_CONFIGURATIONS, StudySpec, is_batch_key
from sweep.config.trial import Scalar

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
# The coefficients of the square part, and the deviations of batch sizes and of neighbors from the smooth response, in
# units of the seeds' spread, before anything is known, and the doubt of the latter.
_USUAL_SQUARE, _USUAL_ROUGH, _DOUBT = 5.0, 0.2, 0.7
_LEAST_SCALE = 0.01  # of the angle of the accuracy: seeds that hardly scatter do not make settings equal
_IMPLAUSIBLE = 0.05  # probability
_DECADES = 2.0  # of a setting that counts by its logarithm are as much as the range of another
_APART_FROM_RATES = ("model.name", "distributed.world_size")
_NUM_POINTS, _MAX_MOVED = 32, 8  # settings that are looked at for each batch size: of the space, and of others
_MOST, _MOST_BATCHES = 1024, 32  # combinations of batch keys, and batch sizes, that stand for those of a space
_MOST_POINTS, _FEWEST_OF_BATCH = 1500, 4  # settings that are looked at in all, and at each batch size
_FEWEST_AT_ALL = 3  # configurations that tell anything about what was not tried
_ENOUGH = (6, 12)  # that tell enough of one setting, or of several: twice the coefficients of a square in one or two
_UNKNOWN = 0.1  # of what nothing is known of: the deviation of its accuracy from the best
_LOSS_DOUBT = 1.0  # deviation of the logarithm of a loss that is taken from other batch sizes, as it was measured
_NUM_ROUNDS = 5
_SOFTNESS = 0.2  # of the reach: how exactly what is below the floor holds the response down to it
_FAR_BELOW = 3.0  # standard deviations
_FAR_AWAY = 0.25  # half a decade
_FEWEST_DEGREES = 3  # of freedom that the seeds' spread is taken to have where it is assumed
_STOPPED = ["diverged", "pruned"]  # trials without a final accuracy, which tell of it all the same


def encode_decades(values: npt.ArrayLike) -> Any:
    """The logarithm of ``values``, in units of two decades: whatever the range, as much as the range of others."""
    return np.log10(values) / _DECADES


def find_encoder(values: Sequence[Scalar]) -> Callable[[Scalar], list[float]]:
    """What turns one of ``values`` into features: the logarithm of numbers that are far apart, other numbers by their
    place from 0 to 1 in the range, and of names a corner of a simplex, so that all have the distance 1 from each other.
    """
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        names = list(dict.fromkeys(values))
        return lambda name: [math.sqrt(0.5) if name == each else 0.0 for each in names]
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= _WIDE:
        return lambda value: [encode_decades(float(value or 0.0))]
    return lambda value: [(float(value or 0.0) - low) / (high - low if high > low else 1.0)]


@dataclass(frozen=True)
class Deviation:
    """What ``y`` deviates from the smooth function by: its covariance is ``shape`` (a matrix ``[n, n]``) times the
    square of a standard deviation that is fitted. The prior of the standard deviation is lognormal with the median
    ``usual`` (in the unit of ``y``) and the standard deviation ``doubt`` of its logarithm."""

    shape: Values
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
        x: Values,
        y: Values,
        start: Values | None = None,
        errors: Values | None = None,
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

    def covariance(self, x: Values) -> Values:
        """The prior covariance of the function, without noise, between the rows of ``x``; shape ``[k, k]``."""
        return self._scale**2 * _matern(x, x, self.parameters)[0]

    def predict(self, x: Values) -> tuple[Values, Values]:
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

    x: Values
    y: Values
    known: Values
    parts: Sequence[Deviation]
    usual_signal: float

    def pick(self, rows: Numbers) -> "_Data":
        parts = [Deviation(each.shape[np.ix_(rows, rows)], each.usual, each.doubt) for each in self.parts]
        return replace(self, x=self.x[rows], y=self.y[rows], known=self.known[rows], parts=parts)

    def covariance(self, parameters: Values, with_slopes: bool = False) -> tuple[Values, list[Values]]:
        """Of the targets, shape ``[n, n]``, with its slopes along the ``parameters``: the logarithms of the length
        scales, of the signal's deviation and of the parts' deviations."""
        signal, slopes = _matern(self.x, self.x, parameters, with_slopes)
        sizes = np.exp(2.0 * parameters[self.x.shape[1] + 1 :])
        added = [size * part.shape for size, part in zip(sizes, self.parts, strict=True)]
        whole = signal + np.sum(added, axis=0)
        whole[np.diag_indices_from(whole)] += self.known
        return whole, [*slopes, 2.0 * signal, *(2.0 * each for each in added)] if with_slopes else []


def _fit(data: _Data) -> Values:
    from scipy.optimize import minimize  # 0.4 s, which a page without a fit does not need

    width = data.x.shape[1]
    if len(data.x) > _MAX_FITTED:
        data = data.pick(np.linspace(0, len(data.x) - 1, _MAX_FITTED).astype(np.int64))
    center = np.array(
        [_LENGTH[0]] * width + [float(np.log(data.usual_signal))] + [float(np.log(part.usual)) for part in data.parts]
    )
    spread = np.array([_LENGTH[1]] * width + [_SIGNAL_DOUBT] + [part.doubt for part in data.parts])
    bounds = [_BOUNDS[0]] * width + [_BOUNDS[1]] + [_BOUNDS[2]] * len(data.parts)
    result = minimize(
        _loss,
        np.clip(center, *np.array(bounds).T),
        args=(data, center, spread),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    return np.asarray(result.x, dtype=np.float64)


def _loss(parameters: Values, data: _Data, center: Values, spread: Values) -> tuple[float, Values]:
    """Minus the logarithm of the posterior density, and its gradient (equations 5.8 and 5.9)."""
    kernel, slopes = data.covariance(parameters, with_slopes=True)
    factor = cho_factor(kernel, lower=True)
    weights = cho_solve(factor, data.y)
    away = (parameters - center) / spread
    value = 0.5 * float(data.y @ weights) + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(away @ away)
    inner = cho_solve(factor, np.eye(len(data.y))) - np.outer(weights, weights)
    return value, np.array([0.5 * float(np.sum(inner * slope)) for slope in slopes]) + away / spread


def _matern(one: Values, other: Values, parameters: Values, with_slopes: bool = False) -> tuple[Values, list[Values]]:
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


@dataclass(frozen=True)
class Untried:
    """What tuning would still give, by model and effective batch size (both of shape ``[u]``): ``accuracies`` or other
    gains, shape ``[draws, u]``, of the best settings that were not tried; no entry where all were tried."""

    models: Texts
    batches: Numbers
    accuracies: Values


def draw_response(
    records: ComparableTrials, rows: Numbers, draws: Values, estimates: Values, generator: np.random.Generator
) -> tuple[Values, Values, Untried]:
    """``draws`` (shape ``[draws, k]``) of the accuracies of the configurations ``rows`` and their ``estimates`` (shape
    ``[k]``), replaced by the response of each model where it can be fitted; and what was not tried."""
    draws, estimates, spec = draws.copy(), estimates.copy(), records.spec
    models = read_text(records.frame, "config.model.name")[rows]
    found: dict[tuple[str, int], Values] = {}

    def draw_unknown(name: str, batches: Sequence[int]) -> dict[tuple[str, int], Values]:
        # half of the variance is the model's, the rest of each batch size
        scale, is_log, best = records.scale, records.quality.scale == "log", np.nanmax(estimates, keepdims=True)
        drawn = generator.standard_normal((1 + len(batches), len(draws))) / np.sqrt(2.0)
        unknown = records.resize(_UNKNOWN, on_scale=True) * (drawn[:1] + drawn[1:])
        # by way of the scale, which holds no accuracy above 100 %
        values = scale.backward(scale.forward(best) + unknown if is_log else scale.forward(best + unknown))
        return {(name, batch): own for batch, own in zip(batches, values, strict=True)}

    for name in dict.fromkeys(models.tolist()):
        of_model = np.flatnonzero((models == name) & np.isfinite(estimates))
        if not len(of_model):
            found |= draw_unknown(str(name), list_batches(spec, str(name)) if spec else [])
            continue
        of_model = of_model[np.argsort(-estimates[of_model], kind="stable")]
        settings = _Settings(records, rows[of_model], str(name))
        response = _fit_response(records, settings, estimates[of_model], len(draws), generator)
        if response is None:
            found |= draw_unknown(str(name), settings.batches)
            continue
        is_top, middle, drawn = response
        if (k := int(is_top.sum())) >= _FEWEST:
            draws[:, of_model[is_top]], estimates[of_model[is_top]] = drawn[:, :k], middle[:k]
        of_points, unknown = drawn[:, k:], draw_unknown(str(name), settings.batches)
        best, factor = drawn[:, :k].max(axis=1), np.exp(_LOSS_DOUBT * generator.standard_normal(len(draws)))
        # without a study the space is what the records have; what was pruned tells as much as what is known to be worse
        known = np.concatenate([settings.features[is_top], settings.stopped[~settings.is_diverged]])
        is_enough = spec is None or len(known) >= _ENOUGH[min(known.shape[1], 2) - 1]
        for (_, batch), of_nothing in unknown.items():
            here = settings.point_batches == batch
            values = of_points[:, here].max(axis=1)
            num_here = int(np.isclose(known[:, 0], settings.points[here][0, 0]).sum())
            is_pruned = bool(settings.is_pruned[here].all())
            if num_here < FEWEST_CONFIGURATIONS and not is_pruned:
                values += np.maximum(best - values, 0.0) * (1.0 - factor)
            if not (is_pruned or (is_enough and settings.smallest <= batch <= settings.largest)):
                values = np.maximum(values, of_nothing)
            found[str(name), batch] = values
    swept = spec.space.get("model.name") if spec else None
    for name in map(str, swept.grid_values or () if swept and spec else ()):
        if spec and name not in models:
            found |= draw_unknown(name, list_batches(spec, name))
    return draws, estimates, Untried(
        models=np.array([name for name, _ in found], dtype=object),
        batches=np.array([batch for _, batch in found], dtype=np.int64),
        accuracies=np.stack(list(found.values()), axis=1) if found else np.empty((len(draws), 0)),
    )  # fmt: skip


def draw_rivals(
    records: ComparableTrials, rows: Numbers, draws: Values, costs: Values, names: tuple[str, ...], untried: Untried
) -> tuple[Untried, Values]:
    """What else each untried batch size may take and give, beside the ``draws`` (shape ``[draws, k, names]``) of the
    configurations ``rows``, whose ``costs`` are the estimates of time and memory, shape ``[k, c]``. A batch size is
    untried once for each of its rivals."""
    models = read_text(records.frame, "config.model.name")[rows]
    sizes = read_numbers(records.frame, "global_batch_size")[rows]
    costs = np.nan_to_num(np.column_stack([np.zeros(len(rows)), costs]), nan=1e300)
    places, drawn = np.empty(0, dtype=np.int64), [draws[:, :0]]
    for place, (model, batch) in enumerate(zip(untried.models, untried.batches, strict=True)):
        among = models == model if (models == model).any() else np.ones(len(rows), dtype=np.bool_)
        own = sizes[among]
        below, above = own[own <= batch].max(initial=0.0), own[own >= batch].min(initial=np.inf)
        near = np.flatnonzero(among & np.isin(sizes, [below, above]))
        near = near[np.unique(costs[near], axis=0, return_index=True)[1]]
        near = near[non_dominated(costs[near])]
        places = np.append(places, np.full(len(near), place))
        drawn.append(draws[:, near])
        if SECONDS in names and 0 < below < batch and not np.isfinite(above):  # ideal scaling is the best that there is
            drawn[-1][..., names.index(SECONDS)] *= below / batch
    rivals, gains = np.concatenate(drawn, axis=1), untried.accuracies[:, places]
    quality = names.index(records.quality.column)
    if records.until_target:
        rivals[..., names.index(SECONDS)] = -gains
    else:
        rivals[..., quality] = gains
    return Untried(untried.models[places], untried.batches[places], rivals[..., quality]), rivals


def _fit_response(
    records: ComparableTrials, settings: "_Settings", estimates: Values, num_draws: int, generator: np.random.Generator
) -> tuple[Mask, Values, Values] | None:
    """Which of the configurations of ``settings``, with these ``estimates`` (shape ``[k]``, the best first), belong to
    the response; the posterior means of these, then of the points that were not tried, and joint draws of both. None
    where the accuracies have no smooth response."""
    posterior, scale, reach = records.posterior(records.quality.column), records.scale, records.resize(_REACH)
    is_top = estimates >= estimates[0] - reach
    rows, k = settings.rows[is_top], int(is_top.sum())
    if k < _FEWEST_AT_ALL or not posterior.spread.sd > 0 or not np.isfinite(settings.features).all():
        return None
    of_images = posterior.covariance(rows) - np.diag((posterior.spread.sd * posterior.errors[rows]) ** 2)
    # what all configurations share changes no order
    common = max(float((of_images.sum() - np.trace(of_images)) / (k * (k - 1))), 0.0)
    # what is far below the best tells no more than that it is
    floor = float(scale.forward(estimates[:1] - reach)[0])
    conditioned = _condition(records, settings, is_top, drop_negative(of_images - common), floor)
    if conditioned is None:
        return None
    middle, covariance = conditioned
    # the seeds' spread is known from few repeats, and so are the sizes of the parts, which are taken for known
    degrees = max(posterior.spread.degrees, _FEWEST_DEGREES)
    factor = np.sqrt(degrees / generator.chisquare(degrees, (num_draws, 1)))
    away = draw_normal(covariance, num_draws, generator)
    # how images differ is known from those that were misclassified, and scores from all
    share = (1.0 if records.quality.sign > 0 else 0.0) - estimates[0] if records.quality.unit == "fraction" else 1.0
    missed = (records.images.num_images or 0) * share
    errors = generator.standard_t(max(missed, _FEWEST_DEGREES), (num_draws, 1))
    drawn = middle + factor * away
    values, softness = np.maximum(scale.forward(estimates), floor), _SOFTNESS * records.resize(_REACH, on_scale=True)
    far, elsewhere = _draw_far_points(settings, values, softness, num_draws, generator)
    drawn[:, k:][:, far] = np.maximum(drawn[:, k:][:, far], elsewhere)
    for point in np.flatnonzero(settings.is_pruned):
        # it counts as dominated by a complete trial that takes no longer: of the same or a larger batch size
        at_least = np.flatnonzero(settings.sizes[is_top] >= settings.point_batches[point])
        if len(at_least):
            drawn[:, k + point] = np.minimum(drawn[:, k + point], drawn[:, at_least].max(axis=1))
    return is_top, scale.backward(middle), scale.backward(drawn + np.sqrt(common) * errors)


def _draw_far_points(
    settings: "_Settings", values: Values, softness: float, num_draws: int, generator: np.random.Generator
) -> tuple[Numbers, Values]:
    """Which of the points that were not tried are half a decade or more from all that were, and draws there, shape
    ``[draws, f]``: nothing is known of them but how far the ``values`` (shape ``[k]``) of the tried ones scatter,
    because there may be another optimum."""
    known = np.concatenate([settings.features, settings.stopped])
    away = np.linalg.norm(settings.points[:, None, 1:] - known[None, :, 1:], axis=-1)
    far = np.flatnonzero(away.min(axis=1) >= _FAR_AWAY) if len(away) else np.empty(0, dtype=np.int64)
    if not len(far):
        return far, np.empty((num_draws, 0))
    lengths = np.log(np.append(1.0, np.full(settings.features.shape[1] - 1, _FAR_AWAY)))
    places = np.concatenate([settings.features, settings.points[far]])
    prior = float(values.var()) * _matern(places, places, np.append(lengths, 0.0))[0]
    n = len(values)
    gain = prior[n:, :n] @ np.linalg.inv(prior[:n, :n] + softness**2 * np.eye(n))
    covariance = prior[n:, n:] - gain @ prior[:n, n:]
    return far, values.mean() + gain @ (values - values.mean()) + draw_normal(covariance, num_draws, generator)


def _condition(
    records: ComparableTrials, settings: "_Settings", is_top: Mask, of_images: Values, floor: float
) -> tuple[Values, Values] | None:
    """Mean and covariance, on the scale of the accuracy, at the configurations ``is_top`` and the points that were not
    tried. The others hold the response down to the ``floor`` where it would be above without them. A single training
    far below what all others predict, of which some are near, failed, and counts as little as that is unlikely."""
    posterior = records.posterior(records.quality.column)
    low = np.concatenate([settings.features[~is_top], settings.stopped[settings.is_diverged]])
    k, softness = int(is_top.sum()), _SOFTNESS * records.resize(_REACH, on_scale=True)
    means, variances, is_single = _summarize_trainings(records, settings.rows[is_top])
    away = np.linalg.norm(settings.features[is_top][:, None] - settings.features[is_top], axis=-1)
    may_fail = is_single & ((away + np.diag(np.full(k, np.inf))).min(axis=1) < _FAR_AWAY)
    holds, doubt = np.zeros(len(low), dtype=np.bool_), np.zeros(k)
    for _ in range(_NUM_ROUNDS):
        n = k + int(holds.sum())
        places = np.concatenate([settings.features[is_top], low[holds]])
        everywhere = np.concatenate([places, low, settings.points])
        values = np.append(means, np.full(n - k, floor))
        known = np.pad(of_images, (0, n - k)) + np.diag(np.append(doubt, np.full(n - k, softness**2)))
        least = records.resize(_LEAST_SCALE, on_scale=True)
        parts = _expect_deviations(posterior, places, np.append(variances, np.zeros(n - k)), least)
        process = GaussianProcess(
            places,
            values,
            errors=np.sqrt(known.diagonal()),
            deviations=parts,
            usual_signal=parts[0].usual / _USUAL_SQUARE,
        )
        square, own, rough, seeds = (size**2 for size in process.deviations)
        prior = process.covariance(everywhere) + square * _expand_squares(everywhere)
        prior += own * _find_equal_batches(everywhere)
        prior[:n, :n] += rough * parts[2].shape
        inverse = np.linalg.inv(prior[:n, :n] + seeds * parts[3].shape + known)
        gain = prior[:, :n] @ inverse
        middle = process.mean + gain @ (values - process.mean)
        is_above = middle[n : n + len(low)] > floor
        # from what the others predict (Rasmussen and Williams, equations 5.10 to 5.12)
        missed = (inverse @ (values - process.mean) / inverse.diagonal())[:k]
        failed = may_fail & (doubt == 0) & (missed * np.sqrt(inverse.diagonal()[:k]) < -_FAR_BELOW)
        if not (is_above & ~holds).any() and not failed.any():
            break
        holds |= is_above
        doubt[failed] = missed[failed] ** 2
    if _is_contradicted(posterior.spread, process.deviations[-1], float(means.std())):
        return None
    chosen = np.append(np.arange(k), np.arange(n + len(low), len(everywhere)))
    return middle[chosen], prior[np.ix_(chosen, chosen)] - gain[chosen] @ prior[:n, chosen]


def _is_contradicted(spread: Spread, fitted: float, whole: float) -> bool:
    # the fit takes what configurations deviate by for the luck of seeds, and repeats of equal settings scatter so much
    # less that its probability is below _IMPLAUSIBLE (chi square test); ``whole`` is what they deviate by in all
    if not spread.degrees or not fitted > whole / 2 > 0:
        return False
    return bool(chdtr(spread.degrees, spread.degrees * (spread.sd / fitted) ** 2) < _IMPLAUSIBLE)


def _expect_deviations(posterior: Posterior, features: Values, variances: Values, least: float) -> list[Deviation]:
    # of the response from a constant: its square part, what each batch size has of its own, what only neighbors share,
    # and the seeds' errors of the means
    sd, degrees = posterior.spread.sd, posterior.spread.degrees
    doubt = np.sqrt(0.5 / max(degrees, _FEWEST_DEGREES))  # of the logarithm of a standard deviation
    return [
        Deviation(_expand_squares(features), _USUAL_SQUARE * max(sd, least), 1.0),
        Deviation(_find_equal_batches(features), _USUAL_ROUGH * max(sd, least), _DOUBT),
        Deviation(_correlate_neighbors(features), _USUAL_ROUGH * sd, _DOUBT),
        Deviation(np.diag(variances), sd, float(doubt)),
    ]


def _expand_squares(features: Values) -> Values:
    # the covariance of a polynomial of the second degree with random coefficients: near its top a response is one
    centered = 2.0 * features
    width = centered.shape[1]
    squares = [centered[:, i] * centered[:, j] for i in range(width) for j in range(i, width)]
    terms = np.stack([np.ones(len(centered)), *centered.T, *squares], axis=1)
    return np.asarray(terms @ terms.T)


def _find_equal_batches(features: Values) -> Values:
    # what deviates at one batch size does so at all its settings
    return np.asarray(features[:, :1] == features[:, 0], dtype=np.float64)


def _correlate_neighbors(features: Values) -> Values:
    # Ornstein-Uhlenbeck: rough, so that nothing but the closest is told by a neighbor
    distances = np.linalg.norm(features[:, None] - features[None, :], axis=-1)
    return np.asarray(np.exp(-distances / _NEIGHBORHOOD))


def _summarize_trainings(records: ComparableTrials, rows: Numbers) -> tuple[Values, Values, Mask]:
    # The mean accuracy on its scale, its variance where the spread between seeds is 1, and whether it is of a single
    # training. All trainings that did not fail count, also in the search: that they were looked at is part of the joint
    # distribution.
    grouping, posterior = records.grouping, records.posterior(records.quality.column)
    values = records.scale.forward(read_numbers(records.done, records.quality.column))
    known = np.isfinite(values) & ~records.failed
    members, values = grouping.members[known], values[known]
    counts = np.maximum(np.bincount(members, minlength=grouping.size), 1.0)
    means, is_single = np.bincount(members, values, minlength=grouping.size) / counts, counts < 2
    ratios = np.ones(grouping.size) if posterior.ratios is None else posterior.ratios
    if posterior.degrees is not None and posterior.degrees.any():  # the variance of Student's t
        degrees = np.maximum(posterior.degrees, _FEWEST_DEGREES)
        ratios = ratios * np.sqrt(degrees / (degrees - 2.0))
    variances = ratios**2 / counts
    if posterior.spread.sd > 0:
        own = np.bincount(members, records.own_errors[known] ** 2, minlength=grouping.size)
        variances = variances + own / (counts * posterior.spread.sd) ** 2
    return means[rows], variances[rows], is_single[rows]


class _Settings:
    """The settings of the configurations ``rows`` of one ``model``, the best first, as numbers: ``features``, shape
    ``[k, d]``, are of the effective batch size, then of what was swept beside ``batch.*`` and the model. Two decades of
    a logarithm count as 1, whatever the range, and so does the range of another number; names are corners of a simplex
    with sides of 1. ``sizes``, shape ``[k]``, are the batch sizes themselves.

    ``stopped``, shape ``[s, d]``, are the settings without a complete trial of which one diverged, ``is_diverged``, or
    was pruned. ``points``, shape ``[p, d]``, are settings without a complete trial, at the
    effective batch sizes ``point_batches``, of which there are ``batches``: of the space where it is on record, and
    those that were good at another batch size. Those that diverged are not among them; ``is_pruned`` tells of others.
    """

    def __init__(self, records: ComparableTrials, rows: Numbers, model: str) -> None:
        self.rows, spec = rows, records.spec
        keys = [key for key in records.swept if not is_batch_key(key) and key not in _APART_FROM_RATES]
        keys = [key for key in keys if f"config.{key}" in records.frame]
        outcomes = _STOPPED if records.target is None else [*_STOPPED, "target_missed"]
        stopped = records.trials[np.isin(read_text(records.trials, "outcome"), outcomes)]
        stopped = stopped[read_text(stopped, "config.model.name") == model]
        stopped = stopped.dropna(subset=["global_batch_size", *(f"config.{key}" for key in keys)])
        parts, k = (records.frame.iloc[rows], stopped), len(rows)
        sizes = np.concatenate([read_numbers(part, "global_batch_size") for part in parts])
        columns = [[plain_value(value) for part in parts for value in part[f"config.{key}"]] for key in keys]
        tried = list(zip(*columns, strict=True)) if keys else [()] * len(sizes)
        parameters = [spec.space[key] for key in keys] if spec and all(key in spec.space for key in keys) else []
        others = list(dict.fromkeys([*tried[:k][:_MAX_MOVED], *_spread_points(parameters)]))
        planned = list_batches(spec, model) if spec else []
        sizes_there = sorted({*planned, *sizes[:k][np.isfinite(sizes[:k])].astype(int).tolist()})
        others = others[: max(_MOST_POINTS // max(len(sizes_there), 1), _FEWEST_OF_BATCH)]
        encoders = [find_encoder([*column, *(point[i] for point in others)]) for i, column in enumerate(columns)]

        def encode(size: float, point: tuple[Scalar, ...]) -> list[float]:
            pairs = zip(encoders, point, strict=True)
            return [encode_decades(size), *(number for code, value in pairs for number in code(value))]

        features = np.array([encode(size, point) for size, point in zip(sizes, tried, strict=True)])
        places = [(batch, encode(batch, point)) for batch in sizes_there for point in others]
        points = np.array([place for _, place in places]).reshape(len(places), features.shape[1])
        # of several seeds of one setting those with an end count
        is_diverged = read_text(stopped, "outcome") != "pruned"
        is_open = ~_find_equal(features[k:], features[:k])
        has_end = np.concatenate([features[:k], features[k:][is_diverged]])
        is_new, center = ~_find_equal(points, has_end), features[:k].mean(axis=0)
        self.features, self.points = features[:k] - center, points[is_new] - center
        self.stopped, self.is_diverged = features[k:][is_open] - center, is_diverged[is_open]
        self.is_pruned = _find_equal(points[is_new], features[k:][~is_diverged])
        self.sizes = sizes[:k]
        self.smallest, self.largest = float(np.min(self.sizes, initial=np.inf)), float(np.max(self.sizes, initial=0.0))
        self.point_batches = np.array([batch for batch, _ in places], dtype=np.int64)[is_new]
        self.batches: list[int] = sorted(set(self.point_batches.tolist()))


def _find_equal(points: Values, others: Values) -> Mask:
    # which of the points, shape [p, d], are among the others, shape [k, d], up to rounding
    return np.array([(np.abs(others - point) <= 1e-8).all(axis=1).any() for point in points], np.bool_)


def _spread_points(parameters: Sequence[Parameter]) -> list[tuple[Scalar, ...]]:
    """Points of the whole space of ``parameters``: all of a small grid, otherwise evenly by the sequence of Roberts
    2018 ("The unreasonable effectiveness of quasirandom sequences")."""
    if not parameters:
        return []
    grids = [parameter.grid_values for parameter in parameters]
    if None not in grids and math.prod(map(len, filter(None, grids))) <= _NUM_POINTS:
        return list(product(*filter(None, grids)))
    ratio, width = 2.0, len(parameters)
    for _ in range(30):
        ratio = (1.0 + ratio) ** (1.0 / (width + 1.0))
    shares = (0.5 + np.arange(1, _NUM_POINTS + 1)[:, None] * ratio ** -np.arange(1.0, width + 1.0)) % 1.0
    return [tuple(item.at(float(u)) for item, u in zip(parameters, row, strict=True)) for row in shares]


def list_batches(spec: StudySpec, model: str) -> list[int]:
    """The effective batch sizes of the space of ``spec`` with ``model``, in ascending order, at most 32 that stand for
    all; empty where they cannot be listed, because a key is continuous or chosen by the machine."""
    swept = {path: each for path, each in spec.space.items() if is_batch_key(path) or path == "distributed.world_size"}
    ranges = [parameter.grid_values for parameter in swept.values()]
    if not ranges or any(values is None for values in ranges):
        return []
    most = int(_MOST ** (1.0 / len(ranges)))
    fixed = {path: parameter.at(0.0) for path, parameter in spec.space.items() if path not in swept}
    if "model.name" in spec.space:
        fixed["model.name"] = model
    sizes: set[int] = set()
    for values in product(*(_thin_out(each, most) if isinstance(each, range) else each or () for each in ranges)):
        try:
            sizes.add(spec.config(fixed | dict(zip(swept, values, strict=True))).global_batch_size)
        except InputError:  # a combination that the study refuses is not one of its batch sizes
            continue
    return _thin_out(sorted(sizes), _MOST_BATCHES)


def _thin_out(values: Sequence[int], most: int) -> list[int]:
    # at most so many of the ascending values, with both ends and even steps of the logarithm between them
    if len(values) <= most:
        return list(values)
    places = {bisect_left(values, round(value)) for value in np.geomspace(values[0], values[-1], most)}
    return [values[place] for place in sorted(places)]
