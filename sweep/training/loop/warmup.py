"""The first steps, taken before the clock starts and undone: what they cost once, and how much memory one needs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from sweep.measurement.clock import Ledger
from sweep.measurement.device_memory import release_memory
from sweep.measurement.peak_memory import allocated_bytes, held_bytes, peak_step_bytes
from sweep.training.data.windows import Window
from sweep.training.steps.auto_micro import attempt
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.step import Step, set_lr

_SLOW_STEP_SECONDS = 2.0


@dataclass(frozen=True)
class Rehearsal:
    """What the steps before the clock told."""

    peak_memory_bytes: int  # of the rank that needs most
    step_seconds: float


def rehearse(work: TrainingSetup, ledger: Ledger) -> Rehearsal:
    """Rehearses the first steps; where the micro batch is to be found, until one fits and leaves enough room."""
    pilot = work.pilot
    if pilot is None:
        return rehearse_once(work, ledger)
    restore, is_settled = _snapshot(work), False
    while True:
        found = attempt(lambda: rehearse_once(work, ledger))
        if isinstance(found, str):
            restore()
            release_memory(pilot.device)
            pilot.shrink(found)
        elif is_settled or not pilot.look(at_epoch_end=True):
            return found
        else:
            is_settled = True
        work.course.set_micro(pilot.micro)


def rehearse_once(work: TrainingSetup, ledger: Ledger) -> Rehearsal:
    """Takes a few steps, so that the costs of a first step are not taken for training, and measures one's memory.

    Afterwards model, optimizer and loss scaler are as they were before.
    """
    restore = _snapshot(work)
    set_lr(work.step.optimizer, 0.0)
    windows = work.course.windows_of_epoch(work.schedule.first)
    first, *others = _rehearsal_windows(windows, work.course.windows_of_epoch(work.schedule.largest)[0])
    device = work.step.normalise.mean.device
    # before the first step, whose lasting workspaces are a matter of training
    other_bytes = allocated_bytes(device) - _held_bytes(work)
    with ledger.phase("compile" if work.is_compiled else "warmup"):
        seconds = _timed_step(work, first, ledger)
    with ledger.phase("warmup"):
        if work.step.world.size > 1:  # in its second step DistributedDataParallel arranges its buckets anew
            seconds = _timed_step(work, first, ledger)
    with ledger.phase("memory"):
        work.feeder.begin_epoch(0, (first,))
        eager = _without_graphs(work.step)
        eager.clear_gradients()
        peak = peak_step_bytes(
            lambda: eager(work.feeder.micro_batches(first), first.samples),
            lambda: _held_bytes(work),
            device,
            other_bytes,
        )
    if work.step.graphs:
        with ledger.phase("compile"):
            _timed_step(work, first, ledger)  # records
    with ledger.phase("warmup"):
        if seconds < _SLOW_STEP_SECONDS or work.is_compiled:
            seconds = _timed_step(work, first, ledger)
    with ledger.phase("compile" if work.is_compiled or work.step.graphs else "warmup"):
        for window in others:  # other shapes
            _timed_step(work, window, ledger)
    with ledger.phase("warmup"):
        restore()
    peak = round(work.step.world.largest(peak))
    return Rehearsal(peak, seconds * len(windows[0].slices) / len(first.slices))


def _without_graphs(step: Step) -> Step:
    # what a graph works with is not among the bytes that the allocator counts
    if step.graphs:
        step.graphs.forget()
    return replace(step, graphs=None)


def _rehearsal_windows(windows: tuple[Window, ...], largest: Window) -> list[Window]:
    # The peak depends on accumulation only through 1 against 2 and more, so the largest window that may come shows it.
    # Smaller last micro batches are other shapes, which have first-time costs of their own.
    head = largest.slices[:2]
    sizes = {part.stop - part.start for window in (windows[0], windows[-1]) for part in window.slices}
    rest = sizes - {part.stop - part.start for part in head}
    return [Window(head, head[-1].stop), *(Window((slice(0, size),), size) for size in sorted(rest))]


def _timed_step(work: TrainingSetup, window: Window, ledger: Ledger) -> float:
    ledger.synchronize()
    began = time.perf_counter()
    work.feeder.begin_epoch(0, (window,))
    work.step(work.feeder.micro_batches(window), window.samples)
    ledger.synchronize()
    return work.step.world.largest(time.perf_counter() - began)


def _held_bytes(work: TrainingSetup) -> int:
    return held_bytes(_held_tensors(work)) + work.step.world.bucket_bytes(work.model)


def _held_tensors(work: TrainingSetup) -> Iterator[torch.Tensor]:
    yield from work.model.parameters()
    yield from work.model.buffers()
    for state in work.step.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
    if work.step.ema:
        yield from work.step.ema.tensors()


def _snapshot(work: TrainingSetup) -> Callable[[], None]:
    # kept on the host, so that it does not count as memory of the GPU
    state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in work.model.state_dict().items()}
    scaler = work.step.precision.scaler
    scaler_state = scaler.state_dict() if scaler else None

    def restore() -> None:
        work.model.load_state_dict(state)
        work.step.clear_gradients()
        work.step.optimizer.state.clear()
        if work.step.ema:
            work.step.ema.restart()
        if scaler and scaler_state:
            scaler.load_state_dict(scaler_state)
        if work.step.noise:
            work.step.noise.forget()

    return restore
