"""Claims about the learning rate: how the best one follows the batch, and warmup."""

from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.batch_curve import fit_batch_curve
from sweep.analysis.claims.claim import Claim, Measurement, extend_space, not_tested
from sweep.analysis.claims.covariates import Covariates, code_settings
from sweep.analysis.claims.pairs import compare_accuracies, read_accuracies
from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, fit_linear, share_explained
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.units import format_count

_MIN_TRIALS, _MIN_BATCHES, _MIN_RATES = 12, 3, 4
_MIN_DEGREES = 6  # configurations beyond the number of columns of the surface
MAX_SHARED = 0.95  # of the variance of one quantity that others may explain before their effects count as one
_WARMUP_FROM = 8  # times the reference batch
_RULE_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def _measure_rate_power(records: ComparableTrials, power: float) -> Measurement:
    frame = records.frame
    # as measured: estimates that depend on one another would make the interval too narrow
    accuracies, _ = records.grouping.medians(read_accuracies(records.done))
    follows = _follows(records, power)
    if not (follows & np.isfinite(accuracies)).any():
        return not_tested("no training of a fixed length has an optimizer that the claim is about")
    chosen, recipe = find_main_recipe(frame, follows & np.isfinite(accuracies))
    batches, rates = read_numbers(frame, "global_batch_size"), scaled_learning_rates(frame)
    good = _upper_half(batches, np.where(chosen, accuracies, np.nan))
    settings = code_settings(frame.iloc[np.flatnonzero(good)])
    lack = _find_lack(batches[good], rates[good], settings)
    if lack:
        return not_tested(f"{recipe}: {lack}")
    estimate = fit_rate_power(batches[good], rates[good], accuracies[good], settings.columns)
    if not estimate.degrees > 0:
        return not_tested(f"{recipe}: accuracy has no clear peak over the learning rate")
    num = len(np.unique(batches[good]))
    detail = f"{recipe}: {estimate.n} configurations, the better half at each of {num} effective batch sizes"
    return Measurement(estimate, f"{detail}{settings.describe()}; {_describe_break(records, chosen, power)}")


def _find_lack(batches: Values, rates: Values, settings: Covariates) -> str:
    # why the best rate cannot be fitted, "" where it can
    n, num_batches, num_rates = len(rates), len(np.unique(batches)), len(np.unique(rates))
    needed = max(_MIN_TRIALS, _num_columns(settings.columns) + _MIN_DEGREES)
    if num_batches < _MIN_BATCHES or num_rates < _MIN_RATES:
        return (
            f"{format_count(num_batches, 'effective batch size')} and {format_count(num_rates, 'learning rate')}; "
            f"{_MIN_BATCHES} and {_MIN_RATES} are required"
        )
    if n < needed:
        beside = f", because {', '.join(settings.keys)} vary too" if settings.keys else ""
        return f"{format_count(n, 'configuration')} in the better half at each batch; {needed} are required{beside}"
    if share_explained(np.log(rates), np.log(batches)[:, None]) > MAX_SHARED:
        return "the learning rate follows the effective batch size, so that there is no best rate at each batch"
    return ""


def _settle_rate_power(records: ComparableTrials, power: float) -> str:
    if not np.isfinite(read_accuracies(records.done)).any() and len(records.done):
        return f"{records.commands.run_variant('equal_epochs', {'budget.epochs': 10})}, with optimizer.lr in [space]"
    if "optimizer.lr" not in records.swept:
        return records.commands.extend_space("optimizer.lr", "log = [0.001, 1.0]")
    return records.commands.run_more(3 * records.spec.trials if records.spec and _follows(records, power).any() else 60)


def _follows(records: ComparableTrials, power: float) -> Mask:
    # configurations whose optimizer should follow this power; one without a rule counts to the square root
    names = read_text(records.frame, "config.optimizer.name").tolist()
    is_linear = {name: _rule_power(name, "auto") == 1.0 for name in set(names)}
    return np.array([is_linear[name] == (power == 1.0) for name in names], dtype=np.bool_)


def scaled_learning_rates(frame: pd.DataFrame) -> Values:
    """The highest learning rate of each row of ``frame`` with its scaling rule applied; shape ``[len(frame)]``."""
    ratio = read_numbers(frame, "global_batch_size") / read_numbers(frame, "config.optimizer.reference_batch")
    names, rules = read_text(frame, "config.optimizer.name"), read_text(frame, "config.optimizer.lr_rule")
    pairs = list(zip(names.tolist(), rules.tolist(), strict=True))
    powers = {pair: _rule_power(*pair) for pair in set(pairs)}
    power = np.array([powers[pair] for pair in pairs], dtype=np.float64)
    return read_numbers(frame, "config.optimizer.lr") * np.where(power == 0, 1.0, ratio**power)


def _rule_power(name: str, rule: str) -> float:
    if rule == "auto":
        # an optimizer of a plug-in may not be in the table
        rule = OPTIMIZERS[name or "momentum"].lr_rule if (name or "momentum") in OPTIMIZERS else "sqrt"
    return _RULE_POWERS[rule or "none"]


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


def _describe_break(records: ComparableTrials, chosen: Mask, power: float) -> str:
    # from which batch on the best rate is below the rule by a factor of two, the rule drawn from the smallest batch
    curve = fit_batch_curve(records, chosen, at_least=3)
    if len(curve.batches) < 3:
        return "too few batches to see where the rates that were tried leave the rule"
    rates = scaled_learning_rates(records.frame)[curve.rows]
    within = "the best rates that were tried stay within a factor of two of the rule up to an effective batch size of"
    is_below = rates / rates[0] < 0.5 * (curve.batches / curve.batches[0]) ** power
    if not is_below[-1]:
        return f"{within} {int(curve.batches[-1])}"
    return f"{within} {int(curve.batches[np.flatnonzero(~is_below)[-1]])}, and are lower beyond"


def _measure_warmup(records: ComparableTrials) -> Measurement:
    # in pairs of equal seed, from 8 times the reference batch on
    trials = records.done
    times = read_numbers(trials, "global_batch_size") / read_numbers(trials, "config.optimizer.reference_batch")
    large = trials[times >= _WARMUP_FROM]
    side = read_numbers(large, "config.schedule.warmup") > 0
    return compare_accuracies(large, ("schedule.warmup", "schedule.warmup_unit"), side)


CLAIMS = (
    Claim(
        name="lr_rule_linear", unit="exponent", region=Region(0.75, 1.25),
        statement="With SGD the best learning rate grows linearly with the effective batch size: by its power 0.75 to "
        "1.25.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: linear with warmup 23.74 +- 0.09 %, square root 26.22 %, "
        "unscaled 41.67 %; holds to 8k. Shallue et al. 2018: no rule holds across workloads.",
        measure=partial(_measure_rate_power, power=1.0), settle=partial(_settle_rate_power, power=1.0),
    ),
    Claim(
        name="lr_rule_sqrt", unit="exponent", region=Region(0.25, 0.75),
        statement="With Adam and its variants the best learning rate grows with the square root of the effective batch "
        "size: by its power 0.25 to 0.75.",
        published="Malladi et al. 2022, betas and epsilon scaled too; McCandlish et al. 2018 measured powers between "
        "0.5 and 1.",
        measure=partial(_measure_rate_power, power=0.5), settle=partial(_settle_rate_power, power=0.5),
    ),
    Claim(
        name="warmup_needed", unit="fraction", region=Region(0.005, np.inf),
        statement="From 8 times the reference batch on, warmup gains half a point of accuracy or more.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: no warmup 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, "
        "gradual 23.74 +- 0.09 %.",
        measure=_measure_warmup, settle=extend_space("schedule.warmup", "choice = [0.0, 0.1]"),
    ),
)  # fmt: skip
