"""How many images an evaluation takes at once: so few that it requires no more memory than a training step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch

_MOST_PIXELS = 2**23  # of a batch, from which larger ones are not faster
_MOST_IMAGES = 1024


@final
@dataclass
class EvalBatch:
    """``size`` images at most in each batch of an evaluation. Its result depends on that only by rounding."""

    size: int

    def halve(self, why: str) -> None:
        """Halves a size that ran out of memory.

        Raises:
            torch.OutOfMemoryError: not even one image fits; the message contains ``why``.
        """
        if self.size == 1:
            raise torch.OutOfMemoryError(f"not even one image can be evaluated: {why}")
        self.size //= 2


class EvalFit(NamedTuple):
    """A size that was tried, and the most bytes that the allocator held meanwhile."""

    size: int
    peak_bytes: int


def count_most_images(num_validation: int, side: int) -> int:
    """The largest batch of an evaluation of ``num_validation`` square images of ``side`` pixels; memory aside."""
    return max(1, min(_MOST_IMAGES, _MOST_PIXELS // side**2, num_validation))


def fit_eval_batch(
    measure: Callable[[int], int], micro: int, most: int, resting_bytes: int, limit_bytes: int
) -> EvalFit:
    """The largest size up to ``most`` whose peak is found to be at most ``limit_bytes``, that of a training step.

    ``measure`` gives the peak of a size. A training step holds the activations of all layers and an evaluation those of
    one, so the ``micro`` batch fits nearly always, and is halved where it does not. From what it requires above
    ``resting_bytes``, which are held in any case, a larger size is predicted, and measured too. Where not even one
    image fits, the size is 1.
    """
    fit = EvalFit(min(micro, most), measure(min(micro, most)))
    while fit.peak_bytes > limit_bytes and fit.size > 1:
        fit = EvalFit(fit.size // 2, measure(fit.size // 2))
    size = min(most, fit.size * ((limit_bytes - resting_bytes) // max(fit.peak_bytes - resting_bytes, 1)))
    while size > fit.size:
        if (peak_bytes := measure(size)) <= limit_bytes:
            return EvalFit(size, peak_bytes)
        size //= 2
    return fit
