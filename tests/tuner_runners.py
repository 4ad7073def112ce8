"""Trainings that end at once with figures that follow from the configuration, for tests of the tuner."""

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sweep.records.messages import Ending, Evaluation, Message, Outcome, Progress, TrialTask
from sweep.training import processes as supervisor_link
from sweep.training.processes import SUPERVISOR_LINK

CAPACITY = 512  # micro batches from here on do not fit


def describe(_device: str) -> dict[str, Any]:
    return {"device": "test device"}


def evaluation(step: int, accuracy: float) -> Evaluation:
    return Evaluation(
        step=step, epoch=step / 10, samples=64 * step, train_seconds=0.1 * step, train_loss=1.0, val_loss=1.0,
        val_accuracy=accuracy, learning_rate=0.1, global_batch_size=64,
    )  # fmt: skip


def formula(task: TrialTask) -> Iterator[Message]:
    """Best at lr 0.03; faster and larger with the micro batch; noisy by seed; out of memory beyond the capacity."""
    config = task.config
    micro, lr = config.batch.micro, config.optimizer.lr
    yield Progress(step=1, num_steps=2, epoch=0.5, images_per_second=100.0)
    if micro >= CAPACITY:
        yield from too_large(task)
        return
    accuracy = 0.9 - 0.05 * math.log10(lr / 0.03) ** 2 - 0.0001 * micro + 0.001 * (config.seed % 7)
    yield evaluation(1, accuracy / 2)
    yield evaluation(2, accuracy)
    measured: dict[str, float | int] = {
        "val_accuracy": accuracy, "train_seconds": 100.0 / micro, "peak_memory_bytes": 1000 * micro,
        "total_seconds": 101.0 / micro,
    }  # fmt: skip
    if task.read_test:
        measured["test_accuracy"] = accuracy - 0.01
    yield Ending(outcome="complete", measurements=measured, device="test device", environment={"device": "test device"})


def endless(_task: TrialTask) -> Iterator[Message]:
    """Goes on until it is stopped."""
    yield evaluation(1, 0.25)
    while True:
        yield Progress(step=1, num_steps=2, epoch=0.5, images_per_second=100.0)


def _end_at_once(outcome: Outcome, error: str) -> Callable[[TrialTask], Iterator[Message]]:
    return lambda _task: iter([Ending(outcome=outcome, device="test device", error=error)])


broken = _end_at_once("crashed", "Traceback ...\nlayer 3 is missing")
diverging = _end_at_once("diverged", "the training loss became nan")
too_large = _end_at_once("out_of_memory", "does not fit")


def broken_once(task: TrialTask) -> Iterator[Message]:
    """The trial of number 3 crashes."""
    yield from broken(task) if task.number == 3 else formula(task)


def broken_confirmation(task: TrialTask) -> Iterator[Message]:
    """What reads the test split crashes."""
    yield from broken(task) if task.read_test else formula(task)


# ---------------------------------------------------------------------- attempts that end before their trials
# Each writes a line for its attempt into the folder of its checkpoints, which all attempts at a trial share.


def _attempt(task: TrialTask) -> int:
    """Which attempt at its trial this is, from 1."""
    assert task.checkpoint_dir is not None
    folder = Path(task.checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "attempts").open("a+") as file:
        file.write("x")
        file.seek(0)
        return len(file.read())


def killed_at_first(task: TrialTask) -> Iterator[Message]:
    """Killed in as many attempts as its seed says, after a step; then as :func:`formula`."""
    attempt = _attempt(task)
    yield Progress(step=0, num_steps=9, epoch=0.0, images_per_second=1.0)
    yield Progress(step=1, num_steps=9, epoch=0.1, images_per_second=1.0)
    if attempt <= task.config.seed:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from formula(task)


def killed_at_once(_task: TrialTask) -> Iterator[Message]:
    """Killed before its first step, whenever it is tried."""
    yield Progress(step=0, num_steps=9, epoch=0.0, images_per_second=1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs_at_first(task: TrialTask) -> Iterator[Message]:
    """Says nothing more in its first attempt, whatever it is asked; then as :func:`formula`."""
    attempt = _attempt(task)
    yield Progress(step=0, num_steps=9, epoch=0.0, images_per_second=1.0)
    if attempt == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    yield from formula(task)


def faulty(task: TrialTask) -> Iterator[Message]:
    """Faults of the trial's own, by its number."""
    yield Progress(step=0, num_steps=9, epoch=0.0, images_per_second=1.0)
    yield Progress(step=1, num_steps=9, epoch=0.1, images_per_second=1.0)
    match task.number % 4:
        case 0:
            raise ZeroDivisionError("the model's own")
        case 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 2:
            os._exit(3)
        case _:
            yield from too_large(task)


def leaving(task: TrialTask) -> Iterator[Message]:
    """Trains in its first attempt until it is told to stop; in the second it ends."""
    attempt, step = _attempt(task), 0
    while attempt == 1 and not SUPERVISOR_LINK.is_preempted:
        yield Progress(step=step, num_steps=9, epoch=0.1 * step, images_per_second=1.0)
        step += 1
        time.sleep(0.02)
    if attempt == 1:
        yield Ending(outcome="cancelled", measurements={"num_steps": step}, cause="left")
    yield from formula(task)


def stubborn(_task: TrialTask) -> Iterator[Message]:
    """Ignores what it is told and never ends."""
    step = 0
    while True:
        yield Progress(step=step, num_steps=9, epoch=0.1, images_per_second=1.0)
        step += 1
        time.sleep(0.02)


def beating(task: TrialTask) -> Iterator[Message]:
    """Says nothing for three seconds but that it lives."""
    yield Progress(step=0, num_steps=9, epoch=0.0, images_per_second=1.0)
    supervisor_link.HEARTBEAT_SECONDS = 0.1
    until = time.monotonic() + 3
    while time.monotonic() < until:
        SUPERVISOR_LINK.send_heartbeat()
        time.sleep(0.02)
    yield from formula(task)
