"""Plays recorded trainings on a simulated clock: what a search is told, and when, is what it was told once."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from sweep.executors.base import Executor
from sweep.records.causes import LEFT
from sweep.records.messages import Ending, Message, Progress, TrialTask
from sweep.records.rows import ReusableTrial
from sweep.spec.trial import TrialConfig

_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")


@final
class SimulatedClock:
    """Seconds that pass only when they are passed."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, seconds: float) -> None:
        """Never goes back."""
        self._now = max(self._now, seconds)


@dataclass
class _Playing:
    began: float
    due: deque[tuple[float, Message]] = field(default_factory=deque)


@final
class ReplayingExecutor(Executor):
    """``slots`` trials at once, each as fast as it was recorded. ``find`` gives the training of a configuration."""

    def __init__(
        self, find: Callable[[TrialConfig], ReusableTrial], clock: SimulatedClock, device: str, slots: int = 1
    ) -> None:
        self._find, self._clock, self._device, self._slots = find, clock, device, slots
        self._playing: dict[int, _Playing] = {}

    @property
    def slots(self) -> int:
        return self._slots

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def start(self, task: TrialTask) -> None:
        if len(self._playing) >= self._slots or task.number in self._playing:
            raise RuntimeError(f"trial {task.number} is running, or no slot of {self._slots} is free")
        began = self._clock()
        timed = deque((began + seconds, message) for seconds, message in schedule(self._find(task.config)))
        self._playing[task.number] = _Playing(began, timed)

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # nothing trains
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        if not self._playing:
            return []
        number = min(self._playing, key=lambda number: self._playing[number].due[0][0])
        seconds, message = self._playing[number].due[0]
        if seconds > self._clock() + timeout_seconds:
            self._clock.advance_to(self._clock() + timeout_seconds)
            return []
        self._clock.advance_to(seconds)
        self._playing[number].due.popleft()
        if isinstance(message, Ending):
            self.stop(number)
        return [(number, message)]

    def ask_to_leave(self, number: int) -> None:
        if number in self._playing:
            self._playing[number].due = deque([(self._clock(), Ending("cancelled", cause=LEFT))])

    def stop(self, number: int) -> None:
        self._playing.pop(number, None)

    def close(self) -> None:
        self._playing.clear()


def schedule(trial: ReusableTrial) -> list[tuple[float, Message]]:
    """When after its start a trial said what.

    Its memory and its doubts before the first step; each evaluation after what comes before the first step, the
    training until then, and its part of the time that is neither; the ending after ``total_seconds``.
    """
    measured, curve = trial.ending.measurements, trial.evaluations
    before = float(sum(measured.get(name, 0.0) for name in _BEFORE))
    trained = float(measured.get("train_seconds", curve[-1].train_seconds if curve else 0.0))
    total = max(float(measured.get("total_seconds", 0.0)), before + trained)
    pause = (total - before - trained) / (len(curve) + 1)
    said: list[tuple[float, Message]] = [(before, _first_words(trial.ending))]
    for count, told in enumerate(curve, 1):
        said.append((min(before + told.train_seconds + pause * count, total), told))
    return [*said, (total, trial.ending)]


def _first_words(ending: Ending) -> Progress:
    memory = ending.measurements.get("peak_memory_bytes")
    return Progress(
        step=0,
        num_steps=int(ending.measurements.get("num_steps", 0)),
        epoch=0.0,
        images_per_second=float(ending.measurements.get("images_per_second", 0.0)),
        peak_memory_bytes=None if memory is None else int(memory),
        quality_flags=ending.quality_flags,
    )
