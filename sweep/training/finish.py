"""The end of a trial: what is measured after its last step, and its last message.

The bottleneck of a training is found by timing a few more steps on a cached batch. The time that they save is the cost
of the data; the time that a smaller micro batch does not save is the cost of launches.
"""

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sweep.config.scaling import scale_adam_constants, scale_weight_decay
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import TrialConfig
from sweep.measurement.clock import Ledger
from sweep.measurement.device import describe_environment, name_device_class, time_calls
from sweep.measurement.memory import release_memory
from sweep.records.messages import Ending, Outcome, TrialTask
from sweep.records.quality import ALLOCATOR_RETRIES
from sweep.records.records import encode_correct
from sweep.training.auto_micro import catch_out_of_memory
from sweep.training.checkpoints import ModelFacts, save_model
from sweep.training.constants import BOTTLENECK_SECONDS, BOTTLENECK_SHARE, BOTTLENECK_STEPS
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.evaluation import averaged_model, evaluate_model
from sweep.training.outcomes import DivergedError, TargetMissedError, classify_error, explain_error, find_cause
from sweep.training.setup import TrainingSetup, TrialState
from sweep.training.sharpness import measure_sharpness
from sweep.training.step import set_lr
from sweep.training.world import World

_log = logging.getLogger(__name__)

# The measurement of the bottleneck.
_Bottleneck = Literal["", "data_bound", "launch_bound", "compute_bound", "thrashing"]
_LEAST_STEPS = 2
_NUM_GROUPS = 4  # of steps between two synchronizations
_DATA_SHARE = 0.2  # of a step, from which the training is data-bound
_LEAST_WAIT_SHARE = 0.05  # of the training time; below it, cached steps were faster for another reason than data
_LONG_SECONDS = 0.1  # of a micro batch, from which launches are negligible
_LEAST_HALVED = 4  # samples: batch statistics require two in each half
_FIXED_SHARE = 0.5  # of a step that does not depend on the size of the micro batch


def list_recipe_facts(config: TrialConfig) -> dict[str, float]:
    """The values that a training begins with, as its rules have made them, by name of :mod:`sweep.config.metrics`."""
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    facts = {"scaled_weight_decay": scale_weight_decay(section, rules, size)}
    if OPTIMIZERS[section.name].has_betas:
        facts["scaled_beta2"] = scale_adam_constants(section, rules, size).beta2
    return facts


def evaluate_images(
    setup: TrainingSetup, batches_of: Callable[[], Iterable[Batch]], correct: list[Tensor] | None = None
) -> tuple[float, float]:
    """Mean loss and accuracy over the batches of one pass, of the averaged weights where the configuration has them.
    ``correct`` receives for each batch which of its images this rank got right.

    Where memory runs out, half as many images are taken at once, for good. Raises ``DivergedError``: the loss is not a
    finite number. torch.OutOfMemoryError: not even one image can be evaluated."""
    step = setup.step
    step.clear_gradients()  # those of the last step, so that an evaluation requires no more memory than a step

    def evaluate_once() -> tuple[float, float]:
        if correct is not None:
            correct.clear()  # of an attempt that ran out of memory
        with averaged_model(step, setup.statistics_batches) as model:
            return evaluate_model(model, step, batches_of(), setup.config.evaluation.tta, correct)

    while isinstance(result := catch_out_of_memory(evaluate_once), str):
        if step.world.size > 1 or setup.eval_batch.size == 1:  # other ranks have no part in another attempt
            raise torch.OutOfMemoryError(result)
        release_memory(step.normalize.mean.device)
        setup.eval_batch.size //= 2
        _log.warning("an evaluation ran out of memory; from now on %d images at once", setup.eval_batch.size)
    loss, accuracy = result
    if not math.isfinite(loss):
        raise DivergedError(f"the loss of an evaluation became {loss}")
    return loss, accuracy


def describe_correct(correct: Sequence[Tensor], world: World, num_images: int) -> str:
    """Which of the ``num_images`` of a split all ranks together got right, from each rank's own batches in order."""
    shares = torch.zeros(-(-num_images // world.size), dtype=torch.uint8)  # the last ranks may have an image less
    if correct:  # empty where there are fewer images than ranks
        hits = torch.cat(list(correct)).cpu()
        shares[: len(hits)] = hits
    # the first rank has the images 0, size, 2 size ..., see shard_images
    return encode_correct(world.gather(shares).T.flatten()[:num_images].bool().numpy())


def finish_trial(task: TrialTask, setup: TrainingSetup, state: TrialState) -> None:
    """Measures accuracy on training and test images, saves the weights, runs diagnostics; none of it is training time.
    Raises ``TargetMissedError``: no evaluation reached the target accuracy of the budget."""
    with state.ledger.phase("eval"):
        _, train_accuracy = evaluate_images(setup, setup.train_batches)
        state.facts["train_accuracy"] = train_accuracy
        state.facts["generalization_gap"] = train_accuracy - state.facts["val_accuracy"]
        if task.read_test:
            _, state.facts["test_accuracy"] = evaluate_images(setup, setup.batches_of(setup.splits.read_test()))
    if task.weights_path:
        with state.ledger.phase("checkpoint"), averaged_model(setup.step, setup.statistics_batches) as model:
            if setup.step.world.rank == 0:
                normalize, data = setup.step.normalize, setup.config.data
                facts = ModelFacts(
                    model=setup.config.model,
                    shape=setup.splits.shape,
                    class_names=setup.splits.class_names,
                    mean=normalize.mean.flatten().tolist(),
                    inverse_deviation=normalize.inverse_deviation.flatten().tolist(),
                    resize=data.resize if data.image_size is not None else None,
                    stored_side=getattr(setup.splits.train, "stored_side", None),
                )
                save_model(model, facts, task.weights_path)
    if setup.budget.target is not None and "steps_to_target" not in state.facts:
        best = max(evaluation.val_accuracy for evaluation in state.evaluations)
        raise TargetMissedError(
            f"val_accuracy reached {best:.4f} at best, below budget.target = {setup.budget.target:g}"
            f", in budget.max_epochs = {task.config.budget.max_epochs:g} epochs"
        )
    if task.config.diagnostics.sharpness and task.measure_costly:
        with state.ledger.phase("diagnostics"):
            try:
                state.facts |= measure_sharpness(task.config, setup)
            except torch.OutOfMemoryError as error:  # the training itself has fitted
                _log.warning("sharpness was not measured: %s", error)
    with state.ledger.phase("diagnostics"):
        state.bottleneck = _find_bottleneck(setup, state)  # last, because it changes the state of the optimizer


def describe_ending(state: TrialState, error: Exception | None, ranks: int = 1) -> Ending:
    """The ending of a trial, or of a probe: everything that was measured until then, and what ``error`` means."""
    measurements = state.measurements()  # first, because describing the environment takes a while
    outcome: Outcome = classify_error(error) if error else "complete"
    try:
        name = name_device_class(state.device, ranks)
        environment = {**describe_environment(state.device), "device": name}
    except RuntimeError:  # a GPU that failed cannot be queried
        name, environment = str(state.device), {}
    return Ending(
        outcome=outcome,
        measurements=measurements,
        device=name,
        environment=environment,
        quality_flags=state.quality_flags(),
        error=explain_error(error) if error else "",
        cause=find_cause(error) if error else "",
        bottleneck=state.bottleneck,
        correct_images=state.correct_images if outcome == "complete" else "",
        training_spans=tuple(state.ledger.spans),
    )


def _find_bottleneck(setup: TrainingSetup, state: TrialState) -> _Bottleneck:
    """The bottleneck of a finished training.

    It takes steps with a learning rate of 0, which change the state of optimizer and norms, so that ``setup`` cannot be
    used afterwards. "" means unknown: several ranks, or a training so short that the measurement would take more than a
    tenth of its steps and that did not wait for data either.
    """
    if setup.step.world.size > 1 or not state.ledger.windows:
        return ""
    if ALLOCATOR_RETRIES in state.flags:
        return "thrashing"
    window, cached = setup.planner.windows_of_epoch(state.ledger.usual_samples)[0], None
    is_long = _usual_seconds(state.ledger) >= _LONG_SECONDS * len(window.slices)
    try:
        cached = None if is_long else _time_cached_steps(setup, state.ledger, window)
    except Exception as error:  # the training itself is complete
        _log.warning("no steps on a cached batch: %s", error)
    return classify_bottleneck(state.ledger, cached, is_long=is_long)


class CachedSteps(NamedTuple):
    step_seconds: float
    fixed_share: float | None  # of the step, for any size of the micro batch; None where it was not measured


def classify_bottleneck(ledger: Ledger, cached: CachedSteps | None, *, is_long: bool = False) -> _Bottleneck:
    """The bottleneck from the measurements; ``is_long``: a micro batch takes so long that launches are negligible."""
    wait_share = ledger.seconds["data_wait"] / ledger.train_seconds
    saved_share = wait_share if cached is None else 1.0 - cached.step_seconds / _usual_seconds(ledger)
    if saved_share >= _DATA_SHARE and wait_share >= _LEAST_WAIT_SHARE:
        return "data_bound"
    if cached is None or cached.fixed_share is None:
        return "compute_bound" if is_long else ""
    return "launch_bound" if cached.fixed_share >= _FIXED_SHARE else "compute_bound"


def find_fixed_share(time_ratio: float, size_ratio: float) -> float:
    """The share of a step's time that is the same for every size, when a step of ``size_ratio`` times the samples takes
    ``time_ratio`` times as long: of t(m) = a + b m, the share a / t(m)."""
    return (time_ratio - size_ratio) / (1.0 - size_ratio)


def _time_cached_steps(setup: TrainingSetup, ledger: Ledger, window: Window) -> CachedSteps | None:
    # A share of the number of steps, of two sizes in any case, and not of their time: the same short training is
    # then measured always or never.
    share = BOTTLENECK_SHARE * sum(timed.num_steps for timed in ledger.windows) / 2
    within_limit = BOTTLENECK_SECONDS / (2 * _usual_seconds(ledger))
    num_steps = min(BOTTLENECK_STEPS, int(min(share, within_limit) + 1e-9) - 1)
    if num_steps < _LEAST_STEPS:
        return None
    set_lr(setup.step.optimizer, 0.0)
    setup.feeder.begin_epoch(0, (window,))
    images, labels = batch = next(iter(setup.feeder.micro_batches(window)))
    batches, count, half = [batch], len(window.slices), len(labels) // 2
    if setup.step.forward is setup.step.model and not setup.step.graphs:  # else another shape would be compiled again
        if len(labels) < _LEAST_HALVED:
            batches.append((torch.cat((images, images)), torch.cat((labels, labels))))
        else:
            batches.append((images[:half], labels[:half]))
    num_groups = min(_NUM_GROUPS, num_steps)
    times: list[list[float]] = [[] for _ in batches]  # of a step, as the mean of each group
    for group in range(-1, num_groups):  # the first one takes the one-time costs of a new shape
        for micro, measured in zip(batches, times, strict=True):
            step = partial(setup.step, [micro] * count, len(micro[1]) * count)
            seconds = time_calls(step, 1 if group < 0 else num_steps // num_groups, ledger.synchronize)
            if group >= 0:
                measured.append(seconds)
    # the last micro batch of a window may be smaller
    step_seconds = statistics.median(times[0]) * window.samples / (len(labels) * count)
    if len(batches) == 1:
        return CachedSteps(step_seconds, None)
    # minima, because other processes on the machine can only add time
    fixed = find_fixed_share(min(times[1]) / min(times[0]), len(batches[1][1]) / len(labels))
    return CachedSteps(step_seconds, fixed)


def _usual_seconds(ledger: Ledger) -> float:
    return statistics.median(ledger.even_step_seconds())
