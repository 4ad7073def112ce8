"""Pairs of trials that differ in the settings under test and in nothing else, and the differences between them."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Measurement
from sweep.analysis.comparable_trials import ACCURACY
from sweep.analysis.statistics.estimates import log_ratio, mean_estimate
from sweep.analysis.statistics.frame_columns import format_count, read_numbers
from sweep.analysis.statistics.grouping import Numbers, configuration_groups
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.posterior import equal_cost_groups

# The keys that divide the samples of a step into micro batches.
MICRO_KEYS = ("batch.micro", "batch.accumulation", "batch.global")


@dataclass(frozen=True)
class Pairs:
    """Rows of the trials, both of shape ``[pairs]``: ``first[i]`` and ``second[i]`` differ in the tested settings."""

    first: Numbers
    second: Numbers


def pair_by_cost(trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None) -> Pairs:
    """One pair for each setting of what a step's cost depends on, apart from the ``tested`` keys: a trial of ``side``
    (shape ``[trials]``) against one of the others, each the median of its kind in ``train_seconds``.

    Where ``within`` (shape ``[trials]``) is given, it is equal in a pair too.
    """
    return _pair(equal_cost_groups(trials, tested), side, within, read_numbers(trials, "train_seconds"))


def compare_costs(trials: pd.DataFrame, tested: str, side: Mask, metric: str) -> Measurement:
    """The ratio of ``metric`` between the trials of ``side`` (shape ``[trials]``) and others of equal cost but for the
    key ``tested``."""
    pairs, values = pair_by_cost(trials, (tested,), side), read_numbers(trials, metric)
    estimate = mean_estimate(log_ratio(values[pairs.first], values[pairs.second]), is_ratio=True)
    return Measurement(estimate, count_pairs(estimate.n, f"of equal cost but for {tested}"))


def compare_accuracies(
    trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None
) -> Measurement:
    """The accuracy of the trials of ``side`` (shape ``[trials]``) less that of others of equal settings and seed,
    apart from the ``tested`` keys."""
    groups = _join(configuration_groups(trials, tested).astype(np.float64), read_numbers(trials, "seed"))
    pairs, accuracies = _pair(groups, side, within, read_numbers(trials, "number")), read_numbers(trials, ACCURACY)
    estimate = mean_estimate(accuracies[pairs.first] - accuracies[pairs.second])
    return Measurement(estimate, count_pairs(estimate.n, "of equal settings and seed"))


def count_pairs(n: int, kind: str) -> str:
    """The number of pairs in words, "" for none."""
    return f"{format_count(n, 'pair')} {kind}" if n else ""


def _pair(groups: Numbers, side: Mask, within: Values | None, order: Values) -> Pairs:
    cells = groups if within is None else _join(groups.astype(np.float64), within)
    firsts, seconds = _medians(cells, side, order), _medians(cells, ~side, order)
    shared = [cell for cell in firsts if cell in seconds]
    return Pairs(
        np.array([firsts[cell] for cell in shared], dtype=np.int64),
        np.array([seconds[cell] for cell in shared], dtype=np.int64),
    )


def _medians(cells: Numbers, chosen: Mask, order: Values) -> dict[int, int]:
    # the row in the middle of each cell's chosen rows
    rows = np.flatnonzero(chosen & np.isfinite(order))
    rows = rows[np.lexsort((order[rows], cells[rows]))]
    names, starts, counts = np.unique(cells[rows], return_index=True, return_counts=True)
    middle = rows[starts + (counts - 1) // 2]
    return dict(zip(names.tolist(), middle.tolist(), strict=True))


def _join(first: Values, second: Values) -> Numbers:
    # one number for each combination; a missing value makes a combination of its own
    table = np.stack([first, np.nan_to_num(second, nan=-1.0)], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)
