"""The accuracy of every configuration of a model as a smooth response to its settings.

A polynomial of the second degree and a Gaussian process over the effective batch size, the learning rate and whatever
else was swept, with deviations that only close neighbors share, are conditioned on all trainings. So a neighbor's seeds
inform about a configuration that has one, and the best of many is not taken for better than it is: all that was looked
at is in the joint distribution. The errors are those of seeds, each training's own, and of the validation images,
largely common to all.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtr

from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials
from sweep.analysis.posterior import Posterior
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.gaussian_process import Deviation, GaussianProcess
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.image_sampling import draw_normal, drop_negative
from sweep.analysis.statistics.intervals import Spread
from sweep.analysis.statistics.pareto import Values
from sweep.analysis.statistics.scales import scale_of

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


@dataclass(frozen=True)
class Response:
    """Joint draws of the accuracies of k configurations on new images, shape ``[draws, k]``, and their posterior means,
    shape ``[k]``; both as fractions."""

    draws: Values
    estimates: Values


def draw_response(
    records: ComparableTrials, rows: Numbers, draws: Values, estimates: Values, generator: np.random.Generator
) -> Response:
    """``draws`` (shape ``[draws, k]``) and ``estimates`` (shape ``[k]``) of the configurations ``rows`` with those of
    the response of each model in their place, where it can be fitted."""
    draws, estimates = draws.copy(), estimates.copy()
    names = read_text(records.frame, "config.model.name")[rows]
    for name in dict.fromkeys(names.tolist()):
        near = (names == name) & (estimates >= np.nanmax(estimates) - _REACH)
        if near.sum() >= _FEWEST and records.posterior(ACCURACY).spread.sd > 0:
            found = _fit(records, rows[near], len(draws), generator)
            if found is not None:
                draws[:, near], estimates[near] = found.draws, found.estimates
    return Response(draws, estimates)


def _fit(records: ComparableTrials, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Response | None:
    # None where the accuracies have no smooth response
    posterior, scale = records.posterior(ACCURACY), scale_of(ACCURACY)
    trainings = _summarize_trainings(records, rows)
    means, features = trainings.means, encode_settings(records, rows)
    variances = _estimate_variances(trainings, features, posterior.spread)  # of a mean, over the pooled spread's
    of_images = posterior.covariance(rows) - np.diag((posterior.spread.sd * posterior.errors[rows]) ** 2)
    common = _find_common(of_images)
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
    return Response(scale.backward(middle + factor * away + shift), scale.backward(middle))


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


@dataclass(frozen=True)
class _Trainings:
    """Of k configurations the mean accuracy on its scale, the number of trainings, and the sum of their squared
    deviations from the mean; each of shape ``[k]``."""

    means: Values
    counts: Values
    squares: Values


def _summarize_trainings(records: ComparableTrials, rows: Numbers) -> _Trainings:
    # all trainings, those of the search too: that they were looked at is part of the joint distribution
    values = scale_of(ACCURACY).forward(read_numbers(records.done, ACCURACY))
    known, size = np.isfinite(values), records.grouping.size
    members, values = records.grouping.members[known], values[known]
    counts = np.bincount(members, minlength=size).astype(np.float64)
    means = np.bincount(members, values, minlength=size) / np.maximum(counts, 1.0)
    squares = np.asarray(np.bincount(members, (values - means[members]) ** 2, minlength=size), dtype=np.float64)
    return _Trainings(means[rows], counts[rows], squares[rows])


def _estimate_variances(trainings: _Trainings, features: Values, spread: Spread) -> Values:
    """The variance of each mean over the square of the pooled ``spread``, shape ``[k]``: the spread of a region is that
    of the repeats there, drawn toward the pooled one as if by ``_PRIOR_DEGREES`` repeats of it, and at least the pooled
    one, because a few repeats of a region are too few to tell that it is smaller."""
    distances = np.linalg.norm(features[:, None] - features[None, :], axis=-1)
    weights = np.exp(-0.5 * (distances / _REGION) ** 2)
    degrees = weights @ np.maximum(trainings.counts - 1.0, 0.0)
    squares = weights @ trainings.squares / spread.sd**2
    ratios = np.maximum((_PRIOR_DEGREES + squares) / (_PRIOR_DEGREES + degrees), 1.0)
    return np.asarray(ratios / trainings.counts)


def _find_common(covariance: Values) -> float:
    # the part that all configurations share, which changes no order
    k = len(covariance)
    return max(float((covariance.sum() - np.trace(covariance)) / (k * (k - 1))), 0.0) if k > 1 else 0.0


def encode_settings(records: ComparableTrials, rows: Numbers) -> Values:
    """The settings of the configurations ``rows`` as numbers from 0 to 1, shape ``[k, d]``: the effective batch size,
    then what was swept beside ``batch.*`` and the model; names are corners of a simplex with sides of 1."""
    frame = records.frame
    columns = [_scale(read_numbers(frame, "global_batch_size")[rows])]
    for key in records.swept:
        if key.startswith("batch.") or key == "model.name" or f"config.{key}" not in frame:
            continue
        numbers = read_numbers(frame, f"config.{key}")[rows]
        if np.isfinite(numbers).all():
            columns.append(_scale(numbers))
        else:
            columns += _corners(read_text(frame, f"config.{key}")[rows].tolist())
    return np.stack([column for column in columns if np.ptp(column) > 0] or [np.zeros(len(rows))], axis=1)


def _scale(numbers: Values) -> Values:
    low, high = float(numbers.min()), float(numbers.max())
    if low > 0 and high / low >= _WIDE:
        numbers, low, high = np.log(numbers), np.log(low), np.log(high)
    return np.asarray((numbers - low) / (high - low if high > low else 1.0))


def _corners(names: list[str]) -> list[Values]:
    return [np.array([(name == corner) / np.sqrt(2.0) for name in names]) for corner in dict.fromkeys(names)]
