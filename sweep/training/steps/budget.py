"""How long to train, which share of that is spent, and when to evaluate."""

from bisect import bisect_right
from math import ceil
from typing import Any, NamedTuple, final

from sweep.config.data_sections import BudgetSection
from sweep.training.constants import MAX_EVALUATIONS, TARGET_EPOCHS, TARGET_GROWTH
from sweep.training.data.windows import count_budget_epochs, count_budget_steps
from sweep.training.recipe.schedules import Span


class TrainingPoint(NamedTuple):
    """A point in a training: what it has taken so far."""

    steps: int
    samples: int
    seconds: float  # of training

    def ahead(self, steps: int, samples: int) -> "TrainingPoint":
        """The point after so many more ``steps`` and ``samples``, at the same time."""
        return TrainingPoint(self.steps + steps, self.samples + samples, self.seconds)


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

    @property
    def is_of_time(self) -> bool:
        """Whether it depends on how fast the training is."""
        return self._unit == "seconds"

    def expect_step_seconds(self, seconds: float) -> None:
        """Sets the nominal number of steps of a budget of seconds."""
        if self._unit == "seconds":
            self.num_steps = max(1, ceil(self._total / max(seconds, 1e-9)))

    def share(self, point: TrainingPoint) -> float:
        """The spent share, from 0 to 1."""
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
        """The length of the training in the units of :meth:`position`."""
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
        self._points = _target_points(num_samples, num_epochs) if until_target else []

    def is_passed(self, before: int, after: int) -> bool:
        """Whether an evaluation is due after more than ``before`` and at most ``after`` samples."""
        if self._points:
            return bisect_right(self._points, after) > bisect_right(self._points, before)
        return after // self._every > before // self._every


def _target_points(num_samples: int, num_epochs: int) -> list[float]:
    points = [TARGET_EPOCHS * num_samples]
    while points[-1] < num_samples * num_epochs:
        points.append(points[-1] + max(TARGET_EPOCHS * num_samples, TARGET_GROWTH * points[-1]))
    return points
