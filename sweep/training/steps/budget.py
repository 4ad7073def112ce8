"""How long to train, how much of that is spent, and when to evaluate."""

from bisect import bisect_right
from math import ceil
from typing import Any, NamedTuple, final

from sweep.config.data_sections import BudgetSection
from sweep.training.data.windows import count_budget_epochs, count_budget_steps
from sweep.training.protocol import MAX_EVALUATIONS, TARGET_EPOCHS, TARGET_GROWTH
from sweep.training.recipe.schedules import Span


class TrainingPoint(NamedTuple):
    """A place in a training: what it has taken so far."""

    steps: int
    samples: int
    seconds: float  # of training

    def ahead(self, steps: int, samples: int) -> "TrainingPoint":
        """The place so many steps and samples further on, at the same time."""
        return TrainingPoint(self.steps + steps, self.samples + samples, self.seconds)


@final
class Budget:
    """What a training may take.

    Counted in optimizer steps where their number is known beforehand; a budget of samples or epochs with a growing
    batch is counted in samples, one of seconds in train seconds. ``num_steps`` is then nominal: the steps of the first
    global batch's size that it would buy, so that a schedule has its shape over samples, or over time.
    """

    def __init__(
        self, section: BudgetSection, num_samples: int, global_batch: int, steps_per_epoch: int, *, is_growing: bool
    ) -> None:
        self.target_accuracy = section.target_accuracy
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

    def expect_step_seconds(self, seconds: float) -> None:
        """How long a step takes: what a budget of seconds buys."""
        if self._unit == "seconds":
            self.num_steps = max(1, ceil(self._total / max(seconds, 1e-9)))

    def share(self, mark: TrainingPoint) -> float:
        """The spent share, from 0 to 1."""
        return min(self._spent(mark) / self._total, 1.0)

    def is_spent(self, mark: TrainingPoint) -> bool:
        """Nothing is left."""
        return self._spent(mark) >= self._total

    def position(self, mark: TrainingPoint) -> float:
        """The place in nominal steps, from 0 to below ``num_steps``."""
        if self._unit == "steps":
            return mark.steps
        return min(self.share(mark) * self.num_steps, self.num_steps - 1e-6)

    @property
    def span(self) -> Span:
        """The length of the training as a schedule of the learning rate takes it, for :meth:`position`."""
        return Span(self.num_steps, self._steps_per_epoch, self._num_samples)

    def seconds_left(self, mark: TrainingPoint) -> float:
        """Of a budget of seconds; infinite for any other."""
        return self._total - mark.seconds if self._unit == "seconds" else float("inf")

    def expected_steps(self, mark: TrainingPoint) -> int:
        """How many steps it will have been, as far as is known."""
        share = self.share(mark)
        if self._unit == "steps" or share == 0:
            return self.num_steps
        return max(mark.steps, round(mark.steps / share))

    def expected_epochs(self, samples_per_step: float | None) -> int:
        """Passes over the training split, rounded up; ``samples_per_step`` on average where the batch grows."""
        if self._unit == "samples":
            return ceil(self._total / self._num_samples)
        if samples_per_step is None:
            return ceil(self.num_steps / self._steps_per_epoch)
        return ceil(self.num_steps * samples_per_step / self._num_samples)

    def state_dict(self) -> dict[str, Any]:
        """What was found out about the step's time."""
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the same schedule."""
        self.num_steps = state["num_steps"]

    def _spent(self, mark: TrainingPoint) -> float:
        return {"steps": mark.steps, "samples": mark.samples, "seconds": mark.seconds}[self._unit]


@final
class EvaluationSchedule:
    """The numbers of samples after which to evaluate; the end of the training is one more.

    At the end of each epoch, or of every few where there would be more than 50; more often until a target accuracy.
    """

    def __init__(self, num_samples: int, num_epochs: int, *, until_target: bool) -> None:
        self._every = num_samples * ceil(num_epochs / MAX_EVALUATIONS)
        self._points = _target_points(num_samples, num_epochs) if until_target else []

    def is_passed(self, before: int, after: int) -> bool:
        """A point lies after ``before`` samples and not after ``after``."""
        if self._points:
            return bisect_right(self._points, after) > bisect_right(self._points, before)
        return after // self._every > before // self._every


def _target_points(num_samples: int, num_epochs: int) -> list[float]:
    points = [TARGET_EPOCHS * num_samples]
    while points[-1] < num_samples * num_epochs:
        points.append(points[-1] + max(TARGET_EPOCHS * num_samples, TARGET_GROWTH * points[-1]))
    return points
