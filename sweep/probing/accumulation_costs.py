"""What gradient accumulation costs on a device: one effective batch as one micro batch and as several."""

from collections.abc import Sequence
from dataclasses import dataclass

from sweep.probing.micro_batch_search import MicroBatchSearch

_NO_MORE = 1.05  # times the time or memory: no difference that matters


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
    whole, parts = splits[0], splits[-1]
    seconds = parts.global_batch_seconds / whole.global_batch_seconds
    memory = parts.peak_memory_bytes / whole.peak_memory_bytes
    costs = (
        f"{whole.micro_batch * whole.accumulation} samples as {parts.accumulation} micro batches of "
        f"{parts.micro_batch} take {seconds:.2f} times the time and {memory:.2f} times the memory of one"
    )
    return f"{costs}: {_find_worth(seconds, memory, search)}."


def _find_worth(seconds: float, memory: float, search: MicroBatchSearch) -> str:
    if search.is_limited_by_memory:
        worth = f"worth it for effective batches above {search.largest} samples, which do not fit at once"
    else:
        worth = "not necessary, because all training images fit at once"
    if memory * _NO_MORE > 1:
        return f"{worth}; it saves no memory otherwise"
    if seconds > _NO_MORE:
        return f"{worth}; otherwise only where memory counts for more than time"
    return f"{worth}; otherwise it saves memory and takes no more time"


def measure_bytes_per_sample(peaks: dict[int, int]) -> float | None:
    """Bytes by which the peak memory of a step grows for each sample of a micro batch, between the smallest and the
    largest size of ``peaks`` (bytes by micro batch); None for fewer than two sizes."""
    if len(peaks) < 2:
        return None
    low, high = min(peaks), max(peaks)
    return (peaks[high] - peaks[low]) / (high - low)
