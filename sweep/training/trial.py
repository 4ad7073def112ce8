"""One trial, from its configuration to its ending: the device, the warm-up, and the training loop."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from sweep.config.metrics import METRICS
from sweep.config.scaling import follow_growth
from sweep.measurement.device import (
    identify_gpu,
    make_moments,
    make_synchronizer,
    measure_reference_seconds,
    reach_gpu,
    resolve_device,
)
from sweep.measurement.memory import read_memory, reset_peak
from sweep.records.messages import Evaluation, Heartbeat, Message, Progress, Task, TrialTask
from sweep.records.quality import ALLOCATOR_RETRIES
from sweep.training.auto_micro import step_within_memory
from sweep.training.budget import EvaluationSchedule, TrainingPoint
from sweep.training.checkpoints import CheckpointSaver
from sweep.training.constants import MAX_WINDOW_STEPS, WINDOW_SECONDS
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window
from sweep.training.finish import describe_correct, describe_ending, evaluate_images, finish_trial, list_recipe_facts
from sweep.training.models.build import num_parameters
from sweep.training.outcomes import PreemptedError
from sweep.training.processes import PROGRESS_SECONDS, load_plugin
from sweep.training.schedules import RateSchedule
from sweep.training.setup import LossMeter, TrainingSetup, TrialState, prepare_training
from sweep.training.step import set_lr
from sweep.training.warmup import warm_up_trial
from sweep.training.world import SOLO, World

_NOISE_STEPS = 10  # between two readings of the noise scale, for each of which the host waits for the device


def run_trial(task: TrialTask, world: World = SOLO) -> Iterator[Message]:
    """Trains one configuration; yields progress, each evaluation, and last exactly one :class:`Ending`.

    Resumes from the task's last checkpoint if there is one, after yielding the evaluations before it again. On a
    request for preemption (:mod:`sweep.training.processes`) it ends as ``cancelled`` after a timed window, with a
    checkpoint. Every exception becomes an outcome, except ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit``.
    Where the configuration requires several ranks, each of them calls this function with its ``world``
    (:func:`sweep.training.ranks.launch_trial`).
    """
    state = TrialState()
    threads_before = torch.get_num_threads()
    try:
        try:
            choose_device(task, state)
            yield from announce_gpus(state.device, world)
            setup = _set_up_trial(task, state, world)
            yield from _train(task, setup, state, world)
            finish_trial(task, setup, state)
            ending = describe_ending(state, None, world.size)
        except Exception as error:
            ending = describe_ending(state, error, world.size)
    finally:
        torch.set_num_threads(threads_before)
    yield ending


def choose_device(task: Task, state: TrialState) -> None:
    """Sets threads, plug-in and device of this process as ``task`` requires; ``state.ledger`` times that device. Raises
    ``InputError``: the plug-in or the device is not there; ``DeviceFullError``: other programs hold all memory of the
    GPU."""
    if task.threads:
        torch.set_num_threads(task.threads)
    if task.plugin:
        load_plugin(task.plugin)
    state.device = resolve_device(task.device)
    state.ledger.synchronize, state.ledger.moments = make_synchronizer(state.device), make_moments(state.device)
    reach_gpu(state.device)
    if state.device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # it chooses algorithms during the warm-up


def announce_gpus(device: torch.device, world: World = SOLO) -> Iterator[Heartbeat]:
    """A message with the UUIDs of the GPUs of all ranks; none where they train on a CPU."""
    if device.type == "cuda":
        yield Heartbeat(gpus=world.gather_texts(identify_gpu(device)))


def _set_up_trial(task: TrialTask, state: TrialState, world: World) -> TrainingSetup:
    if task.config.budget.seconds is not None:
        state.agree = world.broadcast_first
    if world.size == 1:  # several ranks would disturb each other
        with state.ledger.phase("diagnostics"):
            state.facts["reference_seconds"] = measure_reference_seconds(state.device)
    with state.ledger.phase("setup"):
        setup = prepare_training(task.config, state.device, world, task.expected_data)
    state.num_train = num_train = len(setup.splits.train)
    state.facts["num_parameters"] = num_parameters(setup.model)
    state.facts |= list_recipe_facts(task.config)
    flags = {
        "global_batch_larger_than_train_split": task.config.global_batch_size > num_train,
        "micro_batch_larger_than_train_split": setup.planner.micro > num_train,  # of all ranks together
    }
    state.flags = tuple(name for name, is_raised in flags.items() if is_raised)
    return setup


def _train(task: TrialTask, setup: TrainingSetup, state: TrialState, world: World) -> Iterator[Message]:
    """Yields progress and evaluations until the budget is spent or the target accuracy is reached."""
    warmup = warm_up_trial(setup, state.ledger)
    if memory := read_memory(state.device):
        state.retries_before = memory.num_retries
    state.facts |= {name: count for name, count in warmup.memory.items() if name in METRICS}
    setup.budget.expect_step_seconds(warmup.step_seconds)
    window_steps = count_window_steps(warmup.step_seconds, WINDOW_SECONDS)
    state.facts["micro_batch_size"] = setup.planner.micro // setup.step.world.size
    with state.ledger.phase("setup"):
        epochs = setup.budget.expected_epochs(setup.schedule.average() if setup.schedule.is_growing else None)
        until_target = setup.budget.target is not None
        eval_schedule = EvaluationSchedule(setup.planner.num_samples, epochs, until_target=until_target)
        torch.manual_seed(world.rank_seed(task.config.seed))  # so that dropout does not depend on what was drawn before
        meter, progress_at = LossMeter(state.device, world), 0.0
        parts = {**setup.stateful_parts(), "state": state, "meter": meter}
        saver = CheckpointSaver(task, state.device, parts, world)
    with state.ledger.phase("checkpoint"):
        saver.load()
    config, first = setup.config, setup.config.global_batch_size
    rates = RateSchedule(config.schedule, setup.budget.span)
    yield from state.evaluations
    yield _describe_progress(setup, state, state.read_clock())  # at once: it holds the memory that a step requires
    _open_window(setup, state)
    for window in state.ledger.waiting(_iterate_windows(setup, state)):
        before = state.point
        peak_lr = follow_growth(config.batch, config.optimizer, config.rules, setup.peak_lr, first, window.global_batch)
        lr = peak_lr * rates.factor(setup.budget.position(before))
        set_lr(setup.step.optimizer, lr)
        meter.add(_take_step(setup, state, window), window.samples)
        state.num_steps += 1
        state.samples += window.samples
        if setup.step.noise and setup.schedule.follows_noise and state.num_steps % _NOISE_STEPS == 0:
            setup.schedule.follow_noise(setup.step.noise.read().is_at_least)
        is_due = setup.budget.is_spent(state.read_clock()) or eval_schedule.is_passed(before.samples, state.samples)
        is_measured = setup.auto_micro is not None and setup.planner.at_epoch_end
        # smaller last steps of an epoch are timed apart from whole ones
        is_last = is_measured or not (window.is_whole and setup.planner.is_next_whole)
        if not (is_due or is_last or meter.window_steps >= window_steps):
            continue
        meter.close_window(state.ledger, is_full=window.is_whole)
        if setup.auto_micro and setup.auto_micro.update(at_epoch_end=setup.planner.at_epoch_end):
            setup.planner.set_micro(setup.auto_micro.micro)
            _note_micro_batch(state, setup.auto_micro.micro)
        if setup.budget.is_spent(state.read_clock()) or is_due:
            state.evaluations.append(_evaluate(setup, state, meter, lr, window))
            setup.schedule.follow_loss(state.evaluations[-1].train_loss)
            yield state.evaluations[-1]
            if _is_target_reached(setup, state.facts["val_accuracy"]):
                state.facts |= {"steps_to_target": state.num_steps, "seconds_to_target": state.ledger.train_seconds}
                break
        with state.ledger.phase("checkpoint"):
            is_preempted = saver.save_if_due()
        if is_preempted:
            raise PreemptedError(f"stopped on request after step {state.num_steps}")
        if time.perf_counter() - progress_at >= PROGRESS_SECONDS:
            progress_at = time.perf_counter()
            yield _describe_progress(setup, state, state.point)
        _open_window(setup, state)


def count_window_steps(step_seconds: float, window_seconds: float) -> int:
    """Optimizer steps of a timed window of about ``window_seconds``."""
    return max(1, min(MAX_WINDOW_STEPS, int(window_seconds / max(step_seconds, 1e-6))))


def _iterate_windows(setup: TrainingSetup, state: TrialState) -> Iterator[Window]:
    def size_at(windows: int, samples: int) -> int:
        point = state.point
        ahead = point._replace(steps=point.steps + windows, samples=point.samples + samples)
        return setup.schedule.size(setup.budget.share(ahead))

    while not setup.budget.is_spent(state.point):
        yield setup.planner.next_window(size_at)


def _open_window(setup: TrainingSetup, state: TrialState) -> None:
    """Starts a timed window, and the measurement of its peak memory."""
    if setup.auto_micro:
        reset_peak(setup.auto_micro.device)
    state.ledger.open_window()


def _take_step(setup: TrainingSetup, state: TrialState, window: Window) -> Tensor:
    """Takes an optimizer step; returns its mean loss, a scalar. An automatic micro batch is reduced until it fits."""

    def batches_of(window: Window) -> Iterator[Batch]:  # the time that the host waits for them counts as data wait
        return state.ledger.waiting(setup.feeder.micro_batches(window))

    if setup.auto_micro is None:
        return setup.step(batches_of(window), window.samples)

    def cut_again(window: Window, micro: int) -> Window:
        _note_micro_batch(state, micro)
        setup.planner.take_back(window, micro)
        return setup.planner.next_window(lambda _windows, _samples: window.global_batch)

    return step_within_memory(setup.step, batches_of, window, setup.auto_micro, cut_again)


def _note_micro_batch(state: TrialState, micro: int) -> None:
    state.facts["micro_batch_size"] = micro
    state.flags = tuple(dict.fromkeys((*state.flags, "micro_batch_changed")))  # step times are of several sizes


def _evaluate(setup: TrainingSetup, state: TrialState, meter: LossMeter, lr: float, window: Window) -> Evaluation:
    correct: list[Tensor] = []
    with state.ledger.phase("eval"):
        val_loss, val_accuracy = evaluate_images(setup, setup.validation_batches, correct)
        if setup.budget.is_spent(state.point) or _is_target_reached(setup, val_accuracy):  # no other one follows
            state.correct_images = describe_correct(correct, setup.step.world, len(setup.splits.validation))
    noise_scale = _note_noise(setup, state)
    memory = read_memory(state.device)
    if memory and memory.num_retries > state.retries_before:
        state.flags = tuple(dict.fromkeys((*state.flags, ALLOCATOR_RETRIES)))
    state.facts |= {"val_loss": val_loss, "val_accuracy": val_accuracy}
    state.facts["num_skipped_steps"] = setup.step.precision.num_skipped_steps
    return Evaluation(
        step=state.num_steps,
        epoch=state.epoch,
        samples=state.samples,
        train_seconds=state.ledger.train_seconds,
        train_loss=meter.take_mean(),
        val_loss=val_loss,
        val_accuracy=val_accuracy,
        learning_rate=lr,
        global_batch_size=window.global_batch,
        noise_scale=noise_scale,
    )


def _note_noise(setup: TrainingSetup, state: TrialState) -> float | None:
    """Notes the noise scales, without those of an earlier evaluation; returns the one of the last steps."""
    if setup.step.noise is None:
        return None
    scale = setup.step.noise.read()
    values = {"noise_scale": scale.value, "noise_scale_run": scale.run_value, "num_noise_steps": scale.num_steps}
    state.facts = {name: value for name, value in (state.facts | values).items() if value is not None}
    return values["noise_scale"]


def _is_target_reached(setup: TrainingSetup, accuracy: float) -> bool:
    target = setup.budget.target
    return target is not None and accuracy >= target


def _describe_progress(setup: TrainingSetup, state: TrialState, point: TrainingPoint) -> Progress:
    return Progress(
        step=state.num_steps,
        num_steps=setup.budget.expected_steps(point),
        epoch=state.epoch,
        images_per_second=state.ledger.images_per_second,
        peak_memory_bytes=int(peak) if (peak := state.facts.get("peak_memory_bytes")) else None,
        quality_flags=state.quality_flags(),
    )
