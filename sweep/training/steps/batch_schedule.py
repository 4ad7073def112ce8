"""The global batch over the budget: "increase the batch instead of decaying the learning rate".

Smith, Kindermans, Ying and Le 2017, "Don't decay the learning rate, increase the batch size" (arXiv:1711.00489): the
scale of the gradient noise is about lr * N / B, so multiplying B has the effect of dividing the rate,
with fewer updates.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, final

from sweep.config.data_sections import BatchSection


def _stepwise(section: BatchSection, share: float) -> float:
    # equal factors; schedule_factor after the last
    milestones = section.milestones
    return float(section.schedule_factor ** (bisect_right(milestones, share) / len(milestones)))


GROWTHS: dict[str, Callable[[BatchSection, float], float]] = {
    # the factor of the first global batch at a share of the budget in [0, 1)
    "constant": lambda _section, _share: 1.0,
    "linear": lambda section, share: 1.0 + (section.schedule_factor - 1.0) * share,
    "exponential": lambda section, share: float(section.schedule_factor**share),
    "stepwise": _stepwise,
}


@final
class BatchSchedule:
    """The global batch at any share of the budget: ``first`` times the growth, in multiples of ``quantum``.

    ``quantum`` is the number of samples of a micro batch on all ranks, or 1 where the micro batch may change. The
    schedule ``noise_scale`` doubles the batch whenever the gradient noise scale is at least as large as the doubled
    batch: McCandlish et al. 2018 (arXiv:1812.06162) find the best trade-off of time and samples at the noise scale. The
    schedule ``plateau`` doubles it where others would lower the rate: when the training loss has not fallen for
    ``plateau_patience`` evaluations.
    """

    def __init__(self, section: BatchSection, first: int, quantum: int) -> None:
        self.first = first
        self.follows_noise = section.schedule == "noise_scale"
        self._section = section
        self._quantum = quantum
        self._growth = GROWTHS.get(section.schedule, GROWTHS["constant"])
        self._doublings = 0
        self._lowest_loss, self._num_stalled = math.inf, 0

    @property
    def is_growing(self) -> bool:
        """Whether the global batch is not constant."""
        return self._section.schedule != "constant" and self._section.schedule_factor > 1.0

    @property
    def is_known_ahead(self) -> bool:
        """Whether the size depends on the share of the budget alone."""
        return self._section.schedule in GROWTHS

    @property
    def largest(self) -> int:
        return self._whole(self.first * self._section.schedule_factor) if self.is_growing else self.first

    def size(self, share: float) -> int:
        if not self.is_growing:
            return self.first
        return self._whole(self.first * self._growth(self._section, share) * 2**self._doublings)

    def average(self) -> float:
        """The mean global batch over the budget, as far as it is known in advance."""
        return sum(self.size((index + 0.5) / 256) for index in range(256)) / 256

    def follow_noise(self, is_noise_scale_at_least: Callable[[int], bool]) -> None:
        """Doubles the batch where the noise scale is at least the doubled batch and the limit is not reached."""
        if self._may_double and is_noise_scale_at_least(self.first * 2 ** (self._doublings + 1)):
            self._doublings += 1

    def follow_loss(self, loss: float) -> None:
        """With ``plateau``, takes the mean training ``loss`` of the steps since the last evaluation into account; the
        count of evaluations without progress begins anew after a doubling."""
        if self._section.schedule != "plateau":
            return
        is_lower = loss < self._lowest_loss * (1.0 - self._section.plateau_threshold)
        self._lowest_loss = loss if is_lower else self._lowest_loss
        self._num_stalled = 0 if is_lower else self._num_stalled + 1
        if self._num_stalled >= self._section.plateau_patience and self._may_double:
            self._doublings, self._num_stalled = self._doublings + 1, 0

    @property
    def _may_double(self) -> bool:
        return float(2 ** (self._doublings + 1)) <= self._section.schedule_factor

    def state_dict(self) -> dict[str, Any]:
        return {"doublings": self._doublings, "lowest_loss": self._lowest_loss, "num_stalled": self._num_stalled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._doublings = state["doublings"]
        self._lowest_loss, self._num_stalled = state["lowest_loss"], state["num_stalled"]

    def _whole(self, size: float) -> int:
        # the first size is the configured one, which need not be a multiple
        return max(self.first, round(size / self._quantum) * self._quantum)
