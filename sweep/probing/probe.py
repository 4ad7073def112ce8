"""Measures one shape alone on the device: step time, throughput of the data loader, peak memory."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count, islice
from statistics import median

import torch

from sweep.config.errors import InputError
from sweep.measurement.clock import Ledger
from sweep.measurement.device import measure_reference_seconds, time_calls
from sweep.measurement.quality import StepWindow, find_timing_flags, measure_time_error
from sweep.records.messages import Message, ProbeTask
from sweep.records.quality import MIN_WINDOWS, TIME_DOUBTS
from sweep.training.constants import WINDOW_SECONDS
from sweep.training.data.windows import Window
from sweep.training.evaluation import evaluate_model
from sweep.training.finish import describe_ending
from sweep.training.models.build import num_parameters
from sweep.training.setup import LossMeter, TrainingSetup, TrialState, prepare_training
from sweep.training.step import set_lr
from sweep.training.trial import announce_gpus, choose_device, count_window_steps
from sweep.training.warmup import warm_up_trial

_NUM_WINDOWS = 12  # of timed steps, approximately
_ONE_WINDOW_SECONDS = 10.0  # for such a step a single window is timed
_MAX_ROUNDS = 4  # of a timing whose mean is uncertain
_SIDE_SECONDS = 0.1  # for each of: the update alone, the data loader alone, the evaluation


def run_probe(task: ProbeTask) -> Iterator[Message]:
    """Measures the shape of the task's configuration; yields one :class:`Ending`, whose outcome tells whether it fits.

    The learning rate is zero, so that nothing diverges. A step has the configuration's own number of micro batches.
    In addition to those of a trial, the measurements have ``step_seconds_mean``, ``update_seconds`` (clipping,
    optimizer and moving average alone), ``data_images_per_second`` (the data loader alone), ``eval_images_per_second``,
    and the sizes of the splits.
    """
    state = TrialState()
    try:
        _choose_device(task, state)
        yield from announce_gpus(state.device)
        _measure(task, state)
        ending = describe_ending(state, None)
    except Exception as error:
        ending = describe_ending(state, error)
    yield replace(ending, measurements=_figures(state, ending.measurements), quality_flags=state.flags)


def _choose_device(task: ProbeTask, state: TrialState) -> None:
    if task.config.distributed.world_size > 1:
        raise InputError(
            f"distributed.world_size = {task.config.distributed.world_size}: a probe is of one rank; set it to 1."
        )
    choose_device(task, state)
    if state.device.type == "cuda" and task.memory_limit_bytes is not None:
        installed = torch.cuda.get_device_properties(state.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, task.memory_limit_bytes / installed), state.device)


def _measure(task: ProbeTask, state: TrialState) -> None:
    ledger = state.ledger
    with ledger.phase("diagnostics"):
        state.facts["reference_seconds"] = measure_reference_seconds(state.device)
    with ledger.phase("setup"):
        setup = prepare_training(task.config, state.device)
    state.facts |= {"num_train": len(setup.splits.train), "num_validation": len(setup.splits.validation)}
    state.facts["num_parameters"] = num_parameters(setup.model)
    warmup = warm_up_trial(setup, ledger)
    state.facts |= warmup.memory
    set_lr(setup.step.optimizer, 0.0)
    _time_until_certain(setup, state, task.timed_seconds, warmup.step_seconds)
    if setup.step.noise is None:  # which requires a window before each update
        state.facts["update_seconds"] = _seconds_of(setup.step.update, ledger.synchronize)
    state.facts["data_images_per_second"] = _images_per_second(_feed_batches(setup), ledger.synchronize)
    with ledger.phase("eval"):
        state.facts["eval_images_per_second"] = _images_per_second(
            _evaluate_batches(setup), ledger.synchronize, first=1
        )


def _time_until_certain(setup: TrainingSetup, state: TrialState, seconds: float, step_seconds: float) -> None:
    """Times steps in rounds until their mean is known well enough. Of all rounds the latest ones whose mean is known
    best are kept: more windows are more certain, unless the first were disturbed."""
    rounds: list[list[StepWindow]] = []
    for _ in range(_MAX_ROUNDS):
        state.ledger.windows = []
        _time_steps(setup, state, seconds, step_seconds)
        rounds.append(state.ledger.windows)
        latest = [list(chain.from_iterable(rounds[first:])) for first in range(len(rounds))]
        state.ledger.windows = min(latest, key=_time_error)
        full = state.ledger.full_windows
        state.flags = find_timing_flags(full, sum(window.num_steps for window in full))
        if TIME_DOUBTS.isdisjoint(state.flags):
            return


def _time_error(windows: list[StepWindow]) -> float:
    full = [window for window in windows if window.is_full] or windows
    error = measure_time_error(full)
    return math.inf if error is None else error


def _time_steps(setup: TrainingSetup, state: TrialState, seconds: float, step_seconds: float) -> None:
    # As in a trial, several steps are between two synchronizations; smaller last steps of an epoch are separate.
    window_steps = count_window_steps(step_seconds, min(WINDOW_SECONDS, seconds / _NUM_WINDOWS))
    meter, began = LossMeter(state.device), time.perf_counter()
    while not _is_enough(state.ledger, time.perf_counter() - began, seconds):
        state.ledger.open_window()
        window = _take_step(setup, state.ledger, meter)
        while meter.window_steps < window_steps and window.is_whole and setup.planner.is_next_whole:
            window = _take_step(setup, state.ledger, meter)
        meter.close_window(state.ledger, is_full=window.is_whole)


def _is_enough(ledger: Ledger, elapsed_seconds: float, seconds: float) -> bool:
    full = [window for window in ledger.windows if window.is_full] or ledger.windows[MIN_WINDOWS:]
    if full and full[-1].step_seconds > _ONE_WINDOW_SECONDS:
        return True
    return elapsed_seconds >= seconds and len(full) >= MIN_WINDOWS


def _take_step(setup: TrainingSetup, ledger: Ledger, meter: LossMeter) -> Window:
    window = setup.planner.next_window(lambda _windows, _samples: setup.schedule.first)
    batches = ledger.waiting(setup.feeder.micro_batches(window))
    meter.add(setup.step(batches, window.samples), window.samples)
    return window


def _seconds_of(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Median seconds of ``call`` over a few windows."""
    num_calls = count_window_steps(time_calls(call, 1, synchronize), _SIDE_SECONDS / 3)
    return median(time_calls(call, num_calls, synchronize) for _ in range(3))


def _feed_batches(setup: TrainingSetup) -> Iterator[int]:
    """Goes through epochs without training; the number of images of each micro batch."""
    windows = setup.planner.windows_of_epoch(setup.schedule.first)
    for epoch in count(1):
        setup.feeder.begin_epoch(epoch, windows)
        for window in windows:
            yield from (len(labels) for _, labels in setup.feeder.micro_batches(window))


def _evaluate_batches(setup: TrainingSetup) -> Iterator[int]:
    """Evaluates the validation split again and again; the number of images of each batch."""
    setup.step.clear_gradients()
    while True:
        for batch in setup.validation_batches():
            evaluate_model(setup.step.model, setup.step, [batch], setup.config.evaluation.tta)
            yield len(batch[1])


def _images_per_second(counts: Iterator[int], synchronize: Callable[[], None], first: int = 0) -> float:
    """Over about ``_SIDE_SECONDS``, after ``first`` batches that are not timed."""
    list(islice(counts, first))
    synchronize()
    began, images = time.perf_counter(), 0
    for images_of_batch in counts:
        images += images_of_batch
        if time.perf_counter() - began >= _SIDE_SECONDS:
            break
    synchronize()
    return images / (time.perf_counter() - began)


def _figures(state: TrialState, measurements: dict[str, float | int]) -> dict[str, float | int]:
    windows = state.ledger.full_windows
    steps = sum(window.num_steps for window in windows)
    if windows:
        measurements |= {"num_windows": len(windows), "num_steps": steps}
        measurements["step_seconds_mean"] = sum(window.seconds for window in windows) / steps
        if math.isfinite(error := _time_error(windows)):
            measurements["step_time_error"] = error
    return measurements
