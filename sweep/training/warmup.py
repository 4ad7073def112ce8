"""The first steps, before the training time begins and undone afterwards: one-time costs, and the memory of a step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sweep.measurement.clock import Ledger
from sweep.measurement.device import time_calls
from sweep.measurement.memory import (
    MemoryPeak,
    count_held_bytes,
    measure_step_peak,
    read_allocated_bytes,
    release_memory,
)
from sweep.training.auto_micro import catch_out_of_memory
from sweep.training.budget import BatchSchedule, Budget, TrainingPoint
from sweep.training.data.feeders import Batch, BatchPlanner
from sweep.training.data.windows import Window
from sweep.training.evaluation import EvalFit, averaged_model, evaluate_model, fit_eval_batch
from sweep.training.setup import TrainingSetup, count_eval_images, count_statistics_images
from sweep.training.step import set_lr

_SLOW_STEP_SECONDS = 2.0
_TOO_MANY_BYTES = 2**62  # of what ran out of memory


@dataclass(frozen=True, kw_only=True)
class WarmupResult:
    """What the warm-up measures; memory is the largest of all ranks."""

    peak_memory_bytes: int  # of a step or of an evaluation, whichever requires more
    eval_peak_memory_bytes: int
    step_seconds: float
    reserved_memory_bytes: int = 0  # by the allocator of a GPU, of all that the process holds there

    @property
    def memory(self) -> dict[str, int]:
        """The bytes that were measured, by name of the metric table."""
        peaks = {"peak_memory_bytes": self.peak_memory_bytes, "eval_peak_memory_bytes": self.eval_peak_memory_bytes}
        return peaks | ({"reserved_memory_bytes": self.reserved_memory_bytes} if self.reserved_memory_bytes else {})


def warm_up_trial(setup: TrainingSetup, ledger: Ledger) -> WarmupResult:
    """Warms up; an automatic micro batch is changed until it fits and uses its share of the memory."""
    auto_micro = setup.auto_micro
    if auto_micro is None:
        return _warm_up_once(setup, ledger)
    restore, is_settled = _snapshot(setup), False
    while True:
        result = catch_out_of_memory(lambda: _warm_up_once(setup, ledger))
        if isinstance(result, str):
            restore()
            release_memory(auto_micro.device)
            auto_micro.shrink(result)
        elif is_settled or not auto_micro.update(at_epoch_end=True):
            return result
        else:
            is_settled = True
        setup.planner.set_micro(auto_micro.micro)


def _warm_up_once(setup: TrainingSetup, ledger: Ledger) -> WarmupResult:
    """Takes a few steps, so that one-time costs do not count as training time, and measures the memory of a step and
    of an evaluation, whose batch it sets.

    Afterwards model, optimizer and loss scaler are unchanged.
    """
    restore = _snapshot(setup)
    set_lr(setup.step.optimizer, 0.0)
    windows = setup.planner.windows_of_epoch(setup.schedule.first)
    # With regard to the peak, two micro batches stand for any larger number. Smaller last micro batches are other
    # shapes, with one-time costs of their own: cuDNN searches for an algorithm for each.
    head = setup.planner.windows_of_epoch(setup.schedule.largest)[0].slices[:2]
    first = Window(head, head[-1].stop)
    sizes = {micro.stop - micro.start for window in (windows[0], windows[-1]) for micro in window.slices}
    sizes |= _list_last_micro_sizes(setup.planner, setup.schedule, setup.budget)
    rest = sizes - {micro.stop - micro.start for micro in head}
    others = [Window((slice(0, size),), size) for size in sorted(rest)]
    device = setup.step.normalize.mean.device
    # read before the first step, because the workspaces that it allocates belong to the training
    other_bytes = read_allocated_bytes(device) - _held_bytes(setup)
    with ledger.phase("compile" if setup.config.precision.compile or setup.step.graphs else "warmup"):
        seconds = _time_step(setup, first, ledger)
    with ledger.phase("warmup"):
        if setup.step.world.size > 1:  # DistributedDataParallel rebuilds its buckets in its second step
            seconds = _time_step(setup, first, ledger)
    with ledger.phase("compile" if setup.config.precision.compile or setup.step.graphs else "warmup"):
        for window in others:  # other shapes, whose graphs share the memory of the first one's
            _time_step(setup, window, ledger)
    with ledger.phase("memory"):
        setup.feeder.begin_epoch(0, (first,))
        setup.step.clear_gradients()
        step_peak = _measure_peak(
            setup, lambda: setup.step(setup.feeder.micro_batches(first), first.samples), other_bytes
        )
        evaluation, reserved_bytes = _fit_evaluation(setup, step_peak, other_bytes)
    with ledger.phase("warmup"):
        if seconds < _SLOW_STEP_SECONDS or setup.config.precision.compile:
            seconds = _time_step(setup, first, ledger)
        restore()
    return WarmupResult(
        peak_memory_bytes=max(step_peak.held_bytes, evaluation.peak_bytes),
        eval_peak_memory_bytes=evaluation.peak_bytes,
        step_seconds=seconds * len(windows[0].slices) / len(first.slices),
        reserved_memory_bytes=max(step_peak.reserved_bytes, reserved_bytes),
    )


def _list_last_micro_sizes(planner: BatchPlanner, schedule: BatchSchedule, budget: Budget) -> set[int]:
    """Samples of the last micro batches of the epochs of a training, by going through its windows.

    They differ from epoch to epoch where the first global batch is no multiple of the micro batch and grows. Empty
    where they do not, and where the growth depends on the training itself or on its time.
    """
    sizes: set[int] = set()
    if schedule.first % planner.micro == 0 or not schedule.grows_by_share or budget.is_of_time:
        return sizes
    point, taken = TrainingPoint(0, 0, 0.0), 0
    while not budget.is_spent(point):
        samples = schedule.size(budget.share(point))
        if planner.num_samples - taken < samples + planner.least:  # the last window, maybe with what is left of it
            window = planner.windows_of_epoch(samples, taken)[0]
            samples = window.samples
            sizes |= {micro.stop - micro.start for micro in window.slices}
        taken = (taken + samples) % planner.num_samples
        point = point._replace(steps=point.steps + 1, samples=point.samples + samples)
    return sizes


def _fit_evaluation(setup: TrainingSetup, step_peak: MemoryPeak, other_bytes: int) -> tuple[EvalFit, int]:
    """Sets the batch of evaluations so that they require no more than a step; returns it with its peak, and the bytes
    that were reserved at most. CUDA graphs keep the memory of a step for themselves: then a micro batch at most."""
    setup.step.clear_gradients()
    device, world = setup.step.normalize.mean.device, setup.step.world
    statistics = _make_blank_batch(setup, count_statistics_images(setup.planner, world))
    reserved = [0]

    def evaluate(size: int) -> None:
        with averaged_model(setup.step, lambda: [statistics]) as model:
            step, batch = setup.step, _make_blank_batch(setup, size)
            evaluate_model(model, step, [batch], setup.config.evaluation.tta)

    def measure_once(size: int) -> MemoryPeak:
        if device.type == "cuda":  # where the first one of a size also searches for algorithms
            evaluate(size)
        return _measure_peak(setup, lambda: evaluate(size), other_bytes)

    def measure(size: int) -> int:
        result = catch_out_of_memory(lambda: measure_once(size))
        if not isinstance(result, str):
            reserved.append(result.reserved_bytes)
            return result.held_bytes
        if size == 1 or world.size > 1:  # the other ranks have no part in another attempt
            raise torch.OutOfMemoryError(result)
        release_memory(device)
        return _TOO_MANY_BYTES  # so that a smaller size is tried

    # what is held between steps, on a GPU with the workspaces of its libraries
    resting = read_allocated_bytes(device) - other_bytes if device.type == "cuda" else _held_bytes(setup)
    resting, limit = resting + _pool_bytes(setup), step_peak.held_bytes
    micro, most = setup.planner.micro // world.size, count_eval_images(setup.splits, world)
    if setup.step.graphs and (needed := measure(min(micro, most))) < _TOO_MANY_BYTES:
        limit, most = max(limit, needed), min(micro, most)
    # all ranks must try the same sizes, or they would wait for each other
    fit = fit_eval_batch(measure, micro, most, round(world.reduce_max(resting)), limit)
    setup.eval_batch.size = fit.size
    return fit, max(reserved)


def _make_blank_batch(setup: TrainingSetup, size: int) -> Batch:
    # what an image shows does not change the memory that it requires
    shape, device = setup.splits.shape, setup.step.normalize.mean.device
    pixels = torch.zeros((size, shape.side, shape.side, shape.channels), dtype=torch.uint8, device=device)
    return pixels, torch.zeros(size, dtype=torch.int64, device=device)


def _measure_peak(setup: TrainingSetup, call: Callable[[], object], other_bytes: int) -> MemoryPeak:
    # the same on all ranks, which must agree on what follows from it
    device, world = setup.step.normalize.mean.device, setup.step.world
    peak = measure_step_peak(call, lambda: _held_bytes(setup), device, other_bytes)
    held = round(world.reduce_max(peak.held_bytes + _pool_bytes(setup)))
    return MemoryPeak(held, round(world.reduce_max(peak.reserved_bytes)))


def _pool_bytes(setup: TrainingSetup) -> int:
    return setup.step.graphs.pool_bytes if setup.step.graphs else 0


def _time_step(setup: TrainingSetup, window: Window, ledger: Ledger) -> float:
    def take_step() -> None:
        setup.feeder.begin_epoch(0, (window,))
        setup.step(setup.feeder.micro_batches(window), window.samples)

    return setup.step.world.reduce_max(time_calls(take_step, 1, ledger.synchronize))


def _held_bytes(setup: TrainingSetup) -> int:
    values = [value for state in setup.step.optimizer.state.values() for value in state.values()]
    averages = setup.step.ema.tensors() if setup.step.ema else []
    tensors = [*setup.model.parameters(), *setup.model.buffers(), *values, *averages]
    held = count_held_bytes(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
    if setup.step.world.size == 1:
        return held
    # the buckets of DistributedDataParallel, with the gradients in them
    return held + sum(each.numel() * each.element_size() for each in setup.model.parameters() if each.requires_grad)


def _snapshot(setup: TrainingSetup) -> Callable[[], None]:
    # on the host, so that it does not count as memory of the GPU
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in setup.model.state_dict().items()}
    scaler = setup.step.precision.scaler
    scaler_state = scaler.state_dict() if scaler else None

    def restore() -> None:
        setup.model.load_state_dict(state)
        setup.step.clear_gradients()
        setup.step.optimizer.state.clear()
        if setup.step.ema:
            setup.step.ema.reset()
        if scaler and scaler_state:
            scaler.load_state_dict(scaler_state)
        if setup.step.noise:
            setup.step.noise.reset()

    return restore
