"""Posterior distributions of the true values of every configuration, given the spread between seeds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.grouping import Grouping, Numbers, configuration_groups
from sweep.analysis.statistics.intervals import Spread, median_errors, pooled_spread
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import Scale, scale_of
from sweep.analysis.statistics.shrinkage import Prior, fit_prior
from sweep.config.metrics import METRICS
from sweep.config.trial_config import keys_of_cost

# What changes no cost; and data.root, because the same data may be elsewhere on another machine.
_FREE_KEYS = keys_of_cost("none") | {"data.root"}
_SWITCHES = keys_of_cost("switch")
# With a larger standard deviation of the logarithm, times that should be of equal cost are not pooled.
_MAX_POOLED_SD = 0.1


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """One metric of every configuration: ``centers`` on its scale, ``errors`` in standard deviations of the
    ``spread``. Configurations with the same number in ``shared`` have one true value. Arrays have shape ``[n]``."""

    name: str
    scale: Scale
    centers: Values
    errors: Values
    spread: Spread
    shared: Numbers
    is_assumed: bool = False
    prior: Prior | None = None

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
        means[rows] = self.prior.means(self.centers[rows], self.errors[rows], self.spread)
        return means

    def standard_errors(self) -> Values:
        """Standard errors on the scale; shape ``[n]``."""
        return self.spread.sd * self.errors

    def draw(self, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Values:
        """Plausible true values of the configurations ``rows`` (shape ``[k]``), shape ``[num_draws, k]``, in the
        metric's unit.

        The spread itself is drawn too (sd * sqrt(degrees / chi2)), so that few repeats give wide draws.
        """
        draw = self._draw_evenly if self.prior is None else self._draw_by_prior
        return self.scale.backward(draw(rows, num_draws, generator))

    def _draw_evenly(self, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Values:
        names, position = np.unique(self.shared[rows], return_inverse=True)
        normal = generator.standard_normal((num_draws, len(names)))[:, position]
        factor = np.ones((num_draws, 1))
        if self.spread.degrees > 0:
            factor = np.sqrt(self.spread.degrees / generator.chisquare(self.spread.degrees, (num_draws, 1)))
        return np.asarray(self.centers[rows] + self.spread.sd * factor * self.errors[rows] * normal)

    def _draw_by_prior(self, rows: Numbers, num_draws: int, generator: np.random.Generator) -> Values:
        assert self.prior is not None
        drawn = self._draw_evenly(rows, num_draws, generator)
        step = self.prior.grid[1] - self.prior.grid[0]
        for place in np.flatnonzero(self._in_reach(rows)):
            row = rows[[place]]
            masses = np.cumsum(self.prior.posterior(self.centers[row], self.errors[row], self.spread)[0])
            points = np.searchsorted(masses, generator.random(num_draws) * masses[-1])
            drawn[:, place] = self.prior.grid[np.minimum(points, len(masses) - 1)]
            drawn[:, place] += step * (generator.random(num_draws) - 0.5)
        return drawn

    def _in_reach(self, rows: Numbers) -> Mask:
        assert self.prior is not None
        centers = self.centers[rows]
        return np.asarray((centers >= self.prior.grid[0]) & (centers <= self.prior.grid[-1]))


def fit_posterior(name: str, done: pd.DataFrame, grouping: Grouping) -> Posterior:
    """The posterior of the metric ``name`` from the complete trials ``done``, an entry for every configuration of
    ``grouping``. Time and memory are pooled over trials of equal cost; everything else is the configuration's own."""
    values = scale_of(name).forward(read_numbers(done, name))
    if METRICS[name].is_cost:
        costs = _cost_groups(name, done)
        spread = pooled_spread(values, costs)
        if spread.sd <= _MAX_POOLED_SD:
            shared = costs[grouping.first]
            means, errors = _means_of_costs(values, costs)
            return _posterior(name, means[shared], errors[shared], spread, shared)
    centers, counts = grouping.medians(values)
    own = np.arange(grouping.size)
    posterior = _posterior(name, centers, median_errors(counts), grouping.seed_spread(values), own)
    prior = fit_prior(centers, posterior.errors, posterior.spread, METRICS[name].sign)
    return replace(posterior, prior=prior)


def equal_cost_groups(trials: pd.DataFrame, ignored: Collection[str] = ()) -> Numbers:
    """The same number for trials whose steps cost the same, whatever the values of the keys ``ignored``; shape
    ``[len(trials)]``. Of a switch, such as momentum, only whether it is on counts."""
    return configuration_groups(trials, _FREE_KEYS.union(ignored), _SWITCHES)


def draw_all(posteriors: Sequence[Posterior], rows: Numbers, num_draws: int, seed: int = 0) -> Values:
    """Plausible true values of the configurations ``rows`` (shape ``[k]``), shape ``[num_draws, k, len(posteriors)]``;
    the same for equal records."""
    generator = np.random.default_rng(seed)
    return np.stack([posterior.draw(rows, num_draws, generator) for posterior in posteriors], axis=2)


def _cost_groups(name: str, done: pd.DataFrame) -> Numbers:
    # where time depends on the learning itself, as time to a target does, only trials of one configuration are equal
    by_target = np.isfinite(read_numbers(done, "config.budget.target_accuracy")).any()
    by_noise = "noise_scale" in set(read_text(done, "config.batch.schedule"))
    return configuration_groups(done) if METRICS[name].is_speed and (by_target or by_noise) else equal_cost_groups(done)


def _means_of_costs(values: Values, costs: Numbers) -> tuple[Values, Values]:
    # the mean of each group of equal cost, and its error in standard deviations of the spread
    finite = np.isfinite(values)
    size = int(costs.max(initial=-1)) + 1
    counts = np.bincount(costs[finite], minlength=size)
    known = np.where(counts > 0, counts, np.nan)
    return np.bincount(costs[finite], values[finite], minlength=size) / known, 1 / np.sqrt(known)


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
