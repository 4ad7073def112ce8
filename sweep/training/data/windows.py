"""The images of each optimizer step: windows of a global batch, their micro batches, and the order of an epoch."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep.config.sections import BudgetSection
from sweep.config.trial import TrialConfig
from sweep.training.data.images import Indices

SizeAt = Callable[[int, int], int]  # (windows from here, samples from here) -> global batch


class Window(NamedTuple):
    """The micro batches of one optimizer step, as slices of the epoch's order."""

    slices: tuple[slice, ...]
    samples: int
    global_batch: int = 0  # as planned; 0 in a warm-up
    is_whole: bool = True  # not cut short by the end of the epoch


def cut_epoch(num_samples: int, global_batch: int, micro_batch: int, least: int = 1) -> tuple[Window, ...]:
    """All windows of an epoch; the last window and the last micro batch of a window may be smaller."""
    return cut_windows(0, num_samples, lambda _windows, _samples: global_batch, micro_batch, least)


def cut_windows(start: int, stop: int, size_at: SizeAt, micro_batch: int, least: int = 1) -> tuple[Window, ...]:
    """Cuts the samples from ``start`` to ``stop`` of an epoch's order into windows of the sizes that ``size_at`` gives.

    Fewer than ``least`` samples at the end join the micro batch, or the window, before them. Batch norm requires two
    samples on each rank: of one sample with a 1 x 1 map it raises an error, which would end a long training.
    """
    windows: list[Window] = []
    at = start
    while at < stop:
        global_batch = size_at(len(windows), at - start)
        end = min(at + global_batch, stop)
        if stop - end < least:
            end = stop
        is_whole = end - at >= min(global_batch, stop)
        windows.append(Window(_slices(at, end, micro_batch, least), end - at, global_batch, is_whole))
        at = end
    return tuple(windows)


def _slices(start: int, stop: int, micro_batch: int, least: int) -> tuple[slice, ...]:
    edges = [*range(start, stop, micro_batch), stop]
    if len(edges) > 2 and stop - edges[-2] < least:
        del edges[-2]
    return tuple(slice(low, high) for low, high in pairwise(edges))


def count_budget_steps(
    budget: BudgetSection, num_samples: int, global_batch: int, steps_per_epoch: int | None = None
) -> int:
    """Optimizer steps of the whole training with a constant global batch, rounded up.

    A budget of seconds has no such number; for a target accuracy it is the limit.
    """
    steps_per_epoch = steps_per_epoch or ceil(num_samples / global_batch)
    if budget.steps is not None:
        return budget.steps
    if budget.samples is not None:
        epochs, rest = divmod(budget.samples, num_samples)
        return epochs * steps_per_epoch + ceil(rest / global_batch)
    return max(1, ceil(count_budget_epochs(budget) * steps_per_epoch - 1e-9))


def count_budget_epochs(budget: BudgetSection) -> float:
    """The epochs of a budget in epochs, or the limit of a target accuracy."""
    epochs = budget.max_epochs if budget.target is not None else budget.epochs
    assert epochs is not None
    return epochs


@dataclass(frozen=True, kw_only=True)
class _EpochPlan:
    """The order of an epoch and the augmentation draws of each sample, all (n,), by position in the order.

    The draws belong to the sample and not to a batch, so that they do not depend on the micro batch.
    """

    order: Indices
    top: Indices
    left: Indices
    flip: NDArray[np.bool_]


def plan_epoch(config: TrialConfig, num_samples: int, pad: int, epoch: int) -> _EpochPlan:
    """A permutation with offsets in [0, 2 * pad] and mirrorings, from the trial's seed and the epoch alone."""
    generator = np.random.default_rng((config.seed, epoch))
    order = generator.permutation(num_samples)
    if config.data.augment == "none":  # without draws, which take as long as a step for a small set
        nothing = np.zeros(num_samples, dtype=np.int64)
        return _EpochPlan(order=order, top=nothing, left=nothing, flip=nothing.astype(bool))
    offsets = generator.integers(0, 2 * pad + 1, (2, num_samples))
    flip = generator.random(num_samples) < 0.5
    if config.data.augment in {"alternating_flip", "crop_alternating_flip"}:
        # Jordan 2024 (arXiv:2404.00498): one random draw per image; then every image is mirrored in every second epoch
        coins = np.random.default_rng((config.seed, 0, 3)).random(len(order)) < 0.5
        flip = coins[order] ^ bool(epoch % 2)
    return _EpochPlan(order=order, top=offsets[0], left=offsets[1], flip=flip)


def choose_crop_pad(config: TrialConfig, side: int) -> int:
    """Width of the black border before a crop: an eighth of the ``side`` (4 at 32, as in He et al. 2015)."""
    is_cropped = config.data.augment in {"crop_flip", "crop_alternating_flip", "randaugment"}
    return max(1, side // 8) if is_cropped else 0
