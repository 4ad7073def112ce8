"""How the best learning rate, or another quantity, follows the effective batch size at equal other settings: the power
p of quantity ~ batch^p."""

import math

import numpy as np
import pandas as pd

from sweep.analysis.comparable import ComparableTrials, find_main_recipe, read_accuracies
from sweep.analysis.statistics import (
    NOTHING,
    Estimate,
    Mask,
    Measurement,
    Values,
    fit_linear,
    read_numbers,
    read_text,
    varying_keys,
)
from sweep.config.metrics import format_count
from sweep.config.scaling import RULE_POWERS
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import key_label

# The keys that divide the samples of a step into micro batches.
MICRO_KEYS = ("batch.micro", "batch.accumulation", "batch.global")
_RATE, _DECAY = "optimizer.lr", "optimizer.weight_decay"
# The batch and the rate enter a regression on their own; the others change nothing of what is learned.
_APART = frozenset({
    *MICRO_KEYS, _RATE, "rules.lr", "rules.reference_batch",
    "data.root", "data.placement", "data.workers", "data.prefetch",
    "diagnostics.noise_scale", "diagnostics.sharpness",
    "distributed.world_size", "precision.channels_last", "precision.compile", "precision.checkpointing",
    "precision.cuda_graphs",
})  # fmt: skip
_MIN_TRIALS, _MIN_BATCHES, _MIN_RATES = 12, 3, 4
_MIN_DEGREES = 6  # configurations beyond the number of columns of the surface
_MIN_SPARE = 4  # configurations beyond the coefficients of a quantity that is measured
_MAX_SHARED = 0.95  # of the variance of one quantity that others may explain before their effects count as one


def measure_rate_power(records: ComparableTrials, among: Mask) -> Measurement:
    """The power of the best learning rate by the configurations ``among`` (shape ``[configurations]``), of the model
    and optimizer that most of them have, trained for a fixed length."""
    gains = read_accuracies(records.done, records.quality.column)
    return _measure_best_power(records, among, scaled_learning_rates(records.frame), gains, _RATE)


def measure_decay_power(records: ComparableTrials) -> Measurement:
    """The same of the weight decay of the lowest loss, by all configurations at equal learning rates."""
    values, among = read_numbers(records.frame, f"config.{_DECAY}"), np.ones(len(records.frame), dtype=np.bool_)
    return _measure_best_power(records, among, values, -records.read_losses(records.done), _DECAY)


def _measure_best_power(records: ComparableTrials, among: Mask, values: Values, gains: Values, key: str) -> Measurement:
    # of the values of the key, one for each configuration, by the gains of each trial
    frame, noun = records.frame, records.quality.noun if key == _RATE else "loss"
    # as measured: estimates that depend on one another would make the interval too narrow
    accuracies, _ = records.grouping.medians(gains)
    known = among & np.isfinite(accuracies) & (values > 0)
    if not known.any():
        return Measurement(reason="no training of a fixed length is eligible")
    chosen, recipe = find_main_recipe(frame, known)
    batches = read_numbers(frame, "global_batch_size")
    # a quadratic holds near its peak only
    medians = pd.Series(np.where(chosen, accuracies, np.nan)).groupby(batches).transform("median")
    good = np.asarray(chosen & (accuracies >= medians), dtype=np.bool_)
    beside, settings = _code_settings(frame.iloc[np.flatnonzero(good)], key)
    if lack := _find_lack(batches[good], values[good], beside, settings, key_label(key)):
        return Measurement(reason=f"{recipe}: {lack}")
    estimate = fit_rate_power(batches[good], values[good], accuracies[good], settings)
    if not estimate.degrees > 0:
        return Measurement(reason=f"{recipe}: {noun} has no clear peak over the {key_label(key)}")
    num, half = len(np.unique(batches[good])), "more accurate" if noun == "accuracy" else "better"
    detail = f"{recipe}: {estimate.n} configurations, the {half} half at each of {num} effective batch sizes"
    return Measurement(estimate, detail + beside)


def _find_lack(batches: Values, rates: Values, beside: str, settings: Values, label: str) -> str:
    # why the best rate, or what else is called by the label, cannot be fitted, "" where it can
    n, num_batches, num_rates = len(rates), len(np.unique(batches)), len(np.unique(rates))
    num_columns = 6 + 3 * settings.shape[1] + _squares(settings).shape[1]  # of the surface
    needed = max(_MIN_TRIALS, num_columns + _MIN_DEGREES)
    if num_batches < _MIN_BATCHES or num_rates < _MIN_RATES:
        return (
            f"{format_count(num_batches, 'effective batch size')} and {format_count(num_rates, label)} in the better "
            f"half at each batch size; at least {_MIN_BATCHES} and {_MIN_RATES} are required"
        )
    if n < needed:
        there = format_count(n, "configuration")
        return f"{there} in the better half at each batch size; {needed} are required{beside}"
    if _share_explained(np.log(rates), np.log(batches)[:, None]) > _MAX_SHARED:
        return f"the {label} follows the effective batch size, so that there is no best one at each batch"
    return ""


def scaled_learning_rates(frame: pd.DataFrame) -> Values:
    """The highest learning rate of each row of ``frame`` with its scaling rule applied; shape ``[len(frame)]``."""
    ratio = read_numbers(frame, "global_batch_size") / read_numbers(frame, "config.rules.reference_batch")
    names, rules = read_text(frame, "config.optimizer.name"), read_text(frame, "config.rules.lr")
    pairs = list(zip(names.tolist(), rules.tolist(), strict=True))
    powers = {pair: find_rule_power(*pair) for pair in set(pairs)}
    power = np.array([powers[pair] for pair in pairs], dtype=np.float64)
    given = read_numbers(frame, "config.rules.lr")
    power = np.where(np.isfinite(given), given, power)
    return read_numbers(frame, "config.optimizer.lr") * np.where(power == 0, 1.0, ratio**power)


def find_rule_power(name: str, rule: str) -> float:
    """The power of the batch in the scaling rule ``rule`` of the optimizer ``name``; 0 without a rule, NaN where it is
    unknown."""
    if rule == "auto":
        # an optimizer of a plug-in may not be in the table
        rule = OPTIMIZERS[name or "momentum"].lr_rule if (name or "momentum") in OPTIMIZERS else "sqrt"
    return RULE_POWERS.get(rule or "none", math.nan)


def fit_rate_power(batches: Values, rates: Values, accuracies: Values, settings: Values | None = None) -> Estimate:
    """The power p of best rate ~ batch^p from a quadratic surface of accuracy over log rate and log batch.

    At a given batch the surface peaks at log rate = -(b + d log batch) / (2 c), so that p = -d / (2 c); its error by
    the delta method. Every column of ``settings`` (shape ``[n, k]``) moves the peak, and has an effect of its own at
    each batch: the best rates of two weight decays differ. No estimate where there is no clear peak. The others are of
    shape ``[n]``.
    """
    n = len(accuracies)
    if n < _MIN_TRIALS or len(np.unique(batches)) < _MIN_BATCHES or len(np.unique(rates)) < _MIN_RATES:
        return NOTHING
    b, r = np.log(batches) - np.log(batches).mean(), np.log(rates) - np.log(rates).mean()
    z = np.zeros((n, 0)) if settings is None else settings
    fitted = fit_linear(
        np.column_stack([np.ones(n), b, b * b, r, r * r, r * b, z, z * r[:, None], z * b[:, None], _squares(z)]),
        accuracies,
    )
    if fitted is None:
        return NOTHING
    curve, tilt = float(fitted.values[4]), float(fitted.values[5])
    covariance = fitted.covariance[4:6, 4:6]
    if not curve < -2 * np.sqrt(covariance[0, 0]):
        return NOTHING
    gradient = np.array([tilt / (2 * curve**2), -1 / (2 * curve)])
    error = float(np.sqrt(gradient @ covariance @ gradient))
    return Estimate(-tilt / (2 * curve), error, fitted.degrees, n)


def _squares(settings: Values) -> Values:
    # of what has more than two values: the square of two is no other column
    return np.column_stack([np.zeros((len(settings), 0)), *(z * z for z in settings.T if len(np.unique(z)) > 2)])


def measure_value_power(records: ComparableTrials, values: Values) -> Measurement:
    """The power by which measured ``values`` (shape ``[configurations]``) follow the batch, at equal learning rate,
    training loss and other settings. Each configuration counts once."""
    losses = _read_last_losses(records)
    is_constant = np.isin(read_text(records.frame, "config.batch.schedule"), ["", "constant"])
    is_known = np.asarray((values > 0) & (losses > 0) & is_constant, dtype=np.bool_)
    if not is_known.any():
        reason = "no configuration has one effective batch size and a training loss above 0"
        if not np.isfinite(losses).any():
            reason = "no training loss is on record"
            if not len(records.frames.evaluations if records.frames.evaluations is not None else ()):
                reason += f": {records.lack_of_evaluations}"
        return Measurement(reason=reason)
    chosen, recipe = find_main_recipe(records.frame, is_known)
    rows = np.flatnonzero(chosen)
    frame = records.frame.iloc[rows]
    x, (beside, settings) = np.log(read_numbers(frame, "global_batch_size")), _code_settings(frame)
    rates = _standardize(np.log(scaled_learning_rates(frame))[:, None])
    held = np.column_stack([rates, _standardize(np.log(losses[rows])[:, None]), settings])
    lack = _find_shared(x, rates, held)
    fitted = None if lack else fit_linear(np.column_stack([np.ones(len(x)), x, held]), np.log(values[rows]))
    if fitted is None:
        return Measurement(reason=f"{recipe}: {lack or 'the settings that vary follow from one another'}")
    estimate = Estimate(float(fitted.values[1]), float(np.sqrt(fitted.covariance[1, 1])), fitted.degrees, len(rows))
    detail = f"{recipe}: {len(rows)} configurations at equal learning rate and training loss{beside}"
    return Measurement(estimate, detail)


def _share_explained(x: Values, columns: Values) -> float:
    """Which share of the variance of ``x`` (shape ``[n]``) the ``columns`` (shape ``[n, k]``) account for."""
    design = np.column_stack([np.ones(len(x)), columns])
    residuals = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
    total = float(np.sum((x - x.mean()) ** 2))
    return 1.0 - float(np.sum(residuals**2)) / total if total > 0 else 1.0


def _find_shared(x: Values, rates: Values, held: Values) -> str:
    # why the effect of the log batch x cannot be told from what is held equal, "" where it can
    num_batches, needed = len(np.unique(x)), 2 + held.shape[1] + _MIN_SPARE
    if num_batches < _MIN_BATCHES or len(x) < needed:
        there = f"{format_count(len(x), 'configuration')} at {format_count(num_batches, 'effective batch size')}"
        return f"{there}; {needed} at {_MIN_BATCHES} are required"
    if _share_explained(x, rates) > _MAX_SHARED:
        return "the learning rate follows the effective batch size, so that their effects cannot be told apart"
    if _share_explained(x, held) > _MAX_SHARED:
        return "the effective batch size follows from what else varies, so that its effect cannot be told apart"
    return ""


def _read_last_losses(records: ComparableTrials) -> Values:
    # the training loss before the last evaluation of each configuration
    evaluations, keys = records.frames.evaluations, ["study", "number"]
    if evaluations is None or not len(evaluations):
        return np.full(len(records.frame), np.nan)
    last = evaluations.sort_values("step", kind="stable").groupby(keys, sort=False)["train_loss"].last()
    trials = pd.MultiIndex.from_frame(records.done[keys])
    return records.grouping.medians(last.reindex(trials).to_numpy(dtype=np.float64, na_value=np.nan))[0]


def _code_settings(frame: pd.DataFrame, key: str = _RATE) -> tuple[str, Values]:
    """The settings that vary over the configurations ``frame`` (``config.*``), but for the batch and the ``key``, as
    the end of a description, and as columns of shape ``[len(frame), k]`` with mean 0 and standard deviation 1: numbers
    as one, by their logarithm where all are above 0; two numbers, or anything else, as a column for each value but one.
    """
    keys = [name for name in varying_keys(frame) if name not in _APART - {_RATE} | {key}]
    coded = [_code(frame, f"config.{name}") for name in keys]
    beside = f", at equal {', '.join(map(key_label, keys))}" if keys else ""
    return beside, _standardize(np.column_stack([np.zeros((len(frame), 0)), *coded]))


def _standardize(columns: Values) -> Values:
    """``columns`` (shape ``[n, k]``) with mean 0 and standard deviation 1, without those that do not vary."""
    varies = np.ptp(columns, axis=0) > 0 if len(columns) else np.zeros(columns.shape[1], dtype=np.bool_)
    kept = columns[:, varies]
    return np.asarray((kept - kept.mean(axis=0)) / kept.std(axis=0))


def _code(frame: pd.DataFrame, name: str) -> Values:
    numbers, names = read_numbers(frame, name), read_text(frame, name).astype(str)
    if np.isfinite(numbers).all() and len(np.unique(numbers)) > 2:
        return np.log(numbers) if numbers.min() > 0 else numbers
    levels = sorted(set(names))
    return np.column_stack([np.asarray(names == level, dtype=np.float64) for level in levels[1:]])
