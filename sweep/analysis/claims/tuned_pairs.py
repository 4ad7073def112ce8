"""Comparisons of recipes, each with the learning rate that suits it, at an equal number of tries."""

import math
from collections.abc import Collection

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Measurement
from sweep.analysis.claims.pairs import average_by_cell, estimate_main_recipe, join_groups
from sweep.analysis.comparable_trials import read_accuracies
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.grouping import Numbers, configuration_groups
from sweep.analysis.statistics.pareto import Mask, Values

_MIN_RATES = 2  # that each side tried, before its best one counts as chosen
_RATE_KEYS = ("optimizer.lr", "rules.lr", "rules.reference_batch")


def compare_tuned(trials: pd.DataFrame, tested: Collection[str], side: Mask) -> Measurement:
    """The best accuracy over the learning rates of the trials of ``side`` (shape ``[trials]``) less that of the others,
    of equal settings and seed apart from the ``tested`` keys.

    The best of many tries is higher by chance than that of few, so both count with the expected best of as many tries
    as the side with fewer has. Where several settings are compared, each counts once, by the mean over its seeds.
    """
    settings = configuration_groups(trials, {*tested, *_RATE_KEYS})
    cells = join_groups(settings, read_numbers(trials, "seed"))
    accuracies, rates = read_accuracies(trials), scaled_learning_rates(trials)
    firsts, differences = _compare_cells(cells, side, accuracies, rates)
    rows, averages = average_by_cell(settings[firsts], differences)
    if np.isfinite(averages).sum() >= 2:
        kind = "of tuned recipes of equal settings, means over equal seeds"
        return estimate_main_recipe(trials, firsts[rows], averages, kind)
    return estimate_main_recipe(trials, firsts, differences, "of tuned recipes of equal settings and seed")


def expect_best(values: Values, num_drawn: int) -> float:
    """The expected largest of ``num_drawn`` of the ``values`` (shape ``[n]``), drawn without replacement: the i-th
    largest is it with probability C(n - i, m - 1) / C(n, m) (Dodge et al. 2019)."""
    n, ordered = len(values), np.sort(values)[::-1]
    weights = [math.comb(n - place - 1, num_drawn - 1) / math.comb(n, num_drawn) for place in range(n)]
    return float(np.dot(weights, ordered))


def _compare_cells(cells: Numbers, side: Mask, accuracies: Values, rates: Values) -> tuple[Numbers, Values]:
    # of each cell in which both sides were tuned the row of the side's best trial, and the difference
    firsts, differences = [], []
    known = np.isfinite(accuracies) & np.isfinite(rates)
    known &= np.isin(cells, np.intersect1d(cells[known & side], cells[known & ~side]))
    for rows in pd.Series(np.arange(len(cells))[known]).groupby(cells[known]).agg(list):
        ours, others = (np.array([row for row in rows if side[row] == is_side]) for is_side in (True, False))
        if min(len(np.unique(rates[each.astype(np.int64)])) for each in (ours, others)) < _MIN_RATES:
            continue
        num_drawn = min(len(ours), len(others))
        firsts.append(int(ours[np.argmax(accuracies[ours])]))
        differences.append(expect_best(accuracies[ours], num_drawn) - expect_best(accuracies[others], num_drawn))
    return np.array(firsts, dtype=np.int64), np.array(differences, dtype=np.float64)
