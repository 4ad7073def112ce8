"""Claims about what a step costs: the micro batch, the data, mixed precision, checkpointing."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim, Measurement, extend_space, not_tested, plan_study
from sweep.analysis.claims.design import PAIRED_MEMORY, PAIRED_TIME, Design, Repetition
from sweep.analysis.claims.pairs import compare_costs
from sweep.analysis.comparable_trials import ComparableTrials, find_main_recipe
from sweep.analysis.costs import equal_cost_groups, group_medians, read_observed
from sweep.analysis.covariates import MICRO_KEYS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import (
    NOTHING,
    Estimate,
    Region,
    fit_curve,
    log_ratio,
    mean_estimate,
    slope_estimate,
)  # fmt: skip
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Values
from sweep.config.trial_config import Scalar
from sweep.config.units import format_count


def _measure_memory_power(records: ComparableTrials) -> Measurement:
    # the power p of memory = constant + slope * micro^p, fitted where one setting has four sizes or more
    trials = records.done
    sizes, memory = read_numbers(trials, "config.batch.micro"), read_numbers(trials, "peak_memory_bytes")
    accumulates = (read_numbers(trials, "config.batch.accumulation") > 1).astype(np.int64)
    settings: Numbers = 2 * equal_cost_groups(trials, MICRO_KEYS) + accumulates
    found = [(_fit_power(sizes, memory), row) for row, sizes, memory in _medians_by_size(sizes, memory, settings)]
    fits = [(fit, row) for fit, row in found if fit is not None]
    if not fits:
        return not_tested("no setting of otherwise equal cost ran with four micro batches or more")
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


def _measure_last_doubling(records: ComparableTrials) -> Measurement:
    # the throughput at the largest micro batch over that at half of it, setting by setting of equal cost otherwise
    trials = records.done
    sizes, rates = read_numbers(trials, "config.batch.micro"), _read_rates(trials)
    settings = equal_cost_groups(trials, MICRO_KEYS)
    gains = [
        (float(log_ratio(medians[-1:], medians[-2:-1])[0] / np.log2(levels[-1] / levels[-2])), row)
        for row, levels, medians in _medians_by_size(sizes, rates, settings)
        if len(levels) > 1
    ]
    chosen, recipe = find_main_recipe(trials.iloc[[row for _, row in gains]], np.ones(len(gains), dtype=np.bool_))
    kept = [gain for gain, is_chosen in zip(gains, chosen, strict=True) if is_chosen]
    estimate = mean_estimate([gain for gain, _ in kept], is_ratio=True)
    if len(kept) == 1:
        estimate = _fit_last_doubling(*(values[settings == settings[kept[0][1]]] for values in (sizes, rates)))
    if not estimate.degrees > 0:
        return not_tested(
            "too few trials of one model and optimizer ran with two micro batches, all else equal in cost"
        )
    return Measurement(estimate, f"{recipe}: throughput at the largest micro batch over that at half of it")


def _read_rates(trials: pd.DataFrame) -> Values:
    return read_observed("images_per_second", trials)


def _fit_last_doubling(sizes: Values, rates: Values) -> Estimate:
    # trials of the two largest sizes: their difference per doubling by a t test
    known = np.isfinite(sizes) & (rates > 0)
    levels = np.unique(sizes[known])
    if len(levels) < 2:
        return NOTHING
    top = known & (sizes >= levels[-2])
    return slope_estimate(np.log2(sizes[top]), np.log(rates[top]))._replace(is_ratio=True)


def _medians_by_size(sizes: Values, values: Values, groups: Numbers) -> Iterator[tuple[int, Values, Values]]:
    # of each group its first row, the distinct sizes, and the median of its values at each
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        yield int(rows[0]), *group_medians(sizes[rows], values[rows])


def _measure_near_largest(records: ComparableTrials) -> Measurement:
    # the throughput at 80 % of the largest micro batch that ran over that at half of it, of the setting with the most
    # trials at both; what did not fit lies beyond the largest
    trials = records.done
    sizes, rates = read_numbers(trials, "config.batch.micro"), _read_rates(trials)
    settings = equal_cost_groups(trials, MICRO_KEYS)
    largest = pd.Series(np.where(rates > 0, sizes, np.nan)).groupby(settings).transform("max").to_numpy(np.float64)
    near, half = (np.abs(sizes / largest - share) <= _NEAR for share in (_SHARE, 0.5))
    counts = {group: min(near[settings == group].sum(), half[settings == group].sum()) for group in np.unique(settings)}
    main = max(counts, key=lambda group: counts[group], default=0)
    chosen = (settings == main) & (near | half) & (rates > 0)
    estimate = slope_estimate(near[chosen].astype(np.float64), np.log(rates[chosen]))._replace(is_ratio=True)
    if not estimate.degrees > 0:
        return not_tested("too few trials at 80 % and at half of the largest micro batch that ran, all else equal")
    size = int(largest[chosen][0])
    ran_out = np.isin(read_text(records.trials, "outcome"), ["out_of_memory", "not_fitting"])
    beyond = bool((read_numbers(records.trials, "config.batch.micro")[ran_out] > size).any())
    limit = "a larger one did not fit" if beyond else "none that did not fit was tried"
    return Measurement(estimate, f"the largest micro batch that ran is {size}; {limit}")


def _measure_waiting(records: ComparableTrials) -> Measurement:
    # the share of the training time that waits for data which is read from outside the device
    trials = records.done[read_text(records.done, "config.data.placement") == "host"]
    chosen, recipe = find_main_recipe(trials, np.ones(len(trials), dtype=np.bool_))
    shares = read_numbers(trials, "data_wait_seconds") / read_numbers(trials, "train_seconds")
    estimate = mean_estimate(shares[chosen])
    if not estimate.degrees > 0:
        return not_tested("fewer than two trainings have images outside the device and their waiting time measured")
    return Measurement(estimate, f"{recipe}: {format_count(estimate.n, 'training')} with data.placement = host")


def _compare_precision(records: ComparableTrials, metric: str) -> Measurement:
    dtypes = read_text(records.done, "config.precision.dtype")
    is_half = np.isin(dtypes, ["bf16", "fp16"])
    chosen = is_half | (dtypes == "fp32")
    return compare_costs(records.done[chosen], "precision.dtype", is_half[chosen], metric)


def _compare_checkpointing(records: ComparableTrials, metric: str) -> Measurement:
    is_on = np.isin(read_text(records.done, "config.precision.checkpointing"), [True])
    return compare_costs(records.done, "precision.checkpointing", is_on, metric)


_BOTH_PRECISIONS = extend_space("precision.dtype", 'choice = ["fp32", "bf16"]')
_WITH_CHECKPOINTING = extend_space("precision.checkpointing", "choice = [false, true]")

_MICRO = "batch.micro"
_SHARE, _NEAR = 0.8, 0.06  # of the largest micro batch
_TIMES = ("train_seconds",)
_MEMORY = ("peak_memory_bytes",)


def _design_pairs(key: str, values: tuple[Scalar, ...], spread: float) -> Design:
    # a pair at each micro batch: seeds are of equal cost, so that they would be one pair
    return Design(space={key: values}, repeated=Repetition(key=_MICRO, low=32, high=256, is_whole=True), spread=spread)


CLAIMS = (
    Claim(
        name="memory_linear", unit="exponent", region=Region(0.9, 1.1),
        statement="Memory grows linearly with the micro batch: by its power 0.9 to 1.1, apart from a constant.",
        published="Activations grow with the micro batch; parameters, gradients and optimizer state do not; allocator "
        "rounding and workspaces bend the line.",
        measure=_measure_memory_power, settle=extend_space("batch.micro", "log2 = [4, 10]"), matters=0.1,
        varies=(_MICRO,), metrics=_MEMORY,
        design=Design(
            space={}, repeated=Repetition(key=_MICRO, low=16, high=512, is_whole=True), spread=0.03, lost=3, fewest=6
        ),
    ),
    Claim(
        name="larger_is_faster", unit="ratio", region=Region(1.05, np.inf),
        statement="A larger micro batch is faster: the last doubling that was tried still gives 5 % throughput or "
        "more.",
        published="Throughput saturates, and epochs to a target grow: MLPerf ResNet-50 reference points 35.0 at batch "
        "1,632, 42.0 at 8,192, 56.0 at 32,768, 84.5 at 65,536.",
        measure=_measure_last_doubling, settle=extend_space("batch.micro", "log2 = [4, 12]"), matters=1.05,
        varies=(_MICRO,), metrics=("images_per_second",),
        design=Design(space={_MICRO: (128, 256)}, spread=PAIRED_TIME),
    ),
    Claim(
        name="mixed_precision_time", unit="ratio", region=Region(0.5, 1 / 1.3),
        statement="Mixed precision trains 1.3 to 2 times as fast: its time is 0.5 to 0.77 of full precision's.",
        published="No table; 1.3 to 2 times is the usual claim.",
        measure=partial(_compare_precision, metric="train_seconds"), settle=_BOTH_PRECISIONS, matters=1.1,
        varies=("precision.dtype",), metrics=_TIMES,
        design=_design_pairs("precision.dtype", ("fp32", "bf16"), PAIRED_TIME),
    ),
    Claim(
        name="mixed_precision_memory", unit="ratio", region=Region(0.4, 0.6),
        statement="Mixed precision halves memory: 0.4 to 0.6 of full precision's.",
        published="Weights, gradients and optimizer state stay in full precision under autocast; only activations "
        "shrink.",
        measure=partial(_compare_precision, metric="peak_memory_bytes"), settle=_BOTH_PRECISIONS,
        matters=1.1, varies=("precision.dtype",), metrics=_MEMORY,
        design=_design_pairs("precision.dtype", ("fp32", "bf16"), PAIRED_MEMORY),
    ),
    Claim(
        name="checkpointing_time", unit="ratio", region=Region(1.2, 1.4),
        statement="Activation checkpointing costs about 30 % time: 1.2 to 1.4 times.",
        published="Chen et al. 2016: one more forward pass, about 30 %.",
        measure=partial(_compare_checkpointing, metric="train_seconds"), settle=_WITH_CHECKPOINTING, matters=1.1,
        varies=("precision.checkpointing",), metrics=_TIMES,
        design=_design_pairs("precision.checkpointing", (False, True), PAIRED_TIME),
    ),
    Claim(
        name="checkpointing_memory", unit="ratio", region=Region(0.0, 1.0),
        statement="Activation checkpointing saves memory.",
        published="Chen et al. 2016: activations of n layers in the space of sqrt(n).",
        measure=partial(_compare_checkpointing, metric="peak_memory_bytes"), settle=_WITH_CHECKPOINTING,
        matters=1.05, varies=("precision.checkpointing",), metrics=_MEMORY,
        design=_design_pairs("precision.checkpointing", (False, True), PAIRED_MEMORY),
    ),
    Claim(
        name="memory_80_percent", unit="ratio", region=Region(1.05, np.inf), matters=1.05,
        statement="A micro batch of 80 % of the largest that fits is the one to use: it gives 5 % throughput or more "
        "over half of the largest.",
        published="A margin against fragmentation that is often given as a rule; no published table.",
        measure=_measure_near_largest, settle=plan_study, varies=(_MICRO,),
        metrics=("images_per_second",),
        design=Design(space={_MICRO: (256, 410, 512)}, spread=PAIRED_TIME),
    ),
    Claim(
        name="loader_bottleneck", unit="fraction", region=Region(0.5, np.inf), matters=0.1,
        statement="The data loader is the real bottleneck: half of the training time or more is spent waiting for "
        "data that is not kept on the device.",
        published="airbench, hlb-CIFAR10 and ffcv replace the input path by images on the device or compiled loaders.",
        measure=_measure_waiting, settle=plan_study, sets=("data.placement",),
        metrics=("data_wait_seconds",),
        design=Design(base={"data.placement": "host"}, space={}, spread=0.05),
    ),
)  # fmt: skip
