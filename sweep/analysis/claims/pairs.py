"""Pairs of trials, or of costs, that differ in the settings under test and in nothing else."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.statistics.frame_columns import read_numbers
from sweep.analysis.statistics.grouping import Numbers, configuration_groups
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.posterior import equal_cost_groups


@dataclass(frozen=True)
class Pairs:
    """Rows of the trials: ``first[i]`` and ``second[i]`` differ in the tested settings only."""

    first: Numbers
    second: Numbers


def cost_pairs(trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None) -> Pairs:
    """One pair for each setting of what a step's cost depends on, ``tested`` keys aside: a trial of ``side`` against
    one of the others, both the medians of theirs in ``train_seconds``.

    ``within`` (shape ``[len(trials)]``), where given, must be equal in a pair too.
    """
    groups = equal_cost_groups(trials, tested)
    return _pair(groups, side, within, read_numbers(trials, "train_seconds"))


def seed_pairs(trials: pd.DataFrame, tested: Collection[str], side: Mask, within: Values | None = None) -> Pairs:
    """Pairs of equal settings and equal seed, ``tested`` keys aside."""
    groups = configuration_groups(trials, tested)
    seeds = read_numbers(trials, "seed")
    joined = _join(groups.astype(np.float64), seeds)
    return _pair(joined, side, within, read_numbers(trials, "number"))


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
