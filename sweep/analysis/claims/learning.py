"""Claims about how training goes: steps to a target, the noise of the gradient, sharp minima."""

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim, Measurement, NextStep, not_tested, run_variant, suggest_variant
from sweep.analysis.claims.design import Design, Repetition
from sweep.analysis.claims.regimes import has_one_batch, measure_critical_batch, suggest_target
from sweep.analysis.comparable import ComparableTrials, find_main_recipe
from sweep.analysis.covariates import code_settings, standardize
from sweep.analysis.noise_scales import read_noise_scales
from sweep.analysis.rate_powers import MAX_SHARED, scaled_learning_rates
from sweep.analysis.statistics import Estimate, Region, Values, fit_linear, read_numbers, share_explained
from sweep.config.metrics import SHARPNESS
from sweep.config.units import format_count

_MIN_BATCHES = 3
_LONG = 2000  # steps, of which 40 are measured where a step is one micro batch on a CPU
_MIN_DEGREES = 4  # configurations beyond the number of coefficients
_NOT_INVARIANT = (
    "; sharpness changes with the scale of the weights before a normalization, which the model does not (Dinh et al. "
    "2017)"
)


def _measure_noise_power(records: ComparableTrials) -> Measurement:
    scales = read_noise_scales(records)
    missing = scales.describe_missing(np.ones(len(scales.values), dtype=np.bool_))
    beside = f"; {missing}" if missing else ""
    if not (scales.values > 0).any():
        return not_tested(f"no configuration has a noise scale over its training{beside}")
    measured = _measure_batch_power(records, scales.values)
    if measured.reason:
        return not_tested(f"{measured.reason}{beside}")
    return measured._replace(detail=f"{measured.detail}{beside}")


def _settle_noise_power(records: ComparableTrials) -> NextStep:
    # where it was measured already, longer trainings measure it at more steps
    is_measured = np.isfinite(read_numbers(records.done, "num_noise_steps")).any()
    longer = {"budget.steps": _LONG} if is_measured else {}
    return suggest_variant(records, "noise", {"diagnostics.noise_scale": True, **longer})


def _measure_sharpness_power(records: ComparableTrials) -> Measurement:
    # Keskar's measure where it is on record, otherwise the top eigenvalue of the Hessian
    keskar = _read_medians(records, "sharpness_keskar")
    sharpness = keskar if (keskar > 0).any() else _read_medians(records, "sharpness_eigenvalue")
    if not (sharpness > 0).any():
        return not_tested("no configuration has its sharpness measured")
    measured = _measure_batch_power(records, sharpness)
    return measured._replace(detail=f"{measured.detail}{_NOT_INVARIANT}" if measured.detail else "")


def _measure_batch_power(records: ComparableTrials, values: Values) -> Measurement:
    # the power of the batch at equal learning rate, training loss and other settings; each configuration counts once
    losses = _read_last_losses(records)
    if not np.isfinite(losses).any():
        return not_tested("no training loss is on record: the evaluations are not loaded")
    is_known = (values > 0) & (losses > 0) & has_one_batch(records.frame)
    if not is_known.any():
        return not_tested("no configuration has one effective batch size and a training loss above 0")
    chosen, recipe = find_main_recipe(records.frame, is_known)
    rows = np.flatnonzero(chosen)
    frame = records.frame.iloc[rows]
    x, settings = np.log(read_numbers(frame, "global_batch_size")), code_settings(frame)
    rates = standardize(np.log(scaled_learning_rates(frame))[:, None])
    held = np.column_stack([rates, standardize(np.log(losses[rows])[:, None]), settings.columns])
    lack = _find_lack(x, rates, held)
    fitted = None if lack else fit_linear(np.column_stack([np.ones(len(x)), x, held]), np.log(values[rows]))
    if fitted is None:
        return not_tested(f"{recipe}: {lack or 'the settings that vary follow from one another'}")
    estimate = Estimate(float(fitted.values[1]), float(np.sqrt(fitted.covariance[1, 1])), fitted.degrees, len(rows))
    detail = f"{recipe}: {len(rows)} configurations at equal learning rate and training loss"
    return Measurement(estimate, f"{detail}{settings.describe()}")


def _find_lack(x: Values, rates: Values, held: Values) -> str:
    # why the effect of the log batch x cannot be told from that of what is held equal, "" where it can
    num_batches, needed = len(np.unique(x)), 2 + held.shape[1] + _MIN_DEGREES
    if num_batches < _MIN_BATCHES or len(x) < needed:
        found = f"{format_count(len(x), 'configuration')} at {format_count(num_batches, 'effective batch size')}"
        return f"{found}; {needed} at {_MIN_BATCHES} are required"
    if share_explained(x, rates) > MAX_SHARED:
        return "the learning rate follows the effective batch size, so that their effects cannot be told apart"
    if share_explained(x, held) > MAX_SHARED:
        return "the effective batch size follows from what else varies, so that its effect cannot be told apart"
    return ""


def _read_medians(records: ComparableTrials, name: str) -> Values:
    # the median of each configuration's confirming trials, otherwise its search trial's value; NaN where there is none
    return records.grouping.medians(read_numbers(records.done, name))[0]


def _read_last_losses(records: ComparableTrials) -> Values:
    # the training loss before the last evaluation, by configuration as above
    evaluations, keys = records.frames.evaluations, ["study", "number"]
    if evaluations is None or not len(evaluations):
        return np.full(len(records.frame), np.nan)
    last = evaluations.sort_values("step", kind="stable").groupby(keys, sort=False)["train_loss"].last()
    places = pd.MultiIndex.from_frame(records.done[keys])
    return records.grouping.medians(last.reindex(places).to_numpy(dtype=np.float64, na_value=np.nan))[0]


_BATCH, _RATE, _EFFECTIVE = "batch.micro", "optimizer.lr", "global_batch_size"
_BATCHES = (16, 32, 64, 128, 256)
_RATES = Repetition(key=_RATE, low=0.01, high=0.3)
# Of an exponent by one rate at each of five batch sizes, where the measured value scatters by a factor of e^0.5.
_POWER_SPREAD = 0.25

CLAIMS = (
    Claim(
        name="three_regimes", unit="samples", region=Region(8.0, 1024.0),  # of its own study
        statement="Steps to a target fall in proportion to the batch, then less, then no more: the critical batch "
        "between the regimes is among those that were tried.",
        published="McCandlish et al. 2018, critical batch: MNIST 200, SVHN 500, CIFAR-10 900, ImageNet 15,000 "
        "(averages over a run). Shallue et al. 2018 see the three regimes in every workload.",
        measure=measure_critical_batch, settle=suggest_target, matters=2.0, varies=(_EFFECTIVE, _RATE),
        sets=("budget.target_accuracy",),
        design=Design(
            base={"budget.target_accuracy": 0.9, "budget.max_epochs": 30, "schedule.name": "constant"},
            space={_RATE: (0.003, 0.01, 0.03, 0.1, 0.3)}, spread=1.0, lost=2, fewest=8,
            repeated=Repetition(key=_BATCH, low=8, high=1024, is_whole=True),
        ),
    ),
    Claim(
        name="noise_scale_temperature", unit="exponent", region=Region(0.5, 1.5),
        statement="The gradient noise scale B_simple, averaged over the training, grows with batch / learning rate: "
        "with the batch by its power 0.5 to 1.5, at equal learning rate and training loss.",
        published="McCandlish et al. 2018: inversely proportional to the temperature, learning rate / batch; ten times "
        "and more over one run.",
        measure=_measure_noise_power, settle=_settle_noise_power, matters=0.25, varies=(_EFFECTIVE,),
        metrics=("num_noise_steps",),
        # two micro batches in a step, whose gradients are measured often enough in a short training
        design=Design(
            base={"diagnostics.noise_scale": True, "batch.accumulation": 2, "budget.epochs": 10},
            space={_BATCH: (8, 16, 32, 64, 128)}, repeated=_RATES, fewest=5, spread=_POWER_SPREAD,
        ),
    ),
    Claim(
        name="large_batches_sharp", unit="exponent", region=Region(0.0, np.inf),
        statement="Large batches end in sharper minima: sharpness grows with the effective batch size, at equal "
        "learning rate and training loss.",
        published="Keskar et al. 2016, CIFAR-10: 28.6 +- 3.1 at 256 against 707 +- 43 at a tenth of the data. Dinh et "
        "al. 2017: a network can be made arbitrarily sharp without a change of what it computes.",
        measure=_measure_sharpness_power, settle=run_variant("sharpness", {"diagnostics.sharpness": True}),
        matters=0.25, varies=(_EFFECTIVE,), metrics=SHARPNESS,
        design=Design(
            base={"diagnostics.sharpness": True}, space={_BATCH: _BATCHES}, repeated=_RATES, fewest=5,
            spread=_POWER_SPREAD,
        ),
    ),
)  # fmt: skip
