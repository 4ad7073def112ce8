"""The search over micro batches: the largest that fits, and where the throughput flattens. Only what was run counts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from sweep.records.probe_record import ProbeRecord

FIRST = 8
RESOLUTION = 0.05  # of the size, to which the edge is found
KNEE_SHARE = 0.95  # of the best throughput
_TOO_LARGE = frozenset({"out_of_memory", "not_fitting"})


class ProbeFailedError(RuntimeError):
    """A probe ended in a way that says nothing about memory."""


@final
@dataclass(frozen=True)
class MicroSearch:
    """What a search has tried, by micro batch. ``most`` is the largest size that could have been asked for."""

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
        """The throughput knee: the smallest size run whose images a second are within 5 % of the best."""
        return throughput_knee(self.tried[size] for size in self.fitting)


def search_micro(
    try_size: Callable[[int], ProbeRecord], most: int, first: int = FIRST, resolution: float = RESOLUTION
) -> MicroSearch:
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
    return MicroSearch(tried, most)


def _bracket(fits: Callable[[int], bool], most: int, size: int) -> tuple[int, int]:
    """A size that fits (0: none) and the next known that does not, or both ``most``."""
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


def throughput_knee(probes: Iterable[ProbeRecord]) -> int | None:
    """The smallest micro batch whose images a second are within 5 % of the best; None where none was timed."""
    rates = {probe.micro_batch or 0: probe.images_per_second for probe in probes if probe.images_per_second}
    best = max(rates.values(), default=0.0)
    return min((size for size, rate in rates.items() if rate >= KNEE_SHARE * best), default=None)
