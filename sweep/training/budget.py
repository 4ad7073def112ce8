"""How long to train, which share of that is spent, when to evaluate, and the global batch over the budget."""

import math
from bisect import bisect_right
from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple, final

from sweep.config.sections import BatchSection, BudgetSection
from sweep.training.constants import MAX_EVALUATIONS, TARGET_EPOCHS, TARGET_GROWTH
from sweep.training.data.windows import count_budget_epochs, count_budget_steps
from sweep.training.schedules import Span


class TrainingPoint(NamedTuple):
    steps: int
    samples: int
    seconds: float  # of training


@final
class Budget:
    """The length of a training.

    Counted in optimizer steps where their number is known in advance; a budget of samples or epochs with a growing
    batch is counted in samples, one of seconds in seconds of training. ``num_steps`` is then nominal: the number of
    steps with the first global batch, so that a schedule of the learning rate has its shape over samples or time.
    """

    def __init__(
        self, section: BudgetSection, num_samples: int, global_batch: int, steps_per_epoch: int, *, is_growing: bool
    ) -> None:
        self.target = section.target
        self._num_samples = num_samples
        self._steps_per_epoch = steps_per_epoch
        self.num_steps = 1
        self._unit, self._total = "seconds", section.seconds or 0.0
        if section.seconds is None:
            self.num_steps = count_budget_steps(section, num_samples, global_batch, steps_per_epoch)
            self._unit, self._total = "steps", float(self.num_steps)
        if is_growing and section.steps is None and section.seconds is None:
            samples = section.samples or ceil(count_budget_epochs(section) * num_samples - 1e-6)
            self._unit, self._total = "samples", float(max(samples, 1))

    @property
    def is_of_time(self) -> bool:
        """Whether it depends on how fast the training is."""
        return self._unit == "seconds"

    def expect_step_seconds(self, seconds: float) -> None:
        """Sets the nominal number of steps of a budget of seconds."""
        if self._unit == "seconds":
            self.num_steps = max(1, ceil(self._total / max(seconds, 1e-9)))

    def share(self, point: TrainingPoint) -> float:
        return min(self._spent(point) / self._total, 1.0)

    def is_spent(self, point: TrainingPoint) -> bool:
        return self._spent(point) >= self._total

    def position(self, point: TrainingPoint) -> float:
        """The position in nominal steps, at least 0 and less than ``num_steps``."""
        if self._unit == "steps":
            return point.steps
        return min(self.share(point) * self.num_steps, self.num_steps - 1e-6)

    @property
    def span(self) -> Span:
        return Span(self.num_steps, self._steps_per_epoch, self._num_samples)

    def expected_steps(self, point: TrainingPoint) -> int:
        share = self.share(point)
        if self._unit == "steps" or share == 0:
            return self.num_steps
        return max(point.steps, round(point.steps / share))

    def expected_epochs(self, samples_per_step: float | None) -> int:
        """Epochs, rounded up; ``samples_per_step`` is the average where the batch grows, else None."""
        if self._unit == "samples":
            return ceil(self._total / self._num_samples)
        if samples_per_step is None:
            return ceil(self.num_steps / self._steps_per_epoch)
        return ceil(self.num_steps * samples_per_step / self._num_samples)

    def state_dict(self) -> dict[str, Any]:
        """The nominal number of steps, which may follow from the measured time of a step."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]

    def _spent(self, point: TrainingPoint) -> float:
        return {"steps": point.steps, "samples": point.samples, "seconds": point.seconds}[self._unit]


@final
class EvaluationSchedule:
    """The numbers of samples after which to evaluate, besides the end of the training.

    The end of each epoch, or of every few epochs where there would be more than 50; with a target accuracy more often.
    In samples, so that trainings with different batch sizes are evaluated at the same points.
    """

    def __init__(self, num_samples: int, num_epochs: int, *, until_target: bool) -> None:
        self._every = num_samples * ceil(num_epochs / MAX_EVALUATIONS)
        self._points: list[float] = []
        if until_target:
            self._points.append(TARGET_EPOCHS * num_samples)
            while self._points[-1] < num_samples * num_epochs:
                last = self._points[-1]
                self._points.append(last + max(TARGET_EPOCHS * num_samples, TARGET_GROWTH * last))

    def is_passed(self, before: int, after: int) -> bool:
        """Whether an evaluation is due after more than ``before`` and at most ``after`` samples."""
        if self._points:
            return bisect_right(self._points, after) > bisect_right(self._points, before)
        return after // self._every > before // self._every


# The factor of the first global batch at a share of the budget in [0, 1): "increase the batch instead of decaying the
# learning rate".
_PROGRESS = 0.01  # share by which the mean training loss falls at least, where it does not stand still
_GROWTHS: dict[str, Callable[[BatchSection, float], float]] = {
    "constant": lambda _section, _share: 1.0,
    "linear": lambda section, share: 1.0 + (section.schedule_factor - 1.0) * share,
    "exponential": lambda section, share: float(section.schedule_factor**share),
    "stepwise": lambda section, share: float(  # by equal factors at the milestones
        section.schedule_factor ** (bisect_right(section.milestones, share) / len(section.milestones))
    ),
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
        self._growth = _GROWTHS.get(section.schedule, _GROWTHS["constant"])
        self._doublings = 0
        self._lowest_loss, self._num_stalled = math.inf, 0

    @property
    def is_growing(self) -> bool:
        return self._section.schedule != "constant" and self._section.schedule_factor > 1.0

    @property
    def grows_by_share(self) -> bool:
        """Whether it grows, and its size depends on the share of the budget alone."""
        return self.is_growing and self._section.schedule in _GROWTHS

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
        is_lower = loss < self._lowest_loss * (1.0 - _PROGRESS)
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
