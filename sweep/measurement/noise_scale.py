"""The simple gradient noise scale, from the gradients of micro batches and their mean.

McCandlish, Kaplan, Amodei et al. 2018, "An empirical model of large-batch training" (arXiv:1812.06162), appendix A.1:
for a gradient estimated from B samples, E|G_B|^2 = |G|^2 + tr(S) / B. Two batch sizes give both unknowns without bias:

    |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(S) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

and B_simple = tr(S) / |G|^2. Each is averaged over steps before the ratio is taken, because the ratio of two noisy
numbers is biased.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

_DECAY = 0.95  # of the running averages, per step


class NoiseMoments(NamedTuple):
    """What one step says."""

    squared_gradient: float  # |G|^2; an estimate, which may be negative
    noise_trace: float  # tr(S)


def estimate_moments(micro_squares: Sequence[float], micro_sizes: Sequence[int], whole_square: float) -> NoiseMoments:
    """Both moments from the squared norms of the micro batches' mean gradients and of that of the whole batch.

    Micro batches of unequal sizes count with their harmonic mean, for which the mean of their squared norms has the
    expectation above.

    Raises:
        ValueError: with fewer than two micro batches there is one batch size only.
    """
    if len(micro_sizes) < 2:
        raise ValueError("the noise scale wants two micro batches or more")
    whole = sum(micro_sizes)
    small_inverse = sum(1 / size for size in micro_sizes) / len(micro_sizes)
    small_square = sum(micro_squares) / len(micro_squares)
    trace = (small_square - whole_square) / (small_inverse - 1 / whole)
    return NoiseMoments(whole_square - trace / whole, trace)


@final
class NoiseScale:
    """Running averages of the moments over steps, without the pull towards zero of the first ones."""

    def __init__(self, decay: float = _DECAY) -> None:
        self._decay = decay
        self._weight = 0.0
        self._squared_gradient = 0.0
        self._noise_trace = 0.0

    def add(self, moments: NoiseMoments) -> None:
        """One more step."""
        rest = 1.0 - self._decay
        self._weight = self._decay * self._weight + rest
        self._squared_gradient = self._decay * self._squared_gradient + rest * moments.squared_gradient
        self._noise_trace = self._decay * self._noise_trace + rest * moments.noise_trace

    @property
    def averages(self) -> NoiseMoments | None:
        """The averages; None before the first step."""
        if not self._weight:
            return None
        return NoiseMoments(self._squared_gradient / self._weight, self._noise_trace / self._weight)

    @property
    def value(self) -> float | None:
        """tr(S) / |G|^2 in samples; None while the averages are no positive numbers."""
        found = self.averages
        if found is None or not (found.squared_gradient > 0 and found.noise_trace > 0):
            return None
        return found.noise_trace / found.squared_gradient

    def state_dict(self) -> dict[str, Any]:
        """The averages as they stand."""
        return {"weight": self._weight, "square": self._squared_gradient, "trace": self._noise_trace}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with them."""
        self._weight, self._squared_gradient = state["weight"], state["square"]
        self._noise_trace = state["trace"]
