"""The end of a trial: what is measured after its last step, and the one message that it ends with."""

import logging
import math
from collections.abc import Callable, Iterable

import torch

from sweep.measurement.device import device_class
from sweep.measurement.environment import describe_environment
from sweep.records.messages import Ending, Outcome, TrialTask
from sweep.training.checkpoints.checkpoint import save_weights
from sweep.training.data.feeders import Batch
from sweep.training.diagnostics.bottleneck import find_bottleneck
from sweep.training.diagnostics.sharpness import measure_sharpness
from sweep.training.outcomes import DivergedError, TargetMissedError
from sweep.training.steps.averaged_weights import averaged_model
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.step import evaluate_model
from sweep.training.steps.trial_state import TrialState

_log = logging.getLogger(__name__)


def evaluate_images(work: TrainingSetup, batches_of: Callable[[], Iterable[Batch]]) -> tuple[float, float]:
    """Mean loss and accuracy of the weights that count, over the batches of one pass.

    Raises:
        DivergedError: the loss is no number.
    """
    step = work.step
    with averaged_model(step, work.train_batches) as model:
        loss, accuracy = evaluate_model(model, step.normalise, step.precision, batches_of(), step.world, work.ask)
    if not math.isfinite(loss):
        raise DivergedError(f"the loss of an evaluation became {loss}")
    return loss, accuracy


def finish_trial(task: TrialTask, work: TrainingSetup, story: TrialState) -> None:
    """Accuracy on training and test images, the weights' file, diagnostics; all of it off the training's clock.

    Raises:
        TargetMissedError: an accuracy was asked for, and no evaluation reached it.
    """
    with story.ledger.phase("eval"):
        _, train_accuracy = evaluate_images(work, work.train_batches)
        story.facts["train_accuracy"] = train_accuracy
        story.facts["generalization_gap"] = train_accuracy - story.facts["val_accuracy"]
        if task.read_test:
            _, story.facts["test_accuracy"] = evaluate_images(work, work.batches_of(work.splits.read_test()))
    if task.weights_path:
        with story.ledger.phase("checkpoint"), averaged_model(work.step, work.train_batches) as model:
            if work.step.world.rank == 0:
                save_weights(model, task.weights_path)
    if work.budget.target_accuracy is not None and "steps_to_target" not in story.facts:
        best = max(evaluation.val_accuracy for evaluation in story.evaluations)
        raise TargetMissedError(
            f"val_accuracy reached {best:.4f} at best, below budget.target_accuracy = {work.budget.target_accuracy:g}, "
            f"in budget.max_epochs = {task.config.budget.max_epochs:g} epochs"
        )
    if task.config.diagnostics.sharpness and task.measure_sharpness:
        with story.ledger.phase("diagnostics"):
            story.facts |= _sharpness(task, work)
    with story.ledger.phase("diagnostics"):
        story.bottleneck = find_bottleneck(work, story)  # the last, because it spoils what the optimizer has gathered


def _sharpness(task: TrialTask, work: TrainingSetup) -> dict[str, float]:
    try:
        return measure_sharpness(task.config, work)
    except torch.OutOfMemoryError as error:  # the training itself did fit
        _log.warning("sharpness was not measured: %s", error)
        return {}


def describe_ending(story: TrialState, outcome: Outcome, error: str, ranks: int) -> Ending:
    """What the trial leaves behind."""
    try:
        name = device_class(story.device, ranks)
        environment = {**describe_environment(story.device), "device": name}
    except RuntimeError:  # a GPU that failed answers no question
        name, environment = str(story.device), {}
    return Ending(
        outcome=outcome,
        measurements=story.measurements(),
        device=name,
        environment=environment,
        quality_flags=story.quality_flags(),
        error=error,
        bottleneck=story.bottleneck,
        training_spans=tuple(story.ledger.spans),
    )
