"""Steps and timed windows of a training whose micro batch may change while it runs."""

from collections.abc import Iterator

from torch import Tensor

from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.steps.auto_micro import step_within_memory
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.trial_state import TrialState


def open_window(setup: TrainingSetup, state: TrialState) -> None:
    """Starts a timed window, and the measurement of its peak memory."""
    if setup.auto_micro:
        setup.auto_micro.begin()
    state.ledger.open_window()


def take_step(setup: TrainingSetup, state: TrialState, window: Window) -> Tensor:
    """Takes one optimizer step; returns its mean loss, a scalar. An automatic micro batch is reduced until it fits."""

    def batches_of(part: Window) -> Iterator[Batch]:
        return state.ledger.waiting(setup.feeder.micro_batches(part))

    if setup.auto_micro is None:
        return setup.step(batches_of(window), window.samples)

    def cut_again(part: Window, micro: int) -> Window:
        _note_micro(state, micro)
        setup.planner.take_back(part, micro)
        return setup.planner.next_window(lambda _windows, _samples: part.global_batch)

    return step_within_memory(setup.step, batches_of, window, setup.auto_micro, cut_again)


def adapt_micro_batch(setup: TrainingSetup, state: TrialState) -> None:
    """Changes an automatic micro batch where the memory use of the last window requires it."""
    if setup.auto_micro and setup.auto_micro.update(at_epoch_end=setup.planner.at_epoch_end):
        setup.planner.set_micro(setup.auto_micro.micro)
        _note_micro(state, setup.auto_micro.micro)


def ends_timed_window(setup: TrainingSetup, window: Window) -> bool:
    """Whether a timed window ends with ``window``: smaller last ones of an epoch are timed apart, so that step times
    are those of whole steps."""
    is_measured = setup.auto_micro is not None and setup.planner.at_epoch_end
    return is_measured or not (window.is_whole and setup.planner.is_next_whole)


def _note_micro(state: TrialState, micro: int) -> None:
    state.facts["micro_batch_size"] = micro
    state.flags = tuple(dict.fromkeys((*state.flags, "micro_batch_changed")))  # step times are of several sizes
