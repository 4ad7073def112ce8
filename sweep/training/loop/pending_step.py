"""The optimizer steps of a trial as requests, so that one process can take those of several trials together."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import final

from torch import Tensor

from sweep.records.messages import Message
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.steps.auto_micro import step_within_memory
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.trial_state import TrialState


@final
@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """The next optimizer step of a trial, which waits for whoever advances the trial. The learning rate is set."""

    setup: TrainingSetup
    state: TrialState
    window: Window

    def take(self) -> Tensor:
        """Takes the step; returns its mean loss, a scalar. An automatic micro batch is reduced until it fits."""
        setup, state = self.setup, self.state
        if setup.auto_micro is None:
            return setup.step(self.batches(), self.window.samples)

        def cut_again(part: Window, micro: int) -> Window:
            note_micro_batch(state, micro)
            setup.planner.take_back(part, micro)
            return setup.planner.next_window(lambda _windows, _samples: part.global_batch)

        return step_within_memory(setup.step, self._batches_of, self.window, setup.auto_micro, cut_again)

    def batches(self) -> Iterator[Batch]:
        """The micro batches of the step; the time that the host waits for them counts as data wait."""
        return self._batches_of(self.window)

    def _batches_of(self, window: Window) -> Iterator[Batch]:
        return self.state.ledger.waiting(self.setup.feeder.micro_batches(window))


TrialSteps = Generator[Message | PendingStep, Tensor, None]  # is sent the mean loss of each step, a scalar


def take_steps(trial: TrialSteps) -> Iterator[Message]:
    """The messages of ``trial``, each of whose steps is taken as soon as it is due."""
    with closing(trial):
        item = find_next(lambda: next(trial))
        while item is not None:
            if isinstance(item, PendingStep):
                item = _take(trial, item)
            else:
                yield item
                item = find_next(lambda: next(trial))


def find_next(advance: Callable[[], Message | PendingStep]) -> Message | PendingStep | None:
    """What a trial yields when it is advanced; None where it has ended."""
    try:
        return advance()
    except StopIteration:
        return None


def _take(trial: TrialSteps, step: PendingStep) -> Message | PendingStep | None:
    try:
        loss = step.take()
    except Exception as error:
        failure = error
        return find_next(lambda: trial.throw(failure))
    return find_next(lambda: trial.send(loss))


def note_micro_batch(state: TrialState, micro: int) -> None:
    """Notes that an automatic micro batch was changed to ``micro`` samples."""
    state.facts["micro_batch_size"] = micro
    state.flags = tuple(dict.fromkeys((*state.flags, "micro_batch_changed")))  # step times are of several sizes
