"""Searches the largest micro batch that fits and where throughput stops growing, and describes what accumulation costs.

Only sizes that were run count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sweep.analysis.costs import find_throughput_knee
from sweep.records.records import ProbeRecord

_FIRST = 8
_RESOLUTION = 0.05  # of the size: how exactly the largest that fits is found
_TOO_LARGE = frozenset({"out_of_memory", "not_fitting"})
_NO_MORE = 1.05  # times the time or memory: no difference that matters


class ProbeFailedError(RuntimeError):
    """A probe ended for another reason than memory."""


@final
@dataclass(frozen=True)
class MicroBatchSearch:
    """The probes of a search by micro batch; ``most`` is the largest size that it could have tried."""

    tried: dict[int, ProbeRecord]
    most: int

    @property
    def fitting(self) -> list[int]:
        """Sizes that were run and fit, ascending."""
        return sorted(size for size, probe in self.tried.items() if probe.is_complete)

    @property
    def largest(self) -> int | None:
        """The largest size that was run and fits; None where not one sample fits."""
        return max(self.fitting, default=None)

    @property
    def is_limited_by_memory(self) -> bool:
        """Whether a larger size was run and did not fit."""
        return any(not probe.is_complete for probe in self.tried.values())

    @property
    def knee(self) -> int | None:
        """The smallest size run whose images per second are within 5 % of the best; None where none was timed."""
        rates = {size: rate for size in self.fitting if (rate := self.tried[size].images_per_second)}
        if not rates:
            return None
        sizes = list(rates)
        return sizes[find_throughput_knee(np.array(sizes, dtype=np.float64), np.array(list(rates.values())))]


def search_micro_batch(
    try_size: Callable[[int], ProbeRecord], most: int, first: int = _FIRST, resolution: float = _RESOLUTION
) -> MicroBatchSearch:
    """Doubles from ``first`` until a size does not fit or is ``most``, then halves the gap until it is smaller than
    ``resolution`` of the size (0: until there is none). Where ``first`` does not fit it is halved until one does.

    Raises:
        ProbeFailedError: a probe failed for another reason than memory.
    """
    tried: dict[int, ProbeRecord] = {}

    def fits(size: int) -> bool:
        probe = tried[size] = try_size(size)
        if not probe.is_complete and probe.outcome not in _TOO_LARGE:
            raise ProbeFailedError(f"the probe of micro batch {size} ended as {probe.outcome}: {probe.error or ''}")
        return probe.is_complete

    low, high = _bracket(fits, most, min(first, most))
    while high - low > max(1.0, resolution * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return MicroBatchSearch(tried, most)


def _bracket(fits: Callable[[int], bool], most: int, size: int) -> tuple[int, int]:
    """A size that fits (0: none) and the smallest that was tried and does not; both are ``most`` where that fits."""
    if not fits(size):
        high = size
        while (size := size // 2) and not fits(size):
            high = size
        return size, high
    while size < most:
        larger = min(2 * size, most)
        if not fits(larger):
            return size, larger
        size = larger
    return most, most


@dataclass(frozen=True, kw_only=True)
class SplitStep:
    """One global batch, taken as ``accumulation`` micro batches."""

    accumulation: int
    micro_batch: int
    global_batch_seconds: float
    peak_memory_bytes: int


def describe_accumulation(splits: Sequence[SplitStep], search: MicroBatchSearch) -> str:
    """Where accumulation is worth it and where not, in one sentence; empty where less than two ``splits`` of one
    effective batch were timed."""
    if len(splits) < 2:
        return ""
    whole, split = splits[0], splits[-1]
    seconds = split.global_batch_seconds / whole.global_batch_seconds
    memory = split.peak_memory_bytes / whole.peak_memory_bytes
    costs = (
        f"{whole.micro_batch * whole.accumulation} samples as {split.accumulation} micro batches of "
        f"{split.micro_batch} take {seconds:.2f} times the time and {memory:.2f} times the memory of one"
    )
    worth = "not necessary, because all training images fit at once"
    if search.is_limited_by_memory:
        worth = f"worth it for effective batches above {search.largest} samples, which do not fit at once"
    otherwise = "otherwise it saves memory and takes no more time"
    if memory * _NO_MORE > 1:
        otherwise = "it saves no memory otherwise"
    elif seconds > _NO_MORE:
        otherwise = "otherwise only where memory counts for more than time"
    return f"{costs}: {worth}; {otherwise}."


def measure_bytes_per_sample(peaks: dict[int, int]) -> float | None:
    """Bytes by which the peak memory of a step grows for each sample of a micro batch, between the smallest and the
    largest size of ``peaks`` (bytes by micro batch); None for fewer than two sizes."""
    if len(peaks) < 2:
        return None
    low, high = min(peaks), max(peaks)
    return (peaks[high] - peaks[low]) / (high - low)
