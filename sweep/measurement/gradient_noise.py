"""The simple gradient noise scale, from the gradients of micro batches and of their mean.

McCandlish, Kaplan, Amodei et al. 2018, "An empirical model of large-batch training" (arXiv:1812.06162), appendix A.1:
for a gradient estimated from B samples, E|G_B|^2 = |G|^2 + tr(S) / B. Two batch sizes give both unknowns without bias:

    |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(S) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

and B_simple = tr(S) / |G|^2. Each is averaged over steps before the ratio is taken, because the ratio of two noisy
numbers is biased. B_simple is not the critical batch B_crit, which follows from the steps to a target: the paper finds
both of one order, and that B_simple grows tenfold and more over a training, so the average over the training is
compared. An accumulation has micro batches; a step of a single micro batch has one batch size only, so at intervals its
two halves are measured by two more backward passes, which do not change the training.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from sweep.measurement.device import snapshot_pass

WINDOWS_EVERY = 4  # where the noise scale is only recorded; every window would cost 6 % of a small model's time
Gradient = Callable[[Tensor, Tensor], list[Tensor]]  # images, labels -> gradients of their mean loss

# Steps of one micro batch. Two halves take as long as 1.4 steps on a CPU, almost 2 where launches limit a GPU.
_HALVES_EVERY = {"cpu": 48, "cuda": 96}
_LEAST_HALVED = 4  # samples: batch statistics require two in each half
_MAX_WAITING = 1000  # steps whose squared norms are on the device
_DECAY = 0.95  # of the running averages, per step
# The averages have this weight after 14 steps, when no single step is more than a tenth of them; then they are used.
_LEAST_WEIGHT = 0.5


class NoiseMoments(NamedTuple):
    """The estimates of one step."""

    squared_gradient: float  # |G|^2; the estimate may be negative
    noise_trace: float  # tr(S)


def estimate_moments(micro_squares: Sequence[float], micro_sizes: Sequence[int], whole_square: float) -> NoiseMoments:
    """Both moments from the squared norms of the mean gradients of the micro batches and of the whole batch.

    For micro batches of unequal sizes B_small is the harmonic mean, with which the expectation above holds. Raises
    ``ValueError``: fewer than two micro batches, so that there is one batch size only."""
    if len(micro_sizes) < 2:
        raise ValueError("the noise scale requires at least two micro batches")
    whole = sum(micro_sizes)
    small_inverse = sum(1 / size for size in micro_sizes) / len(micro_sizes)
    small_square = sum(micro_squares) / len(micro_squares)
    trace = (small_square - whole_square) / (small_inverse - 1 / whole)
    return NoiseMoments(whole_square - trace / whole, trace)


@final
@dataclass(kw_only=True)
class NoiseScale:
    """Bias-corrected running averages of the moments over the last steps, and their sums over all steps."""

    decay: float = _DECAY
    weight: float = 0.0
    square: float = 0.0
    trace: float = 0.0
    square_sum: float = 0.0
    trace_sum: float = 0.0
    num_steps: int = 0  # measured

    def add(self, moments: NoiseMoments) -> None:
        self.num_steps += 1
        self.square_sum += moments.squared_gradient
        self.trace_sum += moments.noise_trace
        rest = 1.0 - self.decay
        self.weight = self.decay * self.weight + rest
        self.square = self.decay * self.square + rest * moments.squared_gradient
        self.trace = self.decay * self.trace + rest * moments.noise_trace

    @property
    def averages(self) -> NoiseMoments | None:
        return NoiseMoments(self.square / self.weight, self.trace / self.weight) if self.weight else None

    @property
    def value(self) -> float | None:
        """tr(S) / |G|^2 in samples of the last steps; None while the averages are not positive."""
        return _ratio(self.averages) if self.averages else None

    @property
    def run_value(self) -> float | None:
        """tr(S) / |G|^2 in samples of all steps, each of which counts once; None while the sums are not positive."""
        return _ratio(NoiseMoments(self.square_sum, self.trace_sum))

    def is_at_least(self, samples: int) -> bool:
        """Whether tr(S) >= ``samples`` |G|^2, where a negative estimate of |G|^2 counts as 0.

        Such an estimate has no ratio, but is the case of much noise. False while too few steps are averaged.
        """
        if self.averages is None or self.weight < _LEAST_WEIGHT:
            return False
        square, trace = self.averages
        return trace > 0 and trace >= samples * max(square, 0.0)


def _ratio(moments: NoiseMoments) -> float | None:
    is_known = moments.squared_gradient > 0 and moments.noise_trace > 0
    return moments.noise_trace / moments.squared_gradient if is_known else None


@final
class NoiseMeter:
    """Measures each micro batch's gradient before it is added to the others; requires the memory of one more gradient.

    The sum equals plain accumulation, bit for bit. With batch norm the gradient of a micro batch, or of a half, depends
    on its own statistics. Squared norms stay on the device until they are read. Of the windows of several micro batches
    every ``windows_every``-th is measured.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], buffers: Iterable[Tensor] = (), windows_every: int = 1
    ) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._buffers = list(buffers)
        self._scale = NoiseScale()
        self._squares: list[Tensor] = []  # of the open window, over the squared share
        self._sizes: list[int] = []
        self._waiting: list[tuple[Tensor, list[int]]] = []  # of closed windows; the last square is the whole window's
        self._windows_every = windows_every
        self._until_window = 0
        self._halves_every = _HALVES_EVERY[self._parameters[0].device.type]
        self._until_halves = 0  # at once, so that the one-time costs belong to the warm-up
        self._largest = 0  # single micro batch so far

    def backward(self, loss: Tensor, samples: int, share: Tensor | float) -> None:
        """Adds the gradient of ``loss``, which is the mean loss of ``samples``, times ``share`` (with loss scale)."""
        self._sizes.append(samples)
        if self._until_window:
            torch.autograd.backward(loss)
            return
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        torch.autograd.backward(loss)
        self._squares.append(self._square_of_gradients() / share**2)
        self._add_to(before)

    def close_window(self, scale: Tensor | float) -> None:
        """Ends a window, whose gradient is multiplied by ``scale``; a single micro batch gives no estimate."""
        if len(self._squares) > 1:
            self._keep([*self._squares, self._square_of_gradients() / scale**2], self._sizes)
        if len(self._sizes) > 1:
            self._until_window = (self._until_window or self._windows_every) - 1
        self.drop_window()

    def measure_halves(self, images: Tensor, labels: Tensor, gradient: Gradient) -> None:
        """Measures, at intervals, the halves of a micro batch (both tensors (b, ...)) that is a step.

        Running statistics and random generators are unchanged. A batch smaller than an earlier one is skipped, because
        its halves would have shapes of their own.
        """
        count = len(labels)
        self._largest = max(self._largest, count)
        self._until_halves -= 1
        if self._until_halves >= 0 or count < max(self._largest, _LEAST_HALVED):
            return
        self._until_halves = self._halves_every - 1
        sizes = [count - count // 2, count // 2]
        restore = snapshot_pass(self._buffers, images.device)
        try:
            parts = zip(torch.split(images, sizes), torch.split(labels, sizes), strict=True)
            first, second = (gradient(*part) for part in parts)
        finally:
            restore()
        squares = [_square(first), _square(second)]
        whole = torch._foreach_mul(first, sizes[0] / count)
        torch._foreach_add_(whole, second, alpha=sizes[1] / count)
        self._keep([*squares, _square(whole)], sizes)

    def drop_window(self) -> None:
        self._squares, self._sizes = [], []

    def reset(self) -> None:
        self.drop_window()
        self._waiting = []
        self._scale = NoiseScale()
        # The first steps are not typical, so measuring begins later.
        self._until_window, self._until_halves, self._largest = self._windows_every // 2, self._halves_every // 2, 0

    def read(self) -> NoiseScale:
        """The noise scale of all steps that were measured so far. Waits for the device."""
        for squares, sizes in self._waiting:
            *small, whole = squares.tolist()
            if all(map(math.isfinite, (*small, whole))):  # else the step has overflowed and is skipped
                self._scale.add(estimate_moments(small, sizes, whole))
        self._waiting = []
        return self._scale

    def state_dict(self) -> dict[str, Any]:
        """The averages, and the positions in the intervals."""
        due = {"until_window": self._until_window, "until_halves": self._until_halves, "largest": self._largest}
        return {"scale": asdict(self.read()), **due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()
        self._scale = NoiseScale(**state["scale"])
        self._until_window, self._until_halves = state["until_window"], state["until_halves"]
        self._largest = state["largest"]

    def _square_of_gradients(self) -> Tensor:
        return _square(parameter.grad for parameter in self._parameters if parameter.grad is not None)

    def _add_to(self, before: Sequence[Tensor | None]) -> None:
        # Restores the sums as the parameters' gradients and adds the present gradients.
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
            self.read()


def _square(gradients: Iterable[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(gradients))).to(torch.float64).square().sum()
