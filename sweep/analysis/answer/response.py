"""The accuracy of every configuration of a model as a smooth response to its settings.

A Gaussian process over the effective batch size, the learning rate and whatever else was swept, with a deviation of
each configuration from it, is conditioned on all trainings. So a neighbor's seeds inform about a configuration that has
one, and the best of many is not taken for better than it is: all that was looked at is in the joint distribution. The
errors are those of seeds, each training's own, and of the validation images, largely common to all.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 5.4.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.gaussian_process import GaussianProcess
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.image_sampling import draw_normal, drop_negative
from sweep.analysis.statistics.pareto import Values
from sweep.analysis.statistics.scales import scale_of

_FEWEST = 6  # configurations of a model from which on its response is fitted
_REACH = 0.15  # accuracies so far below the best are no part of the response: what diverged tells nothing about the top
_WIDE = 8.0  # ratio of the largest to the smallest value from which on a setting counts by its logarithm
_LEAST_DEVIATION = 0.4  # of the seeds' spread: a configuration's own deviation from the smooth response, at least


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
            with _find_threads().limit(limits=1):  # several wait for each other longer than one takes
                found = _fit(records, rows[near], len(draws), generator)
            draws[:, near], estimates[near] = found.draws, found.estimates
    return Response(draws, estimates)


def _fit(records: ComparableTrials, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Response:
    posterior, scale = records.posterior(ACCURACY), scale_of(ACCURACY)
    means, counts = _average_trials(records, rows)
    features = encode_settings(records, rows)
    of_seeds = posterior.spread.sd**2 / counts
    of_images = posterior.covariance(rows) - np.diag((posterior.spread.sd * posterior.errors[rows]) ** 2)
    common = _find_common(of_images)
    noise = np.diag(of_seeds) + drop_negative(of_images - common)
    process = GaussianProcess(features, means, errors=np.sqrt(noise.diagonal()))
    deviation = max(process.noise, _LEAST_DEVIATION * posterior.spread.sd) ** 2
    prior = process.covariance(features) + deviation * np.eye(len(rows))
    gain = np.linalg.solve(prior + noise, prior).T
    middle = process.mean + gain @ (means - process.mean)
    factor = np.ones((num_draws, 1))
    if (degrees := posterior.spread.degrees) > 0:  # the spread itself is known from few repeats
        factor = np.sqrt(degrees / generator.chisquare(degrees, (num_draws, 1)))
    away = draw_normal(prior - gain @ prior, num_draws, generator)
    shift = np.sqrt(common) * generator.standard_normal((num_draws, 1))
    return Response(scale.backward(middle + factor * away + shift), scale.backward(middle))


@cache
def _find_threads() -> ThreadpoolController:
    return ThreadpoolController()  # it searches all loaded libraries


def _average_trials(records: ComparableTrials, rows: Numbers) -> tuple[Values, Values]:
    # over all trainings, those of the search too: that they were looked at is part of the joint distribution
    values = scale_of(ACCURACY).forward(read_numbers(records.done, ACCURACY))
    known, size = np.isfinite(values), records.grouping.size
    counts = np.bincount(records.grouping.members[known], minlength=size).astype(np.float64)
    sums = np.bincount(records.grouping.members[known], values[known], minlength=size)
    return sums[rows] / counts[rows], counts[rows]


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
