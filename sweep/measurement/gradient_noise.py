"""Takes the gradient noise scale from the micro batches of an accumulation, while they are accumulated.

A step of one micro batch shows one batch size only. Every so many such steps the two halves of the micro batch are
therefore taken apart: two more backward passes, which leave no trace in the training.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from sweep.measurement.noise_scale import NoiseScale, estimate_moments

WINDOWS_EVERY = 4  # where the figure is only recorded; looking at every window costs 6 % of a small model's time
Gradient = Callable[[Tensor, Tensor], list[Tensor]]  # images, labels -> that of their mean loss

# Steps of one micro batch. Two halves take as long as 1.4 steps on a CPU, as almost two where a GPU waits for launches.
_HALVES_EVERY = {"cpu": 48, "cuda": 96}
_LEAST_HALVED = 4  # samples: batch statistics want two of each half
_MAX_WAITING = 1000  # steps whose figures lie on the device


@final
class NoiseMeter:
    """Sees each micro batch's gradient before it is added to the others. Costs the memory of one more gradient.

    The sum is the one that accumulation would have made, bit for bit. With batch norm the micro batches' gradients are
    those of their own statistics, and so is the answer; so are those of halves. Squared norms stay on the device until
    they are asked for. Of windows of several micro batches every ``windows_every``-th is looked at.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], buffers: Iterable[Tensor] = (), windows_every: int = 1
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._buffers = list(buffers)
        self._scale = NoiseScale()
        self._squares: list[Tensor] = []  # of the open window, over the squared share
        self._sizes: list[int] = []
        self._waiting: list[tuple[Tensor, list[int]]] = []  # of closed windows; the last square is the whole's
        self._windows_every = windows_every
        self._until_window = 0
        self._halves_every = _HALVES_EVERY[self._parameters[0].device.type]
        self._until_halves = 0  # at once: the rehearsal takes their first-time costs
        self._largest = 0  # micro batch that was a step of its own

    def backward(self, loss: Tensor, samples: int, share: Tensor | float) -> None:
        """Adds the gradient of ``loss``, which is a micro batch's mean loss times ``share`` (a loss scale included)."""
        self._sizes.append(samples)
        if self._until_window:
            torch.autograd.backward(loss)
            return
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        self._squares.append(_square(gradients) / share**2)
        self._add_to(before)

    def close_window(self, scale: Tensor | float) -> None:
        """The window's gradient, ``scale`` times too large, is complete; one of a single micro batch says nothing."""
        if len(self._squares) > 1:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            self._keep([*self._squares, _square(gradients) / scale**2], self._sizes)
        if len(self._sizes) > 1:
            self._until_window = (self._until_window or self._windows_every) - 1
        self.drop_window()

    def measure_halves(self, images: Tensor, labels: Tensor, gradient: Gradient) -> None:
        """A micro batch that is a step of its own: when it is time, its halves are measured.

        Running statistics and random generators are afterwards as they were. A batch smaller than another is passed
        over, because its halves would be shapes of their own.
        """
        count = len(labels)
        self._largest = max(self._largest, count)
        self._until_halves -= 1
        if self._until_halves >= 0 or count < max(self._largest, _LEAST_HALVED):
            return
        self._until_halves = self._halves_every - 1
        sizes = [count - count // 2, count // 2]
        with _leaving_no_trace(self._buffers, images.device):
            parts = zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True)
            first, second = (gradient(*part) for part in parts)
        squares = [_square(first), _square(second)]
        whole = torch._foreach_mul(first, sizes[0] / count)
        torch._foreach_add_(whole, second, alpha=sizes[1] / count)
        self._keep([*squares, _square(whole)], sizes)

    def drop_window(self) -> None:
        """The open window does not count."""
        self._squares, self._sizes = [], []

    def reset(self) -> None:
        """Nothing was seen."""
        self.drop_window()
        self._waiting = []
        self._scale = NoiseScale()
        # not the first step, which no later one is like
        self._until_window, self._until_halves, self._largest = self._windows_every // 2, self._halves_every // 2, 0

    def value(self) -> float | None:
        """The noise scale in samples, averaged over the last steps; None where they show none. Waits for the device."""
        self._take()
        return self._scale.value

    def state_dict(self) -> dict[str, Any]:
        """The averages, and what is due when."""
        self._take()
        due = {"until_window": self._until_window, "until_halves": self._until_halves, "largest": self._largest}
        return {**self._scale.state_dict(), **due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with them."""
        self.reset()
        self._scale.load_state_dict(state)
        self._until_window, self._until_halves = state["until_window"], state["until_halves"]
        self._largest = state["largest"]

    def _add_to(self, before: Sequence[Tensor | None]) -> None:
        # the sums so far become the parameters' gradients again, with the present ones added
        sums, present = [], []
        for parameter, gradient in zip(self._parameters, before, strict=True):
            if gradient is not None:
                if parameter.grad is not None:
                    sums.append(gradient)
                    present.append(parameter.grad)
                parameter.grad = gradient
        if sums:
            torch._foreach_add_(sums, present)

    def _keep(self, squares: Sequence[Tensor], sizes: list[int]) -> None:
        self._waiting.append((torch.stack(list(squares)), sizes))
        if len(self._waiting) >= _MAX_WAITING:
            self._take()

    def _take(self) -> None:
        for squares, sizes in self._waiting:
            *small, whole = squares.tolist()
            if all(map(math.isfinite, (*small, whole))):  # a step that overflowed is skipped, and says nothing
                self._scale.add(estimate_moments(small, sizes, whole))
        self._waiting = []


def _square(gradients: Iterable[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(gradients))).to(torch.float64).square().sum()


@contextmanager
def _leaving_no_trace(buffers: Sequence[Tensor], device: torch.device) -> Iterator[None]:
    # what a forward pass in training mode changes: running statistics, and the generators that dropout draws from
    before = [buffer.clone() for buffer in buffers]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            if before:
                torch._foreach_copy_(list(buffers), before)
