"""The automatic micro batch: the largest that fits is found by trying; the global batch does not change."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from sweep.measurement.device import snapshot_pass
from sweep.measurement.memory import MemoryUse, read_memory, release_memory
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.outcomes import classify_error
from sweep.training.step import Step

Result = TypeVar("Result")
_BAND = 0.6, 0.8  # shares of the device's memory within which the peak should be
_MULTIPLE = 8  # a larger micro batch is a multiple of it, for tensor cores
_THRASHING_WINDOWS = 2  # successive timed windows with allocator retries: the micro batch fits, but is slow


@final
class AutoMicro:
    """The size of the micro batch, at most ``most``.

    Halved when it does not fit, or when the allocator repeatedly retries. At the end of an epoch it is set to the
    middle of ``_BAND`` if the peak was outside of that band. A size that did not fit is not tried again. A CPU has no
    memory counters, so the size is only halved there.
    """

    def __init__(self, most: int, device: torch.device, read: Callable[[], MemoryUse | None] | None = None) -> None:
        self.micro = self._most = most
        self.device = device
        self._read = read or (lambda: read_memory(device))
        self._largest_known = 0  # that has fitted
        self._too_large = most + 1
        self._peak_bytes = 0  # of this epoch's steps
        self._num_retries = 0
        self._windows_with_retries = 0

    def shrink(self, why: str) -> int:
        """Reduces a micro batch that did not fit to the largest that did, or to half; returns it.

        Raises:
            torch.OutOfMemoryError: not even one sample fits; the message contains ``why``.
        """
        if self.micro == 1:
            raise torch.OutOfMemoryError(f"not even a micro batch of one sample fits: {why}")
        self._too_large = min(self._too_large, self.micro)
        if self._largest_known >= self.micro:
            self._largest_known = 0  # it has fitted when more memory was free
        self.micro = self._largest_known or _rounded(self.micro // 2)
        self._peak_bytes = 0
        return self.micro

    def update(self, *, at_epoch_end: bool) -> bool:
        """Reads the memory counters after a timed window; returns whether the micro batch has changed."""
        self._largest_known = max(self._largest_known, self.micro)
        use = self._read()
        if use is None:
            return False
        self._peak_bytes = max(self._peak_bytes, use.peak_bytes)
        has_new, self._num_retries = use.num_retries > self._num_retries, use.num_retries
        self._windows_with_retries = self._windows_with_retries + 1 if has_new else 0
        if self._windows_with_retries >= _THRASHING_WINDOWS and self.micro > 1:
            self._windows_with_retries = self._largest_known = 0
            self.shrink("the allocator repeatedly retries")
            return True
        return at_epoch_end and self._adapt(use)

    def state_dict(self) -> dict[str, Any]:
        return {"micro": self.micro, "largest_known": self._largest_known, "too_large": self._too_large}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.micro, self._largest_known = state["micro"], state["largest_known"]
        self._too_large = state["too_large"]

    def _adapt(self, use: MemoryUse) -> bool:
        low, high = _BAND
        peak, self._peak_bytes = self._peak_bytes, 0
        if low <= peak / use.total_bytes <= high:
            return False
        sample_bytes = max(peak - use.held_bytes, 1) / self.micro
        fitting = int(((low + high) / 2 * use.total_bytes - use.held_bytes) / sample_bytes)
        micro = max(1, min(_rounded(fitting), self._most, self._too_large - 1))
        # below the band the size may only grow, above it only shrink
        if (micro > self.micro) != (peak / use.total_bytes < low) or micro == self.micro:
            return False
        self.micro = micro
        return True


def _rounded(micro: int) -> int:
    return micro - micro % _MULTIPLE if micro > _MULTIPLE else micro


def step_within_memory(
    step: Step,
    batches_of: Callable[[Window], Iterable[Batch]],
    window: Window,
    auto_micro: AutoMicro,
    cut_again: Callable[[Window, int], Window],
) -> Tensor:
    """Takes one optimizer step over ``window`` with a micro batch that fits; returns the mean loss before it, a scalar.

    When memory runs out, the memory of the attempt is released, random generators and running statistics are restored,
    and ``cut_again`` returns the same samples in smaller micro batches.
    """
    restore = snapshot_pass(step.model.buffers(), auto_micro.device)
    while True:
        step.clear_gradients()
        result = catch_out_of_memory(partial(step.accumulate, batches_of(window), window.samples))
        if not isinstance(result, str):
            step.update()
            return result
        step.clear_gradients()
        release_memory(auto_micro.device)
        restore()
        window = cut_again(window, auto_micro.shrink(result))


def catch_out_of_memory(call: Callable[[], Result]) -> Result | str:
    """What ``call`` returns, or the message of an out-of-memory error. Other errors are raised.

    A function of its own: its frame must end for the traceback, which refers to the attempt's tensors, to be freed.
    """
    try:
        return call()
    except Exception as error:
        if classify_error(error) != "out_of_memory":
            raise
        return str(error)
