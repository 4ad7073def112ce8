"""Claims about gradient accumulation: its cost in time, its saving in memory, its effect on batch normalization."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim, Measurement
from sweep.analysis.claims.pairs import (
    average_by_cell,
    compare_accuracies,
    estimate_main_recipe,
    number_cells,
    pair_by_cost,
    read_comparable_costs,
)
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.covariates import MICRO_KEYS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region, log_ratio
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Values
from sweep.analysis.trial_shapes import num_accumulation
from sweep.config.tables.models import has_batch_statistics

_PAIRS = "of equal cost and effective batch size, with accumulation (mean) against without"


def _measure_time(records: ComparableTrials) -> Measurement:
    trials = records.done
    seconds, rates = read_comparable_costs(trials, "train_seconds"), read_numbers(trials, "images_per_second")
    # of trainings of one length the times are as the throughputs are
    seconds = np.where(np.isfinite(seconds), seconds, 1 / np.where(rates > 0, rates, np.nan))
    pairs = _pair_by_count(trials, seconds)
    return _estimate_by_cell(trials, pairs, log_ratio(pairs.split, pairs.whole), is_ratio=True)


def _measure_memory(records: ComparableTrials) -> Measurement:
    # what was saved over what would be saved if all memory were in proportion to the micro batch, 1 - 1 / k
    pairs = _pair_by_count(records.done, read_numbers(records.done, "peak_memory_bytes"))
    shares = (1 - np.exp(log_ratio(pairs.split, pairs.whole))) / (1 - 1 / pairs.counts)
    return _estimate_by_cell(records.done, pairs, shares)


def _measure_batch_norm(records: ComparableTrials) -> Measurement:
    models = zip(*(read_text(records.done, f"config.model.{key}") for key in ("name", "norm")), strict=True)
    is_normed = [norm == "batch" and bool(has_batch_statistics(name, norm)) for name, norm in models]
    trials = records.done[np.array(is_normed, dtype=np.bool_)]
    return compare_accuracies(
        trials, MICRO_KEYS, _num_configured(trials) > 1, read_numbers(trials, "global_batch_size")
    )


class _Pairs(NamedTuple):
    """Pairs of several micro batches against one: the values of both, the number of micro batches, the row of the
    first trial, and the cell, whose pairs have the trial with one micro batch in common. All of shape ``[pairs]``."""

    split: Values
    whole: Values
    counts: Values
    rows: Numbers
    cells: Numbers


def _pair_by_count(trials: pd.DataFrame, values: Values) -> _Pairs:
    counts, batches = _num_configured(trials), read_numbers(trials, "global_batch_size")
    firsts, seconds = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for count in np.unique(counts[np.isfinite(counts) & (counts > 1)]):
        rows = np.flatnonzero((counts == count) | (counts == 1))
        first, second = pair_by_cost(trials.iloc[rows], MICRO_KEYS, counts[rows] == count, batches[rows])
        firsts.append(rows[first])
        seconds.append(rows[second])
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    cells = number_cells(trials, MICRO_KEYS, batches)[first]
    return _Pairs(values[first], values[second], counts[first], first, cells)


def _estimate_by_cell(trials: pd.DataFrame, pairs: _Pairs, effects: Values, is_ratio: bool = False) -> Measurement:
    rows, averages = average_by_cell(pairs.cells, effects)
    return estimate_main_recipe(trials, pairs.rows[rows], averages, _PAIRS, is_ratio)


def _num_configured(trials: pd.DataFrame) -> Values:
    # NaN where the micro batch was found by trying
    return num_accumulation(trials, read_numbers(trials, "config.batch.micro"))


def _settle(records: ComparableTrials) -> str:
    return (
        f"a copy of {records.commands.argument} under a new name, with batch.global and optimizer.lr fixed in "
        '[base], sampler = "grid" and "batch.micro" = { log2 = [4, 8] } in [space]'
    )


CLAIMS = (
    Claim(
        name="accumulation_time", unit="ratio", region=Region(1.5, 2.0),
        statement="Accumulation takes 1.5 to 2 times the time of the same effective batch size without it.",
        published="No published figure; on one device it is the same arithmetic.",
        measure=_measure_time, settle=_settle,
    ),
    Claim(
        name="accumulation_memory", unit="fraction", region=Region(0.9, np.inf),
        statement="Accumulation over k micro batches saves 1 - 1 / k of the memory (85 % at k = 8), or at least 90 % "
        "of that.",
        published="Only activations shrink; parameters, gradients and optimizer state do not.",
        measure=_measure_memory, settle=_settle,
    ),
    Claim(
        name="accumulation_batch_norm", unit="fraction difference", region=Region(-0.005, 0.005),
        statement="With batch normalization, accumulation still gives the accuracy of the large batch, within half a "
        "point.",
        published="Exact without batch normalization; with it the statistics are those of the micro batch (ghost batch "
        "normalization, Hoffer et al. 2017).",
        measure=_measure_batch_norm, settle=_settle,
    ),
)  # fmt: skip
