"""Posterior distributions of the true values of every configuration, given the spread between seeds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import pandas as pd
from scipy.special import fdtrc, ndtr

from sweep.analysis.costs import average_costs, find_cost_groups, read_counts, read_observed, read_own
from sweep.analysis.gain import assume_spread, find_gain_scale
from sweep.analysis.statistics import (
    Grouping,
    Interval,
    Mask,
    Numbers,
    Scale,
    Spread,
    Values,
    combine_degrees,
    half_width,
    median_errors,
    most_common,
    pooled_spread,
    read_numbers,
    read_text,
    scale_of,
    t_density,
)
from sweep.config.metrics import METRICS, Quality
from sweep.records.frames import Frames
from sweep.records.inputs import DataSummary
from sweep.records.records import Correct

_IMAGES_AT_ONCE = 8192
# What the choice of images does to all configurations alike is measured on so many of the best ones.
_NUM_BEST = 60
# For configurations (shape [k]): the covariance on the scale of the errors that the evaluated images leave, [k, k].
_ImageCovariance = Callable[[Numbers], Values]
_NUM_ASKED = 20  # configurations whose records are read for the number of images where the study's has none
_NUM_ITERATIONS = 40
_SMOOTHING = 1.25  # standard deviations of a single seed
_STEPS_PER_SD = 2
_LEAST_SD = 1e-12  # a smaller spread is due to rounding: the values are equal
_MAX_POINTS = 241  # what is farther below the best than the grid reaches cannot be the best
# With a larger standard deviation of the logarithm, times that should be of equal cost are pooled only if repeats of
# one configuration scatter as much. On an idle machine with other tenants it was 0.105 over 20 equal trainings.
_MAX_POOLED_SD = 0.15
_UNEQUAL, _FEWEST_REPEATS = 0.05, 6  # probability of the F test, and degrees of freedom of its repeats


def estimate_image_shares(correct: Correct, members: Numbers, seeds: Numbers) -> Values:
    """Covariance of p(i) between k configurations, over the standard deviations sqrt(a (1 - a)) of a single image's
    outcome at their accuracies a; shape ``[k, k]``, no negative eigenvalue.

    1 on the diagonal means that seeds never differ on an image, so that more seeds do not help against few images;
    that is taken too where an accuracy is 0 or 1. Divided by ``4 n`` it is the covariance of the angles
    asin(sqrt(accuracy)) on n images.

    Args:
        correct: which images each trial got right, shape ``[trials, images]``.
        members: the configuration of each trial, from 0 to k - 1, shape ``[trials]``; each has at least one.
        seeds: the seed of each trial, shape ``[trials]``.

    The covariance over images of two trials with different seeds estimates that of p without bias; it is averaged over
    all such pairs. With a single common seed, as search trials have, a part of the covariance is the seed's own: it is
    reduced to the share that it is where both are known, and taken whole (too large a variance, an outcome's own) where
    no configuration has two seeds.
    """
    apart, is_of = _cross_effects(correct, members, seeds)
    is_own = np.eye(len(apart), dtype=np.bool_)
    accuracies = (is_of.T @ correct.mean(axis=1)) / is_of.sum(axis=0)
    deviations = np.sqrt(np.maximum(accuracies * (1.0 - accuracies), 0.0))
    is_known = deviations > 0
    scale = np.where(is_known, deviations, 1.0)
    shares = np.where(is_known[:, None] & is_known, apart / np.outer(scale, scale), is_own)
    own = shares.diagonal()
    # of a few misclassified images one's own share is known too badly to be below the others'
    shares[is_own] = np.maximum(own, own[is_known].mean() if is_known.any() else 1.0)
    return drop_negative(shares)


def estimate_score_errors(scores: Correct, members: Numbers, seeds: Numbers, *, is_ratio: bool) -> Values:
    """The same of any metric that is the mean of ``scores`` of single samples, shape ``[trials, samples]``: covariance
    of p(i), or where ``is_ratio`` of the logarithm of its mean; shape ``[k, k]``."""
    apart, is_of = _cross_effects(scores, members, seeds)
    means = (is_of.T @ scores.mean(axis=1)) / is_of.sum(axis=0) if is_ratio else np.ones(len(apart))
    return drop_negative(apart / np.outer(means, means))


def _cross_effects(scores: Correct, members: Numbers, seeds: Numbers) -> tuple[Values, Values]:
    # covariance of p(i) between configurations, [k, k]; and which trials are of each, [trials, k]
    k = int(members.max(initial=-1)) + 1
    covariances = _covariances(scores)
    is_of = (members[:, None] == np.arange(k)).astype(np.float64)
    other_seed = (seeds[:, None] != seeds[None, :]).astype(np.float64)
    apart = _average(covariances, other_seed, is_of)
    together = _average(covariances, 1.0 - other_seed, is_of)
    is_own = np.eye(k, dtype=np.bool_)
    for among in (is_own, ~is_own):
        is_both = among & np.isfinite(apart) & np.isfinite(together)
        total = float(together[is_both].sum())
        share = float(np.clip(apart[is_both].sum() / total, 0.0, 1.0)) if total > 0 else 1.0
        apart[among] = np.where(np.isfinite(apart[among]), apart[among], share * together[among])
    return apart, is_of


def drop_negative(matrix: Values) -> Values:
    """The symmetric ``matrix``, shape ``[k, k]``, with 0 for its negative eigenvalues: a covariance again, of variances
    that are no smaller."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def draw_normal(covariance: Values, num_draws: int, generator: np.random.Generator) -> Values:
    """Draws of mean 0 with that ``covariance``, shape ``[k, k]``, which may be singular; shape ``[num_draws, k]``."""
    values, vectors = np.linalg.eigh(covariance)
    normal = generator.standard_normal((num_draws, len(values)))
    return np.asarray((normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def _covariances(correct: Correct) -> Values:
    # over images, between all pairs of trials; in parts, because floats take 4 or 8 bytes an image
    num_trials, num_images = correct.shape
    products = np.zeros((num_trials, num_trials))
    for start in range(0, num_images, _IMAGES_AT_ONCE):
        # sums of ones below 2**24 are exact
        part = correct[:, start : start + _IMAGES_AT_ONCE].astype(np.float32 if correct.dtype == np.bool_ else float)
        products += part @ part.T
    means = correct.mean(axis=1)
    return np.asarray(products / num_images - np.outer(means, means))


def _average(covariances: Values, is_counted: Values, is_of: Values) -> Values:
    # over the counted pairs of trials of each two configurations; NaN where there is none
    counts = is_of.T @ is_counted @ is_of
    sums = is_of.T @ (covariances * is_counted) @ is_of
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))


@dataclass(frozen=True)
class _ImageErrors:
    """The errors that the choice of the evaluated images leaves in a metric: their ``covariance``; the variance
    ``common`` to the best configurations, a shift that changes no order; and the variance beside it that one has on
    average, ``own``, which makes the best of many look better than it is. 0 where that was not measured."""

    covariance: _ImageCovariance
    common: float
    own: float


def _measure_image_errors(covariance: _ImageCovariance, centers: Values) -> _ImageErrors:
    """The image errors of configurations with these ``centers`` on the scale of the accuracy; shape ``[n]``."""
    known = np.flatnonzero(np.isfinite(centers))
    best = known[np.argsort(-centers[known], kind="stable")][:_NUM_BEST]
    variances = covariance(best)
    between = variances - np.diag(variances.diagonal())
    measured = np.flatnonzero(between.any(axis=1))  # of others it is not known which images they got right
    if len(measured) < 2:
        return _ImageErrors(covariance, 0.0, 0.0)
    common = max(float(between[np.ix_(measured, measured)].sum()) / (len(measured) * (len(measured) - 1)), 0.0)
    return _ImageErrors(covariance, common, max(float(variances.diagonal()[measured].mean()) - common, 0.0))


@final
class ValidationImages:
    """The images, or other samples, of the one split on which all trials ``done`` were evaluated. ``data`` is what is
    recorded of it."""

    def __init__(
        self, frames: Frames, done: pd.DataFrame, grouping: Grouping, data: DataSummary | None, quality: Quality
    ) -> None:
        self._frames, self._done, self._grouping = frames, done, grouping
        self._quality = quality
        self._is_script = frames.spec is not None and frames.spec.script is not None
        name = most_common(read_text(done, "config.data.name"))[0] if len(done) else ""
        is_same = data is not None and (not name or data.name == name)
        self._data = data if is_same else None
        self._read: dict[int, Correct | None] = {}  # by row of ``done``
        self._covariances: dict[bytes, Values] = {}  # by configurations, which several readers ask for

    @cached_property
    def num_images(self) -> int | None:
        """The number of validation images; None where it is not known."""
        if self._data and self._data.num_val and not self._is_script:
            return self._data.num_val
        read = self._load(self._basis(np.arange(min(_NUM_ASKED, self._grouping.size))))
        found = next((len(correct) for correct in read.values() if correct is not None), None)
        if found or not self._is_script:
            return found
        told = read_numbers(self._done, "num_val_samples")
        told = told[np.isfinite(told)]
        return int(told[-1]) if len(told) else self._data.num_val if self._data else None

    @cached_property
    def are_sampled(self) -> bool:
        """Whether the error is known that these samples leave on new ones."""
        if self.num_images is None or self._is_share:
            return self.num_images is not None
        return bool(self._usable(np.arange(min(_NUM_ASKED, self._grouping.size))))

    @property
    def chance(self) -> float | None:
        """The accuracy of always naming the most frequent class; None where the images by class are not known."""
        return self._data.chance if self._data and not self._is_script else None

    @property
    def num_test(self) -> int | None:
        """The number of test images; None where it is not known."""
        return self._data.num_test or None if self._data else None

    def are_known(self, rows: Numbers) -> Mask:
        """Of which configurations ``rows`` (shape ``[k]``) it is on record which images they got right."""
        read = self._usable(rows)
        known = np.unique(self._grouping.members[np.array(list(read), dtype=np.int64)])
        return np.isin(rows, known)

    def covariance(self, rows: Numbers) -> Values:
        """Covariance, between the configurations ``rows`` (shape ``[k]``, distinct), of the error that these images
        leave in the accuracy on new ones, on the scale of angles asin(sqrt(accuracy)), or in another quality on its
        own; shape ``[k, k]``.

        All 0 where the number of images is not known. Where it is not on record which images a configuration got right,
        its error is binomial, 1 / (4 n), and independent of the others': differences seem less sure than they are.
        A configuration without scores of another metric has the error of the others; all 0 where no trial has any.
        """
        if self.num_images is None:
            return np.zeros((len(rows), len(rows)))
        if (key := rows.tobytes()) not in self._covariances:
            self._covariances[key] = self._estimate(rows) / ((4.0 if self._is_share else 1.0) * self.num_images)
        return self._covariances[key]

    @property
    def _is_share(self) -> bool:
        return self._quality.unit == "fraction"

    def _estimate(self, rows: Numbers) -> Values:
        shares = np.eye(len(rows)) if self._is_share else np.zeros((len(rows), len(rows)))
        read = self._usable(rows)
        if read:
            trials = np.array(list(read), dtype=np.int64)
            known, members = np.unique(self._grouping.members[trials], return_inverse=True)
            seeds = read_numbers(self._done, "seed")[trials].astype(np.int64)
            order = np.argsort(rows)
            positions = order[np.searchsorted(rows, known, sorter=order)]
            scores: Correct = np.stack(list(read.values()))
            if self._is_share:
                shares[np.ix_(positions, positions)] = estimate_image_shares(scores, members, seeds)
                return shares
            own = estimate_score_errors(scores, members, seeds, is_ratio=self._quality.scale == "log")
            np.fill_diagonal(shares, own.diagonal().mean())
            shares[np.ix_(positions, positions)] = own
        return shares

    def _basis(self, rows: Numbers) -> Numbers:
        return np.flatnonzero(self._grouping.is_basis & np.isin(self._grouping.members, rows))

    def _usable(self, rows: Numbers) -> dict[int, Correct]:
        read = self._load(self._basis(rows))
        known = {trial: correct for trial, correct in read.items() if correct is not None}
        num = self.num_images
        return {trial: each for trial, each in known.items() if len(each) == num and np.isfinite(each).all()}

    def _load(self, trials: Numbers) -> dict[int, Correct | None]:
        # only what was not read before
        find = self._frames.find_correct
        missing = np.array([trial for trial in trials.tolist() if trial not in self._read], dtype=np.int64)
        studies, numbers = read_text(self._done, "study")[missing], read_numbers(self._done, "number")[missing]
        for study in sorted(set(studies.tolist())):
            of_study = {int(numbers[i]): int(missing[i]) for i in np.flatnonzero(studies == study)}
            correct = find(study, list(of_study)) if find else {}
            self._read |= {row: correct.get(number) for number, row in of_study.items()}
        return {trial: self._read[trial] for trial in trials.tolist()}


@dataclass(frozen=True)
class _Prior:
    """Probability ``masses`` at the ``grid`` of true values, both of shape ``[g]``; the grid's steps are equal."""

    grid: Values
    masses: Values

    def posterior(self, centers: Values, errors: Values, spread: Spread) -> Values:
        """Probability of each grid point for each measured center; shape ``[n, g]``."""
        weights = _likelihood(centers, errors, self.grid, spread) * self.masses
        total = weights.sum(axis=1, keepdims=True)
        return np.asarray(weights / np.where(total > 0, total, 1.0))

    def means(self, centers: Values, errors: Values, spread: Spread) -> Values:
        """The posterior mean for each measured center, shape ``[n]``; interpolated between the grid's points,
        because it changes slowly."""
        means = centers.copy()
        errors = _round_errors(errors)
        for error in np.unique(errors):
            has_error = errors == error
            at_grid = self.posterior(self.grid, np.full(len(self.grid), error), spread) @ self.grid
            means[has_error] = np.interp(centers[has_error], self.grid, at_grid)
        return means


def _fit_prior(centers: Values, errors: Values, spread: Spread, sign: float) -> _Prior | None:
    """The prior of ``centers`` (shape ``[n]``), whose ``errors`` are in standard deviations of the ``spread``; ``sign``
    is -1 where larger is better. None without noise, or with fewer than 3 configurations."""
    known = np.isfinite(centers) & np.isfinite(errors)
    if known.sum() < 3 or not spread.sd > _LEAST_SD:
        return None
    grid = _grid(centers[known], spread.sd, sign)
    step = grid[1] - grid[0]
    bins = np.rint((centers[known] - grid[0]) / step)
    inside = (bins >= 0) & (bins < len(grid))
    counted: list[tuple[Values, Values]] = []
    errors = _round_errors(errors)
    for error in np.unique(errors[known][inside]):
        chosen = bins[inside & (errors[known] == error)].astype(np.int64)
        counts = np.bincount(chosen, minlength=len(grid)).astype(np.float64)
        counted.append((counts, _likelihood(grid, np.full(len(grid), error), grid, spread)))
    kernel = _likelihood(grid, np.full(len(grid), _SMOOTHING), grid, Spread(spread.sd, 0))
    return _Prior(grid, _maximize_expectation(counted, len(grid)) @ (kernel / kernel.sum(axis=1, keepdims=True)))


def _round_errors(errors: Values) -> Values:
    # few different ones, because each takes as long
    return np.asarray(np.exp(np.round(np.log(np.where(errors > 0, errors, 1.0)) * 8.0) / 8.0))


def _grid(centers: Values, sd: float, sign: float) -> Values:
    step = sd / _STEPS_PER_SD
    best, worst = (centers.min(), centers.max()) if sign > 0 else (centers.max(), centers.min())
    reach = min(abs(worst - best) + 8 * sd, step * (_MAX_POINTS - 1))
    start = best - sign * 4 * sd
    points = start + sign * np.arange(round(reach / step) + 1) * step
    return np.asarray(np.sort(points))


def _likelihood(centers: Values, errors: Values, grid: Values, spread: Spread) -> Values:
    distance = (centers[:, None] - grid[None, :]) / (spread.sd * errors[:, None])
    return np.asarray(t_density(distance, spread.degrees) / errors[:, None])


def _maximize_expectation(counted: list[tuple[Values, Values]], size: int) -> Values:
    masses = np.full(size, 1.0 / size)
    total = sum(float(counts.sum()) for counts, _ in counted)
    for _ in range(_NUM_ITERATIONS):
        gained = np.zeros(size)
        for counts, kernel in counted:
            evidence = kernel @ masses
            gained += (counts / np.where(evidence > 0, evidence, np.inf)) @ kernel
        masses = masses * gained / total
    return np.asarray(masses / masses.sum())


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """One metric of every configuration: ``centers`` on its scale, ``errors`` in standard deviations of the
    ``spread``. Where configurations scatter differently, ``ratios`` are their own spreads over that one, with
    ``degrees`` of freedom. Configurations with the same number in ``shared`` have one true value, the mean of
    ``num_pooled`` trials; None where each has its own. Arrays have shape ``[n]``.

    With ``images`` the true value is that on new images, without them that on the evaluated ones.
    """

    name: str
    scale: Scale
    centers: Values
    errors: Values
    spread: Spread
    shared: Numbers
    is_assumed: bool = False
    num_pooled: Numbers | None = None
    prior: _Prior | None = None
    images: _ImageErrors | None = None
    ratios: Values | None = None
    degrees: Values | None = None

    @cached_property
    def estimates(self) -> Values:
        """The posterior means in the metric's unit; shape ``[n]``."""
        return self.scale.backward(self.expected)

    @cached_property
    def expected(self) -> Values:
        """The posterior means on the scale; shape ``[n]``."""
        if self.prior is None:
            return self.centers
        rows = np.flatnonzero(self._in_reach(np.arange(len(self.centers))))
        means = self.centers.copy()
        errors, spread = self.order_errors
        means[rows] = self.prior.means(self.centers[rows], errors[rows], spread)
        return means

    @cached_property
    def order_errors(self) -> tuple[Values, Spread]:
        """The errors that change the order of configurations: those of seeds and of the images' part that is not common
        to all. In standard deviations of the spread that is given with them; shape ``[n]``."""
        own = self.images.own if self.images else 0.0
        if own == 0:
            return self.errors, self.spread
        variance = self.spread.sd**2
        sd = float(np.sqrt(variance + own))
        degrees = float(combine_degrees(self.spread.degrees, variance, variance + own))
        return np.sqrt(variance * self.errors**2 + own) / sd, Spread(sd, round(degrees))

    def covariance(self, rows: Numbers) -> Values:
        """Covariance, on the scale, of the errors of the configurations ``rows`` (shape ``[k]``, distinct): those of
        seeds, each its own, and those of images, largely common to all; shape ``[k, k]``."""
        of_seeds = np.diag((self.spread.sd * self.errors[rows]) ** 2)
        return of_seeds if self.images is None else of_seeds + self.images.covariance(rows)

    def compare(self, row: int, others: Numbers) -> tuple[Values, Values]:
        """Standard errors on the scale of the differences between the configuration ``row`` and each of ``others``
        (shape ``[k]``, distinct), which were measured on the same images, and their degrees of freedom (0: the spread
        is assumed); both of shape ``[k]``, the error 0 for ``row`` itself."""
        rows = np.union1d(others, [row])
        covariance, other = self.covariance(rows), np.searchsorted(rows, others)
        one = int(np.searchsorted(rows, row))
        variances = covariance.diagonal()[other] + covariance[one, one] - 2.0 * covariance[one, other]
        of_seeds = self.spread.sd**2 * (self.errors[others] ** 2 + self.errors[row] ** 2)
        variances = np.where(others == row, 0.0, np.maximum(variances, of_seeds))
        return np.sqrt(variances), combine_degrees(self.spread.degrees, of_seeds, np.maximum(variances, of_seeds))

    def pooled_interval(self, row: int) -> Interval | None:
        """The value of the configuration ``row`` in its unit, with its interval, over all trials of equal cost;
        None where they are not pooled."""
        if self.num_pooled is None or not np.isfinite(self.centers[row]):
            return None
        half = half_width(self.spread, float(self.errors[row]))  # NaN where the spread is assumed
        low, high = self.scale.backward(self.centers[row] + half * np.array([-1.0, 1.0]))
        return Interval(float(self.estimates[row]), float(low), float(high), int(self.num_pooled[row]))

    def draw(self, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Values:
        """Plausible true values of the configurations ``rows`` (shape ``[k]``, distinct), shape ``[num_draws, k]``, in
        the metric's unit: the values of one draw may be true together.

        The spread itself is drawn too (sd * sqrt(degrees / chi2)), so that few repeats give wide draws. Errors that
        images leave are drawn jointly: what is common to two configurations makes neither of them the better one.
        """
        names, position = np.unique(self.shared[rows], return_inverse=True)
        normal = generator.standard_normal((num_draws, len(names)))[:, position]
        factor = np.ones((num_draws, 1))
        if self.spread.degrees > 0:
            degrees = np.array([self.spread.degrees]) if self.degrees is None else self.degrees[rows]
            factor = np.sqrt(degrees / generator.chisquare(degrees, (num_draws, len(degrees))))
        of_seeds = self.spread.sd * self.errors[rows] * normal
        of_images, shift = self._draw_image_errors(rows, num_draws, generator)
        drawn = self.centers[rows] + factor * of_seeds + of_images
        if self.prior is not None:
            self._shrink(drawn, rows, of_seeds, of_images, generator)
        return self.scale.backward(drawn + shift)

    def _draw_image_errors(
        self, rows: Numbers, num_draws: int, generator: np.random.Generator
    ) -> tuple[Values, Values]:
        # of each configuration, shape [draws, k], and the shift of all of them, shape [draws, 1]
        if self.images is None:
            return np.zeros((num_draws, len(rows))), np.zeros((num_draws, 1))
        apart = drop_negative(self.images.covariance(rows) - self.images.common)
        shift = np.sqrt(self.images.common) * generator.standard_normal((num_draws, 1))
        return draw_normal(apart, num_draws, generator), shift

    def _shrink(
        self, drawn: Values, rows: Numbers, of_seeds: Values, of_images: Values, generator: np.random.Generator
    ) -> None:
        # Replaces draws [draws, k] by draws of the prior, which have the ranks of the drawn errors, so that errors that
        # depend on each other still do. What the prior has not made smaller is added to it.
        assert self.prior is not None
        errors, spread = self.order_errors
        is_shrunk = self.images is not None and self.images.own > 0
        moved = of_seeds + of_images if is_shrunk else of_seeds
        deviations = np.sqrt(np.mean(moved**2, axis=0))  # 0 where there is no error
        ranks = ndtr(moved / np.where(deviations > 0, deviations, 1.0))
        step = self.prior.grid[1] - self.prior.grid[0]
        for column in np.flatnonzero(self._in_reach(rows)):
            row = rows[[column]]
            masses = np.cumsum(self.prior.posterior(self.centers[row], errors[row], spread)[0])
            points = np.minimum(np.searchsorted(masses, ranks[:, column] * masses[-1]), len(masses) - 1)
            drawn[:, column] = self.prior.grid[points] + step * (generator.random(len(drawn)) - 0.5)
            drawn[:, column] += 0.0 if is_shrunk else of_images[:, column]

    def _in_reach(self, rows: Numbers) -> Mask:
        assert self.prior is not None
        centers = self.centers[rows]
        return np.asarray((centers >= self.prior.grid[0]) & (centers <= self.prior.grid[-1]))


def fit_posterior(
    name: str,
    done: pd.DataFrame,
    grouping: Grouping,
    image_covariance: _ImageCovariance | None = None,
    failed: Mask | None = None,
    quality: Quality | None = None,
) -> Posterior:
    """The posterior of the metric ``name`` from the complete trials ``done``, an entry for every configuration of
    ``grouping``. Time and memory are pooled over trials of equal cost; everything else is the configuration's own.
    The times are those of :func:`sweep.analysis.costs.apply_times`: one that cannot be used for certain counts only
    where its group has no other, and then by its uncertainty; a probe's time counts once, however many trials have it.

    With ``image_covariance`` the posterior is that on new images, and with ``quality`` the metric is its gain. Trials
    that ``failed`` (shape ``[trials]``) do not count. Search trials share one
    seed: what it does to all of them alike is not told apart from what it does to each, and counts as the latter.
    """
    scale = find_gain_scale(quality) if quality else scale_of(name)
    values = scale.forward(read_observed(name, done))
    if METRICS[name].is_cost:
        costs = find_cost_groups(name, done)
        errors = np.nan_to_num(read_numbers(done, "time_error")) if METRICS[name].is_speed else np.zeros(len(done))
        spread = pooled_spread(np.where(errors == 0, values, np.nan), costs)
        is_unknown = not spread.degrees
        if is_unknown and (scatter := pooled_spread(values, costs)).sd > METRICS[name].unit_facts.assumed_sd:
            spread = scatter
        is_borrowed = METRICS[name].is_speed and not read_counts(done).all()  # by some from others of equal cost
        is_alike = spread.sd <= _MAX_POOLED_SD or _are_equal(spread, pooled_spread(values, grouping.members))
        if is_alike or ((is_borrowed or errors.any()) and is_unknown):
            shared = costs[grouping.first]
            posterior = _posterior(name, scale, values[:0], values[:0], spread, shared)
            means, mean_errors = average_costs(values, costs, errors / (posterior.spread.sd or 1.0))
            counts = np.bincount(costs[np.isfinite(values)], minlength=len(means))
            return replace(posterior, centers=means[shared], errors=mean_errors[shared], num_pooled=counts[shared])
        values = scale.forward(read_own(name, done, grouping))
    if failed is not None:
        values = np.where(failed, np.nan, values)
    centers, counts = grouping.medians(values)
    spread, (deviations, degrees) = grouping.seed_spread(values), grouping.moderate_spread(values)
    ratios = deviations / spread.sd if spread.degrees and spread.sd > 0 else np.ones(grouping.size)
    errors = median_errors(counts) * ratios
    posterior = _posterior(name, scale, centers, errors, spread, np.arange(grouping.size))
    if quality and posterior.is_assumed:
        posterior = replace(posterior, spread=Spread(assume_spread(quality, centers), 0))
    posterior = replace(posterior, ratios=ratios, degrees=degrees)
    if image_covariance is not None:
        posterior = replace(posterior, images=_measure_image_errors(image_covariance, centers))
    errors, spread = posterior.order_errors
    return replace(posterior, prior=_fit_prior(centers, errors, spread, -1.0 if quality else METRICS[name].sign))


def _are_equal(whole: Spread, repeats: Spread) -> bool:
    # whether configurations of equal cost differ no more than their repeats do (analysis of variance)
    between = whole.degrees - repeats.degrees
    if repeats.degrees < _FEWEST_REPEATS or not between or not repeats.sd > 0:
        return False
    variance = (whole.degrees * whole.sd**2 - repeats.degrees * repeats.sd**2) / between
    return bool(fdtrc(between, repeats.degrees, variance / repeats.sd**2) >= _UNEQUAL)


def _posterior(name: str, scale: Scale, centers: Values, errors: Values, spread: Spread, shared: Numbers) -> Posterior:
    is_assumed = spread.degrees == 0
    return Posterior(
        name=name,
        scale=scale,
        centers=centers,
        errors=errors,
        spread=Spread(METRICS[name].unit_facts.assumed_sd, 0) if is_assumed else spread,
        shared=shared,
        is_assumed=is_assumed,
    )
