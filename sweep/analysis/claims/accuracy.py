"""Claims about what a larger batch does to accuracy: at equal epochs, at equal steps, by model, by optimizer."""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.batch_curve import BatchCurve, fit_batch_curve
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
from sweep.analysis.claims.design import TUNED_ACCURACY, Design, Repetition
from sweep.analysis.claims.tuned_pairs import compare_tuned, expect_best
from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials, is_main_model, read_accuracies
from sweep.analysis.covariates import MICRO_KEYS
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics.column_reading import Texts, most_common, read_numbers, read_text
from sweep.analysis.statistics.estimates import Estimate, Region, slope_estimate
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.tables.models import model_family
from sweep.config.units import format_count

_SMALL = 32  # samples
_MIN_RATES = 2  # that were tried at a batch, before its best one counts as chosen
_LENGTHS = ("epochs", "steps", "samples", "seconds")  # budgets of a fixed length
_MATERIAL = 0.001  # smaller losses of accuracy per doubling do not count


def _measure_slope_at_equal(records: ComparableTrials, budget: str) -> Measurement:
    chosen, amount = _find_budget(records, is_main_model(records.frame), (budget,))
    curve = _tune(records, chosen)
    estimate, num = _slope(curve), len(curve.batches)
    if not estimate.degrees > 0:
        return not_tested(f"{_count_batches(curve)} at an equal number of {budget}{amount}; three are required")
    detail = f"{_main_model(records)}{amount}: best of {curve.num_configurations} configurations at each of {num}"
    return Measurement(estimate, f"{detail} effective batch sizes")


def _settle_at_equal(records: ComparableTrials, budget: str) -> NextStep:
    chosen, _ = _find_budget(records, is_main_model(records.frame), (budget,))
    if (chosen & _is_tuned(records, chosen)).any():
        return NextStep(records.commands.run_more(3 * (records.spec.trials if records.spec else len(records.trials))))
    steps = read_numbers(records.done, "num_steps")
    num_steps = int(np.nanmedian(steps)) if np.isfinite(steps).any() else 1000
    fixed = {f"budget.{budget}": 10 if budget == "epochs" else num_steps}
    return suggest_variant(records, f"equal_{budget}", fixed, "the study requires four effective batch sizes or more")


def _find_budget(records: ComparableTrials, among: Mask, budgets: Collection[str] = _LENGTHS) -> tuple[Mask, str]:
    """Which of the configurations ``among`` have the most common length of training, and that length in words. Longer
    trainings reach more whatever the batch, and those until a target end with it."""
    lengths = np.full(len(records.frame), "", dtype=object)
    by_rule = ~np.isin(read_text(records.frame, "config.rules.epochs"), ["", "none"])
    for budget in budgets:
        amounts = read_numbers(records.frame, f"config.budget.{budget}")
        # by a rule each batch has a length of its own
        known = np.isfinite(amounts) & ((budget != "epochs") | ~by_rule)
        lengths[known] = [f"{amount:g} {budget}" for amount in amounts[known]]
    chosen = among & (lengths != "")
    if not chosen.any():
        return chosen, ""
    main, _ = most_common(lengths[chosen])
    return np.asarray(chosen & (lengths == main), dtype=np.bool_), f", {main}"


def _is_tuned(records: ComparableTrials, chosen: Mask) -> Mask:
    # of a batch with one learning rate nothing shows that it is the best there
    batches, rates = read_numbers(records.frame, "global_batch_size"), scaled_learning_rates(records.frame)
    numbers = pd.Series(np.where(chosen, rates, np.nan)).groupby(batches).transform("nunique")
    return np.asarray(numbers >= _MIN_RATES, dtype=np.bool_)


class _Tuned(NamedTuple):
    """The accuracy of the best configuration at each effective batch size; both of shape ``[b]``."""

    batches: Values
    accuracies: Values
    num_configurations: int


def _tune(records: ComparableTrials, chosen: Mask) -> _Tuned:
    # Where no seed was repeated, the assumed spread would draw all accuracies together, and the slope to 0: then the
    # expected best of equally many single trainings.
    if not records.posterior(ACCURACY).is_assumed:
        curve = _curve_of(records, chosen)
        return _Tuned(curve.batches, curve.accuracies, curve.num_configurations)
    accuracies, _ = records.grouping.medians(read_accuracies(records.done))
    batches = read_numbers(records.frame, "global_batch_size")
    known = chosen & _is_tuned(records, chosen) & np.isfinite(accuracies) & np.isfinite(batches)
    sizes, counts = np.unique(batches[known], return_counts=True)
    num_drawn = int(counts.min(initial=len(batches) or 1))
    best = [expect_best(accuracies[known & (batches == size)], num_drawn) for size in sizes]
    return _Tuned(sizes, np.array(best, dtype=np.float64), int(counts.sum()))


def _slope(curve: _Tuned) -> Estimate:
    return slope_estimate(np.log2(curve.batches), curve.accuracies)


def _count_batches(curve: _Tuned | BatchCurve) -> str:
    num = format_count(len(curve.batches), "effective batch size")
    return f"{num} with {_MIN_RATES} learning rates or more"


def _main_model(records: ComparableTrials) -> str:
    return most_common(read_text(records.frame, "config.model.name"))[0]


def _measure_small_batches(records: ComparableTrials) -> Measurement:
    curve, posterior = _curve_of_main_model(records), records.posterior(ACCURACY)
    small, large = curve.batches <= _SMALL, curve.batches > _SMALL
    if not (small.any() and large.any()):
        sides = f"{int(small.sum())} up to {_SMALL}, {int(large.sum())} above"
        return not_tested(f"{_count_batches(curve)} at one length of training: {sides}; one of each is required")
    if posterior.is_assumed:  # no confirming trials, but the search itself may have several seeds
        chosen = is_main_model(records.done)
        trials = records.done[chosen]
        measured = compare_tuned(trials, MICRO_KEYS, read_numbers(trials, "global_batch_size") <= _SMALL)
        return (
            measured
            if measured.estimate.degrees > 0
            else not_tested("no configuration was trained with several seeds, so their spread is not known")
        )
    detail = f"{_main_model(records)}: best effective batch size up to {_SMALL} against the best above"
    first, second = (np.flatnonzero(side)[np.argmax(curve.accuracies[side])] for side in (small, large))
    errors, degrees = posterior.compare(int(curve.rows[first]), curve.rows[[second]])
    # d accuracy = slope * d angle converts the error to the metric's unit; both are measured on the same images
    middle = float(np.mean(curve.accuracies[[first, second]]))
    error = float(2 * np.sqrt(middle * (1 - middle)) * errors[0])
    gap = float(curve.accuracies[first] - curve.accuracies[second])
    return Measurement(Estimate(gap, error, float(degrees[0]), len(curve.batches)), detail)


def _settle_small_batches(records: ComparableTrials) -> NextStep:
    batches = _curve_of_main_model(records).batches
    if (batches <= _SMALL).any() and (batches > _SMALL).any():
        return NextStep(records.command_for_more_seeds)
    return suggest_copy(records.commands.extend_space("batch.micro", "log2 = [4, 10]"))


def _curve_of_main_model(records: ComparableTrials) -> BatchCurve:
    chosen, _ = _find_budget(records, is_main_model(records.frame))
    return _curve_of(records, chosen)


def _measure_vit_sensitivity(records: ComparableTrials) -> Measurement:
    names = read_text(records.frame, "config.model.name")
    families = np.array([model_family(name) for name in names], dtype=object)
    return _compare_slopes(records, names, families, ("vit", "resnet"), ("ViT", "ResNet"))


def _measure_muon_sensitivity(records: ComparableTrials) -> Measurement:
    names = read_text(records.frame, "config.optimizer.name")
    labels = np.where(is_main_model(records.frame), names, "")
    return _compare_slopes(records, names, labels.astype(object), ("muon", "adamw"), ("Muon", "AdamW"))


def _compare_slopes(
    records: ComparableTrials, names: Texts, kinds: Texts, sides: tuple[str, str], titles: tuple[str, str]
) -> Measurement:
    # the accuracy per doubling of the batch of the first of two kinds of configurations less that of the second, each
    # by the most frequent of its ``names``; both of shape [configurations]
    chosen, amount = _find_budget(records, np.isin(kinds, sides))
    mains = [most_common(names[chosen & (kinds == kind)])[0] for kind in sides]
    curves = [
        _tune(records, chosen & (kinds == kind) & (names == main)) for kind, main in zip(sides, mains, strict=True)
    ]
    first, second = (_slope(curve) for curve in curves)
    if not (first.degrees > 0 and second.degrees > 0):
        counts = (f"{name}: {_count_batches(curve)}" for name, curve in zip(titles, curves, strict=True))
        return not_tested(f"{', '.join(counts)}{amount}; three of each are required")
    error, degrees = float(np.hypot(first.error, second.error)), min(first.degrees, second.degrees)
    estimate = Estimate(first.value - second.value, error, degrees, first.n + second.n)
    return Measurement(estimate, f"slopes of {mains[0]} and {mains[1]} over the effective batch size{amount}")


def _curve_of(records: ComparableTrials, chosen: Mask) -> BatchCurve:
    return fit_batch_curve(records, chosen & _is_tuned(records, chosen))


_BATCH, _RATE, _EFFECTIVE = "batch.micro", "optimizer.lr", "global_batch_size"
_MATTERS = 0.002
_RATES = (0.01, 0.03, 0.1, 0.3)
_BATCHES = Repetition(key=_BATCH, low=16, high=512, is_whole=True)
# Of a slope over n batch sizes, evenly spaced over five doublings (standard deviation 5 / sqrt(12)), times sqrt(n).
_SLOPE_SPREAD = TUNED_ACCURACY * np.sqrt(6.0) / 5


def _at_equal(budget: str, published: str) -> Claim:
    return Claim(
        name=f"large_batch_equal_{budget}",
        statement=f"At equal {budget} a larger batch generalizes worse: 0.1 points or more are lost with each "
        "doubling, the learning rate chosen for each batch.",
        region=Region(-np.inf, -_MATERIAL),
        unit="fraction/doubling",
        published=published,
        measure=partial(_measure_slope_at_equal, budget=budget),
        settle=partial(_settle_at_equal, budget=budget),
        matters=_MATTERS,
        varies=(_EFFECTIVE,),
        design=Design(
            base={} if budget == "epochs" else {f"budget.{budget}": 200},
            space={_RATE: _RATES},
            repeated=_BATCHES,
            spread=_SLOPE_SPREAD,
            lost=2,
        ),
    )


CLAIMS = (
    _at_equal(
        "epochs",
        "Keskar et al. 2016, CIFAR-10: 80.04 +- 0.12 % at 256, 77.26 +- 0.42 % at a tenth of the data. Goyal et al. "
        "2017, ResNet-50: 76.40 % at 256, 76.26 % at 8k, 72.45 % at 32k, 66.04 % at 64k. Shallue et al. 2018: no loss "
        "when tuned.",
    ),
    _at_equal(
        "steps",
        "Hoffer et al. 2017: the gap closes when the number of steps is kept. Shallue et al. 2018: no evidence that "
        "larger batches generalize worse.",
    ),
    Claim(
        name="small_batches_best", unit="fraction difference", region=Region(0.0, np.inf),
        statement="Small batches (up to 32 samples) reach the best accuracy.",
        published="Masters & Luschi 2018: best results with batches from 2 to 32; plain SGD without momentum at fixed "
        "epochs.",
        measure=_measure_small_batches, settle=_settle_small_batches, matters=0.005, varies=(_EFFECTIVE,),
        design=Design(space={_BATCH: (16, 32, 64, 128), _RATE: _RATES}, spread=TUNED_ACCURACY),
    ),
    Claim(
        name="vit_less_sensitive", unit="fraction/doubling", region=Region(0.0, np.inf),
        statement="A ViT loses less accuracy with each doubling of the batch than a ResNet.",
        published="Often quoted: ViT 82.0, 81.8, 81.0 % at 512, 1,024, 4,096 against ResNet-50 76.0, 74.8, 72.0 % at "
        "256, 1,024, 4,096; Goyal et al. 2017 contradict the latter.",
        measure=_measure_vit_sensitivity, settle=extend_space("model.name", 'choice = ["resnet8", "vit_micro"]'),
        matters=_MATTERS, varies=("model.name", _EFFECTIVE),
        design=Design(
            space={"model.name": ("vit_micro", "resnet8"), _RATE: _RATES}, repeated=_BATCHES, lost=2,
            spread=np.sqrt(2) * _SLOPE_SPREAD,
        ),
    ),
    Claim(
        name="muon_less_sensitive", unit="fraction/doubling", region=Region(0.0, np.inf), matters=_MATTERS,
        statement="Muon loses less accuracy with each doubling of the batch than AdamW.",
        published="Shah et al. 2025 (arXiv:2505.02222): Muon retains data efficiency at large batches better than "
        "AdamW, far beyond the critical batch.",
        measure=_measure_muon_sensitivity, settle=plan_study,
        varies=("optimizer.name", _EFFECTIVE),
        design=Design(
            space={"optimizer.name": ("muon", "adamw"), _RATE: (0.001, 0.004, 0.016, 0.064)}, repeated=_BATCHES, lost=2,
            spread=np.sqrt(2) * _SLOPE_SPREAD,
        ),
    ),
)  # fmt: skip
