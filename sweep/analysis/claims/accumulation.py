"""Claims about gradient accumulation: its cost in time, its saving in memory, its effect on accuracy."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim, Measurement, NextStep, plan_study, suggest_copy
from sweep.analysis.claims.design import PAIRED_ACCURACY, PAIRED_MEMORY, PAIRED_TIME, TUNED_ACCURACY, Design, Repetition
from sweep.analysis.claims.pairs import (
    average_by_cell,
    compare_accuracies,
    estimate_main_recipe,
    number_cells,
    pair_by_cost,
    read_comparable_costs,
)
from sweep.analysis.claims.tuned_pairs import compare_tuned
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.costs import num_accumulation
from sweep.analysis.covariates import MICRO_KEYS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region, log_ratio
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.tables.models import has_batch_statistics
from sweep.config.trial_config import Scalar

_MANY = 16  # micro batches in a step
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
    is_batch = np.asarray(read_text(records.done, "config.model.norm") == "batch", dtype=np.bool_)
    trials = records.done[is_batch & _is_normed(records.done)]
    return compare_accuracies(
        trials, MICRO_KEYS, _num_configured(trials) > 1, read_numbers(trials, "global_batch_size")
    )


def _measure_divergence(records: ComparableTrials) -> Measurement:
    # where nothing depends on the micro batch but the number of gradients in a step; what diverged reached nothing
    trials = records.trials
    outcomes = read_text(trials, "outcome")
    accuracies = np.where(outcomes == "diverged", 0.0, read_numbers(trials, "val_accuracy"))
    trials = trials.assign(val_accuracy=accuracies)[np.isin(outcomes, ["complete", "diverged"]) & ~_is_normed(trials)]
    batches = read_numbers(trials, "global_batch_size")
    return compare_accuracies(trials, MICRO_KEYS, _num_configured(trials) > _MANY, batches)


def _measure_without(records: ComparableTrials) -> Measurement:
    # at one micro batch, each side with the rate that suits it
    trials = records.done
    return compare_tuned(trials, ("batch.accumulation", "batch.global"), _num_configured(trials) == 1)


def _measure_average(records: ComparableTrials) -> Measurement:
    decays = read_numbers(records.done, "config.regularization.ema_decay")
    trials = records.done[np.isfinite(decays) & ~_is_normed(records.done)]
    batches = read_numbers(trials, "global_batch_size")
    return compare_accuracies(trials, MICRO_KEYS, _num_configured(trials) > 1, batches)


def _is_normed(trials: pd.DataFrame) -> Mask:
    # whether the statistics of a normalization are those of the micro batch
    models = zip(*(read_text(trials, f"config.model.{key}") for key in ("name", "norm")), strict=True)
    return np.array([has_batch_statistics(name, norm) is not False for name, norm in models], dtype=np.bool_)


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


def _settle(records: ComparableTrials) -> NextStep:
    return suggest_copy(
        f"a copy of {records.commands.argument} under a new name, with batch.global and optimizer.lr fixed in "
        '[base], sampler = "grid" and "batch.micro" = { log2 = [4, 8] } in [space]'
    )


_MICRO, _GLOBAL, _SPLIT = "batch.micro", "batch.global", "batch.accumulation"
_WITHOUT_STATISTICS: dict[str, Scalar] = {"model.name": "vit_micro", "optimizer.name": "adamw", "optimizer.lr": 0.005}


def _design_costs(spread: float) -> Design:
    # a pair at each effective batch size: seeds are of equal cost, so that they would be one pair
    sizes = Repetition(key=_GLOBAL, low=128, high=512, is_whole=True)
    return Design(space={_MICRO: (32, 512)}, repeated=sizes, spread=spread)


CLAIMS = (
    Claim(
        name="accumulation_time", unit="ratio", region=Region(1.5, 2.0), matters=1.1,
        statement="Accumulation takes 1.5 to 2 times the time of the same effective batch size without it.",
        published="No published figure; on one device it is the same arithmetic.",
        measure=_measure_time, settle=_settle, varies=(_SPLIT,), metrics=("train_seconds", "images_per_second"),
        design=_design_costs(PAIRED_TIME),
    ),
    Claim(
        name="accumulation_memory", unit="fraction", region=Region(0.9, np.inf), matters=0.05,
        statement="Accumulation over k micro batches saves 1 - 1 / k of the memory (85 % at k = 8), or at least 90 % "
        "of that.",
        published="Only activations shrink; parameters, gradients and optimizer state do not.",
        measure=_measure_memory, settle=_settle, varies=(_SPLIT,), metrics=("peak_memory_bytes",),
        design=_design_costs(PAIRED_MEMORY),
    ),
    Claim(
        name="accumulation_batch_norm", unit="fraction difference", region=Region(-0.005, 0.005), matters=0.005,
        statement="With batch normalization, accumulation still gives the accuracy of the large batch, within half a "
        "point.",
        published="Exact without batch normalization; with it the statistics are those of the micro batch (ghost batch "
        "normalization, Hoffer et al. 2017).",
        measure=_measure_batch_norm, settle=_settle, varies=(_SPLIT,),
        design=Design(base={_GLOBAL: 256}, space={_MICRO: (32, 256)}, spread=PAIRED_ACCURACY),
    ),
    Claim(
        name="accumulation_diverges", unit="fraction difference", region=Region(-np.inf, -0.005), matters=0.005,
        statement="Accumulation over more than 16 micro batches diverges or loses half a point of accuracy or more "
        "against fewer at the same effective batch size, without batch normalization; what diverged counts as 0.",
        published="Attributed to stale gradients, for which there is no mechanism: the gradients of one step are taken "
        "at the same weights.",
        measure=_measure_divergence, settle=plan_study, varies=(_SPLIT,),
        design=Design(
            base={**_WITHOUT_STATISTICS, _GLOBAL: 512}, space={_MICRO: (16, 128)}, spread=PAIRED_ACCURACY
        ),
    ),
    Claim(
        name="accumulation_wasteful", unit="fraction difference", region=Region(-0.005, np.inf), matters=0.005,
        statement="Accumulation is wasteful: steps of one micro batch reach the same accuracy within half a point, or "
        "more, at an equal length of training and with the learning rate chosen for each.",
        published="Marek et al. 2025 (arXiv:2507.07101): small batches perform as well or better per FLOP; "
        "accumulation is recommended only for several devices.",
        measure=_measure_without, settle=plan_study, varies=(_SPLIT, "optimizer.lr"),
        design=Design(
            space={"batch.accumulation": (1, 4), "optimizer.lr": (0.01, 0.03, 0.1, 0.3)}, spread=TUNED_ACCURACY
        ),
    ),
    Claim(
        name="ema_per_step", unit="fraction difference", region=Region(-0.005, 0.005), matters=0.005,
        statement="A moving average of the weights that follows optimizer steps gives the same accuracy with "
        "accumulation as without, within half a point, without batch normalization.",
        published="By definition; an average that follows backward passes decays k times as fast with k micro "
        "batches.",
        measure=_measure_average, settle=plan_study, varies=(_SPLIT,),
        sets=("regularization.ema_decay",),
        design=Design(
            base={**_WITHOUT_STATISTICS, _GLOBAL: 256, "regularization.ema_decay": 0.95}, space={_MICRO: (32, 256)},
            spread=PAIRED_ACCURACY,
        ),
    ),
)  # fmt: skip
