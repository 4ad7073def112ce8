"""Finds the micro batch by trying: the largest that fits, for a global batch that stays as it was asked for."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from sweep.config.data_sections import BatchSection
from sweep.measurement.device_memory import MemoryUse, read_memory, release_memory, reset_peak
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.outcomes import classify_error
from sweep.training.steps.step import Step

Result = TypeVar("Result")
_MULTIPLE = 8  # a larger micro batch is a multiple of it: what matrix units like
_THRASHING_WINDOWS = 2  # timed windows in a row in which the allocator had to try again: it fits, but slowly


@final
class AutoMicro:
    """The size of the micro batch, at most ``most``.

    Halves when one does not fit, or when the allocator keeps trying again; at the end of an epoch goes to the middle
    of the band between ``batch.memory_low`` and ``batch.memory_high`` where the peak lay outside. A size that did not
    fit is not tried again. On a CPU nobody counts, so there it only halves.
    """

    def __init__(
        self, section: BatchSection, most: int, device: torch.device, read: Callable[[], MemoryUse | None] | None = None
    ) -> None:
        self.micro = self._most = most
        self.device = device
        self._band = (section.memory_low, section.memory_high)
        self._read = read or (lambda: read_memory(device))
        self._largest_known = 0  # that fitted
        self._too_large = most + 1
        self._peak_bytes = 0  # of this epoch's steps
        self._num_retries = 0
        self._windows_with_retries = 0

    def shrink(self, why: str) -> int:
        """The micro batch after one that did not fit: the largest that did, else half.

        Raises:
            torch.OutOfMemoryError: not even one sample fits; ``why`` is said.
        """
        if self.micro == 1:
            raise torch.OutOfMemoryError(f"not even a micro batch of one sample fits: {why}")
        self._too_large = min(self._too_large, self.micro)
        if self._largest_known >= self.micro:
            self._largest_known = 0  # it did, when there was more room
        self.micro = self._largest_known or _rounded(self.micro // 2)
        self._peak_bytes = 0
        return self.micro

    def begin(self) -> None:
        """From here on what is allocated is a training step's."""
        reset_peak(self.device)

    def update(self, *, at_epoch_end: bool) -> bool:
        """Looks at the memory after some steps; whether another micro batch is wanted from now on."""
        self._largest_known = max(self._largest_known, self.micro)
        use = self._read()
        if use is None:
            return False
        self._peak_bytes = max(self._peak_bytes, use.peak_bytes)
        if self._is_thrashing(use) and self.micro > 1:
            self._largest_known = 0
            self.shrink("the allocator keeps trying again")
            return True
        return at_epoch_end and self._adapt(use)

    def state_dict(self) -> dict[str, Any]:
        """What was found out."""
        return {"micro": self.micro, "largest_known": self._largest_known, "too_large": self._too_large}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with it."""
        self.micro, self._largest_known = state["micro"], state["largest_known"]
        self._too_large = state["too_large"]

    def _is_thrashing(self, use: MemoryUse) -> bool:
        has_new = use.num_retries > self._num_retries
        self._num_retries = use.num_retries
        self._windows_with_retries = self._windows_with_retries + 1 if has_new else 0
        if self._windows_with_retries < _THRASHING_WINDOWS:
            return False
        self._windows_with_retries = 0
        return True

    def _adapt(self, use: MemoryUse) -> bool:
        low, high = self._band
        peak, self._peak_bytes = self._peak_bytes, 0
        if low <= peak / use.total_bytes <= high:
            return False
        sample_bytes = max(peak - use.held_bytes, 1) / self.micro
        fitting = int(((low + high) / 2 * use.total_bytes - use.held_bytes) / sample_bytes)
        wanted = max(1, min(_rounded(fitting), self._most, self._too_large - 1))
        # with less than the band: grow or stay; with more: shrink or stay
        if (wanted > self.micro) != (peak / use.total_bytes < low) or wanted == self.micro:
            return False
        self.micro = wanted
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
    """One optimizer step over ``window``, whatever micro batch that takes; returns the mean loss before it.

    When memory runs out, everything of the attempt is given back, generators and running statistics are put where they
    were, and ``cut_again`` hands out the same samples in smaller micro batches.
    """
    undo = _undo(step.model, auto_micro.device)
    while True:
        step.clear_gradients()
        found = catch_out_of_memory(partial(step.accumulate, batches_of(window), window.samples))
        if not isinstance(found, str):
            step.update()
            return found
        step.clear_gradients()
        release_memory(auto_micro.device)
        undo()
        window = cut_again(window, auto_micro.shrink(found))


def catch_out_of_memory(setup: Callable[[], Result]) -> Result | str:
    """What ``setup`` returns, or why its memory ran out. Other errors go through.

    A function of its own: with its frame goes the traceback, which holds on to every tensor of the failed attempt.
    """
    try:
        return setup()
    except Exception as error:
        if classify_error(error) != "out_of_memory":
            raise
        return str(error)


def _undo(model: nn.Module, device: torch.device) -> Callable[[], None]:
    # an attempt draws for dropout, and moves the running statistics of batch norm
    drawn = torch.get_rng_state()
    drawn_there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    buffers = [buffer.clone() for buffer in model.buffers()]

    def undo() -> None:
        torch.set_rng_state(drawn)
        if drawn_there is not None:
            torch.cuda.set_rng_state(drawn_there, device)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)

    return undo
