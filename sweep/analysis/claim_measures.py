"""How a claim is measured on records: by pairs of trainings that differ in what is tested alone, by slopes and powers
over batch sizes, and by what a micro batch costs."""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.claims import EFFECTIVE
from sweep.analysis.comparable import (
    ACCURACY,
    RECIPE_COLUMNS,
    ComparableTrials,
    find_main_recipe,
    is_main_model,
    read_accuracies,
)
from sweep.analysis.costs import (
    equal_cost_groups,
    group_medians,
    num_accumulation,
    ran_micro_batches,
    read_observed,
)
from sweep.analysis.critical_batch import estimate_by_steps, estimate_growth, read_noise_scales
from sweep.analysis.rate_powers import (
    MICRO_KEYS,
    find_rule_power,
    measure_rate_power,
    measure_value_power,
    scaled_learning_rates,
)
from sweep.analysis.statistics import (
    NOTHING,
    Estimate,
    Mask,
    Measurement,
    Numbers,
    Region,
    Values,
    configuration_groups,
    fit_curve,
    log_ratio,
    mean_estimate,
    most_common,
    read_numbers,
    read_text,
    slope_estimate,
    weigh_extremes,
)
from sweep.analysis.tuned_batches import BatchCurve, fit_batch_curve
from sweep.config.metrics import SHARPNESS, format_count
from sweep.config.tables import model_family
from sweep.config.trial import key_label

SMALL = 32  # samples
_MIN_RATES = 2  # that were tried, before the best one counts as chosen
_RATE_KEYS = ("optimizer.lr", "rules.lr", "rules.reference_batch")
_LENGTHS = ("epochs", "steps", "samples", "seconds")  # budgets of a fixed length

Condition = Callable[[pd.DataFrame], Mask]  # of which trials it holds, shape ``[trials]``

# --- pairs


def holds(trials: pd.DataFrame) -> Mask:
    return np.ones(len(trials), dtype=np.bool_)


def compare_accuracies(
    records: ComparableTrials,
    side: Condition,
    among: Condition,
    tested: Collection[str],
    same_batch: bool = False,
    with_diverged: bool = False,
) -> Measurement:
    """How much more accurate the ``side`` is than the other trials ``among``, at equal settings and seed apart from the
    ``tested`` keys.

    Where they decide the effective batch size too, ``same_batch`` holds it equal. Each of several settings counts once,
    by the mean over its seeds; trainings until a target accuracy are left out, because all of them end with it.
    ``with_diverged``: what diverged counts with an accuracy of 0.
    """
    trials, is_side = _split(_read_ended(records) if with_diverged else records.done, side, among)
    settings = configuration_groups(trials, tested)
    if same_batch:
        settings = _join_groups(settings, read_numbers(trials, EFFECTIVE))
    cells = _join_groups(settings, read_numbers(trials, "seed"))
    first, second = _pair(cells, is_side, read_numbers(trials, "number"))
    accuracies = read_accuracies(trials)
    gaps = accuracies[first] - accuracies[second]
    return _average_settings(trials, first, settings[first], gaps, "of equal settings")


def compare_tuned(
    records: ComparableTrials, side: Condition, among: Condition, tested: Collection[str], of_loss: bool = False
) -> Measurement:
    """How much more accurate the ``side`` is than the other trials ``among``, or, ``of_loss``, how much lower its loss
    is, each with its best learning rate, at equal settings and seed apart from the ``tested`` keys.

    The best of many tries is higher by chance than the best of few, so both count with the expected best of as many
    as the side with fewer has. Where several settings are compared, each counts once, by the mean over its seeds.
    """
    trials, is_side = _split(records.done, side, among)
    settings = configuration_groups(trials, {*tested, *_RATE_KEYS})
    cells = _join_groups(settings, read_numbers(trials, "seed"))
    accuracies = -records.read_losses(trials) if of_loss else read_accuracies(trials)
    rates = scaled_learning_rates(trials)
    firsts, differences = [], []
    known = np.isfinite(accuracies) & np.isfinite(rates)
    known &= np.isin(cells, np.intersect1d(cells[known & is_side], cells[known & ~is_side]))
    for members in pd.Series(np.flatnonzero(known)).groupby(cells[known]).agg(list):
        rows = np.array(members)
        ours, others = rows[is_side[rows]], rows[~is_side[rows]]
        if min(len(np.unique(rates[ours])), len(np.unique(rates[others]))) >= _MIN_RATES:
            num_drawn = min(len(ours), len(others))
            firsts.append(int(ours[np.argmax(accuracies[ours])]))
            differences.append(expect_best(accuracies[ours], num_drawn) - expect_best(accuracies[others], num_drawn))
    first, gaps = np.array(firsts, dtype=np.int64), np.array(differences, dtype=np.float64)
    return _average_settings(trials, first, settings[first], gaps, "of tuned recipes of equal settings")


def expect_best(values: Values, num_drawn: int) -> float:
    """The expected largest of ``num_drawn`` of the ``values`` (shape ``[n]``), drawn without replacement."""
    return float(np.dot(weigh_extremes(len(values), num_drawn, len(values)), np.sort(values)[::-1]))


def compare_costs(
    records: ComparableTrials, side: Condition, among: Condition, tested: str, metric: str
) -> Measurement:
    """The ratio of ``metric`` between the ``side`` and the other trials ``among``, in pairs of equal cost but for the
    key ``tested``."""
    trials, is_side = _split(records.done, side, among)
    first, second = _pair(equal_cost_groups(trials, (tested,)), is_side, read_numbers(trials, "train_seconds"))
    values = _read_comparable_costs(trials, metric)
    kind = f"of equal cost but for {key_label(tested)}"
    return _estimate_main_recipe(trials, first, log_ratio(values[first], values[second]), kind, is_ratio=True)


def compare_split(records: ComparableTrials, metric: str) -> Measurement:
    """Accumulation against none at equal cost otherwise and one effective batch size: the ratio of the times, or what
    it saves of the memory over what it would save if all memory were in proportion to the micro batch, 1 - 1 / k with k
    micro batches. Each trial that is in several pairs counts once."""
    trials, is_time = records.done, metric == "train_seconds"
    values = _read_comparable_costs(trials, metric)
    if is_time:  # of trainings of one length the times are as the throughputs are
        rates = read_numbers(trials, "images_per_second")
        values = np.where(np.isfinite(values), values, 1 / np.where(rates > 0, rates, np.nan))
    counts, order = count_micro(trials), read_numbers(trials, "train_seconds")
    cells = _join_groups(equal_cost_groups(trials, MICRO_KEYS), read_numbers(trials, EFFECTIVE))
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for count in np.unique(counts[np.isfinite(counts) & (counts > 1)]):
        rows = np.flatnonzero((counts == count) | (counts == 1))
        pairs.append(rows[np.stack(_pair(cells[rows], counts[rows] == count, order[rows]))])
    first, second = np.concatenate(pairs, axis=1)
    ratios = log_ratio(values[first], values[second])
    effects = ratios if is_time else (1 - np.exp(ratios)) / (1 - 1 / counts[first])
    firsts, averages = _average_by_cell(cells[first], effects)
    kind = "of equal cost and effective batch size, with accumulation (mean) against without"
    return _estimate_main_recipe(trials, first[firsts], averages, kind, is_time)


def count_micro(trials: pd.DataFrame) -> Values:
    """The micro batches in a step, NaN where the micro batch was found by trying; shape ``[trials]``."""
    return num_accumulation(trials, read_numbers(trials, "config.batch.micro"))


def _split(trials: pd.DataFrame, side: Condition, among: Condition) -> tuple[pd.DataFrame, Mask]:
    chosen = trials[among(trials)]
    return chosen, np.asarray(side(chosen), dtype=np.bool_)


def _read_ended(records: ComparableTrials) -> pd.DataFrame:
    # what diverged reached nothing
    outcomes = read_text(records.trials, "outcome")
    reached = np.where(outcomes == "diverged", 0.0, read_numbers(records.trials, "val_accuracy"))
    return records.trials.assign(val_accuracy=reached)[np.isin(outcomes, ["complete", "diverged"])]


def _read_comparable_costs(trials: pd.DataFrame, metric: str) -> Values:
    # a time is NaN where the budget does not fix the number of samples: until a target, or for so many seconds, a
    # training takes more or fewer
    is_open = np.isfinite(read_numbers(trials, "config.budget.target"))
    is_open |= np.isfinite(read_numbers(trials, "config.budget.seconds"))
    values = read_numbers(trials, metric)
    return np.where(is_open, np.nan, values) if metric.endswith("_seconds") else values


def _pair(cells: Numbers, side: Mask, order: Values) -> tuple[Numbers, Numbers]:
    """One pair of rows for each of the ``cells`` (shape ``[trials]``) with trials on both sides: of each side the one
    in the middle by ``order``."""
    table = pd.DataFrame({"cell": cells, "side": side, "order": order, "row": np.arange(len(cells))})
    if np.isfinite(order).any():  # without any time, the first trials are as good
        table = table.dropna()
    table = table.sort_values(["cell", "order"], kind="stable")
    groups = table.groupby(["cell", "side"])["row"]
    middle = table[groups.cumcount() == (groups.transform("size") - 1) // 2]
    sides = middle.pivot(index="cell", columns="side", values="row").reindex(columns=[True, False]).dropna()
    return np.asarray(sides[True], dtype=np.int64), np.asarray(sides[False], dtype=np.int64)


def _join_groups(first: Numbers, second: Values) -> Numbers:
    # one number for each combination; a missing value makes one of its own
    table = pd.DataFrame({"first": first, "second": second})
    return np.asarray(table.groupby(["first", "second"], dropna=False).ngroup(), dtype=np.int64)


def _average_settings(trials: pd.DataFrame, firsts: Numbers, settings: Numbers, gaps: Values, kind: str) -> Measurement:
    rows, averages = _average_by_cell(settings, gaps)
    if np.isfinite(averages).sum() >= 2:
        return _estimate_main_recipe(trials, firsts[rows], averages, f"{kind}, means over equal seeds")
    return _estimate_main_recipe(trials, firsts, gaps, f"{kind} and seed")


def _average_by_cell(cells: Numbers, values: Values) -> tuple[Numbers, Values]:
    # the first row of each cell and the mean of its finite values
    rows = np.asarray(np.unique(cells, return_index=True)[1], dtype=np.int64)
    return rows, np.asarray(pd.Series(values).groupby(cells).mean(), dtype=np.float64)


def _estimate_main_recipe(
    trials: pd.DataFrame, firsts: Numbers, effects: Values, kind: str, is_ratio: bool = False
) -> Measurement:
    """The mean of the ``effects`` (shape ``[pairs]``) of the model and optimizer that most pairs have; ``firsts`` is
    the row of the first trial of each pair, ``kind`` what the pairs have in common."""
    chosen, recipe = find_main_recipe(trials.filter(RECIPE_COLUMNS).iloc[firsts], np.isfinite(effects))
    estimate = mean_estimate(effects[chosen], is_ratio=is_ratio)
    if estimate.degrees > 0:
        return Measurement(estimate, f"{recipe}: {format_count(estimate.n, 'pair')} {kind}")
    lack = f"only one pair {kind} (of {recipe})" if estimate.n else f"no pair {kind}"
    if len(firsts) and not estimate.n:
        lack += " with both values measured after an equal length of training"
    return Measurement(reason=f"the records have {lack}; two or more of one model and optimizer are required")


# --- accuracy over batch sizes


def measure_slope(records: ComparableTrials, budget: str) -> Measurement:
    """The accuracy per doubling of the batch, of the main model at the most common length of training in ``budget``."""
    chosen, amount = _find_main_length(records, is_main_model(records.frame), (budget,))
    curve = _tune(records, chosen)
    estimate, num = _slope(curve), len(curve.batches)
    if not estimate.degrees > 0:
        reason = f"{_count_batches(curve)} at an equal number of {budget}{amount}; three are required"
        return Measurement(reason=reason)
    detail = f"{_main_model(records)}{amount}: the best at each of {num} effective batch sizes, of"
    return Measurement(estimate, f"{detail} {curve.num_configurations} configurations")


def compare_slopes(records: ComparableTrials, key: str, sides: tuple[str, str]) -> Measurement:
    """How much more accuracy the first of two ``sides`` gains per doubling of the batch than the second: values of the
    ``key``, or families of models, each by the most frequent of its models."""
    names = read_text(records.frame, f"config.{key}")
    kinds = np.where(is_main_model(records.frame), names, "").astype(object)
    if key == "model.name":
        kinds = np.array([model_family(name) for name in names], dtype=object)
    chosen, amount = _find_main_length(records, np.isin(kinds, sides))
    mains = [most_common(names[chosen & (kinds == kind)])[0] for kind in sides]
    pairs = zip(sides, mains, strict=True)
    curves = [_tune(records, chosen & (kinds == kind) & (names == main)) for kind, main in pairs]
    first, second = (_slope(curve) for curve in curves)
    if not (first.degrees > 0 and second.degrees > 0):
        counts = (f"{name}: {_count_batches(curve)}" for name, curve in zip(sides, curves, strict=True))
        return Measurement(reason=f"{', '.join(counts)}{amount}; three of each are required")
    error, degrees = float(np.hypot(first.error, second.error)), min(first.degrees, second.degrees)
    estimate = Estimate(first.value - second.value, error, degrees, first.n + second.n)
    return Measurement(estimate, f"slopes of {mains[0]} and {mains[1]} over the effective batch size{amount}")


def measure_small_batches(records: ComparableTrials) -> Measurement:
    """How much more accurate the best small batch is than the best larger one."""
    main, _ = _find_main_length(records, is_main_model(records.frame))
    curve, posterior = fit_batch_curve(records, _is_tuned(records, main)), records.posterior(ACCURACY)
    small, large = curve.batches <= SMALL, curve.batches > SMALL
    if not (small.any() and large.any()):
        sides = f"{int(small.sum())} up to {SMALL}, {int(large.sum())} above"
        reason = f"{_count_batches(curve)} at one length of training: {sides}; one of each is required"
        return Measurement(reason=reason)
    if posterior.is_assumed:  # no confirming trials, but the search itself may have several seeds
        measured = compare_tuned(records, is_small, is_main_model, MICRO_KEYS)
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


def is_small(trials: pd.DataFrame) -> Mask:
    """The effective batch size is of few samples."""
    return read_numbers(trials, EFFECTIVE) <= SMALL


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
    return np.asarray(chosen & (numbers >= _MIN_RATES), dtype=np.bool_)


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
    return f"{format_count(len(curve.batches), 'effective batch size')} with {_MIN_RATES} learning rates or more"


def _main_model(records: ComparableTrials) -> str:
    return most_common(read_text(records.frame, "config.model.name"))[0]


# --- powers of the batch


def measure_rate_rule(records: ComparableTrials, power: float) -> Measurement:
    """The power of the best learning rate, of optimizers that should follow ``power``; one without a rule counts to the
    square root, a training whose optimizer is not on record to neither."""
    names = read_text(records.frame, "config.optimizer.name").tolist()
    is_linear = {name: find_rule_power(name, "auto") == 1.0 for name in set(names)}
    among = np.array([name != "" and is_linear[name] == (power == 1.0) for name in names], dtype=np.bool_)
    if not among.any():
        lack = "no training has an optimizer that the claim is about; those on record have"
        known = ", ".join(sorted({*names} - {""}))
        return Measurement(reason=f"{lack} {known}" if known else "the optimizer of no training is on record")
    return measure_rate_power(records, among)


def measure_noise_power(records: ComparableTrials) -> Measurement:
    scales = read_noise_scales(records)
    rest = scales.describe_missing()
    if not (scales.values > 0).any():
        return Measurement(reason=f"no configuration has a noise scale over its training{rest}")
    measured = measure_value_power(records, scales.values)
    if measured.reason:
        return Measurement(reason=measured.reason + rest)
    return measured._replace(detail=measured.detail + rest)


def measure_sharpness_power(records: ComparableTrials) -> Measurement:
    """The power of Keskar's sharpness where it is on record, otherwise of the top eigenvalue of the Hessian."""
    eigenvalue, keskar = (records.grouping.medians(read_numbers(records.done, name))[0] for name in SHARPNESS)
    sharpness = keskar if (keskar > 0).any() else eigenvalue
    if not (sharpness > 0).any():
        return Measurement(reason="no configuration has its sharpness measured")
    return measure_value_power(records, sharpness)


def measure_critical_growth(records: ComparableTrials) -> Measurement:
    """The power of 1 / loss by which the critical batch grows: its mean over seeds."""
    growth = estimate_growth(records)
    if isinstance(growth, str):
        return Measurement(reason=growth)
    estimate = mean_estimate(growth.powers)
    if not estimate.degrees > 0:
        there = f"{format_count(estimate.n, 'seed')} with a critical batch at three losses or more"
        return Measurement(reason=f"{there}, each batch at its best rate and that one not at an edge; two are required")
    return Measurement(estimate, growth.detail)


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
        estimate = _fit_last_doubling(ran_micro_batches(trials)[own], rates[own])
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
    sizes = ran_micro_batches(trials)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        yield int(rows[0]), *group_medians(sizes[rows], values[rows])
