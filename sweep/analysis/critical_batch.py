"""The critical batch in three ways, in samples: by steps to a target, by the gradient noise, by branches.

They are not estimates of one number. The first is E_min / S_min of whole trainings with the best rate at each batch;
the second the average of tr(S) / |G|^2 over a training, which at each step equals its critical batch where the Hessian
is a multiple of the identity (McCandlish et al. 2018, arXiv:1812.06162); the third is local: how far the batch may grow
from one point of a training before a tolerance is exceeded (Merrill et al. 2025, arXiv:2505.23971).
"""

from typing import NamedTuple

import numpy as np

from sweep.analysis.comparable import ComparableTrials, find_main_recipe
from sweep.analysis.noise_scales import read_noise_scales
from sweep.analysis.statistics import Estimate, Values, confidence_interval, mean_estimate, read_numbers
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
    branches: CriticalBatch | str


def estimate_critical_batches(records: ComparableTrials) -> CriticalBatches:
    """The three estimates that the records give, each of the model and optimizer that most of its trials have."""
    return CriticalBatches(_estimate_by_steps(records), _estimate_by_noise(records), _estimate_by_branches(records))


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
    return _average(scales.values[chosen], f"{recipe}: {format_count(int(chosen.sum()), 'configuration')}{beside}")


def _estimate_by_branches(records: ComparableTrials) -> CriticalBatch | str:
    done = records.done
    tried = np.isfinite(read_numbers(done, "num_branches"))
    if not tried.any():
        return "no training has branches; set diagnostics.branch_after"
    chosen, recipe = find_main_recipe(done, np.asarray(tried, dtype=np.bool_))
    values, lows, highs = (read_numbers(done, f"local_critical_batch{end}")[chosen] for end in ("", "_low", "_high"))
    known = np.isfinite(values)
    beside = _describe_unbounded(lows[~known])
    if not known.any():
        return f"{recipe}: {beside}"
    detail = "; ".join(filter(None, (f"{recipe}: {format_count(int(known.sum()), 'training')}", beside)))
    if known.sum() == 1:
        return CriticalBatch(float(values[known][0]), float(lows[known][0]), float(highs[known][0]), detail)
    return _average(values[known], detail)


def _describe_unbounded(lows: Values) -> str:
    # of the trainings whose branches give no estimate: those with a lower bound never exceeded the tolerance, without
    # one there was nothing to compare with
    has_bound = np.isfinite(lows)
    parts = []
    if has_bound.any():
        trainings = format_count(int(has_bound.sum()), "training")
        parts.append(f"in {trainings} no branch exceeded the tolerance, up to {lows[has_bound].min():,.0f} samples")
    if not has_bound.all():
        trainings = format_count(int((~has_bound).sum()), "training")
        parts.append(f"in {trainings} the branch with the training's own batch diverged")
    return "; ".join(parts)


def _average(values: Values, detail: str) -> CriticalBatch:
    return CriticalBatch(*confidence_interval(mean_estimate(np.log(values), is_ratio=True)), detail)
