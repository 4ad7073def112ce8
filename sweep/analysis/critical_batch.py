"""The critical batch in two ways, in samples: by steps to a target and by the gradient noise.

They are not estimates of one number. The first is E_min / S_min of whole trainings with the best rate at each batch;
the second the average of tr(S) / |G|^2 over a training, which at each step equals its critical batch where the Hessian
is a multiple of the identity (McCandlish et al. 2018, arXiv:1812.06162).
"""

from typing import NamedTuple

import numpy as np

from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe
from sweep.analysis.noise_scales import read_noise_scales
from sweep.analysis.statistics.estimates import Estimate, confidence_interval, mean_estimate
from sweep.analysis.steps_to_target import Regimes, TunedSteps, find_tuned_steps, fit_regimes
from sweep.config.units import format_count


class CriticalBatch(NamedTuple):
    """An estimate in samples with its 95 % interval, whose bounds are NaN where they are not known."""

    value: float
    low: float
    high: float
    detail: str


class StepsEstimate(NamedTuple):
    """The critical batch by steps to a target, with the steps and the law that it follows from."""

    batch: CriticalBatch
    tuned: TunedSteps
    law: Regimes


class CriticalBatches(NamedTuple):
    """Each estimate, or why the records do not give it."""

    steps: StepsEstimate | str
    noise: CriticalBatch | str


def estimate_critical_batches(records: ComparableTrials) -> CriticalBatches:
    """The estimates that the records give, each of the model and optimizer that most of its trials have."""
    return CriticalBatches(_estimate_by_steps(records), _estimate_by_noise(records))


def _estimate_by_steps(records: ComparableTrials) -> StepsEstimate | str:
    tuned = find_tuned_steps(records)
    if isinstance(tuned, str):
        return tuned
    law = fit_regimes(tuned.batches, tuned.steps)
    if law is None:
        return f"{tuned.detail}: they do not follow the law of three regimes"
    estimate = Estimate(float(np.log(law.critical_batch)), law.log_error, law.degrees, len(tuned.batches), True)
    return StepsEstimate(CriticalBatch(*confidence_interval(estimate), tuned.detail), tuned, law)


def _estimate_by_noise(records: ComparableTrials) -> CriticalBatch | str:
    scales = read_noise_scales(records)
    chosen, recipe = find_main_recipe(records.frame, np.asarray(scales.values > 0, dtype=np.bool_))
    missing = scales.describe_missing(np.ones(len(scales.values), dtype=np.bool_))
    beside = f"; {missing}" if missing else ""
    if not chosen.any():
        return f"no configuration has a noise scale over its training{beside}; set diagnostics.noise_scale = true"
    detail = f"{recipe}: {format_count(int(chosen.sum()), 'configuration')}{beside}"
    average = mean_estimate(np.log(scales.values[chosen]), is_ratio=True)
    return CriticalBatch(*confidence_interval(average), detail)
