"""Claims about gradient accumulation: its cost in time, its saving in memory, its effect on batch normalisation."""

import numpy as np
import pandas as pd

from sweep.analysis.claims.claim import Claim
from sweep.analysis.claims.pairs import Pairs, cost_pairs, seed_pairs
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import Region, log_ratio, mean_estimate
from sweep.analysis.statistics.frame_columns import format_count, read_numbers, read_text
from sweep.analysis.statistics.pareto import Values
from sweep.config.models import has_batch_statistics

MICRO_KEYS = ("batch.micro", "batch.accumulation", "batch.global")


def claims(ground: ComparableTrials) -> list[Claim]:
    """Time, memory, batch normalisation."""
    trials = ground.done
    settle = (
        f"a copy of {ground.called.argument} under a new name, with batch.global and optimizer.lr fixed in "
        '[base], sampler = "grid" and "batch.micro" = { log2 = [4, 8] } in [space]'
    )
    return [accumulation_time(trials, settle), accumulation_memory(trials, settle), batch_norm_effect(trials, settle)]


def num_accumulation(trials: pd.DataFrame) -> Values:
    """Micro batches per optimizer step on each rank; NaN where the micro batch was found by trying."""
    ranks = np.nan_to_num(read_numbers(trials, "config.distributed.world_size"), nan=1.0)
    return np.ceil(read_numbers(trials, "global_batch_size") / (read_numbers(trials, "config.batch.micro") * ranks))


def seconds_per_image(trials: pd.DataFrame) -> Values:
    """Training time of an image; of all images where the throughput is not on record."""
    rates = read_numbers(trials, "images_per_second")
    seconds = 1 / np.where(rates > 0, rates, np.nan)
    return np.where(np.isfinite(seconds), seconds, read_numbers(trials, "train_seconds"))


def accumulation_time(trials: pd.DataFrame, settle: str) -> Claim:
    """Time of an image with accumulation over that without, at the same global batch."""
    ratios = [
        log_ratio(seconds[pairs.first], seconds[pairs.second])
        for seconds, pairs, _ in _by_count(trials, seconds_per_image(trials))
    ]
    estimate = mean_estimate(np.concatenate(ratios) if ratios else [], is_ratio=True)
    return Claim(
        "accumulation_time",
        "Accumulation costs 1.5 to 2 times the time of the same global batch in one piece.",
        Region(1.5, 2.0),
        "ratio",
        "No published figure; on one device it is the same arithmetic.",
        settle,
        estimate,
        _pairs(estimate.n),
    )


def accumulation_memory(trials: pd.DataFrame, settle: str) -> Claim:
    """What was saved over what would be saved if all memory were in proportion to the micro batch, 1 - 1 / k."""
    shares = [
        (1 - np.exp(log_ratio(memory[pairs.first], memory[pairs.second]))) / (1 - 1 / count)
        for memory, pairs, count in _by_count(trials, read_numbers(trials, "peak_memory_bytes"))
    ]
    estimate = mean_estimate(np.concatenate(shares) if shares else [])
    return Claim(
        "accumulation_memory",
        "Accumulation of k micro batches saves memory in proportion, 1 - 1 / k (85 % at 8): 0.9 or more of that.",
        Region(0.9, np.inf),
        "fraction",
        "Only activations shrink; parameters, gradients and optimizer state do not.",
        settle,
        estimate,
        _pairs(estimate.n),
    )


def batch_norm_effect(trials: pd.DataFrame, settle: str) -> Claim:
    """Accuracy with accumulation less that of the same global batch in one piece, with batch normalisation."""
    settings = zip(read_text(trials, "config.model.name"), read_text(trials, "config.model.norm"), strict=True)
    is_normed = [norm == "batch" and bool(has_batch_statistics(name, norm)) for name, norm in settings]
    chosen = trials[np.array(is_normed, dtype=np.bool_)]
    side = np.asarray(num_accumulation(chosen) > 1, dtype=np.bool_)
    pairs = seed_pairs(chosen, MICRO_KEYS, side, read_numbers(chosen, "global_batch_size"))
    accuracies = read_numbers(chosen, "val_accuracy")
    estimate = mean_estimate(accuracies[pairs.first] - accuracies[pairs.second])
    return Claim(
        "accumulation_batch_norm",
        "With batch normalisation, accumulation still gives the accuracy of the large batch, within half a point.",
        Region(-0.005, 0.005),
        "fraction",
        "Exact without batch normalisation; with it the statistics are those of the micro batch (ghost batch "
        "normalisation, Hoffer et al. 2017).",
        settle,
        estimate,
        f"{format_count(estimate.n, 'pair')} of equal settings and seed" if estimate.n else "",
    )


def _by_count(trials: pd.DataFrame, values: Values) -> list[tuple[Values, Pairs, float]]:
    # for every number of micro batches above one: the values of the trials that have it or one piece, and their pairs
    counts = num_accumulation(trials)
    found = []
    for count in np.unique(counts[np.isfinite(counts) & (counts > 1)]):
        rows = np.asarray((counts == count) | (counts == 1), dtype=np.bool_)
        some = trials[rows]
        side = np.asarray(counts[rows] == count, dtype=np.bool_)
        pairs = cost_pairs(some, MICRO_KEYS, side, read_numbers(some, "global_batch_size"))
        if len(pairs.first):
            found.append((values[rows], pairs, float(count)))
    return found


def _pairs(n: int) -> str:
    return f"{format_count(n, 'pair')} of equal cost and global batch, but for the micro batch" if n else ""
