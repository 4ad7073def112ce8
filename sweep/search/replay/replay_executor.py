"""An executor that repeats the messages of recorded trainings on a simulated clock."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple, final

from sweep.config.trial_config import TrialConfig
from sweep.executors.base import Executor
from sweep.records.attempt_causes import LEFT
from sweep.records.messages import Ending, Message, Progress, Task
from sweep.records.trial_record import ReusableTrial

_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
TimedMessage = tuple[float, Message]  # seconds after the start of the trial, and the message


@final
class SimulatedClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, seconds: float) -> None:
        """Advances to ``seconds``; never back."""
        self._now = max(self._now, seconds)


class _Due(NamedTuple):
    """The next message of a trial. The earliest comes first, and of equal ones the one that was added first."""

    seconds: float  # by the clock
    order: int
    number: int
    message: Message
    began: float
    rest: Iterator[TimedMessage]


@final
class ReplayingExecutor(Executor):
    """``slots`` trials at once, each as fast as it was recorded. ``messages_of`` gives the timed messages of the
    training of a configuration, the last of which is an ``Ending``.
    """

    def __init__(
        self,
        messages_of: Callable[[TrialConfig], Iterator[TimedMessage]],
        clock: SimulatedClock,
        device: str,
        slots: int = 1,
    ) -> None:
        self._messages_of, self._clock, self._device, self._slots = messages_of, clock, device, slots
        self._running: dict[int, Iterator[TimedMessage]] = {}  # the messages that follow, by trial
        self._order: list[_Due] = []  # a heap; some may have been stopped since
        self._count = count()

    @property
    def slots(self) -> int:
        return self._slots

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def start(self, task: Task) -> None:
        if len(self._running) >= self._slots or task.number in self._running:
            raise RuntimeError(f"trial {task.number} is running, or no slot of {self._slots} is free")
        self._schedule(task.number, self._clock(), self._messages_of(task.config))

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # nothing trains
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        message = self._next(timeout_seconds)
        return [] if message is None else [message]

    def preempt(self, number: int) -> None:
        if number in self._running:
            self._schedule(number, self._clock(), iter([(0.0, Ending(outcome="cancelled", cause=LEFT))]))

    def stop(self, number: int) -> None:
        self._running.pop(number, None)

    def close(self) -> None:
        self._running.clear()

    def _schedule(self, number: int, began: float, rest: Iterator[TimedMessage]) -> None:
        self._running[number] = rest
        seconds, message = next(rest)
        heapq.heappush(self._order, _Due(began + seconds, next(self._count), number, message, began, rest))

    def _next(self, timeout_seconds: float) -> tuple[int, Message] | None:
        while self._order and self._running.get(self._order[0].number) is not self._order[0].rest:
            heapq.heappop(self._order)
        until = self._clock() + timeout_seconds
        if not self._order:
            return None
        if self._order[0].seconds > until:
            self._clock.advance_to(until)
            return None
        due = heapq.heappop(self._order)
        self._clock.advance_to(due.seconds)
        if isinstance(due.message, Ending):
            self.stop(due.number)
        else:
            self._schedule(due.number, due.began, due.rest)
        return due.number, due.message


def schedule_messages(trial: ReusableTrial) -> list[TimedMessage]:
    """The messages of a recorded trial with their seconds after its start.

    A progress message with memory and quality flags comes before the first step; each evaluation after the time before
    the first step, the training until then, and its share of the remaining time; the ending after ``total_seconds``.
    """
    measured, curve = trial.ending.measurements, trial.evaluations
    before = float(sum(measured.get(name, 0.0) for name in _BEFORE))
    trained = float(measured.get("train_seconds", curve[-1].train_seconds if curve else 0.0))
    total = max(float(measured.get("total_seconds", 0.0)), before + trained)
    pause = (total - before - trained) / (len(curve) + 1)
    messages: list[TimedMessage] = [(before, _first_progress(trial.ending))]
    for index, evaluation in enumerate(curve, 1):
        messages.append((min(before + evaluation.train_seconds + pause * index, total), evaluation))
    return [*messages, (total, trial.ending)]


def _first_progress(ending: Ending) -> Progress:
    memory = ending.measurements.get("peak_memory_bytes")
    return Progress(
        step=0,
        num_steps=int(ending.measurements.get("num_steps", 0)),
        epoch=0.0,
        images_per_second=float(ending.measurements.get("images_per_second", 0.0)),
        peak_memory_bytes=None if memory is None else int(memory),
        quality_flags=ending.quality_flags,
    )
