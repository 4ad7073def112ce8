"""The end of a trial: what is measured after its last step, and its last message."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from sweep.config.scaling import scale_adam_constants, scale_weight_decay
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import TrialConfig
from sweep.measurement.device import describe_environment, name_device_class
from sweep.measurement.host_memory import name_storage
from sweep.measurement.memory import release_memory
from sweep.records.messages import Ending, Outcome, TrialTask
from sweep.records.records import encode_correct
from sweep.training.auto_micro import catch_out_of_memory
from sweep.training.bottleneck import find_bottleneck
from sweep.training.checkpoints import ModelFacts, save_model
from sweep.training.data.feeders import Batch
from sweep.training.evaluation import averaged_model, evaluate_model
from sweep.training.outcomes import DivergedError, TargetMissedError
from sweep.training.setup import TrainingSetup, TrialState
from sweep.training.sharpness import measure_sharpness
from sweep.training.world import World

_log = logging.getLogger(__name__)


def evaluate_images(
    setup: TrainingSetup, batches_of: Callable[[], Iterable[Batch]], correct: list[Tensor] | None = None
) -> tuple[float, float]:
    """Mean loss and accuracy over the batches of one pass, of the averaged weights where the configuration has them.
    ``correct`` receives for each batch which of its images this rank got right.

    Where memory runs out, half as many images are taken at once, for good.

    Raises:
        DivergedError: the loss is not a finite number.
        torch.OutOfMemoryError: not even one image can be evaluated.
    """
    step = setup.step
    step.clear_gradients()  # those of the last step, so that an evaluation requires no more memory than a step
    result = catch_out_of_memory(lambda: _evaluate_once(setup, batches_of, correct))
    while isinstance(result, str):
        if step.world.size > 1:  # the other ranks have no part in another attempt
            raise torch.OutOfMemoryError(result)
        release_memory(step.normalize.mean.device)
        setup.eval_batch.halve(result)
        _log.warning("an evaluation ran out of memory; from now on %d images at once", setup.eval_batch.size)
        result = catch_out_of_memory(lambda: _evaluate_once(setup, batches_of, correct))
    loss, accuracy = result
    if not math.isfinite(loss):
        raise DivergedError(f"the loss of an evaluation became {loss}")
    return loss, accuracy


def _evaluate_once(
    setup: TrainingSetup, batches_of: Callable[[], Iterable[Batch]], correct: list[Tensor] | None
) -> tuple[float, float]:
    if correct is not None:
        correct.clear()  # of an attempt that ran out of memory
    with averaged_model(setup.step, setup.statistics_batches) as model:
        return evaluate_model(model, setup.step, batches_of(), setup.predict, correct)


def describe_correct(correct: Sequence[Tensor], world: World, num_images: int) -> str:
    """Which of the ``num_images`` of a split all ranks together got right, from each rank's own batches in order."""
    shares = torch.zeros(-(-num_images // world.size), dtype=torch.uint8)  # the last ranks may have an image less
    own = torch.cat(list(correct)).cpu() if correct else shares[:0]  # of fewer images than ranks
    shares[: len(own)] = own
    # the first rank has the images 0, size, 2 size ..., see shard_images
    return encode_correct(world.gather(shares).T.flatten()[:num_images].bool().numpy())


def finish_trial(task: TrialTask, setup: TrainingSetup, state: TrialState) -> None:
    """Measures accuracy on training and test images, saves the weights, runs diagnostics; none of it is training time.

    Raises:
        TargetMissedError: no evaluation reached the target accuracy of the budget.
    """
    with state.ledger.phase("eval"):
        _, train_accuracy = evaluate_images(setup, setup.train_batches)
        state.facts["train_accuracy"] = train_accuracy
        state.facts["generalization_gap"] = train_accuracy - state.facts["val_accuracy"]
        if task.read_test:
            _, state.facts["test_accuracy"] = evaluate_images(setup, setup.batches_of(setup.splits.read_test()))
    if task.weights_path:
        with state.ledger.phase("checkpoint"), averaged_model(setup.step, setup.statistics_batches) as model:
            if setup.step.world.rank == 0:
                save_model(model, _describe_model(setup), task.weights_path)
    if setup.budget.target_accuracy is not None and "steps_to_target" not in state.facts:
        best = max(evaluation.val_accuracy for evaluation in state.evaluations)
        raise TargetMissedError(
            f"val_accuracy reached {best:.4f} at best, below budget.target_accuracy = {setup.budget.target_accuracy:g}"
            f", in budget.max_epochs = {task.config.budget.max_epochs:g} epochs"
        )
    if task.config.diagnostics.sharpness and task.measure_costly:
        with state.ledger.phase("diagnostics"):
            try:
                state.facts |= measure_sharpness(task.config, setup)
            except torch.OutOfMemoryError as error:  # the training itself has fitted
                _log.warning("sharpness was not measured: %s", error)
    with state.ledger.phase("diagnostics"):
        state.bottleneck = find_bottleneck(setup, state)  # last, because it changes the state of the optimizer


def _describe_model(setup: TrainingSetup) -> ModelFacts:
    data, normalize = setup.config.data, setup.step.normalize
    return ModelFacts(
        model=setup.config.model,
        shape=setup.splits.shape,
        class_names=setup.splits.class_names,
        mean=normalize.mean.flatten().tolist(),
        inverse_deviation=normalize.inverse_deviation.flatten().tolist(),
        resize=data.resize if data.image_size is not None else None,
    )


def describe_ending(task: TrialTask, state: TrialState, outcome: Outcome, error: str, ranks: int) -> Ending:
    """The ending of a trial: everything that was measured until then."""
    try:
        name = name_device_class(state.device, ranks)
        storage = name_storage(Path(task.config.data.root))
        environment = {**describe_environment(state.device), "device": name, "data_storage": storage}
    except RuntimeError:  # a GPU that failed cannot be queried
        name, environment = str(state.device), {}
    return Ending(
        outcome=outcome,
        measurements=state.measurements(),
        device=name,
        environment=environment,
        quality_flags=state.quality_flags(),
        error=error,
        bottleneck=state.bottleneck,
        correct_images=state.correct_images if outcome == "complete" else "",
        training_spans=tuple(state.ledger.spans),
    )


# What the rules of a recipe have made of its values, for the record of a trial.


def list_recipe_facts(config: TrialConfig) -> dict[str, float]:
    """By name of :mod:`sweep.config.metrics`, the values that a training begins with."""
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    facts = {"scaled_weight_decay": scale_weight_decay(section, rules, size)}
    if OPTIMIZERS[section.name].has_betas:
        facts["scaled_beta2"] = scale_adam_constants(section, rules, size).beta2
    return facts
