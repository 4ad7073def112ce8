"""The claim that the critical batch, between the three regimes of steps to a target, is among the batches tried."""

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Measurement, NextStep, not_tested, suggest_variant
from sweep.analysis.comparable import ComparableTrials
from sweep.analysis.statistics import Estimate, Mask, Region, read_numbers, read_text
from sweep.analysis.steps_to_target import MIN_BATCHES, find_tuned_steps, fit_regimes


def measure_critical_batch(records: ComparableTrials) -> Measurement:
    """The critical batch by the steps to a common target, and whether it is among the batches that were tried."""
    found = find_tuned_steps(records)
    if isinstance(found, str):
        return not_tested(found)
    tried = Region(float(found.batches.min()), float(found.batches.max()))
    fit = fit_regimes(found.batches, found.steps)
    if fit is None:
        return not_tested(f"{found.detail}: they do not follow the law of three regimes")
    num = len(found.batches)
    estimate = Estimate(float(np.log(fit.critical_batch)), fit.log_error, fit.degrees, num, is_ratio=True)
    detail = (
        f"{found.detail}; at least {fit.min_steps:.0f} steps and {fit.min_samples:.0f} samples; the fit misses by "
        f"{100 * fit.misfit:.0f} %"
    )
    return Measurement(estimate, detail, tried)


def suggest_target(records: ComparableTrials) -> NextStep:
    """The study until a target that its batches can reach, with a rate that does not fall over a fixed length."""
    accuracies, batches = read_numbers(records.done, "val_accuracy"), read_numbers(records.done, "global_batch_size")
    best = pd.Series(accuracies).groupby(batches).max().min()
    target = max(0.01, float(np.floor(100 * best - 1) / 100)) if np.isfinite(best) else 0.9
    fixed = {"budget.target_accuracy": target, "schedule.name": "constant"}
    remark = f"the study requires optimizer.lr and {MIN_BATCHES} effective batch sizes or more in [space]"
    return suggest_variant(records, "to_target", fixed, remark)


def has_one_batch(frame: pd.DataFrame) -> Mask:
    """Which configurations train with one effective batch size from beginning to end; shape ``[len(frame)]``."""
    return np.asarray(np.isin(read_text(frame, "config.batch.schedule"), ["", "constant"]), dtype=np.bool_)
