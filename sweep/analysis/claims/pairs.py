"""Pairs of trials that differ in the settings under test and in nothing else, and the differences between them."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Measurement, not_tested
from sweep.analysis.comparable_trials import RECIPE_COLUMNS, find_main_recipe, read_accuracies
from sweep.analysis.costs import equal_cost_groups
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.estimates import log_ratio, mean_estimate
from sweep.analysis.statistics.grouping import Numbers, configuration_groups
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.key_labels import key_label
from sweep.config.units import format_count

Pairs = tuple[Numbers, Numbers]  # rows of the trials, each of shape [pairs]


def pair_by_cost(trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None) -> Pairs:
    """One pair for each setting of what a step's cost depends on, apart from the ``tested`` keys: a trial of ``side``
    (shape ``[trials]``) against one of the others, each the median of its kind in ``train_seconds``.

    Where ``within`` (shape ``[trials]``) is given, it is equal in a pair too.
    """
    return _pair(equal_cost_groups(trials, tested), side, within, read_numbers(trials, "train_seconds"))


def compare_costs(trials: pd.DataFrame, tested: str, side: Mask, metric: str) -> Measurement:
    """The ratio of ``metric`` between the trials of ``side`` (shape ``[trials]``) and others of equal cost but for the
    key ``tested``."""
    first, second = pair_by_cost(trials, (tested,), side)
    values = read_comparable_costs(trials, metric)
    return estimate_main_recipe(
        trials,
        first,
        log_ratio(values[first], values[second]),
        f"of equal cost but for {key_label(tested)}",
        is_ratio=True,
    )


def read_comparable_costs(trials: pd.DataFrame, metric: str) -> Values:
    """The values of ``metric``, shape ``[trials]``: of times those of trainings whose number of samples is fixed by
    the budget, because until a target, or for so many seconds, a training takes more or fewer samples."""
    is_open = np.isfinite(read_numbers(trials, "config.budget.target_accuracy"))
    is_open |= np.isfinite(read_numbers(trials, "config.budget.seconds"))
    values = read_numbers(trials, metric)
    return np.where(is_open, np.nan, values) if metric.endswith("_seconds") else values


def compare_accuracies(
    trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None
) -> Measurement:
    """The accuracy of the trials of ``side`` (shape ``[trials]``) less that of others of equal settings and seed,
    apart from the ``tested`` keys. Where several settings are paired, each counts once, by the mean over its seeds;
    trainings until a target accuracy are left out, because all of them end with it."""
    settings = configuration_groups(trials, tested)
    first, second = pair_by_seed(trials, tested, side, within)
    accuracies = read_accuracies(trials)
    cells = settings if within is None else join_groups(settings, within)
    differences = accuracies[first] - accuracies[second]
    rows, averages = average_by_cell(cells[first], differences)
    if np.isfinite(averages).sum() >= 2:
        return estimate_main_recipe(trials, first[rows], averages, "of equal settings, means over equal seeds")
    return estimate_main_recipe(trials, first, differences, "of equal settings and seed")


def pair_by_seed(trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None) -> Pairs:
    """One pair for each setting, apart from the ``tested`` keys, and seed; otherwise as :func:`pair_by_cost`."""
    groups = join_groups(configuration_groups(trials, tested), read_numbers(trials, "seed"))
    return _pair(groups, side, within, read_numbers(trials, "number"))


def estimate_main_recipe(
    trials: pd.DataFrame, firsts: Numbers, effects: Values, kind: str, is_ratio: bool = False
) -> Measurement:
    """The mean of the ``effects`` (shape ``[pairs]``) of the model and optimizer that most pairs have; ``firsts`` is
    the row of the first trial of each pair, ``kind`` what the pairs have in common."""
    chosen, recipe = find_main_recipe(trials.filter(RECIPE_COLUMNS).iloc[firsts], np.isfinite(effects))
    estimate = mean_estimate(effects[chosen], is_ratio=is_ratio)
    if estimate.degrees > 0:
        return Measurement(estimate, f"{recipe}: {count_pairs(estimate.n, kind)}")
    has = f"only one pair {kind} (of {recipe})" if estimate.n else f"no pair {kind}"
    return not_tested(f"the records have {has}; two or more of one model and optimizer are required")


def average_by_cell(cells: Numbers, values: Values) -> tuple[Numbers, Values]:
    """The first row of each of ``cells`` and the mean of its finite ``values`` (both of shape ``[n]``), so that a trial
    that is in several pairs of its cell counts once."""
    rows = np.asarray(np.unique(cells, return_index=True)[1], dtype=np.int64)
    return rows, np.asarray(pd.Series(values).groupby(cells).mean(), dtype=np.float64)


def number_cells(trials: pd.DataFrame, tested: Collection[str], within: Values) -> Numbers:
    """The same number for trials that :func:`pair_by_cost` may pair; shape ``[trials]``."""
    return join_groups(equal_cost_groups(trials, tested), within)


def count_pairs(n: int, kind: str) -> str:
    """The number of pairs in words, "" for none."""
    return f"{format_count(n, 'pair')} {kind}" if n else ""


def _pair(groups: Numbers, side: Mask, within: Values | None, order: Values) -> Pairs:
    cells = groups if within is None else join_groups(groups, within)
    firsts, seconds = (_middle_rows(cells, chosen & np.isfinite(order), order) for chosen in (side, ~side))
    shared = firsts.index.intersection(seconds.index, sort=False)
    return np.asarray(firsts[shared], dtype=np.int64), np.asarray(seconds[shared], dtype=np.int64)


def _middle_rows(cells: Numbers, chosen: Mask, order: Values) -> "pd.Series[int]":
    # by cell the row in the middle of its chosen rows
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((order[rows], cells[rows]))]
    names, starts, counts = np.unique(cells[rows], return_index=True, return_counts=True)
    return pd.Series(rows[starts + (counts - 1) // 2], index=names, dtype=np.int64)


def join_groups(first: Values | Numbers, second: Values) -> Numbers:
    """One number for each combination of two columns (shape ``[n]``); a missing value makes one of its own."""
    table = np.stack([first, np.nan_to_num(second, nan=-1.0)], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)
