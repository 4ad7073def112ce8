"""How much work a configuration asks for: steps, micro batches by size, evaluations. Known before any training."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import micro_batch
from sweep.training.data.windows import epoch_windows
from sweep.training.steps.batch_schedule import BatchSchedule
from sweep.training.steps.budget import Budget

_MAX_EVALUATIONS = 50  # as a trial evaluates: each epoch, or every few where that were more
# Until a target: every quarter of an epoch at first, later at every twentieth of what was trained.
_TARGET_EVERY_EPOCHS = 0.25
_TARGET_GROWTH = 0.05
_BATCH_NORMS = frozenset({"batch", "sync"})


@dataclass(frozen=True)
class Amount:
    """``micro_batches``: how many of each size (samples on one rank) an epoch has."""

    epochs: float
    steps_per_epoch: float
    micro_batches: tuple[tuple[int, float], ...]
    num_evaluations: float
    is_cap: bool = False  # a training until a target accuracy may be shorter
    seconds: float | None = None  # of training, where the budget says them; the epochs then follow from it


def amount_of(config: TrialConfig, num_train: int) -> Amount:
    """The work of a trial of ``config`` on ``num_train`` images; of a batch that grows, at its average."""
    micro, ranks = micro_batch(config), config.distributed.world_size
    schedule = BatchSchedule(config.batch, config.global_batch_size, micro * ranks)
    average = round(schedule.average()) if schedule.is_growing else config.global_batch_size
    least = 2 * ranks if config.model.norm in _BATCH_NORMS else 1
    steps, sizes = _epoch(num_train, average, micro * ranks, least)
    budget = Budget(config.budget, num_train, average, steps, is_growing=False)
    epochs = budget.num_steps / steps
    is_target = config.budget.target_accuracy is not None
    return Amount(
        epochs=epochs,
        steps_per_epoch=steps,
        micro_batches=tuple((math.ceil(size / ranks), count) for size, count in sizes),
        num_evaluations=_target_evaluations(epochs) if is_target else num_evaluations(epochs),
        is_cap=is_target,
        seconds=config.budget.seconds,
    )


def num_evaluations(epochs: float) -> int:
    """Of a training of so many epochs, its end included."""
    every = math.ceil(math.ceil(epochs) / _MAX_EVALUATIONS)
    return max(1, math.ceil(epochs / every))


def _target_evaluations(epochs: float) -> float:
    # until the twentieth has grown to a quarter of an epoch there is one each quarter
    turn = _TARGET_EVERY_EPOCHS / _TARGET_GROWTH
    early = min(epochs, turn) / _TARGET_EVERY_EPOCHS
    return early + (math.log(epochs / turn) / math.log1p(_TARGET_GROWTH) if epochs > turn else 0.0)


@lru_cache(maxsize=1024)
def _epoch(num_train: int, global_batch: int, micro: int, least: int) -> tuple[int, tuple[tuple[int, float], ...]]:
    windows = epoch_windows(num_train, global_batch, micro, least)
    sizes = Counter(part.stop - part.start for window in windows for part in window.slices)
    return len(windows), tuple((size, float(count)) for size, count in sorted(sizes.items()))
