"""The critical batch in two ways, in samples: by steps to a target, and by the gradient noise.

They are not estimates of one number. The first is E_min / S_min of whole trainings with the best rate at each batch;
the second the average of tr(S) / |G|^2 over a training, which at each step equals its critical batch where the Hessian
is a multiple of the identity (McCandlish et al. 2018, arXiv:1812.06162).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.comparable import ComparableTrials, find_main_recipe
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics import (
    Estimate,
    Mask,
    Values,
    confidence_interval,
    configuration_groups,
    fit_curve,
    group_configurations,
    mean_estimate,
    read_numbers,
    read_text,
    slope_estimate,
    weigh_extremes,
)
from sweep.analysis.tuned_batches import cross_target
from sweep.config.metrics import format_count

MIN_BATCHES = 4
_MIN_RATES = 3  # learning rates that were tried at a batch, before its best one counts as tuned
_NUM_LOSSES = 6  # at which the critical batch is compared
_MAX_MISFIT = 0.25  # root mean square of the logarithm: data that the fit misses by more do not follow the law
# The share of steps or samples above the fewest at which a regime ends. Shallue et al. 2018 draw the ends by eye; Zhang
# et al. 2024 (arXiv:2410.21676) bound the critical batch by this share.
_OVERHEAD = 0.2
# Trainings that count as tried: the others ended for reasons that have nothing to do with learning.
_TRIED = ("complete", "target_missed", "diverged", "timed_out", "pruned")
# The estimates of single steps scatter by more than their mean, and the ratio of few is biased.
_MIN_NOISE_STEPS = 10


class CriticalBatch(NamedTuple):
    """An estimate in samples with its 95 % interval, whose bounds are NaN where they are not known."""

    value: float
    low: float
    high: float
    detail: str


@dataclass(frozen=True, kw_only=True)
class Regimes:
    """S = S_min (1 + B_crit / B): (S / S_min - 1)(E / E_min - 1) = 1 solved for S, with E = S B and B_crit =
    E_min / S_min (McCandlish et al. 2018). ``log_error`` is the standard error of log B_crit."""

    min_steps: float
    critical_batch: float
    log_error: float
    degrees: int
    misfit: float

    @property
    def min_samples(self) -> float:
        """E_min."""
        return self.min_steps * self.critical_batch

    @property
    def perfect_until(self) -> float:
        """The batch up to which a target takes at most 20 % more samples than the fewest: perfect scaling."""
        return _OVERHEAD * self.critical_batch

    @property
    def maximal_from(self) -> float:
        """The batch from which on it takes at most 20 % more steps than the fewest: maximal data parallelism."""
        return self.critical_batch / _OVERHEAD

    def steps_at(self, batches: Values) -> Values:
        """Steps to the target by the law, of the shape of ``batches``."""
        return self.min_steps * (1 + self.critical_batch / batches)


class CriticalGrowth(NamedTuple):
    """By which power of 1 / loss the critical batch grows; shape ``[seeds]``, NaN where it is not known."""

    powers: Values
    detail: str


class TunedSteps(NamedTuple):
    """The fewest steps to one target at each effective batch size, both of shape ``[b]``, at equal tuning of all."""

    batches: Values
    steps: Values
    detail: str


class StepsEstimate(NamedTuple):
    """The critical batch by steps to a target: its logarithm, with the steps and the law that it follows from."""

    estimate: Estimate
    tuned: TunedSteps
    law: Regimes

    @property
    def batch(self) -> CriticalBatch:
        """The estimate in samples."""
        return CriticalBatch(*confidence_interval(self.estimate), self.tuned.detail)


def estimate_by_steps(records: ComparableTrials) -> StepsEstimate | str:
    """The estimate by steps to a target of the model and optimizer that most trials have, or why there is none."""
    tuned = find_tuned_steps(records)
    if isinstance(tuned, str):
        return tuned
    law = fit_regimes(tuned.batches, tuned.steps)
    if law is None:
        return f"{tuned.detail}: they do not follow the law of three regimes"
    estimate = Estimate(float(np.log(law.critical_batch)), law.log_error, law.degrees, len(tuned.batches), True)
    return StepsEstimate(estimate, tuned, law)


def estimate_by_noise(records: ComparableTrials) -> CriticalBatch | str:
    """The estimate by the gradient noise, or why there is none."""
    scales = read_noise_scales(records)
    chosen, recipe = find_main_recipe(records.frame, np.asarray(scales.values > 0, dtype=np.bool_))
    rest = scales.describe_missing()
    if not chosen.any():
        return f"no configuration has a noise scale over its training{rest}; set diagnostics.noise_scale = true"
    estimate = mean_estimate(np.log(scales.values[chosen]), is_ratio=True)
    detail = f"{recipe}: {format_count(int(chosen.sum()), 'configuration')}{rest}"
    return CriticalBatch(*confidence_interval(estimate), detail)


class _NoiseScales(NamedTuple):
    """``values`` in samples (B_simple, McCandlish et al. 2018), NaN where there is none although steps were measured
    (``is_missing``): |G|^2 cannot be told from 0, or they were too few. Both of shape ``[configurations]``."""

    values: Values
    is_missing: Mask

    def describe_missing(self, among: Mask | bool = True) -> str:
        """How many of the configurations ``among`` have none, as the end of a description; "" where all have one."""
        if not (count := int(np.sum(self.is_missing & among))):
            return ""
        there = f"in {format_count(count, 'further configuration')} the estimate of |G|^2 is not above 0"
        return f"; {there}, or fewer than {_MIN_NOISE_STEPS} steps were measured"


def read_noise_scales(records: ComparableTrials) -> _NoiseScales:
    """The noise scales over the training, each the median of the trials that a configuration's values rest on."""
    values, _ = records.grouping.medians(read_numbers(records.done, "noise_scale_run"))
    steps, _ = records.grouping.medians(read_numbers(records.done, "num_noise_steps"))
    values = np.where(steps >= _MIN_NOISE_STEPS, values, np.nan)
    return _NoiseScales(values, np.isfinite(steps) & ~(values > 0))


def fit_regimes(batches: Values, steps: Values) -> Regimes | None:
    """The law fitted in the logarithm of steps; both of shape ``[b]``. None with fewer than 4 batches or no fit."""
    known = np.isfinite(batches) & np.isfinite(steps) & (steps > 0)
    x, y = np.log(batches[known]), np.log(steps[known])
    if len(x) < MIN_BATCHES or np.ptp(y) == 0:
        return None

    def law(log_batch: Values, log_steps: float, log_critical: float) -> Values:
        return np.asarray(log_steps + np.logaddexp(0.0, log_critical - log_batch))

    fitted = fit_curve(law, x, y, (y.min() - 0.5, x.mean()))
    if fitted is None:
        return None
    (log_steps, log_critical), errors = fitted
    misfit = float(np.sqrt(np.mean((law(x, log_steps, log_critical) - y) ** 2)))
    if misfit > _MAX_MISFIT:
        return None
    return Regimes(
        min_steps=float(np.exp(log_steps)),
        critical_batch=float(np.exp(log_critical)),
        log_error=float(errors[1]),
        degrees=len(x) - 2,
        misfit=misfit,
    )


def find_tuned_steps(records: ComparableTrials) -> TunedSteps | str:
    """The steps to the most common target of one model and optimizer, or why they are not known.

    They are interpolated between evaluations. At a batch with more configurations the fewest of all would be fewer by
    chance, so that each batch counts with the expected fewest of as many as the batch with the least has; a training
    that missed the target, diverged or was pruned is one of them, without an end.
    """
    trials, evaluations, quality = records.trials, records.frames.evaluations, records.quality
    targets = read_numbers(trials, "config.budget.target")
    has_target = np.isfinite(targets) & np.isin(read_text(trials, "outcome"), _TRIED)
    if not has_target.any():
        return (
            "no training ran to a target (budget.target): the steps of trainings of a fixed length are not "
            "steps to a target"
        )
    if evaluations is None or not len(evaluations):
        return f"{records.lack_of_evaluations}, between which the target was crossed"
    has_target &= np.isin(read_text(trials, "config.batch.schedule"), ["", "constant"])
    main, recipe = find_main_recipe(trials, has_target)
    levels, counts = np.unique(targets[main], return_counts=True)
    target = float(levels[np.argmax(counts)]) if len(levels) else np.nan
    chosen = trials[main & (targets == target)]
    falls = ~np.isin(read_text(chosen, _name_schedule(records)), ["constant"])
    if falls.any() and records.is_script:
        return f'{recipe}: a script shows no schedule; script.schedule = "constant" says that its rate is constant'
    if falls.any() and len(np.unique(read_numbers(chosen, "config.budget.max_epochs"))) < _MIN_RATES:
        return (
            f"{recipe}: the learning rate falls over budget.max_epochs whatever the batch, and the steps to the target "
            'follow from that; schedule.name = "constant", or budget.max_epochs in [space], would test it'
        )
    gains = evaluations.assign(gain=quality.sign * read_numbers(evaluations, quality.column))
    return _compare_batches(chosen, gains, quality.sign * target, f"{recipe}: steps to {quality.format_value(target)}")


def estimate_growth(records: ComparableTrials) -> CriticalGrowth | str:
    """The critical batch at six losses, for each seed by the steps to them, and the power of 1 / loss with which it
    grows (Kaplan et al. 2020, arXiv:2001.08361); or why there is none.

    The losses are evenly spaced in their logarithm, from one that no training has at its first evaluation to the lowest
    that all batches reach with every seed."""
    trials, points = _join_losses(records)
    main, recipe = find_main_recipe(trials, np.isin(read_text(trials, "outcome"), _TRIED))
    trials = trials[main]
    points = points[points["row"].isin(trials["row"])]
    if points.empty:
        return f"no training at a constant learning rate has a loss on record, {records.lack_of_evaluations}"
    losses = points.groupby("row")["loss"]
    ends = trials["row"].map(losses.min())
    first = float(losses.first().min())
    last = float(ends.groupby([trials["global_batch_size"], trials["seed"]]).min().max())
    if not 0 < last < first:
        return f"{recipe}: no loss is crossed between the evaluations of all effective batch sizes"
    levels = np.geomspace(first, last, _NUM_LOSSES + 1)[1:]
    table = np.array([
        [_fit_at(trials[trials["seed"] == seed], points, ends, level) for level in levels]
        for seed in np.unique(read_numbers(trials, "seed"))
    ])  # fmt: skip
    powers = np.array([slope_estimate(-np.log(levels), np.log(row)).value for row in table])
    pairs = zip(levels, np.exp(np.mean(np.log(table), axis=0)), strict=True)
    known = ", ".join(f"{batch:.3g} at {level:.3g}" for level, batch in pairs if np.isfinite(batch))
    return CriticalGrowth(powers, f"{recipe}: critical batch by the steps to each loss, mean over the seeds: {known}")


def _join_losses(records: ComparableTrials) -> tuple[pd.DataFrame, pd.DataFrame]:
    # the trials at a constant rate and batch, numbered by "row", and their evaluations as "row", "step" and "loss"
    trials, evaluations, keys = records.trials, records.frames.evaluations, ["study", "number"]
    is_constant = np.isin(read_text(trials, _name_schedule(records)), ["constant"])
    is_constant &= np.isin(read_text(trials, "config.batch.schedule"), ["", "constant"])
    trials = trials[is_constant].assign(row=np.arange(int(is_constant.sum())))
    if evaluations is None or not len(evaluations):
        return trials, pd.DataFrame(columns=["row", "step", "loss"])
    points = evaluations[[*keys, "step"]].assign(loss=read_numbers(evaluations, records.loss_column))
    points = points[np.isfinite(points["loss"])].merge(trials[[*keys, "row"]], on=keys)
    return trials, points.sort_values(["row", "step"])


def _name_schedule(records: ComparableTrials) -> str:
    return "config.script.schedule" if records.is_script else "config.schedule.name"


def _fit_at(trials: pd.DataFrame, points: pd.DataFrame, ends: pd.Series, level: float) -> float:
    # the critical batch by the steps to one loss, NaN where the law is not fitted
    reached = np.where(ends[trials.index] <= level, "complete", "target_missed")
    tuned = _compare_batches(trials.assign(outcome=reached), points.assign(gain=-points["loss"]), -level, "")
    law = None if isinstance(tuned, str) else fit_regimes(tuned.batches, tuned.steps)
    return law.critical_batch if law else np.nan


def _compare_batches(trials: pd.DataFrame, evaluations: pd.DataFrame, target: float, what: str) -> TunedSteps | str:
    # the evaluations have the quality as a "gain", and the target is one
    grouping = group_configurations(trials, configuration_groups(trials))
    paces, _ = grouping.medians(_measure_paces(trials, evaluations, target))
    frame = trials.iloc[grouping.first]
    batches, rates = read_numbers(frame, "global_batch_size"), scaled_learning_rates(frame)
    tuned = {}
    for batch in np.unique(batches):
        of_batch = paces[batches == batch]
        if _is_tuned(of_batch, rates[batches == batch]):
            tuned[batch] = np.sort(of_batch)[::-1]
    if num_missing := len(np.unique(batches)) - len(tuned):
        what += (
            f" ({format_count(num_missing, 'further batch size')} left out: fewer than {_MIN_RATES} learning rates, "
            "the best one at the edge of those tried, or a target reached by the first evaluation or not at all)"
        )
    if len(tuned) < MIN_BATCHES:
        num_tuned = format_count(len(tuned), "effective batch size")
        return f"{what}, at {num_tuned} whose rate was tuned; {MIN_BATCHES} are required"
    sizes = [len(known) for known in tuned.values()]
    steps = [expect_fewest(1 / known[known > 0], len(known), min(sizes)) for known in tuned.values()]
    detail = (
        f"{what}, interpolated between evaluations, at {len(tuned)} effective batch sizes; {min(sizes)} to "
        f"{max(sizes)} configurations tuned at each, compared as the best of {min(sizes)}"
    )
    return TunedSteps(np.array(list(tuned)), np.array(steps), detail)


def _is_tuned(paces: Values, rates: Values) -> bool:
    # Shallue et al. 2018 extend the search where the best rate is at the edge of those tried
    if np.isnan(paces).any() or not paces.max() > 0 or len(np.unique(rates)) < _MIN_RATES:
        return False
    return bool(rates.min() < rates[np.argmax(paces)] < rates.max())


def expect_fewest(steps: Values, num_tried: int, num_drawn: int) -> float:
    """The geometric mean of the fewest steps of ``num_drawn`` of the configurations that were tried; ``steps`` (shape
    ``[k]``, ascending) belong to the ``k`` that reached the target. Draws in which none reached it are left out."""
    weights = weigh_extremes(num_tried, num_drawn, len(steps))
    return float(np.exp(np.sum(weights * np.log(steps)) / weights.sum()))


def _measure_paces(trials: pd.DataFrame, evaluations: pd.DataFrame, target: float) -> Values:
    # 1 / steps to the target, 0 where it was not reached; NaN where it was before the first evaluation
    keys = ["study", "number"]
    chosen = trials[keys].assign(row=np.arange(len(trials)))
    points = evaluations[[*keys, "step", "gain"]].merge(chosen, on=keys).sort_values(["row", "step"])
    paces = np.where(read_text(trials, "outcome") == "complete", np.nan, 0.0)
    steps, gains = read_numbers(points, "step"), read_numbers(points, "gain")
    owners = np.asarray(points["row"], dtype=np.int64)
    for row in np.flatnonzero(np.isnan(paces)):
        own = slice(*np.searchsorted(owners, [row, row + 1]))
        paces[row] = 1 / cross_target(steps[own], gains[own], target)
    return paces
