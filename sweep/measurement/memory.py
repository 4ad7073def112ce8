"""The memory of a training: the counters of a GPU's allocator, and the peak of a step.

The peak is measured in a pass of its own, because the bookkeeping would falsify a timing.
"""

import gc
import os
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


class MemoryUse(NamedTuple):
    """The allocator's counters."""

    peak_bytes: int  # most that was allocated since the last reset
    held_bytes: int  # allocated now
    total_bytes: int  # of the device, or of the share of it that this process was given
    num_retries: int  # allocations that only succeeded after the cache was given back; since the process began


def read_memory(device: torch.device) -> MemoryUse | None:
    """The counters of a GPU; None on a CPU, whose allocator keeps none."""
    if device.type != "cuda":
        return None
    counters = torch.cuda.memory_stats(device)
    _, installed = torch.cuda.mem_get_info(device)
    total = int(installed * torch.cuda.get_per_process_memory_fraction(device))
    peak, held = (counters[f"allocated_bytes.all.{name}"] for name in ("peak", "current"))
    return MemoryUse(peak, held, total, counters["num_alloc_retries"])


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def release_memory(device: torch.device) -> None:
    """Releases memory that no tensor occupies to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def count_held_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind ``tensors``, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class MemoryPeak(NamedTuple):
    """The most bytes during a step: ``held_bytes`` in tensors, and ``reserved_bytes`` that the allocator of a GPU had
    taken from the device, with everything else that the process holds there; 0 on a CPU."""

    held_bytes: int
    reserved_bytes: int


def measure_step_peak(
    step: Callable[[], object], held: Callable[[], int], device: torch.device, other_bytes: int
) -> MemoryPeak:
    """The peak while ``step`` runs.

    ``held`` gives the bytes of model and optimizer (used on a CPU, whose allocator keeps no count);
    ``other_bytes`` on the GPU are neither model nor step and are no part of the held ones: the resident data set.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # of what earlier steps reserved
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return MemoryPeak(torch.cuda.max_memory_allocated(device) - other_bytes, torch.cuda.max_memory_reserved(device))
    before = held()
    return MemoryPeak(before + max(accumulate(record_allocations(step), initial=0)), 0)


def record_allocations(call: Callable[[], object]) -> list[int]:
    """Bytes that the CPU allocator hands out (positive) and releases during ``call``, in time; its result is kept."""
    recorder = AllocationRecorder()
    kept = call()
    changes = recorder.stop()
    del kept
    return changes


@final
class AllocationRecorder:
    """Records what the CPU's allocator hands out from its construction on."""

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes to standard error
        make: Any = profile  # torch leaves it untyped
        self._profiler = make(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()

    def stop(self) -> list[int]:
        """Bytes that were handed out (positive) and released until now, in time."""
        self._profiler.__exit__(None, None, None)
        results: Any = self._profiler.profiler
        events = (event for event in results.kineto_results.events() or () if event.name() == "[memory]")
        return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]

    def stop_at_peak(self) -> int:
        """The most bytes that were held at once beyond what was held at the beginning."""
        return max(accumulate(self.stop(), initial=0))


def read_allocated_bytes(device: torch.device) -> int:
    """Bytes that the GPU's allocator holds now; 0 on a CPU, whose allocator keeps no count."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def read_reserved_bytes(device: torch.device) -> int:
    """Bytes that the GPU's allocator has taken from the device; 0 on a CPU."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
