"""One trial, from its configuration to its ending."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from sweep.config.scaling import scaled_lr
from sweep.measurement.device import make_laps, resolve_device, synchronizer
from sweep.measurement.device_memory import read_memory
from sweep.measurement.reference_work import reference_seconds
from sweep.records.messages import Evaluation, Message, Outcome, Progress, Task, TrialTask
from sweep.training.checkpoints.random_state import RandomState
from sweep.training.checkpoints.saver import CheckpointSaver
from sweep.training.data.windows import Window
from sweep.training.loop.finish import describe_ending, evaluate_images, finish_trial
from sweep.training.loop.stepping import adapt_micro_batch, ends_timed_window, open_window, take_step
from sweep.training.loop.warmup import warm_up_trial
from sweep.training.models.table import num_parameters
from sweep.training.outcomes import LeftError, cause_of, classify, explain_error
from sweep.training.plugins import load_plugin
from sweep.training.recipe.schedules import lr_factor
from sweep.training.steps.budget import EvaluationSchedule, TrainingPoint
from sweep.training.steps.setup import TrainingSetup, prepare_training
from sweep.training.steps.step import set_lr
from sweep.training.steps.trial_state import LossMeter, TrialState
from sweep.training.world import SOLO, World

_WINDOW_SECONDS = 0.1  # of a timed window, about
_MAX_WINDOW_STEPS = 100
_PROGRESS_SECONDS = 0.5
_NOISE_STEPS = 10


def run_trial(task: TrialTask, world: World = SOLO) -> Iterator[Message]:
    """Trains one configuration: progress and evaluations while it goes, and last exactly one :class:`Ending`.

    Goes on from the task's last checkpoint where there is one, and then tells the evaluations before it again. Asked to
    leave (:mod:`sweep.training.supervisor_link`), it ends as ``cancelled`` at the end of a timed window, with a
    checkpoint. Every exception becomes an outcome; only ``KeyboardInterrupt``, ``SystemExit`` and the closing of the
    iterator go through. Where the configuration requires several ranks, each of them calls this with its ``world``
    (:func:`sweep.training.ranks.launcher.launch_trial`).
    """
    story = TrialState()
    outcome: Outcome = "complete"
    error_text = cause = ""
    threads_before = torch.get_num_threads()
    try:
        choose_device(task, story)
        if task.config.budget.seconds is not None:
            story.agree = world.of_first
        _time_reference(story, world)
        with story.ledger.phase("setup"):
            work = _prepare(task, story, world)
            validation = work.batches_of(work.splits.validation)
        story.num_train = len(work.splits.train)
        story.facts["num_parameters"] = num_parameters(work.model)
        story.flags = _flags(task, work)
        rehearsal = warm_up_trial(work, story.ledger)
        note_retries = _retries_since(story)
        story.facts |= {
            "peak_memory_bytes": rehearsal.peak_memory_bytes,
            "micro_batch_size": work.course.micro // world.size,
        }
        work.budget.expect_step_seconds(rehearsal.step_seconds)
        points, window_steps = _evaluation_points(work), _window_steps(rehearsal.step_seconds)

        torch.manual_seed(world.seed(task.config.seed))  # what dropout draws depends on nothing that came before
        tally, progress_at = LossMeter(story.device, world), 0.0
        parts = {**work.parts(), "story": story, "tally": tally, "randomness": RandomState(story.device, world)}
        saver = CheckpointSaver(task, story.device, parts, world)
        with story.ledger.phase("checkpoint"):
            saver.load()
        yield from story.evaluations
        yield _progress(work, story, story.look_at_clock())  # what its steps need is known before it has shown anything
        windows = story.ledger.waiting(_windows(work, story))
        open_window(work, story)
        for window in windows:
            before = story.mark
            lr = _learning_rate(task, work, before, window)
            set_lr(work.step.optimizer, lr)
            loss = take_step(work, story, window)
            tally.add(loss, window.samples)
            story.num_steps += 1
            story.samples += window.samples
            _follow_noise(work, story)
            is_due = work.budget.is_spent(story.look_at_clock()) or points.is_passed(before.samples, story.samples)
            if not (is_due or tally.window_steps >= window_steps or ends_timed_window(work, window)):
                continue
            tally.close_window(story.ledger, is_full=window.is_whole)
            adapt_micro_batch(work, story)
            if work.budget.is_spent(story.look_at_clock()) or is_due:
                with story.ledger.phase("eval"):
                    val_loss, val_accuracy = evaluate_images(work, validation)
                story.facts |= {"val_loss": val_loss, "val_accuracy": val_accuracy}
                note_retries()
                story.facts["num_skipped_steps"] = work.step.precision.num_skipped_steps
                story.evaluations.append(_evaluation(story, tally.take_mean(), lr, window, _note_noise(work, story)))
                yield story.evaluations[-1]
                if _is_target_reached(work, story):
                    break
            _save_or_leave(saver, story)
            if time.perf_counter() - progress_at >= _PROGRESS_SECONDS:
                progress_at = time.perf_counter()
                yield _progress(work, story, story.mark)
            open_window(work, story)
        finish_trial(task, work, story)
    except Exception as error:
        outcome, error_text, cause = classify(error), explain_error(error), cause_of(error)
    except BaseException:
        torch.set_num_threads(threads_before)
        raise
    ending = describe_ending(story, outcome, error_text, world.size)
    torch.set_num_threads(threads_before)
    yield replace(ending, cause=cause)


def choose_device(task: Task, story: TrialState) -> None:
    """Threads, plug-in and device of the process that does ``task``; the story's clock waits for that device."""
    if task.threads:
        torch.set_num_threads(task.threads)
    if task.plugin:
        load_plugin(task.plugin)
    story.device = resolve_device(task.device)
    story.ledger.synchronize = synchronizer(story.device)
    if story.device.type == "cuda":
        torch.cuda.set_device(story.device)
        torch.backends.cudnn.benchmark = True  # its search falls into the rehearsal


def _time_reference(story: TrialState, world: World) -> None:
    if world.size == 1:  # several would be in one another's way
        with story.ledger.phase("diagnostics"):
            story.facts["reference_seconds"] = reference_seconds(story.device)


def _prepare(task: TrialTask, story: TrialState, world: World) -> TrainingSetup:
    work = prepare_training(task.config, story.device, world)
    if task.config.diagnostics.ledger == "phases":
        return work
    story.ledger.laps = make_laps(story.device)
    return replace(work, step=replace(work.step, lap=story.ledger.laps))


def _retries_since(story: TrialState) -> Callable[[], None]:
    before = read_memory(story.device)

    def note() -> None:
        if before and (now := read_memory(story.device)):
            story.facts["num_alloc_retries"] = now.num_retries - before.num_retries

    return note


def _flags(task: TrialTask, work: TrainingSetup) -> tuple[str, ...]:
    num_train = len(work.splits.train)
    flags = {
        "global_batch_larger_than_train_split": task.config.global_batch_size > num_train,
        "micro_batch_larger_than_train_split": work.course.micro > num_train,  # of all ranks together
    }
    return tuple(name for name, is_raised in flags.items() if is_raised)


def _window_steps(step_seconds: float) -> int:
    return max(1, min(_MAX_WINDOW_STEPS, int(_WINDOW_SECONDS / max(step_seconds, 1e-6))))


def _evaluation_points(work: TrainingSetup) -> EvaluationSchedule:
    epochs = work.budget.expected_epochs(work.schedule.average() if work.schedule.is_growing else None)
    return EvaluationSchedule(work.course.num_samples, epochs, until_target=work.budget.target_accuracy is not None)


def _save_or_leave(saver: CheckpointSaver, story: TrialState) -> None:
    with story.ledger.phase("checkpoint"):
        is_leaving = saver.save_if_due()
    if is_leaving:
        raise LeftError(f"asked to leave, after step {story.num_steps}")


def _windows(work: TrainingSetup, story: TrialState) -> Iterator[Window]:
    def size_at(windows: int, samples: int) -> int:
        return work.schedule.size(work.budget.share(story.mark.ahead(windows, samples)))

    while not work.budget.is_spent(story.mark):
        yield work.course.next_window(size_at)


def _learning_rate(task: TrialTask, work: TrainingSetup, mark: TrainingPoint, window: Window) -> float:
    config = task.config
    follows = config.batch.schedule_lr == "rule"
    highest = scaled_lr(config.optimizer, window.wanted if follows else config.global_batch_size)
    return highest * lr_factor(config.schedule, work.budget.position(mark), work.budget.span)


def _follow_noise(work: TrainingSetup, story: TrialState) -> None:
    # every few steps, because the device must be waited for
    is_followed = work.schedule.follows_noise and story.num_steps % _NOISE_STEPS == 0
    if is_followed and (scale := _noise_scale(work)):
        work.schedule.hear_noise_scale(scale)


def _noise_scale(work: TrainingSetup) -> float | None:
    return work.step.noise.value() if work.step.noise else None


def _note_noise(work: TrainingSetup, story: TrialState) -> float | None:
    scale = _noise_scale(work)
    story.facts.pop("noise_scale", None)  # what was true earlier is not what is true at the end
    if scale is not None:
        story.facts["noise_scale"] = scale
    return scale


def _is_target_reached(work: TrainingSetup, story: TrialState) -> bool:
    target = work.budget.target_accuracy
    if target is None or story.facts["val_accuracy"] < target:
        return False
    story.facts |= {"steps_to_target": story.num_steps, "seconds_to_target": story.ledger.train_seconds}
    return True


def _progress(work: TrainingSetup, story: TrialState, mark: TrainingPoint) -> Progress:
    num_steps = work.budget.expected_steps(mark)
    rate, memory = story.ledger.images_per_second, int(story.facts["peak_memory_bytes"])
    return Progress(
        step=story.num_steps,
        num_steps=num_steps,
        epoch=story.epoch,
        images_per_second=rate,
        peak_memory_bytes=memory,
        quality_flags=story.quality_flags(),
    )


def _evaluation(
    story: TrialState, train_loss: float, lr: float, window: Window, noise_scale: float | None
) -> Evaluation:
    return Evaluation(
        step=story.num_steps,
        epoch=story.epoch,
        samples=story.samples,
        train_seconds=story.ledger.train_seconds,
        train_loss=train_loss,
        val_loss=story.facts["val_loss"],
        val_accuracy=story.facts["val_accuracy"],
        learning_rate=lr,
        global_batch_size=window.wanted,
        noise_scale=noise_scale,
    )
