"""How much work a configuration requires: steps, micro batches by size, evaluations. Known before any training."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from sweep.config.tables.models import has_batch_statistics
from sweep.config.trial_config import TrialConfig
from sweep.training.constants import MAX_EVALUATIONS, TARGET_EPOCHS, TARGET_GROWTH
from sweep.training.data.windows import cut_epoch
from sweep.training.steps.batch_schedule import BatchSchedule
from sweep.training.steps.budget import Budget

Sizes = tuple[tuple[int, float], ...]  # of micro batches in samples on one rank, each with its number in an epoch


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one training."""

    epochs: float
    steps_per_epoch: float
    micro_batches: Sizes
    num_evaluations: float
    is_cap: bool = False  # a training until a target accuracy may be shorter
    seconds: float | None = None  # of training, where the budget is in seconds; the epochs then follow from it


def compute_workload(config: TrialConfig, num_train: int) -> Workload:
    """The work of a trial of ``config`` on ``num_train`` images; a growing batch counts with its average size."""
    micro, ranks = config.micro_batch, config.distributed.world_size
    schedule = BatchSchedule(config.batch, config.global_batch_size, micro * ranks)
    average = round(schedule.average()) if schedule.is_growing else config.global_batch_size
    least = 1 if has_batch_statistics(config.model.name, config.model.norm) is False else 2 * ranks
    steps, sizes = _split_epoch(num_train, average, micro * ranks, least)
    budget = Budget(config.apply_rules().budget, num_train, average, steps, is_growing=False)
    epochs = budget.num_steps / steps
    is_target = config.budget.target_accuracy is not None
    return Workload(
        epochs=epochs,
        steps_per_epoch=steps,
        micro_batches=tuple((math.ceil(size / ranks), count) for size, count in sizes),
        num_evaluations=_count_target_evaluations(epochs) if is_target else count_evaluations(epochs),
        is_cap=is_target,
        seconds=config.budget.seconds,
    )


def count_epoch_steps(config: TrialConfig, num_train: int) -> int:
    """The optimizer steps of an epoch of ``num_train`` images; where the batch grows, those with its average size."""
    return round(compute_workload(config, num_train).steps_per_epoch)


def count_evaluations(epochs: float) -> int:
    """Evaluations of a training of so many epochs, that at its end included."""
    every = math.ceil(math.ceil(epochs) / MAX_EVALUATIONS)
    return max(1, math.ceil(epochs / every))


def _count_target_evaluations(epochs: float) -> float:
    # one per quarter of an epoch until a twentieth of the training is longer than that
    turn = TARGET_EPOCHS / TARGET_GROWTH
    early = min(epochs, turn) / TARGET_EPOCHS
    return early + (math.log(epochs / turn) / math.log1p(TARGET_GROWTH) if epochs > turn else 0.0)


@lru_cache(maxsize=1024)
def _split_epoch(num_train: int, global_batch: int, micro: int, least: int) -> tuple[int, Sizes]:
    windows = cut_epoch(num_train, global_batch, micro, least)
    sizes = Counter(part.stop - part.start for window in windows for part in window.slices)
    return len(windows), tuple((size, float(count)) for size, count in sorted(sizes.items()))
