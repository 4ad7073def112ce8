"""Searches the largest micro batch that fits and where throughput stops growing.

Only sizes that were run count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from sweep.analysis.costs import find_throughput_knee
from sweep.records.records import ProbeRecord

_FIRST = 8
_RESOLUTION = 0.05  # of the size: how exactly the largest that fits is found
_TOO_LARGE = frozenset({"out_of_memory", "not_fitting"})


class ProbeFailedError(RuntimeError):
    """A probe ended for another reason than memory."""


@final
@dataclass(frozen=True)
class MicroBatchSearch:
    """The probes of a search by micro batch."""

    tried: dict[int, ProbeRecord]

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


def search_micro_batch(try_size: Callable[[int], ProbeRecord], most: int) -> MicroBatchSearch:
    """Doubles from 8 until a size does not fit or is ``most``, then halves the gap until it is smaller than 5 % of the
    size. Where 8 does not fit it is halved until one does. Raises ``ProbeFailedError``: a probe failed for another
    reason than memory."""
    tried: dict[int, ProbeRecord] = {}

    def fits(size: int) -> bool:
        probe = tried[size] = try_size(size)
        if not probe.is_complete and probe.outcome not in _TOO_LARGE:
            raise ProbeFailedError(f"the probe of micro batch {size} ended as {probe.outcome}: {probe.error or ''}")
        return probe.is_complete

    low, high = _bracket(fits, most, min(_FIRST, most))
    while high - low > max(1.0, _RESOLUTION * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return MicroBatchSearch(tried)


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


def measure_bytes_per_sample(peaks: dict[int, int]) -> float | None:
    """Bytes by which the peak memory of a step grows for each sample of a micro batch, between the smallest and the
    largest size of ``peaks`` (bytes by micro batch); None for fewer than two sizes."""
    if len(peaks) < 2:
        return None
    low, high = min(peaks), max(peaks)
    return (peaks[high] - peaks[low]) / (high - low)
