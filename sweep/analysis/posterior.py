"""Posterior distributions of the true values of every configuration, given the spread between seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.special import ndtr

from sweep.analysis.costs import average_costs, find_cost_groups, read_counts, read_observed, read_own
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.grouping import Grouping, Numbers
from sweep.analysis.statistics.image_sampling import (
    ImageCovariance,
    ImageErrors,
    draw_normal,
    drop_negative,
    measure_image_errors,
)
from sweep.analysis.statistics.intervals import (
    Interval,
    Spread,
    combine_degrees,
    half_width,
    median_errors,
    pooled_spread,
)
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import Scale, scale_of
from sweep.analysis.statistics.shrinkage import Prior, fit_prior
from sweep.config.metrics import METRICS

# With a larger standard deviation of the logarithm, times that should be of equal cost are not pooled. On an idle
# machine with other tenants it was 0.105 over 20 equal trainings.
_MAX_POOLED_SD = 0.15


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """One metric of every configuration: ``centers`` on its scale, ``errors`` in standard deviations of the
    ``spread``. Configurations with the same number in ``shared`` have one true value, the mean of ``num_pooled``
    trials; None where each has its own. Arrays have shape ``[n]``.

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
    prior: Prior | None = None
    images: ImageErrors | None = None

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
        covariance, place = self.covariance(rows), np.searchsorted(rows, others)
        one = int(np.searchsorted(rows, row))
        variances = covariance.diagonal()[place] + covariance[one, one] - 2.0 * covariance[one, place]
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
            factor = np.sqrt(self.spread.degrees / generator.chisquare(self.spread.degrees, (num_draws, 1)))
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
        # Replaces draws [draws, k] by those of the prior, which have the ranks of the drawn errors, so that errors that
        # depend on each other still do. What the prior has not made smaller is added to it.
        assert self.prior is not None
        errors, spread = self.order_errors
        is_shrunk = self.images is not None and self.images.own > 0
        ranks = ndtr(_standardize(of_seeds + of_images if is_shrunk else of_seeds))
        step = self.prior.grid[1] - self.prior.grid[0]
        for place in np.flatnonzero(self._in_reach(rows)):
            row = rows[[place]]
            masses = np.cumsum(self.prior.posterior(self.centers[row], errors[row], spread)[0])
            points = np.minimum(np.searchsorted(masses, ranks[:, place] * masses[-1]), len(masses) - 1)
            drawn[:, place] = self.prior.grid[points] + step * (generator.random(len(drawn)) - 0.5)
            drawn[:, place] += 0.0 if is_shrunk else of_images[:, place]

    def _in_reach(self, rows: Numbers) -> Mask:
        assert self.prior is not None
        centers = self.centers[rows]
        return np.asarray((centers >= self.prior.grid[0]) & (centers <= self.prior.grid[-1]))


def fit_posterior(
    name: str, done: pd.DataFrame, grouping: Grouping, image_covariance: ImageCovariance | None = None
) -> Posterior:
    """The posterior of the metric ``name`` from the complete trials ``done``, an entry for every configuration of
    ``grouping``. Time and memory are pooled over trials of equal cost; everything else is the configuration's own.
    The times are those of :func:`sweep.analysis.costs.apply_times`: one that cannot be used for certain counts only
    where its group has no other, and then by its uncertainty; that of a probe counts once, however many trials have it.

    With ``image_covariance`` the metric is an accuracy, and the posterior that on new images. Search trials share one
    seed: what it does to all of them alike is not told apart from what it does to each, and counts as the latter.
    """
    values = scale_of(name).forward(read_observed(name, done))
    if METRICS[name].is_cost:
        costs = find_cost_groups(name, done)
        errors = np.nan_to_num(read_numbers(done, "time_error")) if METRICS[name].is_speed else np.zeros(len(done))
        spread = pooled_spread(np.where(errors == 0, values, np.nan), costs)
        is_borrowed = METRICS[name].is_speed and not read_counts(done).all()  # by some from others of equal cost
        if spread.sd <= _MAX_POOLED_SD or (is_borrowed and not spread.degrees):
            shared = costs[grouping.first]
            posterior = _posterior(name, values[:0], values[:0], spread, shared)
            means, mean_errors = average_costs(values, costs, errors / (posterior.spread.sd or 1.0))
            counts = np.bincount(costs[np.isfinite(values)], minlength=len(means))
            return replace(posterior, centers=means[shared], errors=mean_errors[shared], num_pooled=counts[shared])
        values = scale_of(name).forward(read_own(name, done, grouping))
    centers, counts = grouping.medians(values)
    own = np.arange(grouping.size)
    posterior = _posterior(name, centers, median_errors(counts), grouping.seed_spread(values), own)
    if image_covariance is not None:
        posterior = replace(posterior, images=measure_image_errors(image_covariance, centers))
    errors, spread = posterior.order_errors
    return replace(posterior, prior=fit_prior(centers, errors, spread, METRICS[name].sign))


def _standardize(errors: Values) -> Values:
    # draws [draws, k] of mean 0 over their standard deviations; 0 where there is no error
    deviations = np.sqrt(np.mean(errors**2, axis=0))
    return np.asarray(errors / np.where(deviations > 0, deviations, 1.0))


def draw_all(posteriors: Sequence[Posterior], rows: Numbers, num_draws: int, seed: int = 0) -> Values:
    """Plausible true values of the configurations ``rows`` (shape ``[k]``), shape ``[num_draws, k, len(posteriors)]``;
    the same for equal records."""
    generator = np.random.default_rng(seed)
    return np.stack([posterior.draw(rows, num_draws, generator) for posterior in posteriors], axis=2)


def _posterior(name: str, centers: Values, errors: Values, spread: Spread, shared: Numbers) -> Posterior:
    is_assumed = spread.degrees == 0
    return Posterior(
        name=name,
        scale=scale_of(name),
        centers=centers,
        errors=errors,
        spread=Spread(METRICS[name].unit_facts.assumed_sd, 0) if is_assumed else spread,
        shared=shared,
        is_assumed=is_assumed,
    )
