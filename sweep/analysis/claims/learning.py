"""Claims about how training goes: steps to a target, the noise of the gradient, sharp minima."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim, Measurement, run_variant
from sweep.analysis.claims.learning_rates import scaled_learning_rates
from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe, is_main_model
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, fit_curve, slope_estimate
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import LOG
from sweep.config.units import format_count

_MIN_BATCHES = 4
# Data that the fit misses by more (root mean square of the logarithm) do not follow the law.
_MAX_MISFIT = 0.25
_NOT_INVARIANT = (
    "; sharpness changes with the scale of the weights before a normalization, which the model does not (Dinh et al. "
    "2017)"
)


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


@dataclass(frozen=True, kw_only=True)
class Regimes:
    """S = S_min (1 + B_crit / B): (S / S_min - 1)(E / E_min - 1) = 1 solved for S, with E = S B and B_crit =
    E_min / S_min (McCandlish et al. 2018, arXiv:1812.06162). ``log_error`` is the standard error of log B_crit.
    """

    min_steps: float
    min_samples: float
    critical_batch: float
    log_error: float
    degrees: int
    misfit: float


def fit_regimes(batches: Values, steps: Values) -> Regimes | None:
    """The law fitted in the logarithm of steps; both of shape ``[b]``. None with fewer than 4 batches or no fit."""
    known = np.isfinite(batches) & np.isfinite(steps) & (steps > 0)
    x, y = np.log(batches[known]), np.log(steps[known])
    if len(x) < _MIN_BATCHES or np.ptp(y) == 0:
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
    fewest, critical = LOG.backward(np.array([log_steps, log_critical])).tolist()
    return Regimes(
        min_steps=fewest,
        min_samples=fewest * critical,
        critical_batch=critical,
        log_error=float(errors[1]),
        degrees=len(x) - 2,
        misfit=misfit,
    )


def fewest_steps(records: ComparableTrials, chosen: Mask) -> tuple[Values, Values, float]:
    """For each effective batch size the fewest steps to one accuracy among the trials ``chosen`` (shape ``[done]``),
    both of shape ``[b]``, and that accuracy: what each trial was to reach where it had a target, otherwise the highest
    that every batch reached."""
    trials, evaluations = records.done[chosen], records.frames.evaluations
    batches, measured = read_numbers(trials, "global_batch_size"), read_numbers(trials, "steps_to_target")
    targets = read_numbers(trials, "config.budget.target_accuracy")
    if np.isfinite(measured).any():
        target = float(np.nanmedian(targets))
        return *_fewest(batches, np.where(targets == target, measured, np.nan)), target
    if evaluations is None or not len(evaluations) or not len(trials):
        return np.zeros(0), np.zeros(0), np.nan
    # NaN where no accuracy is on record, which no evaluation reaches
    target = float(pd.Series(read_numbers(trials, "val_accuracy")).groupby(batches).max().min())
    return *_fewest(batches, _first_steps(trials, evaluations, target)), target


def _fewest(batches: Values, steps: Values) -> tuple[Values, Values]:
    fewest = pd.Series(steps).groupby(batches).min().dropna()
    return np.asarray(fewest.index, dtype=np.float64), np.asarray(fewest, dtype=np.float64)


def _first_steps(trials: pd.DataFrame, evaluations: pd.DataFrame, target: float) -> Values:
    # the first evaluation that reached the target, by trial
    reached = evaluations.loc[read_numbers(evaluations, "val_accuracy") >= target - 1e-9, ["study", "number", "step"]]
    first = reached.groupby(["study", "number"], sort=False)["step"].min()
    keys = pd.MultiIndex.from_arrays([trials["study"], trials["number"]])
    return np.asarray(first.reindex(keys).to_numpy(dtype=np.float64, na_value=np.nan))


def _measure_noise_power(records: ComparableTrials) -> Measurement:
    heat = read_numbers(records.frame, "global_batch_size") / scaled_learning_rates(records)
    return _measure_power(records, heat, _read_medians(records, "noise_scale"))


def _measure_sharpness_power(records: ComparableTrials) -> Measurement:
    # Keskar's measure where it is on record, otherwise the top eigenvalue of the Hessian
    keskar = _read_medians(records, "sharpness_keskar")
    sharpness = keskar if np.isfinite(keskar).any() else _read_medians(records, "sharpness_eigenvalue")
    measured = _measure_power(records, read_numbers(records.frame, "global_batch_size"), sharpness)
    return measured._replace(detail=f"{measured.detail}{_NOT_INVARIANT}" if measured.detail else "")


def _measure_power(records: ComparableTrials, x: Values, y: Values) -> Measurement:
    good, recipe = find_main_recipe(records.frame, y > 0)
    detail = f"{recipe}: {format_count(int(good.sum()), 'configuration')}" if good.any() else ""
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
        published="Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data. Dinh et "
        "al. 2017: a network can be made arbitrarily sharp without a change of what it computes.",
        measure=_measure_sharpness_power, settle=run_variant("sharpness", {"diagnostics.sharpness": True}),
    ),
)  # fmt: skip
