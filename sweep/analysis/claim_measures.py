"""Effects that no pairs of trainings give: slopes and powers over batch sizes, the best batch, and what a micro batch
costs."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.claims import (
    EFFECTIVE,
    MIN_RATES,
    Measurement,
    NextStep,
    Sides,
    average_by_cell,
    compare_tuned,
    count_micro,
    estimate_main_recipe,
    expect_best,
    group_costs,
    is_small,
    pair_by_cost,
    pair_by_seed,
    read_comparable_costs,
    suggest_copy,
    suggest_variant,
)
from sweep.analysis.comparable import ACCURACY, ComparableTrials, find_main_recipe, is_main_model, read_accuracies
from sweep.analysis.costs import equal_cost_groups, group_medians, read_observed
from sweep.analysis.critical_batch import MIN_BATCHES, estimate_by_steps, read_noise_scales
from sweep.analysis.rate_powers import (
    LEARNING_RATE,
    MICRO_KEYS,
    BatchPower,
    TunedKey,
    find_rule_power,
    measure_rate_power,
    measure_value_power,
    scaled_learning_rates,
)
from sweep.analysis.statistics import (
    NOTHING,
    Estimate,
    Mask,
    Numbers,
    Region,
    Texts,
    Values,
    configuration_groups,
    fit_curve,
    log_ratio,
    mean_estimate,
    most_common,
    read_numbers,
    read_text,
    slope_estimate,
)
from sweep.analysis.tuned_batches import BatchCurve, fit_batch_curve
from sweep.config.metrics import SHARPNESS, format_count
from sweep.config.tables import model_family

SMALL = 32  # samples
_LENGTHS = ("epochs", "steps", "samples", "seconds")  # budgets of a fixed length
_SHARE, _NEAR = 0.8, 0.06  # of the largest micro batch
_LONG = 2000  # steps; 40 of them are measured where a step is one micro batch on a CPU
_NOT_INVARIANT = (
    "; sharpness changes with the scale of the weights before a normalization, which the model does not (Dinh et al. "
    "2017)"
)

# --- accuracy over batch sizes


def measure_slope(records: ComparableTrials, budget: str) -> Measurement:
    """The accuracy per doubling of the batch, of the main model at the most common length of training in ``budget``."""
    chosen, amount = _find_main_length(records, is_main_model(records.frame), (budget,))
    curve = _tune(records, chosen)
    estimate, num = _slope(curve), len(curve.batches)
    if not estimate.degrees > 0:
        reason = f"{_count_batches(curve)} at an equal number of {budget}{amount}; three are required"
        return Measurement(reason=reason)
    detail = f"{_main_model(records)}{amount}: best of {curve.num_configurations} configurations at each of {num}"
    return Measurement(estimate, f"{detail} effective batch sizes")


def compare_families(records: ComparableTrials) -> Measurement:
    """How much more accuracy ViTs gain per doubling of the batch than ResNets."""
    names = read_text(records.frame, "config.model.name")
    families = np.array([model_family(name) for name in names], dtype=object)
    return _compare_slopes(records, names, families, ("vit", "resnet"), ("ViT", "ResNet"))


def compare_muon(records: ComparableTrials) -> Measurement:
    """How much more accuracy Muon gains per doubling of the batch than AdamW."""
    names = read_text(records.frame, "config.optimizer.name")
    kinds = np.where(is_main_model(records.frame), names, "").astype(object)
    return _compare_slopes(records, names, kinds, ("muon", "adamw"), ("Muon", "AdamW"))


def _compare_slopes(
    records: ComparableTrials, names: Texts, kinds: Texts, sides: tuple[str, str], titles: tuple[str, str]
) -> Measurement:
    # the first of two kinds of configurations less the second, each by the most frequent of its names; both of shape
    # [configurations]
    chosen, amount = _find_main_length(records, np.isin(kinds, sides))
    mains = [most_common(names[chosen & (kinds == kind)])[0] for kind in sides]
    pairs = zip(sides, mains, strict=True)
    curves = [_tune(records, chosen & (kinds == kind) & (names == main)) for kind, main in pairs]
    first, second = (_slope(curve) for curve in curves)
    if not (first.degrees > 0 and second.degrees > 0):
        counts = (f"{name}: {_count_batches(curve)}" for name, curve in zip(titles, curves, strict=True))
        return Measurement(reason=f"{', '.join(counts)}{amount}; three of each are required")
    error, degrees = float(np.hypot(first.error, second.error)), min(first.degrees, second.degrees)
    estimate = Estimate(first.value - second.value, error, degrees, first.n + second.n)
    return Measurement(estimate, f"slopes of {mains[0]} and {mains[1]} over the effective batch size{amount}")


def measure_small_batches(records: ComparableTrials) -> Measurement:
    """How much more accurate the best small batch is than the best larger one."""
    curve, posterior = _fit_main_curve(records), records.posterior(ACCURACY)
    small, large = curve.batches <= SMALL, curve.batches > SMALL
    if not (small.any() and large.any()):
        sides = f"{int(small.sum())} up to {SMALL}, {int(large.sum())} above"
        reason = f"{_count_batches(curve)} at one length of training: {sides}; one of each is required"
        return Measurement(reason=reason)
    if posterior.is_assumed:  # no confirming trials, but the search itself may have several seeds
        measured = compare_tuned(records, Sides(is_small(SMALL), among=is_main_model), MICRO_KEYS)
        lack = "no configuration was trained with several seeds, so their spread is not known"
        return measured if measured.estimate.degrees > 0 else Measurement(reason=lack)
    first, second = (np.flatnonzero(side)[np.argmax(curve.accuracies[side])] for side in (small, large))
    errors, degrees = posterior.compare(int(curve.rows[first]), curve.rows[[second]])
    # d accuracy = slope * d angle converts the error to the metric's unit; both are measured on the same images
    middle = float(np.mean(curve.accuracies[[first, second]]))
    error = float(2 * np.sqrt(middle * (1 - middle)) * errors[0])
    gap = float(curve.accuracies[first] - curve.accuracies[second])
    detail = f"{_main_model(records)}: best effective batch size up to {SMALL} against the best above"
    return Measurement(Estimate(gap, error, float(degrees[0]), len(curve.batches)), detail)


def _find_main_length(records: ComparableTrials, among: Mask, budgets: Collection[str] = _LENGTHS) -> tuple[Mask, str]:
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
    """Which of the configurations ``chosen`` have a batch that was tried with two learning rates or more: with one
    nothing shows that it is the best there."""
    batches, rates = read_numbers(records.frame, EFFECTIVE), scaled_learning_rates(records.frame)
    numbers = pd.Series(np.where(chosen, rates, np.nan)).groupby(batches).transform("nunique")
    return np.asarray(chosen & (numbers >= MIN_RATES), dtype=np.bool_)


def _fit_main_curve(records: ComparableTrials) -> BatchCurve:
    """The batch-size curve of the main model at the most common length of training."""
    chosen, _ = _find_main_length(records, is_main_model(records.frame))
    return fit_batch_curve(records, _is_tuned(records, chosen))


class _Tuned(NamedTuple):
    """The accuracy of the best configuration at each effective batch size; both of shape ``[b]``."""

    batches: Values
    accuracies: Values
    num_configurations: int


def _tune(records: ComparableTrials, chosen: Mask) -> _Tuned:
    # Where no seed was repeated, the assumed spread would draw all accuracies together, and the slope to 0: then the
    # expected best of equally many single trainings.
    known = _is_tuned(records, chosen)
    if not records.posterior(ACCURACY).is_assumed:
        curve = fit_batch_curve(records, known)
        return _Tuned(curve.batches, curve.accuracies, curve.num_configurations)
    accuracies, _ = records.grouping.medians(read_accuracies(records.done))
    batches = read_numbers(records.frame, EFFECTIVE)
    known = known & np.isfinite(accuracies) & np.isfinite(batches)
    sizes, counts = np.unique(batches[known], return_counts=True)
    num_drawn = int(counts.min(initial=len(batches) or 1))
    best = [expect_best(accuracies[known & (batches == size)], num_drawn) for size in sizes]
    return _Tuned(sizes, np.array(best, dtype=np.float64), int(counts.sum()))


def _slope(curve: _Tuned) -> Estimate:
    return slope_estimate(np.log2(curve.batches), curve.accuracies)


def _count_batches(curve: _Tuned | BatchCurve) -> str:
    return f"{format_count(len(curve.batches), 'effective batch size')} with {MIN_RATES} learning rates or more"


def _main_model(records: ComparableTrials) -> str:
    return most_common(read_text(records.frame, "config.model.name"))[0]


def measure_warmup_gain(records: ComparableTrials, tested: Collection[str]) -> Measurement:
    """What warm-up gains per doubling of the learning rate, in pairs of equal settings and seed but for the ``tested``
    keys."""
    trials = records.done
    side = read_numbers(trials, "config.schedule.warmup") > 0
    first, second = pair_by_seed(trials, configuration_groups(trials, tested), side)
    accuracies, rates = read_accuracies(trials), scaled_learning_rates(trials)
    gains = accuracies[first] - accuracies[second]
    chosen, recipe = find_main_recipe(trials.iloc[first], np.isfinite(gains))
    estimate = slope_estimate(np.log2(rates[first][chosen]), gains[chosen])
    if not estimate.degrees > 0:
        reason = "the records have fewer than three pairs with and without warm-up, or one learning rate"
        return Measurement(reason=reason)
    return Measurement(estimate, f"{recipe}: {format_count(estimate.n, 'pair')} with and without warm-up")


# --- powers of the batch


def measure_rate_rule(records: ComparableTrials, power: float) -> Measurement:
    """The power of the best learning rate, of optimizers that should follow ``power``, and where the rule ends."""
    measured = _measure_power(records, LEARNING_RATE, _follows_power(records, power))
    return _add_detail(measured, "" if measured.reason else f"; {_describe_break(records, measured.chosen, power)}")


def measure_tuned_power(records: ComparableTrials, tuned: TunedKey, optimizers: Collection[str] = ()) -> Measurement:
    """The power of the best value of ``tuned`` with the ``optimizers``, all where none is given."""
    names = read_text(records.frame, "config.optimizer.name")
    among = np.isin(names, [*optimizers]) if optimizers else np.ones(len(names))
    return _add_detail(_measure_power(records, tuned, np.asarray(among, dtype=np.bool_)))


def _add_detail(measured: BatchPower, more: str = "") -> Measurement:
    if measured.reason:
        return Measurement(reason=measured.reason)
    return Measurement(measured.estimate, measured.detail + more)


def _measure_power(records: ComparableTrials, tuned: TunedKey, among: Mask) -> BatchPower:
    names = sorted(set(read_text(records.frame, "config.optimizer.name").tolist()) - {""})
    if names and not among.any():
        lack = "no training has an optimizer that the claim is about; those on record have"
        return BatchPower(chosen=among, reason=f"{lack} {', '.join(names)}")
    return measure_rate_power(records, among, tuned)


def _follows_power(records: ComparableTrials, power: float) -> Mask:
    """Configurations whose optimizer should follow this power; one without a rule counts to the square root."""
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


def measure_noise_power(records: ComparableTrials) -> Measurement:
    scales = read_noise_scales(records)
    missing = scales.describe_missing()
    rest = f"; {missing}" if missing else ""
    if not (scales.values > 0).any():
        return Measurement(reason=f"no configuration has a noise scale over its training{rest}")
    measured = measure_value_power(records, scales.values)
    return _add_detail(replace(measured, reason=measured.reason and f"{measured.reason}{rest}"), rest)


def measure_sharpness_power(records: ComparableTrials) -> Measurement:
    """The power of Keskar's sharpness where it is on record, otherwise of the top eigenvalue of the Hessian."""
    eigenvalue, keskar = (records.grouping.medians(read_numbers(records.done, name))[0] for name in SHARPNESS)
    sharpness = keskar if (keskar > 0).any() else eigenvalue
    if not (sharpness > 0).any():
        return Measurement(reason="no configuration has its sharpness measured")
    return _add_detail(measure_value_power(records, sharpness), _NOT_INVARIANT)


def measure_critical_batch(records: ComparableTrials) -> Measurement:
    """The critical batch by the steps to a common target; the claim allows the batches that were tried."""
    measured = estimate_by_steps(records)
    if isinstance(measured, str):
        return Measurement(reason=measured)
    tuned, law = measured.tuned, measured.law
    detail = (
        f"{tuned.detail}; at least {law.min_steps:.0f} steps and {law.min_samples:.0f} samples; the fit misses by "
        f"{100 * law.misfit:.0f} %"
    )
    return Measurement(measured.estimate, detail, Region(float(tuned.batches.min()), float(tuned.batches.max())))


# --- what a micro batch costs


def measure_memory_power(records: ComparableTrials) -> Measurement:
    """The power p of memory = constant + slope * micro^p, fitted where one setting has four sizes or more."""
    trials = records.done
    memory = read_numbers(trials, "peak_memory_bytes")
    accumulates = (read_numbers(trials, "config.batch.accumulation") > 1).astype(np.int64)
    settings = 2 * equal_cost_groups(trials, MICRO_KEYS) + accumulates
    by_setting = _medians_by_size(trials, memory, settings)
    fits = [(fit, row) for row, sizes, medians in by_setting if (fit := _fit_power(sizes, medians)) is not None]
    if not fits:
        return Measurement(reason="no setting of otherwise equal cost ran with four micro batches or more")
    chosen, recipe = find_main_recipe(trials.iloc[[row for _, row in fits]], np.ones(len(fits), dtype=np.bool_))
    powers = [fit for (fit, _), is_chosen in zip(fits, chosen, strict=True) if is_chosen]
    # one fit keeps its own error; the error of several is how they differ
    estimate = powers[0] if len(powers) == 1 else mean_estimate([fit.value for fit in powers])
    return Measurement(estimate, f"{recipe}: {format_count(len(powers), 'fit')} over the micro batches of one setting")


def _fit_power(sizes: Values, memory: Values) -> Estimate | None:
    if len(sizes) < 4 or np.ptp(memory) <= 0:
        return None
    x, y = sizes / sizes.max(), memory / memory.max()

    def law(size: Values, constant: float, slope: float, power: float) -> Values:
        return constant + slope * size**power

    fitted = fit_curve(law, x, y, (y[0], 1 - y[0], 1.0), ([-1, 0, 0.1], [1, 10, 5]))
    return Estimate(float(fitted[0][2]), float(fitted[1][2]), len(x) - 3, len(x)) if fitted else None


def measure_last_doubling(records: ComparableTrials) -> Measurement:
    """The throughput at the largest micro batch over that at half of it, at equal cost otherwise."""
    trials, settings = records.done, equal_cost_groups(records.done, MICRO_KEYS)
    rates = read_observed("images_per_second", trials)
    gains = [
        (float(log_ratio(medians[-1:], medians[-2:-1])[0] / np.log2(levels[-1] / levels[-2])), row)
        for row, levels, medians in _medians_by_size(trials, rates, settings)
        if len(levels) > 1
    ]
    chosen, recipe = find_main_recipe(trials.iloc[[row for _, row in gains]], np.ones(len(gains), dtype=np.bool_))
    kept = [gain for gain, is_chosen in zip(gains, chosen, strict=True) if is_chosen]
    estimate = mean_estimate([gain for gain, _ in kept], is_ratio=True)
    if len(kept) == 1:  # of one setting by its trials
        own = settings == settings[kept[0][1]]
        estimate = _fit_last_doubling(read_numbers(trials, "config.batch.micro")[own], rates[own])
    if not estimate.degrees > 0:
        reason = "too few trials of one model and optimizer ran with two micro batches, all else equal in cost"
        return Measurement(reason=reason)
    return Measurement(estimate, f"{recipe}: throughput at the largest micro batch over that at half of it")


def _fit_last_doubling(sizes: Values, rates: Values) -> Estimate:
    # trials of the two largest sizes: their difference per doubling by a t test
    known = np.isfinite(sizes) & (rates > 0)
    levels = np.unique(sizes[known])
    if len(levels) < 2:
        return NOTHING
    top = known & (sizes >= levels[-2])
    return slope_estimate(np.log2(sizes[top]), np.log(rates[top]))._replace(is_ratio=True)


def _medians_by_size(trials: pd.DataFrame, values: Values, groups: Numbers) -> Iterator[tuple[int, Values, Values]]:
    # of each group its first row, the distinct micro batches, and the median of its values at each
    sizes = read_numbers(trials, "config.batch.micro")
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        yield int(rows[0]), *group_medians(sizes[rows], values[rows])


def measure_near_largest(records: ComparableTrials) -> Measurement:
    """The throughput at 80 % of the largest micro batch that ran over that at half of it, of the setting with the most
    trials at both; what did not fit lies beyond the largest."""
    trials, settings = records.done, equal_cost_groups(records.done, MICRO_KEYS)
    sizes, rates = read_numbers(trials, "config.batch.micro"), read_observed("images_per_second", trials)
    largest = pd.Series(np.where(rates > 0, sizes, np.nan)).groupby(settings).transform("max").to_numpy(np.float64)
    near, half = (np.abs(sizes / largest - share) <= _NEAR for share in (_SHARE, 0.5))
    counts = {group: min(near[settings == group].sum(), half[settings == group].sum()) for group in np.unique(settings)}
    main = max(counts, key=lambda group: counts[group], default=0)
    chosen = (settings == main) & (near | half) & (rates > 0)
    estimate = slope_estimate(near[chosen].astype(np.float64), np.log(rates[chosen]))._replace(is_ratio=True)
    if not estimate.degrees > 0:
        reason = "too few trials at 80 % and at half of the largest micro batch that ran, all else equal"
        return Measurement(reason=reason)
    size = int(largest[chosen][0])
    ran_out = np.isin(read_text(records.trials, "outcome"), ["out_of_memory", "not_fitting"])
    is_beyond = bool((read_numbers(records.trials, "config.batch.micro")[ran_out] > size).any())
    limit = "a larger one did not fit" if is_beyond else "none that did not fit was tried"
    return Measurement(estimate, f"the largest micro batch that ran is {size}; {limit}")


def measure_waiting(records: ComparableTrials) -> Measurement:
    """The share of the training time that waits for data which is read from outside the device."""
    trials = records.done[read_text(records.done, "config.data.placement") == "host"]
    chosen, recipe = find_main_recipe(trials, np.ones(len(trials), dtype=np.bool_))
    shares = read_numbers(trials, "data_wait_seconds") / read_numbers(trials, "train_seconds")
    estimate = mean_estimate(shares[chosen])
    if not estimate.degrees > 0:
        reason = "fewer than two trainings have images outside the device and their waiting time measured"
        return Measurement(reason=reason)
    return Measurement(estimate, f"{recipe}: {format_count(estimate.n, 'training')} with data.placement = host")


def measure_split_time(records: ComparableTrials) -> Measurement:
    """The time with accumulation over that without, at equal cost otherwise and one effective batch size."""
    trials = records.done
    seconds, rates = read_comparable_costs(trials, "train_seconds"), read_numbers(trials, "images_per_second")
    # of trainings of one length the times are as the throughputs are
    seconds = np.where(np.isfinite(seconds), seconds, 1 / np.where(rates > 0, rates, np.nan))
    return _compare_split(trials, seconds, is_ratio=True)


def measure_split_memory(records: ComparableTrials) -> Measurement:
    """What accumulation saves of the memory, over what it would save if all memory were in proportion to the micro
    batch: 1 - 1 / k with k micro batches."""
    return _compare_split(records.done, read_numbers(records.done, "peak_memory_bytes"))


def _compare_split(trials: pd.DataFrame, values: Values, is_ratio: bool = False) -> Measurement:
    # each number of micro batches against one; the pairs of a cell have the trial with one micro batch in common
    counts, cells = count_micro(trials), group_costs(trials, MICRO_KEYS)
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for count in np.unique(counts[np.isfinite(counts) & (counts > 1)]):
        rows = np.flatnonzero((counts == count) | (counts == 1))
        pairs.append(rows[np.stack(pair_by_cost(trials.iloc[rows], cells[rows], counts[rows] == count))])
    first, second = np.concatenate(pairs, axis=1)
    ratios = log_ratio(values[first], values[second])
    effects = ratios if is_ratio else (1 - np.exp(ratios)) / (1 - 1 / counts[first])
    firsts, averages = average_by_cell(cells[first], effects)
    kind = "of equal cost and effective batch size, with accumulation (mean) against without"
    return estimate_main_recipe(trials, first[firsts], averages, kind, is_ratio)


# --- what settles a claim beside its own study


def settle_rate_rule(records: ComparableTrials, power: float) -> NextStep:
    """More trials, or the learning rate in the space."""
    if not np.isfinite(read_accuracies(records.done)).any() and len(records.done):
        remark = "the study requires optimizer.lr in [space]"
        return suggest_variant(records, "equal_epochs", {"budget.epochs": 10}, remark)
    if "optimizer.lr" not in records.swept:
        return suggest_copy(records.commands.extend_space("optimizer.lr", "log = [0.001, 1.0]"))
    trials = 3 * records.spec.trials if records.spec and _follows_power(records, power).any() else 60
    return NextStep(records.commands.run_more(trials))


def settle_slope(records: ComparableTrials, budget: str) -> NextStep:
    """More trials, or the same study at an equal length of training."""
    chosen, _ = _find_main_length(records, is_main_model(records.frame), (budget,))
    if _is_tuned(records, chosen).any():
        return NextStep(records.commands.run_more(3 * (records.spec.trials if records.spec else len(records.trials))))
    steps = read_numbers(records.done, "num_steps")
    num_steps = int(np.nanmedian(steps)) if np.isfinite(steps).any() else 1000
    fixed = {f"budget.{budget}": 10 if budget == "epochs" else num_steps}
    return suggest_variant(records, f"equal_{budget}", fixed, "the study requires four effective batch sizes or more")


def settle_small_batches(records: ComparableTrials) -> NextStep:
    """More seeds, or more batch sizes."""
    batches = _fit_main_curve(records).batches
    if (batches <= SMALL).any() and (batches > SMALL).any():
        return NextStep(records.command_for_more_seeds)
    return suggest_copy(records.commands.extend_space("batch.micro", "log2 = [4, 10]"))


def settle_split(records: ComparableTrials) -> NextStep:
    """A study of one effective batch size in micro batches."""
    return suggest_copy(
        f"a copy of {records.commands.argument} under a new name, with batch.global and optimizer.lr fixed in "
        '[base], sampler = "grid" and "batch.micro" = { log2 = [4, 8] } in [space]'
    )


def settle_regimes(records: ComparableTrials) -> NextStep:
    """The same study until a target that its batches can reach, with a rate that does not fall over a fixed length."""
    accuracies, batches = read_numbers(records.done, "val_accuracy"), read_numbers(records.done, EFFECTIVE)
    best = pd.Series(accuracies).groupby(batches).max().min()
    target = max(0.01, float(np.floor(100 * best - 1) / 100)) if np.isfinite(best) else 0.9
    fixed = {"budget.target_accuracy": target, "schedule.name": "constant"}
    remark = f"the study requires optimizer.lr and {MIN_BATCHES} effective batch sizes or more in [space]"
    return suggest_variant(records, "to_target", fixed, remark)


def settle_noise_power(records: ComparableTrials) -> NextStep:
    """The same study with the noise scale; longer trainings, which measure it at more steps, where it was measured."""
    is_measured = np.isfinite(read_numbers(records.done, "num_noise_steps")).any()
    longer = {"budget.steps": _LONG} if is_measured else {}
    return suggest_variant(records, "noise", {"diagnostics.noise_scale": True, **longer})


def settle_sharpness(records: ComparableTrials) -> NextStep:
    return suggest_variant(records, "sharpness", {"diagnostics.sharpness": True})
