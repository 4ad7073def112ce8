"""Claims about the learning rate and what is tuned like it: how the best values follow the batch, and warm-up."""

from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.batch_curve import fit_batch_curve
from sweep.analysis.claims.claim import (
    Claim,
    Measurement,
    NextStep,
    extend_space,
    not_tested,
    plan_study,
    suggest_copy,
    suggest_variant,
)
from sweep.analysis.claims.design import PAIRED_ACCURACY, Design, Repetition
from sweep.analysis.claims.pairs import compare_accuracies, count_pairs, pair_by_seed
from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe, read_accuracies
from sweep.analysis.rate_powers import TunedKey, find_rule_power, measure_rate_power, scaled_learning_rates
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region, slope_estimate
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.tables.recipes import OPTIMIZERS

_WARMUP_FROM = 8  # times the reference batch
_WARMUP_KEYS = ("schedule.warmup", "schedule.warmup_unit")


def _measure_rate_power(records: ComparableTrials, power: float) -> Measurement:
    among = _follows(records, power)
    if lack := _find_optimizer_lack(records, among):
        return not_tested(lack)
    found = measure_rate_power(records, among)
    if found.reason:
        return not_tested(found.reason)
    return Measurement(found.estimate, f"{found.detail}; {_describe_break(records, found.chosen, power)}")


def _settle_rate_power(records: ComparableTrials, power: float) -> NextStep:
    if not np.isfinite(read_accuracies(records.done)).any() and len(records.done):
        remark = "the study requires optimizer.lr in [space]"
        return suggest_variant(records, "equal_epochs", {"budget.epochs": 10}, remark)
    if "optimizer.lr" not in records.swept:
        return suggest_copy(records.commands.extend_space("optimizer.lr", "log = [0.001, 1.0]"))
    trials = 3 * records.spec.trials if records.spec and _follows(records, power).any() else 60
    return NextStep(records.commands.run_more(trials))


def _find_optimizer_lack(records: ComparableTrials, among: Mask) -> str:
    # that no complete training has an optimizer which the claim is about, "" where one has
    names = sorted(set(read_text(records.frame, "config.optimizer.name").tolist()) - {""})
    if among.any() or not names:
        return ""
    return f"no training has an optimizer that the claim is about; those on record have {', '.join(names)}"


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
    times = read_numbers(trials, "global_batch_size") / read_numbers(trials, "config.rules.reference_batch")
    large = trials[times >= _WARMUP_FROM]
    side = read_numbers(large, "config.schedule.warmup") > 0
    return compare_accuracies(large, _WARMUP_KEYS, side)


def _measure_warmup_tolerance(records: ComparableTrials) -> Measurement:
    # what warm-up gains against the learning rate, in pairs of equal settings and seed
    trials = records.done
    side = read_numbers(trials, "config.schedule.warmup") > 0
    first, second = pair_by_seed(trials, _WARMUP_KEYS, side)
    accuracies, rates = read_accuracies(trials), scaled_learning_rates(trials)
    gains = accuracies[first] - accuracies[second]
    chosen, recipe = find_main_recipe(trials.iloc[first], np.isfinite(gains))
    estimate = slope_estimate(np.log2(rates[first][chosen]), gains[chosen])
    if not estimate.degrees > 0:
        return not_tested("the records have fewer than three pairs with and without warm-up, or one learning rate")
    return Measurement(estimate, f"{recipe}: {count_pairs(estimate.n, 'with and without warm-up')}")


def _measure_tuned_power(records: ComparableTrials, tuned: TunedKey, optimizers: tuple[str, ...]) -> Measurement:
    names = read_text(records.frame, "config.optimizer.name")
    among = np.asarray(np.isin(names, optimizers) if optimizers else np.ones(len(names)), dtype=np.bool_)
    if lack := _find_optimizer_lack(records, among):
        return not_tested(lack)
    found = measure_rate_power(records, among, tuned)
    return not_tested(found.reason) if found.reason else Measurement(found.estimate, found.detail)


def _read_decays(frame: pd.DataFrame) -> Values:
    given = read_numbers(frame, "config.optimizer.weight_decay")
    return _apply_rule(frame, given, "scaled_weight_decay", "rules.weight_decay")


def _apply_rule(frame: pd.DataFrame, given: Values, recorded: str, rule: str) -> Values:
    # what the rule made of the ``given`` values; NaN where a rule was set and that is not on record
    scaled = read_numbers(frame, recorded)
    is_unscaled = np.isin(read_text(frame, f"config.{rule}"), ["", "none"])
    return np.where(np.isfinite(scaled), scaled, np.where(is_unscaled, given, np.nan))


def _read_decay_rates(frame: pd.DataFrame) -> Values:
    return _read_decays(frame) * scaled_learning_rates(frame)


def _read_moment_rates(frame: pd.DataFrame) -> Values:
    # 1 - beta2, the weight of a step in the second moment
    usual = [OPTIMIZERS[name].beta2 if name in OPTIMIZERS else np.nan for name in _read_names(frame)]
    given = read_numbers(frame, "config.optimizer.beta2")
    betas = np.where(np.isfinite(given), given, np.array(usual, dtype=np.float64))
    return 1 - _apply_rule(frame, betas, "scaled_beta2", "rules.betas")


def _read_names(frame: pd.DataFrame) -> list[str]:
    names: list[str] = read_text(frame, "config.optimizer.name").tolist()
    return names


_DECAY_KEYS = ("optimizer.weight_decay", "rules.weight_decay")
_BETA_KEYS = ("optimizer.beta2", "rules.betas")
_DECAY = TunedKey("weight decay", _read_decays, _DECAY_KEYS)
_DECAY_RATE = TunedKey("weight decay per step", _read_decay_rates, ("optimizer.lr", *_DECAY_KEYS))
_MOMENT_RATE = TunedKey("decay rate of the second moment", _read_moment_rates, _BETA_KEYS)
_ADAMS = ("adam", "adamw", "lamb")
_BATCH, _EFFECTIVE = "batch.micro", "global_batch_size"
_BATCHES = (16, 32, 64, 128, 256)


def _design_powers(optimizer: str, key: str, low: float, high: float) -> Design:
    return Design(
        base={"optimizer.name": optimizer}, space={_BATCH: _BATCHES}, spread=_POWER_SPREAD, fewest=8,
        repeated=Repetition(key=key, low=low, high=high),
    )  # fmt: skip


# Of an exponent by one value at each of five batch sizes, where accuracies scatter by 0.007 and the best value lies
# inside the range: from made-up studies.
_POWER_SPREAD = 0.4

CLAIMS = (
    Claim(
        name="lr_rule_linear", unit="exponent", region=Region(0.75, 1.25), matters=0.25,
        statement="With SGD the best learning rate grows linearly with the effective batch size: by its power 0.75 to "
        "1.25.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: linear with warm-up 23.74 +- 0.09 %, square root 26.22 "
        "%, unscaled 41.67 %; holds to 8k. Shallue et al. 2018: no rule holds across workloads.",
        measure=partial(_measure_rate_power, power=1.0), settle=partial(_settle_rate_power, power=1.0),
        varies=(_EFFECTIVE,), design=_design_powers("momentum", "optimizer.lr", 1e-3, 3.0),
    ),
    Claim(
        name="lr_rule_sqrt", unit="exponent", region=Region(0.25, 0.75), matters=0.25,
        statement="With Adam and its variants the best learning rate grows with the square root of the effective batch "
        "size: by its power 0.25 to 0.75.",
        published="Malladi et al. 2022, betas and epsilon scaled too; McCandlish et al. 2018 measured powers between "
        "0.5 and 1.",
        measure=partial(_measure_rate_power, power=0.5), settle=partial(_settle_rate_power, power=0.5),
        varies=(_EFFECTIVE,), design=_design_powers("adamw", "optimizer.lr", 3e-5, 0.3),
    ),
    Claim(
        name="warmup_needed", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="From 8 times the reference batch on, warm-up gains half a point of accuracy or more.",
        published="Goyal et al. 2017, ResNet-50, error at 8k: no warm-up 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, "
        "gradual 23.74 +- 0.09 %.",
        measure=_measure_warmup, settle=extend_space("schedule.warmup", "choice = [0.0, 0.1]"),
        varies=("schedule.warmup",),
        design=Design(
            base={_BATCH: 256, "rules.reference_batch": 32, "optimizer.lr": 0.05, "rules.lr": "linear"},
            space={"schedule.warmup": (0.0, 0.1)}, spread=PAIRED_ACCURACY,
        ),
    ),
    Claim(
        name="warmup_tolerates_rates", unit="fraction/doubling", region=Region(0.0, np.inf), matters=0.003,
        statement="Warm-up permits high learning rates: what it gains grows with the rate.",
        published="Kalra & Barkeshli 2024 (arXiv:2406.09405): the main benefit of warm-up is that larger learning "
        "rates are tolerated.",
        measure=_measure_warmup_tolerance, settle=plan_study,
        varies=("schedule.warmup", "optimizer.lr"),
        # five rates two doublings apart: their squared distances from the middle add up to 40
        design=Design(
            space={"schedule.warmup": (0.0, 0.1), "optimizer.lr": (0.01, 0.04, 0.16, 0.64, 2.56)},
            spread=PAIRED_ACCURACY / np.sqrt(40.0),
        ),
    ),
    Claim(
        name="weight_decay_sqrt", unit="exponent", region=Region(0.25, 0.75), matters=0.25,
        statement="The best weight decay grows with the square root of the effective batch size: by its power 0.25 to "
        "0.75, at equal learning rate.",
        published="A rule of thumb; no published table.",
        measure=partial(_measure_tuned_power, tuned=_DECAY, optimizers=()), settle=plan_study,
        varies=(_EFFECTIVE, "optimizer.weight_decay"),
        design=_design_powers("adamw", "optimizer.weight_decay", 1e-3, 3.0),
    ),
    Claim(
        name="weight_decay_timescale", unit="exponent", region=Region(0.75, 1.25), matters=0.25,
        statement="With AdamW the timescale of weight decay in epochs does not depend on the batch: the best "
        "product of learning rate and weight decay grows with the batch by its power 0.75 to 1.25.",
        published="Wang & Aitchison 2024 (arXiv:2405.13698): the best time scale of AdamW's average is stable in "
        "epochs. Bergsma et al. 2025 (arXiv:2505.13738): the best weight decay grows linearly with the batch.",
        measure=partial(_measure_tuned_power, tuned=_DECAY_RATE, optimizers=("adamw",)),
        settle=plan_study, varies=(_EFFECTIVE, "optimizer.weight_decay"),
        design=_design_powers("adamw", "optimizer.weight_decay", 1e-3, 3.0),
    ),
    Claim(
        name="beta2_half_life", unit="exponent", region=Region(0.75, 1.25), matters=0.25,
        statement="Adam's second moment has its best half-life at one number of samples: 1 - beta2 grows with the "
        "batch by its power 0.75 to 1.25.",
        published="Marek et al. 2025 (arXiv:2507.07101): hold the half-life of the second moment fixed in tokens "
        "instead of beta2.",
        measure=partial(_measure_tuned_power, tuned=_MOMENT_RATE, optimizers=_ADAMS),
        settle=plan_study, varies=(_EFFECTIVE, "optimizer.beta2"),
        design=Design(
            base={"optimizer.name": "adamw"}, space={_BATCH: _BATCHES}, spread=_POWER_SPREAD, fewest=8,
            repeated=Repetition(key="optimizer.beta2", low=1e-4, high=0.5, is_complement=True),
        ),
    ),
)  # fmt: skip
