"""Claims about the learning rate: how the best one follows the batch, and warmup."""

from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.batch_curve import fit_batch_curve
from sweep.analysis.claims.claim import Claim, Measurement, extend_space
from sweep.analysis.claims.pairs import compare_accuracies
from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials, find_main_recipe
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.tables.recipes import OPTIMIZERS

_MIN_TRIALS = 12
_WARMUP_FROM = 8  # times the reference batch
_RULE_POWERS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


def _measure_rate_power(records: ComparableTrials, power: float) -> Measurement:
    batches, rates = read_numbers(records.frame, "global_batch_size"), scaled_learning_rates(records)
    chosen, recipe = find_main_recipe(records.frame, _follows(records, power))
    # as measured: estimates that draw on one another would make the interval too narrow
    accuracies, _ = records.grouping.medians(read_numbers(records.done, ACCURACY))
    good = _upper_half(batches, np.where(chosen, accuracies, np.nan))
    estimate = fit_rate_power(batches[good], rates[good], accuracies[good])
    if not estimate.n:
        return Measurement(estimate)
    num = len(np.unique(batches[good]))
    detail = f"{recipe}: {estimate.n} configurations, the better half at each of {num} effective batch sizes; "
    return Measurement(estimate, detail + _describe_break(records, chosen, power))


def _settle_rate_power(records: ComparableTrials, power: float) -> str:
    if "optimizer.lr" not in records.swept:
        return records.commands.extend_space("optimizer.lr", "log = [0.001, 1.0]")
    return records.commands.run_more(3 * records.spec.trials if records.spec and _follows(records, power).any() else 60)


def _follows(records: ComparableTrials, power: float) -> Mask:
    # configurations whose optimizer should follow this power; one without a rule counts to the square root
    names = read_text(records.frame, "config.optimizer.name").tolist()
    is_linear = {name: _rule_power(name, "auto") == 1.0 for name in set(names)}
    return np.array([is_linear[name] == (power == 1.0) for name in names], dtype=np.bool_)


def scaled_learning_rates(records: ComparableTrials) -> Values:
    """The highest learning rate of each configuration with its scaling rule applied; shape ``[configurations]``."""
    frame = records.frame
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


def fit_rate_power(batches: Values, rates: Values, accuracies: Values) -> Estimate:
    """The power p of best rate ~ batch^p from a quadratic surface of accuracy over log rate and log batch.

    At a given batch the surface peaks at log rate = -(b + d log batch) / (2 c), so that p = -d / (2 c); its error by
    the delta method. No estimate where there is no clear peak. All of shape ``[n]``.
    """
    n = len(accuracies)
    if n < _MIN_TRIALS or len(np.unique(batches)) < 3 or len(np.unique(rates)) < 4:
        return NOTHING
    b, r = np.log(batches) - np.log(batches).mean(), np.log(rates) - np.log(rates).mean()
    design = np.stack([np.ones(n), b, b * b, r, r * r, r * b], axis=1)
    found, _, rank, _ = np.linalg.lstsq(design, accuracies, rcond=None)
    if rank < design.shape[1]:
        return NOTHING
    variance = float(np.sum((accuracies - design @ found) ** 2)) / (n - design.shape[1])
    covariance = variance * np.linalg.inv(design.T @ design)
    curve, tilt = float(found[4]), float(found[5])
    if not curve < -2 * np.sqrt(covariance[4, 4]):
        return NOTHING
    gradient = np.array([tilt / (2 * curve**2), -1 / (2 * curve)])
    error = float(np.sqrt(gradient @ covariance[4:6, 4:6] @ gradient))
    return Estimate(-tilt / (2 * curve), error, n - design.shape[1], n)


def _upper_half(batches: Values, accuracies: Values) -> Mask:
    # a quadratic holds near its peak only
    medians = pd.Series(accuracies).groupby(batches).transform("median")
    return np.asarray(accuracies >= medians, dtype=np.bool_)


def _describe_break(records: ComparableTrials, chosen: Mask, power: float) -> str:
    # from which batch on the best rate is below the rule by a factor of two, the rule drawn from the smallest batch
    curve = fit_batch_curve(records, chosen, at_least=3)
    if len(curve.batches) < 3:
        return "too few batches to tell where it breaks"
    rates = scaled_learning_rates(records)[curve.rows]
    is_below = rates / rates[0] < 0.5 * (curve.batches / curve.batches[0]) ** power
    if not is_below[-1]:
        return f"it holds up to an effective batch size of {int(curve.batches[-1])}"
    holds = np.flatnonzero(~is_below)[-1]
    return f"it breaks beyond an effective batch size of {int(curve.batches[holds])}"


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
