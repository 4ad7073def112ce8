"""What limited the speed of a training: the data, kernel launches, computation, or a lack of memory.

Found by timing a few more steps on a cached batch after the training. The time that they save is the cost of the data;
the time that a smaller micro batch does not save is the cost of launches.
"""

import logging
import statistics
from functools import partial
from typing import Literal, NamedTuple

import torch

from sweep.measurement.clock import Ledger
from sweep.measurement.device import time_calls
from sweep.records.quality import ALLOCATOR_RETRIES
from sweep.training.constants import BOTTLENECK_SECONDS, BOTTLENECK_SHARE, BOTTLENECK_STEPS
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.setup import TrainingSetup, TrialState
from sweep.training.step import set_lr

Bottleneck = Literal["", "data_bound", "launch_bound", "compute_bound", "thrashing"]

_log = logging.getLogger(__name__)
_LEAST_STEPS = 2
_NUM_GROUPS = 4  # of steps between two synchronizations
_DATA_SHARE = 0.2  # of a step, from which the training is data-bound
# Of the training time: steps that waited less were not held up by data, and cached ones were faster for another reason.
_LEAST_WAIT_SHARE = 0.05
_LONG_SECONDS = 0.1  # of a micro batch, from which launches are negligible
_LEAST_HALVED = 4  # samples: batch statistics require two in each half
_FIXED_SHARE = 0.5  # of a step that does not depend on the size of the micro batch


class CachedSteps(NamedTuple):
    """Steps on a cached batch."""

    step_seconds: float
    fixed_share: float | None  # of the step, for any size of the micro batch; None where it was not measured


def find_bottleneck(setup: TrainingSetup, state: TrialState) -> Bottleneck:
    """The bottleneck of a finished training.

    It takes steps with a learning rate of 0, which change the state of optimizer and norms, so that ``setup`` cannot be
    used afterwards. "" means unknown: several ranks, or a training so short that the measurement would take more than a
    tenth of its steps and that did not wait for data either.
    """
    if setup.step.world.size > 1 or not state.ledger.windows:
        return ""
    if ALLOCATOR_RETRIES in state.flags:
        return "thrashing"
    window = setup.planner.windows_of_epoch(state.ledger.usual_samples)[0]
    is_long = _usual_seconds(state.ledger) >= _LONG_SECONDS * len(window.slices)
    try:
        cached = _time_cached_steps(setup, state.ledger, window, is_long=is_long)
    except Exception as error:  # the training itself is complete
        _log.warning("no steps on a cached batch: %s", error)
        cached = None
    return classify_bottleneck(state.ledger, cached, is_long=is_long)


def classify_bottleneck(ledger: Ledger, cached: CachedSteps | None, *, is_long: bool = False) -> Bottleneck:
    """The bottleneck from the measurements; ``is_long``: a micro batch takes so long that launches are negligible."""
    wait_share = ledger.seconds["data_wait"] / ledger.train_seconds
    saved_share = wait_share if cached is None else 1.0 - cached.step_seconds / _usual_seconds(ledger)
    if saved_share >= _DATA_SHARE and wait_share >= _LEAST_WAIT_SHARE:
        return "data_bound"
    if cached is None or cached.fixed_share is None:
        return "compute_bound" if is_long else ""
    return "launch_bound" if cached.fixed_share >= _FIXED_SHARE else "compute_bound"


def find_fixed_share(time_ratio: float, size_ratio: float) -> float:
    """The share of a step's time that is the same for every size, when a step of ``size_ratio`` times the samples takes
    ``time_ratio`` times as long: of t(m) = a + b m, the share a / t(m)."""
    return (time_ratio - size_ratio) / (1.0 - size_ratio)


def _time_cached_steps(setup: TrainingSetup, ledger: Ledger, window: Window, *, is_long: bool) -> CachedSteps | None:
    # A share of the number of steps, of two sizes in any case, and not of their time: the same short training is
    # then measured always or never.
    share = BOTTLENECK_SHARE * sum(each.num_steps for each in ledger.windows) / 2
    within_limit = BOTTLENECK_SECONDS / (_usual_seconds(ledger) * (1 if is_long else 2))
    num_steps = min(BOTTLENECK_STEPS, int(min(share, within_limit) + 1e-9) - 1)
    if num_steps < _LEAST_STEPS:
        return None
    set_lr(setup.step.optimizer, 0.0)
    setup.feeder.begin_epoch(0, (window,))
    batch = next(iter(setup.feeder.micro_batches(window)))
    count = len(window.slices)
    other = None if is_long else _resized(setup, batch)
    batches = [batch, other] if other else [batch]
    times = _time_in_turn(setup, ledger, batches, count, num_steps)
    scale = window.samples / (len(batch[1]) * count)  # the last micro batch of a window may be smaller
    if other is None:
        return CachedSteps(statistics.median(times[0]) * scale, None)
    # minima, because other processes on the machine can only add time
    share = find_fixed_share(min(times[1]) / min(times[0]), len(other[1]) / len(batch[1]))
    return CachedSteps(statistics.median(times[0]) * scale, share)


def _usual_seconds(ledger: Ledger) -> float:
    """Median time of a step of the usual size."""
    return statistics.median(ledger.even_step_seconds())


def _resized(setup: TrainingSetup, batch: Batch) -> Batch | None:
    # half, or twice where a half is too small for batch statistics; None where another shape would be compiled again
    if setup.step.forward is not setup.step.model or setup.step.graphs:
        return None
    images, labels = batch
    if len(labels) < _LEAST_HALVED:
        return torch.cat((images, images)), torch.cat((labels, labels))
    return images[: len(labels) // 2], labels[: len(labels) // 2]


def _time_in_turn(
    setup: TrainingSetup, ledger: Ledger, batches: list[Batch], count: int, num_steps: int
) -> list[list[float]]:
    """Seconds of a step of ``count`` times each batch, as the mean of each group of steps; ``num_steps`` in all."""
    num_groups = min(_NUM_GROUPS, num_steps)
    seconds: list[list[float]] = [[] for _ in batches]
    for group in range(-1, num_groups):  # the first one takes the one-time costs of a new shape
        for batch, measured in zip(batches, seconds, strict=True):
            step = partial(setup.step, [batch] * count, len(batch[1]) * count)
            seconds_per_step = time_calls(step, 1 if group < 0 else num_steps // num_groups, ledger.synchronize)
            if group >= 0:
                measured.append(seconds_per_step)
    return seconds
