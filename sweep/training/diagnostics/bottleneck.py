"""What held a training up: the data, the launching of operations, the computing itself, or memory that was too full.

Told by timing a few more steps after the training, off its clock, on a batch that lies ready. What such steps save is
what the data costs; what a smaller micro batch does not save is what launching costs.
"""

import logging
import statistics
import time
from typing import Literal, NamedTuple

import torch

from sweep.measurement.clock import Ledger
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.protocol import BOTTLENECK_SECONDS, BOTTLENECK_SHARE, BOTTLENECK_STEPS
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.step import set_lr
from sweep.training.steps.trial_state import TrialState

Bottleneck = Literal["", "data_bound", "launch_bound", "compute_bound", "thrashing"]

_log = logging.getLogger(__name__)
_LEAST_STEPS = 2
_NUM_GROUPS = 4  # of steps between two synchronisations
_DATA_SHARE = 0.2  # of a step, from which the data is what holds it up
_LONG_SECONDS = 0.1  # of a micro batch, from which launching it is nothing
_LEAST_HALVED = 4  # samples: batch statistics want two of each half
_FIXED_SHARE = 0.5  # of a step that does not depend on the size of the micro batch


class CachedSteps(NamedTuple):
    """Steps on a batch that lies ready."""

    step_seconds: float
    fixed_share: float | None  # of the step, whatever the size of the micro batch; None where that was not tried


def find_bottleneck(setup: TrainingSetup, state: TrialState) -> Bottleneck:
    """The verdict on a finished training, and the fact ``cached_step_seconds``. Steps with a learning rate of 0, but
    spoils what the optimizer and the norms have gathered: the last that is done with ``setup``.

    "" where nothing can be said: several ranks, or a training so short that looking would cost more than a tenth of it
    and that did not wait for data either.
    """
    if setup.step.world.size > 1 or not state.ledger.windows:
        return ""
    if state.facts.get("num_alloc_retries"):
        return "thrashing"
    window = setup.planner.windows_of_epoch(state.ledger.usual_samples)[0]
    is_long = statistics.median(state.ledger.even_step_seconds()) >= _LONG_SECONDS * len(window.slices)
    try:
        cached = _time_cached_steps(setup, state.ledger, window, is_long=is_long)
    except Exception as error:  # the training itself is done and must not suffer
        _log.warning("no steps on a cached batch: %s", error)
        cached = None
    if cached is not None:
        state.facts["cached_step_seconds"] = cached.step_seconds
    return classify_bottleneck(state.ledger, cached, is_long=is_long)


def classify_bottleneck(ledger: Ledger, cached: CachedSteps | None, *, is_long: bool = False) -> Bottleneck:
    """The verdict from what was measured; without ``cached`` only a host that waits for data can be seen. ``is_long``:
    a micro batch takes so long that launching it is nothing."""
    if ledger.seconds["data_wait"] >= _DATA_SHARE * ledger.train_seconds and cached is None:
        return "data_bound"
    if cached is None:
        return "compute_bound" if is_long else ""
    if 1.0 - cached.step_seconds / statistics.median(ledger.even_step_seconds()) >= _DATA_SHARE:
        return "data_bound"
    if cached.fixed_share is None:
        return "compute_bound" if is_long else ""
    return "launch_bound" if cached.fixed_share >= _FIXED_SHARE else "compute_bound"


def find_fixed_share(time_ratio: float, size_ratio: float) -> float:
    """The share of a step's time that is the same for every size, when a step of ``size_ratio`` times the samples takes
    ``time_ratio`` times as long: of t(m) = a + b m, the share a / t(m)."""
    return (time_ratio - size_ratio) / (1.0 - size_ratio)


def _time_cached_steps(setup: TrainingSetup, ledger: Ledger, window: Window, *, is_long: bool) -> CachedSteps | None:
    usual = statistics.median(ledger.even_step_seconds())
    allowed = min(BOTTLENECK_SECONDS, BOTTLENECK_SHARE * ledger.train_seconds)
    num_steps = min(BOTTLENECK_STEPS, int(allowed / (usual if is_long else 2 * usual)) - 1)
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
    # of what others on the machine disturb, the least disturbed compares best
    share = find_fixed_share(min(times[1]) / min(times[0]), len(other[1]) / len(batch[1]))
    return CachedSteps(statistics.median(times[0]) * scale, share)


def _resized(setup: TrainingSetup, batch: Batch) -> Batch | None:
    # half the micro batch, or twice where a half would be too small for batch statistics; another shape must not make
    # torch.compile or a graph begin anew
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
    for group in range(-1, num_groups):  # the first is for what a new shape costs once
        for batch, measured in zip(batches, seconds, strict=True):
            found = _time_steps(setup, ledger, batch, count, 1 if group < 0 else num_steps // num_groups)
            if group >= 0:
                measured.append(found)
    return seconds


def _time_steps(setup: TrainingSetup, ledger: Ledger, batch: Batch, count: int, num_steps: int) -> float:
    samples = len(batch[1]) * count
    ledger.synchronize()
    began = time.perf_counter()
    for _ in range(num_steps):
        setup.step([batch] * count, samples)
    ledger.synchronize()
    return (time.perf_counter() - began) / num_steps
