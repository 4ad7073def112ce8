"""What a common claim about batch sizes is, and how trainings are paired to measure one.

A claim is a row of :mod:`sweep.analysis.claim_table`: a statement, the effect that it allows, the function that
measures the effect on records, and the smallest study that settles it. Most effects are mean differences over pairs of
trainings that differ in the settings under test alone: of accuracy, of the tuned accuracy, or of a cost.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.comparable import RECIPE_COLUMNS, ComparableTrials, find_main_recipe, read_accuracies
from sweep.analysis.costs import equal_cost_groups, num_accumulation
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics import (
    NOTHING,
    POWER,
    Estimate,
    Mask,
    Numbers,
    Region,
    Values,
    configuration_groups,
    log_ratio,
    mean_estimate,
    plain_value,
    read_numbers,
    read_text,
    weigh_extremes,
)
from sweep.config.metrics import METRICS, find_unit, format_count, join_words
from sweep.config.sections import BUDGETS
from sweep.config.trial import Scalar, default_settings, key_label, name_key

# Assumed standard deviations where a study has no records. Of the accuracy of one training: 0.006 over the seeds of
# ResNet-8 on the digits. Of the logarithm of a time: 0.05 on a machine with other tenants.
ACCURACY_SPREAD, TIME_SPREAD, MEMORY_SPREAD = 0.007, 0.05, 0.005
PAIRED_ACCURACY, PAIRED_TIME, PAIRED_MEMORY = (
    math.sqrt(2) * spread for spread in (ACCURACY_SPREAD, TIME_SPREAD, MEMORY_SPREAD)
)
TUNED_ACCURACY = 0.85 * PAIRED_ACCURACY  # the best of several rates scatters less than one training
MIN_RATES = 2  # that were tried, before the best one counts as chosen
SEED, EFFECTIVE = "seed", "global_batch_size"
_RATE_KEYS = ("optimizer.lr", "rules.lr", "rules.reference_batch")


class Measurement(NamedTuple):
    """The effect that a claim is about, of ratios its logarithm; ``detail`` names what was compared. ``region`` is what
    the claim allows where that depends on the records, ``reason`` why the claim is not tested where the estimate has no
    error."""

    estimate: Estimate = NOTHING
    detail: str = ""
    region: Region | None = None
    reason: str = ""


Measure = Callable[[ComparableTrials], Measurement]


class NextStep(NamedTuple):
    """What settles a claim: a ``command`` of a shell, and in a ``remark`` what it requires, or what settles the claim
    too. Without a command it is the claim's own study."""

    command: str = ""
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The key that has as many values as there are repetitions. Seeds are counted; other values are evenly spaced in
    the logarithm from ``low`` to ``high``, or 1 less these where ``is_complement``."""

    key: str = SEED
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    is_complement: bool = False

    def list_values(self, count: int) -> tuple[Scalar, ...]:
        """``count`` different values, fewer where whole numbers lie too close."""
        if self.key == SEED:
            return tuple(range(count))
        step = math.log(self.high / self.low) / max(count - 1, 1)
        values = [self.low * math.exp(step * i) for i in range(count)]
        if self.is_whole:
            return tuple(dict.fromkeys(round(value) for value in values))
        rounded = (float(f"{value:.4g}") for value in values)
        return tuple(round(1 - value, 8) if self.is_complement else value for value in rounded)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The smallest study that settles a claim: the keys ``base`` are fixed, the keys of ``space`` take every
    combination of their values, all of it once for each value of ``repeated``. ``spread`` is the standard deviation (of
    a ratio: of its logarithm) of the effect that one repetition measures, assumed where there are no records; ``lost``
    by how many the degrees of freedom of the test are fewer than the repetitions, ``fewest`` the repetitions that it
    requires."""

    space: Mapping[str, tuple[Scalar, ...]]
    spread: float = PAIRED_ACCURACY
    base: Mapping[str, Scalar] = field(default_factory=dict)
    repeated: Repetition = field(default_factory=Repetition)
    lost: int = 1
    fewest: int = 3

    def list_space(self, repetitions: int) -> dict[str, tuple[Scalar, ...]]:
        """The values of each key that varies."""
        return {**self.space, self.repeated.key: self.repeated.list_values(repetitions)}

    def count_trainings(self, repetitions: int) -> int:
        return math.prod(len(values) for values in self.list_space(repetitions).values())

    def list_points(self, repetitions: int) -> list[dict[str, Scalar]]:
        """The configuration keys of each training."""
        space = self.list_space(repetitions)
        points = itertools.product(*space.values())
        return [{**self.base, **dict(zip(space, values, strict=True))} for values in points]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``region`` is what the statement allows, in ``unit``; ``matters`` the distance from a bound at which an effect
    has to be found (of a ratio: a factor); ``published`` what others measured, with the source;
    ``settle`` gives what to run where the records leave the claim undecided.

    A study tests it only if it varies every key of ``varies`` (``global_batch_size`` is the effective batch size,
    whichever keys it follows from), has every key of ``sets`` at another value than the default in some
    training, and measures one metric of ``metrics``. ``design`` is the smallest such study.
    """

    name: str
    statement: str
    published: str
    region: Region
    unit: str = "fraction difference"
    matters: float = 0.005
    measure: Measure
    design: Design
    settle: Callable[[ComparableTrials], NextStep] = lambda _records: NextStep()
    varies: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("val_accuracy",)

    @property
    def is_ratio(self) -> bool:
        """Whether the effect is tested by its logarithm."""
        return find_unit(self.unit).scale == "log"

    def list_distances(self, region: Region | None = None) -> list[tuple[float, float]]:
        """The distances from a bound of the region at which an effect has to be found, on the scale of the test, each
        with the power. In a region with two bounds both have to be rejected, so each with a higher one."""
        low, high = self.scale_bounds(region or self.region)
        matters = math.log(self.matters) if self.is_ratio else self.matters
        if math.isinf(low) or math.isinf(high):
            return [(matters, POWER)]
        return [(matters, POWER), ((high - low) / 2, (1 + POWER) / 2)]

    def scale_bounds(self, region: Region) -> tuple[float, float]:
        """The bounds on the scale of the test."""
        if not self.is_ratio:
            return region.low, region.high
        return math.log(region.low) if region.low > 0 else -math.inf, math.log(region.high)

    def find_lack(self, records: ComparableTrials) -> str:
        """What the records lack so that the claim is not measured, with what a study would have to do; "" where they
        lack nothing."""
        is_measured = any(np.isfinite(read_numbers(records.done, name)).any() for name in self.metrics)
        lack = _describe_needs(
            [key for key in self.varies if not _is_varied(records, key)],
            [key for key in self.sets if not _list_values(records, f"config.{key}") - {None, default_settings()[key]}],
            () if is_measured else self.metrics,
        )
        return f"not measured by this study: to test it, a study has to {lack}" if lack else ""

    @property
    def needs(self) -> str:
        """What a study has to do so that the claim is measured, in words."""
        return _describe_needs(self.varies, self.sets, self.metrics)


def _describe_needs(varies: Collection[str], sets: Collection[str], metrics: Collection[str]) -> str:
    parts = [f"{verb} {join_words([*map(name_key, keys)])}" for verb, keys in (("vary", varies), ("set", sets)) if keys]
    labels = [f"{METRICS[name].label[:1].lower()}{METRICS[name].label[1:]} ({name})" for name in metrics]
    parts += [f"measure {' or '.join(labels)}"] if labels else []
    return ", and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _is_varied(records: ComparableTrials, key: str) -> bool:
    if key == "batch.accumulation":  # however it follows from the other keys of a batch
        return len(np.unique(num_accumulation(records.trials))) > 1
    return len(_list_values(records, key if key == EFFECTIVE else f"config.{key}")) > 1


def _list_values(records: ComparableTrials, name: str) -> set[Scalar]:
    trials = records.trials
    return set(map(plain_value, trials[name].unique())) if name in trials.columns else set()


# --- what settles a claim


def suggest_copy(words: str) -> NextStep:
    """The claim's own study, or a changed copy of the study's file, which ``words`` describe."""
    return NextStep(remark=f"{words} settles it too")


def extend_space(key: str, form: str) -> Callable[[ComparableTrials], NextStep]:
    """The claim's own study, or a copy of the study that varies ``key`` too."""
    return lambda records: suggest_copy(records.commands.extend_space(key, form))


def suggest_variant(records: ComparableTrials, suffix: str, fixed: Mapping[str, object], remark: str = "") -> NextStep:
    """The same study with the keys ``fixed``; with a budget among them, no rule scales the epochs."""
    is_ruled = not {*read_text(records.trials, "config.rules.epochs")} <= {"", "none"}
    if is_ruled and not fixed.keys().isdisjoint(f"budget.{name}" for name in BUDGETS):
        fixed = {**fixed, "rules.epochs": "none"}
    return NextStep(records.commands.run_variant(suffix, fixed), remark)


# --- pairs


Condition = Callable[[pd.DataFrame], Mask]  # of which trials it holds, shape ``[trials]``


def has(key: str, *values: Scalar) -> Condition:
    """The configuration key has one of the values; "" is no value."""
    return lambda trials: np.isin(read_text(trials, f"config.{key}"), np.array(values))


def lacks(key: str, *values: Scalar) -> Condition:
    return lambda trials: ~has(key, *values)(trials)


def is_above(key: str, bound: float = -math.inf) -> Condition:
    """The configuration key is a number above the ``bound``."""
    return lambda trials: read_numbers(trials, f"config.{key}") > bound


def is_large(least: float) -> Condition:
    """The effective batch size is ``least`` times the reference batch or more."""
    return lambda trials: (
        read_numbers(trials, EFFECTIVE) >= least * read_numbers(trials, "config.rules.reference_batch")
    )


def is_small(most: int) -> Condition:
    return lambda trials: read_numbers(trials, EFFECTIVE) <= most


def is_split(more_than: int = 1) -> Condition:
    """A step has more micro batches; it does not hold where the micro batch was found by trying."""
    return lambda trials: count_micro(trials) > more_than


def count_micro(trials: pd.DataFrame) -> Values:
    """The micro batches in a step, NaN where the micro batch was found by trying; shape ``[trials]``."""
    return num_accumulation(trials, read_numbers(trials, "config.batch.micro"))


def both(first: Condition, second: Condition) -> Condition:
    return lambda trials: first(trials) & second(trials)


def holds(trials: pd.DataFrame) -> Mask:
    return np.ones(len(trials), dtype=np.bool_)


def read_done(records: ComparableTrials) -> pd.DataFrame:
    return records.done


class Sides(NamedTuple):
    """The trials that a claim compares: ``read`` gives them, ``among`` chooses from them, and ``side`` holds for the
    side that the claim is about."""

    side: Condition
    among: Condition = holds
    read: Callable[[ComparableTrials], pd.DataFrame] = read_done

    def split(self, records: ComparableTrials) -> tuple[pd.DataFrame, Mask]:
        """The trials, and which of them are on the claim's side."""
        trials = self.read(records)
        chosen = trials[self.among(trials)]
        return chosen, np.asarray(self.side(chosen), dtype=np.bool_)


def compare_accuracies(
    records: ComparableTrials, sides: Sides, tested: Collection[str], same_batch: bool = False
) -> Measurement:
    """How much more accurate one side is than the other at equal settings and seed, apart from the ``tested`` keys.
    Where they decide the effective batch size too, ``same_batch`` holds it equal. Each of several settings counts once,
    by the mean over its seeds; trainings until a target accuracy are left out, because all of them end with it."""
    trials, side = sides.split(records)
    settings = configuration_groups(trials, tested)
    if same_batch:
        settings = _join_groups(settings, read_numbers(trials, EFFECTIVE))
    first, second = pair_by_seed(trials, settings, side)
    accuracies = read_accuracies(trials)
    gaps = accuracies[first] - accuracies[second]
    return _average_settings(trials, first, settings[first], gaps, "of equal settings")


def compare_tuned(records: ComparableTrials, sides: Sides, tested: Collection[str]) -> Measurement:
    """How much more accurate one side is than the other, each with its best learning rate, at equal settings and seed
    apart from the ``tested`` keys.

    The best of many tries is higher by chance than the best of few, so both count with the expected best of as many
    as the side with fewer has. Where several settings are compared, each counts once, by the mean over its seeds.
    """
    trials, side = sides.split(records)
    settings = configuration_groups(trials, {*tested, *_RATE_KEYS})
    cells = _join_groups(settings, read_numbers(trials, "seed"))
    accuracies, rates = read_accuracies(trials), scaled_learning_rates(trials)
    firsts, differences = [], []
    known = np.isfinite(accuracies) & np.isfinite(rates)
    known &= np.isin(cells, np.intersect1d(cells[known & side], cells[known & ~side]))
    for members in pd.Series(np.flatnonzero(known)).groupby(cells[known]).agg(list):
        rows = np.array(members)
        ours, others = rows[side[rows]], rows[~side[rows]]
        if min(len(np.unique(rates[ours])), len(np.unique(rates[others]))) >= MIN_RATES:
            num_drawn = min(len(ours), len(others))
            firsts.append(int(ours[np.argmax(accuracies[ours])]))
            differences.append(expect_best(accuracies[ours], num_drawn) - expect_best(accuracies[others], num_drawn))
    first, gaps = np.array(firsts, dtype=np.int64), np.array(differences, dtype=np.float64)
    return _average_settings(trials, first, settings[first], gaps, "of tuned recipes of equal settings")


def expect_best(values: Values, num_drawn: int) -> float:
    """The expected largest of ``num_drawn`` of the ``values`` (shape ``[n]``), drawn without replacement."""
    return float(np.dot(weigh_extremes(len(values), num_drawn, len(values)), np.sort(values)[::-1]))


def compare_costs(records: ComparableTrials, sides: Sides, tested: str, metric: str) -> Measurement:
    """The ratio of ``metric`` between the sides, in pairs of equal cost but for the key ``tested``."""
    trials, side = sides.split(records)
    first, second = pair_by_cost(trials, equal_cost_groups(trials, (tested,)), side)
    values = read_comparable_costs(trials, metric)
    kind = f"of equal cost but for {key_label(tested)}"
    return estimate_main_recipe(trials, first, log_ratio(values[first], values[second]), kind, is_ratio=True)


def read_comparable_costs(trials: pd.DataFrame, metric: str) -> Values:
    """The values of ``metric``, shape ``[trials]``. A time is NaN where the budget does not fix the number of samples:
    until a target, or for so many seconds, a training takes more or fewer."""
    is_open = np.isfinite(read_numbers(trials, "config.budget.target_accuracy"))
    is_open |= np.isfinite(read_numbers(trials, "config.budget.seconds"))
    values = read_numbers(trials, metric)
    return np.where(is_open, np.nan, values) if metric.endswith("_seconds") else values


def pair_by_cost(trials: pd.DataFrame, cells: Numbers, side: Mask) -> tuple[Numbers, Numbers]:
    """One pair of rows for each of the ``cells`` (shape ``[trials]``) with trials on both sides: of each side the
    median in ``train_seconds``. Trials of equal cost are repetitions of one measurement."""
    return _pair(cells, side, read_numbers(trials, "train_seconds"))


def pair_by_seed(trials: pd.DataFrame, settings: Numbers, side: Mask) -> tuple[Numbers, Numbers]:
    """One pair of rows for each of the ``settings`` (shape ``[trials]``) and each seed with trials on both sides."""
    cells = _join_groups(settings, read_numbers(trials, "seed"))
    return _pair(cells, side, read_numbers(trials, "number"))


def _pair(cells: Numbers, side: Mask, order: Values) -> tuple[Numbers, Numbers]:
    firsts, seconds = (_middle_rows(cells, chosen & np.isfinite(order), order) for chosen in (side, ~side))
    shared = firsts.index.intersection(seconds.index, sort=False)
    return np.asarray(firsts[shared], dtype=np.int64), np.asarray(seconds[shared], dtype=np.int64)


def _middle_rows(cells: Numbers, chosen: Mask, order: Values) -> "pd.Series[int]":
    # by cell the row in the middle of its chosen rows
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((order[rows], cells[rows]))]
    names, starts, counts = np.unique(cells[rows], return_index=True, return_counts=True)
    return pd.Series(rows[starts + (counts - 1) // 2], index=names, dtype=np.int64)


def _join_groups(first: Numbers, second: Values) -> Numbers:
    # one number for each combination; a missing value makes one of its own
    table = np.stack([first, np.nan_to_num(second, nan=-1.0)], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def group_costs(trials: pd.DataFrame, tested: Collection[str]) -> Numbers:
    """The same number for trials of equal cost, apart from the ``tested`` keys, and of one effective batch size."""
    return _join_groups(equal_cost_groups(trials, tested), read_numbers(trials, EFFECTIVE))


def _average_settings(trials: pd.DataFrame, firsts: Numbers, settings: Numbers, gaps: Values, kind: str) -> Measurement:
    rows, averages = average_by_cell(settings, gaps)
    if np.isfinite(averages).sum() >= 2:
        return estimate_main_recipe(trials, firsts[rows], averages, f"{kind}, means over equal seeds")
    return estimate_main_recipe(trials, firsts, gaps, f"{kind} and seed")


def average_by_cell(cells: Numbers, values: Values) -> tuple[Numbers, Values]:
    """The first row of each of ``cells`` and the mean of its finite ``values`` (both of shape ``[n]``), so that a trial
    that is in several pairs of its cell counts once."""
    rows = np.asarray(np.unique(cells, return_index=True)[1], dtype=np.int64)
    return rows, np.asarray(pd.Series(values).groupby(cells).mean(), dtype=np.float64)


def estimate_main_recipe(
    trials: pd.DataFrame, firsts: Numbers, effects: Values, kind: str, is_ratio: bool = False
) -> Measurement:
    """The mean of the ``effects`` (shape ``[pairs]``) of the model and optimizer that most pairs have; ``firsts`` is
    the row of the first trial of each pair, ``kind`` what the pairs have in common."""
    chosen, recipe = find_main_recipe(trials.filter(RECIPE_COLUMNS).iloc[firsts], np.isfinite(effects))
    estimate = mean_estimate(effects[chosen], is_ratio=is_ratio)
    if estimate.degrees > 0:
        return Measurement(estimate, f"{recipe}: {format_count(estimate.n, 'pair')} {kind}")
    lack = f"only one pair {kind} (of {recipe})" if estimate.n else f"no pair {kind}"
    return Measurement(reason=f"the records have {lack}; two or more of one model and optimizer are required")
