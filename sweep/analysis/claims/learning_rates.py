"""Claims about the learning rate: how the best one follows the batch, and warmup."""

from functools import partial

import numpy as np

from sweep.analysis.batch_curve import fit_batch_curve
from sweep.analysis.claims.claim import Claim, Measurement, extend_space, not_tested
from sweep.analysis.claims.pairs import compare_accuracies
from sweep.analysis.comparable_trials import ComparableTrials, read_accuracies
from sweep.analysis.rate_powers import find_rule_power, measure_rate_power, scaled_learning_rates
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region
from sweep.analysis.statistics.pareto import Mask

_WARMUP_FROM = 8  # times the reference batch


def _measure_rate_power(records: ComparableTrials, power: float) -> Measurement:
    found = measure_rate_power(records, _follows(records, power))
    if found.reason:
        return not_tested(found.reason)
    return Measurement(found.estimate, f"{found.detail}; {_describe_break(records, found.chosen, power)}")


def _settle_rate_power(records: ComparableTrials, power: float) -> str:
    if not np.isfinite(read_accuracies(records.done)).any() and len(records.done):
        return f"{records.commands.run_variant('equal_epochs', {'budget.epochs': 10})}, with optimizer.lr in [space]"
    if "optimizer.lr" not in records.swept:
        return records.commands.extend_space("optimizer.lr", "log = [0.001, 1.0]")
    return records.commands.run_more(3 * records.spec.trials if records.spec and _follows(records, power).any() else 60)


def _follows(records: ComparableTrials, power: float) -> Mask:
    # configurations whose optimizer should follow this power; one without a rule counts to the square root
    names = read_text(records.frame, "config.optimizer.name").tolist()
    is_linear = {name: find_rule_power(name, "auto") == 1.0 for name in set(names)}
    return np.array([is_linear[name] == (power == 1.0) for name in names], dtype=np.bool_)


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
        name="warmup_needed", unit="fraction difference", region=Region(0.005, np.inf),
        statement="From 8 times the reference batch on, warmup gains half a point of accuracy or more.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: no warmup 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, "
        "gradual 23.74 +- 0.09 %.",
        measure=_measure_warmup, settle=extend_space("schedule.warmup", "choice = [0.0, 0.1]"),
    ),
)  # fmt: skip
