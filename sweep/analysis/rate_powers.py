"""How the best learning rate, or another key that is tuned like it, moves with the effective batch size."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe, read_accuracies
from sweep.analysis.covariates import Covariates, code_settings, standardize
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import NOTHING, Estimate, fit_linear, share_explained
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.scaling import RULE_POWERS
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.units import format_count

_MIN_TRIALS, _MIN_BATCHES, _MIN_RATES = 12, 3, 4
_MIN_DEGREES = 6  # configurations beyond the number of columns of the surface
MAX_SHARED = 0.95  # of the variance of one quantity that others may explain before their effects count as one


class TunedKey(NamedTuple):
    """What is tuned at each batch: its ``label`` in words, how its values are read from a frame (shape
    ``[len(frame)]``, above 0 where they count), and the ``keys`` that it follows from."""

    label: str
    read: Callable[[pd.DataFrame], Values]
    keys: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RatePower:
    """The power p of best rate ~ batch^p. ``chosen`` are the configurations of the one model and optimizer that it is
    about, shape ``[configurations]``; ``detail`` names what it rests on, ``reason`` why there is no estimate."""

    chosen: Mask
    estimate: Estimate = NOTHING
    detail: str = ""
    reason: str = ""


def measure_rate_power(records: ComparableTrials, among: Mask, tuned: TunedKey | None = None) -> RatePower:
    """The power by the configurations ``among`` (shape ``[configurations]``), of the model and optimizer that most of
    them have, trained for a fixed length. ``tuned`` is the learning rate unless another key is given; then the rate is
    one of the settings that are held equal."""
    frame, tuned = records.frame, tuned or LEARNING_RATE
    # as measured: estimates that depend on one another would make the interval too narrow
    accuracies, _ = records.grouping.medians(read_accuracies(records.done))
    values = tuned.read(frame)
    known = among & np.isfinite(accuracies) & (values > 0)
    if not known.any():
        return RatePower(chosen=known, reason="no training of a fixed length is eligible")
    chosen, recipe = find_main_recipe(frame, known)
    batches = read_numbers(frame, "global_batch_size")
    good = _upper_half(batches, np.where(chosen, accuracies, np.nan))
    settings = _hold_equal(frame.iloc[np.flatnonzero(good)], tuned)
    lack = _find_lack(batches[good], values[good], settings, tuned.label)
    if lack:
        return RatePower(chosen=chosen, reason=f"{recipe}: {lack}")
    estimate = fit_rate_power(batches[good], values[good], accuracies[good], settings.columns)
    if not estimate.degrees > 0:
        return RatePower(chosen=chosen, reason=f"{recipe}: accuracy has no clear peak over the {tuned.label}")
    num = len(np.unique(batches[good]))
    detail = f"{recipe}: {estimate.n} configurations, the more accurate half at each of {num} effective batch sizes"
    return RatePower(chosen=chosen, estimate=estimate, detail=detail + settings.describe())


def _hold_equal(frame: pd.DataFrame, tuned: TunedKey) -> Covariates:
    settings = code_settings(frame, tuned.keys)
    rates = standardize(np.log(scaled_learning_rates(frame))[:, None])
    if "optimizer.lr" in tuned.keys or not rates.size:
        return settings
    return Covariates(("optimizer.lr", *settings.keys), np.column_stack([rates, settings.columns]))


def _find_lack(batches: Values, values: Values, settings: Covariates, label: str) -> str:
    # why the best value cannot be fitted, "" where it can
    n, num_batches, num_values = len(values), len(np.unique(batches)), len(np.unique(values))
    needed = max(_MIN_TRIALS, _num_columns(settings.columns) + _MIN_DEGREES)
    if num_batches < _MIN_BATCHES or num_values < _MIN_RATES:
        return (
            f"{format_count(num_batches, 'effective batch size')} and {format_count(num_values, label)}; "
            f"at least {_MIN_BATCHES} and {_MIN_RATES} are required"
        )
    if n < needed:
        beside = f", because the fit also accounts for {settings.name_keys()}" if settings.keys else ""
        found = format_count(n, "configuration")
        return f"{found} in the more accurate halves of the batch sizes; {needed} are required{beside}"
    if share_explained(np.log(values), np.log(batches)[:, None]) > MAX_SHARED:
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


LEARNING_RATE = TunedKey("learning rate", scaled_learning_rates, ("optimizer.lr",))


def find_rule_power(name: str, rule: str) -> float:
    """The power of the batch in the scaling rule ``rule`` of the optimizer ``name``; 0 for none, NaN for what
    is none."""
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


def _num_columns(settings: Values) -> int:
    return 6 + 3 * int(settings.shape[1]) + int(_squares(settings).shape[1])


def _upper_half(batches: Values, accuracies: Values) -> Mask:
    # a quadratic holds near its peak only
    medians = pd.Series(accuracies).groupby(batches).transform("median")
    return np.asarray(accuracies >= medians, dtype=np.bool_)
