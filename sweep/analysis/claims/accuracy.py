"""Claims about what a larger batch does to accuracy: at equal epochs, at equal steps, in ResNets and in ViTs."""

from collections.abc import Collection
from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.batch_curve import BatchCurve, fit_batch_curve
from sweep.analysis.claims.claim import Claim, Measurement, extend_space, not_tested
from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials, is_main_model
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics.column_reading import most_common, read_numbers, read_text
from sweep.analysis.statistics.estimates import Estimate, Region, slope_estimate
from sweep.analysis.statistics.pareto import Mask
from sweep.config.tables.models import model_family
from sweep.config.units import format_count

_SMALL = 32  # samples
_MIN_RATES = 2  # that were tried at a batch, before its best one counts as chosen
_LENGTHS = ("epochs", "steps", "samples", "seconds")  # budgets of a fixed length
_MATERIAL = 0.001  # smaller losses of accuracy per doubling do not count


def _measure_slope_at_equal(records: ComparableTrials, budget: str) -> Measurement:
    chosen, amount = _find_budget(records, is_main_model(records.frame), (budget,))
    curve = _curve_of(records, chosen)
    estimate, num = _slope(curve), len(curve.batches)
    if not estimate.degrees > 0:
        return not_tested(f"{_count_batches(curve)} at an equal number of {budget}{amount}; three are required")
    detail = f"{_main_model(records)}{amount}: best of {curve.num_configurations} configurations at each of {num}"
    return Measurement(estimate, f"{detail} effective batch sizes")


def _settle_at_equal(records: ComparableTrials, budget: str) -> str:
    chosen, _ = _find_budget(records, is_main_model(records.frame), (budget,))
    if (chosen & _is_tuned(records, chosen)).any():
        return records.commands.run_more(3 * (records.spec.trials if records.spec else len(records.trials)))
    steps = read_numbers(records.done, "num_steps")
    num_steps = int(np.nanmedian(steps)) if np.isfinite(steps).any() else 1000
    fixed = {f"budget.{budget}": 10 if budget == "epochs" else num_steps}
    return f"{records.commands.run_variant(f'equal_{budget}', fixed)}, with four effective batch sizes or more"


def _find_budget(records: ComparableTrials, among: Mask, budgets: Collection[str] = _LENGTHS) -> tuple[Mask, str]:
    """Which of the configurations ``among`` have the most common length of training, and that length in words. Longer
    trainings reach more whatever the batch, and those until a target end with it."""
    lengths = np.full(len(records.frame), "", dtype=object)
    by_rule = np.asarray(read_text(records.frame, "config.budget.epochs_rule") == "power", dtype=np.bool_)
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


def _slope(curve: BatchCurve) -> Estimate:
    return slope_estimate(np.log2(curve.batches), curve.accuracies)


def _count_batches(curve: BatchCurve) -> str:
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
    if posterior.is_assumed:
        return not_tested("no configuration was trained with several seeds, so their spread is not known")
    detail = f"{_main_model(records)}: best effective batch size up to {_SMALL} against the best above"
    first, second = (np.flatnonzero(side)[np.argmax(curve.accuracies[side])] for side in (small, large))
    errors, degrees = posterior.compare(int(curve.rows[first]), curve.rows[[second]])
    # d accuracy = slope * d angle converts the error to the metric's unit; both are measured on the same images
    middle = float(np.mean(curve.accuracies[[first, second]]))
    error = float(2 * np.sqrt(middle * (1 - middle)) * errors[0])
    gap = float(curve.accuracies[first] - curve.accuracies[second])
    return Measurement(Estimate(gap, error, float(degrees[0]), len(curve.batches)), detail)


def _settle_small_batches(records: ComparableTrials) -> str:
    batches = _curve_of_main_model(records).batches
    if (batches <= _SMALL).any() and (batches > _SMALL).any():
        return records.command_for_more_seeds
    return records.commands.extend_space("batch.micro", "log2 = [4, 10]")


def _curve_of_main_model(records: ComparableTrials) -> BatchCurve:
    chosen, _ = _find_budget(records, is_main_model(records.frame))
    return _curve_of(records, chosen)


def _measure_vit_sensitivity(records: ComparableTrials) -> Measurement:
    # the accuracy per doubling of the batch of a ViT, less that of a ResNet, each the most frequent of its family
    names = read_text(records.frame, "config.model.name")
    families = np.array([model_family(name) for name in names], dtype=object)
    chosen, amount = _find_budget(records, np.isin(families, ["vit", "resnet"]))
    mains = [most_common(names[chosen & (families == family)])[0] for family in ("vit", "resnet")]
    curves = [_curve_of(records, chosen & (names == main)) for main in mains]
    vit, resnet = (_slope(curve) for curve in curves)
    if not (vit.degrees > 0 and resnet.degrees > 0):
        counts = (f"{name}: {_count_batches(curve)}" for name, curve in zip(("ViT", "ResNet"), curves, strict=True))
        return not_tested(f"{', '.join(counts)}{amount}; three of each are required")
    error, degrees = float(np.hypot(vit.error, resnet.error)), min(vit.degrees, resnet.degrees)
    estimate = Estimate(vit.value - resnet.value, error, degrees, vit.n + resnet.n)
    return Measurement(estimate, f"slopes of {mains[0]} and {mains[1]} over the effective batch size{amount}")


def _curve_of(records: ComparableTrials, chosen: Mask) -> BatchCurve:
    return fit_batch_curve(records, chosen & _is_tuned(records, chosen))


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
        measure=_measure_small_batches, settle=_settle_small_batches,
    ),
    Claim(
        name="vit_less_sensitive", unit="fraction/doubling", region=Region(0.0, np.inf),
        statement="A ViT loses less accuracy with each doubling of the batch than a ResNet.",
        published="Often quoted: ViT 82.0, 81.8, 81.0 % at 512, 1,024, 4,096 against ResNet-50 76.0, 74.8, 72.0 % at "
        "256, 1,024, 4,096; Goyal et al. 2017 contradict the latter.",
        measure=_measure_vit_sensitivity, settle=extend_space("model.name", 'choice = ["resnet8", "vit_micro"]'),
    ),
)  # fmt: skip
