"""Claims about how training goes: steps to a target, the noise of the gradient, sharp minima."""

import numpy as np

from sweep.analysis.claims.claim import Claim, Measurement, run_variant
from sweep.analysis.claims.learning_rates import scaled_learning_rates
from sweep.analysis.claims.regimes import fewest_steps, fit_regimes
from sweep.analysis.comparable_trials import ComparableTrials, is_main_model
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, slope_estimate
from sweep.analysis.statistics.pareto import Values


def _measure_critical_batch(records: ComparableTrials) -> Measurement:
    # of the steps-to-target law, and whether it is among the batches that were tried
    batches, steps, target = fewest_steps(records, is_main_model(records.done))
    tried = Region(float(batches.min()), float(batches.max())) if len(batches) else None
    fit = fit_regimes(batches, steps)
    if fit is None:
        return Measurement(NOTHING, "", tried)
    estimate = Estimate(float(np.log(fit.critical_batch)), fit.log_error, fit.degrees, len(batches), is_ratio=True)
    detail = (
        f"fewest steps to {100 * target:.1f} % at {len(batches)} effective batch sizes; at least {fit.min_steps:.0f} "
        f"steps and {fit.min_samples:.0f} samples; the fit misses by {100 * fit.misfit:.0f} %"
    )
    return Measurement(estimate, detail, tried)


def _measure_noise_power(records: ComparableTrials) -> Measurement:
    heat = read_numbers(records.frame, "global_batch_size") / scaled_learning_rates(records)
    return _measure_power(heat, _read_medians(records, "noise_scale"))


def _measure_sharpness_power(records: ComparableTrials) -> Measurement:
    # Keskar's measure where it is on record, otherwise the top eigenvalue of the Hessian
    keskar = _read_medians(records, "sharpness_keskar")
    sharpness = keskar if np.isfinite(keskar).any() else _read_medians(records, "sharpness_eigenvalue")
    return _measure_power(read_numbers(records.frame, "global_batch_size"), sharpness)


def _measure_power(x: Values, y: Values) -> Measurement:
    good = y > 0
    detail = f"{int(good.sum())} configurations" if good.any() else ""
    return Measurement(slope_estimate(np.log(x[good]), np.log(y[good])), detail)


def _read_medians(records: ComparableTrials, name: str) -> Values:
    # the median of each configuration's confirming trials, otherwise its search trial's value; -inf where there is none
    medians, _ = records.grouping.medians(read_numbers(records.done, name))
    return np.nan_to_num(medians, nan=-np.inf)


CLAIMS = (
    Claim(
        name="three_regimes", unit="samples", region=Region(1.0, 2.0),
        statement="Steps to a target fall in proportion to the batch, then less, then no more: the critical batch "
        "between the regimes is among those that were tried.",
        published="McCandlish et al. 2018, critical batch: MNIST 200, SVHN 500, CIFAR-10 900, ImageNet 15,000 "
        "(averages over a run). Shallue et al. 2018 see the three regimes in every workload.",
        measure=_measure_critical_batch,
        settle=run_variant("to_target", {"budget.target_accuracy": 0.9}, ", with a target that every batch can reach"),
    ),
    Claim(
        name="noise_scale_temperature", unit="exponent", region=Region(0.5, 1.5),
        statement="The gradient noise scale grows with batch / learning rate: by its power 0.5 to 1.5.",
        published="McCandlish et al. 2018: inversely proportional to the temperature, learning rate / batch; ten times "
        "and more over one run.",
        measure=_measure_noise_power, settle=run_variant("noise", {"diagnostics.noise_scale": True}),
    ),
    Claim(
        name="large_batches_sharp", unit="exponent", region=Region(0.0, np.inf),
        statement="Large batches end in sharper minima: sharpness grows with the effective batch size.",
        published="Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data.",
        measure=_measure_sharpness_power, settle=run_variant("sharpness", {"diagnostics.sharpness": True}),
    ),
)  # fmt: skip
