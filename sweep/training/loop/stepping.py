"""The steps of a trial while the micro batch may still change: cut again what does not fit, and look in between."""

from collections.abc import Iterator

from torch import Tensor

from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.steps.auto_micro import step_that_fits
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.trial_state import TrialState


def open_window(work: TrainingSetup, story: TrialState) -> None:
    """From here on the clock runs, and memory counts as a step's."""
    if work.pilot:
        work.pilot.begin()
    story.ledger.open_window()


def take_step(work: TrainingSetup, story: TrialState, window: Window) -> Tensor:
    """One optimizer step; its mean loss. The window is cut into smaller micro batches until they fit."""

    def batches_of(part: Window) -> Iterator[Batch]:
        return story.ledger.waiting(work.feeder.micro_batches(part))

    if work.pilot is None:
        return work.step(batches_of(window), window.samples)

    def cut_again(part: Window, micro: int) -> Window:
        _note_micro(story, micro)
        work.course.take_back(part, micro)
        return work.course.next_window(lambda _windows, _samples: part.wanted)

    return step_that_fits(work.step, batches_of, window, work.pilot, cut_again)


def look_at_memory(work: TrainingSetup, story: TrialState) -> None:
    """Takes another micro batch from now on where the memory's use asks for it."""
    if work.pilot and work.pilot.look(at_epoch_end=work.course.at_epoch_end):
        work.course.set_micro(work.pilot.micro)
        _note_micro(story, work.pilot.micro)


def is_edge(work: TrainingSetup, window: Window) -> bool:
    """Whether a timed window ends here; a smaller last one is timed apart, so that step times are of whole steps."""
    is_epoch_looked_at = work.pilot is not None and work.course.at_epoch_end
    return is_epoch_looked_at or not (window.is_whole and work.course.is_next_whole)


def _note_micro(story: TrialState, micro: int) -> None:
    story.facts["micro_batch_size"] = micro
    story.flags = tuple(dict.fromkeys((*story.flags, "micro_batch_changed")))  # times are of more than one
