"""Plays recorded trainings on a simulated clock: what a search is told, and when, is what it was told once."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, final

from sweep.config.trial_config import TrialConfig
from sweep.executors.base import Executor
from sweep.records.attempt_causes import LEFT
from sweep.records.messages import Ending, Message, Progress, Task
from sweep.records.trial_record import ReusableTrial

_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
# How often a running trial says where it stands, and that it lives.

Told = tuple[float, Message]  # seconds after the start of the trial, and what it says then


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


@dataclass(kw_only=True)
class _Playing:
    number: int
    began: float
    rest: Iterator[Told]
    due: float = 0.0  # by the clock, when the next word falls
    word: Message | None = None

    def turn(self) -> None:
        """To the next word."""
        seconds, self.word = next(self.rest)
        self.due = self.began + seconds


@final
class ReplayingExecutor(Executor):
    """``slots`` trials at once, each as fast as it was recorded. ``tell`` gives what the training of a configuration
    says, and when; its last word is an ``Ending``.
    """

    def __init__(
        self,
        tell: Callable[[TrialConfig], Iterator[Told]],
        clock: SimulatedClock,
        device: str,
        slots: int = 1,
    ) -> None:
        self._tell, self._clock, self._device, self._slots = tell, clock, device, slots
        self._playing: dict[int, _Playing] = {}
        self._order: list[tuple[float, int, _Playing]] = []  # a heap; some may have been stopped meanwhile
        self._count = count()

    @property
    def slots(self) -> int:
        return self._slots

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def start(self, task: Task) -> None:
        if len(self._playing) >= self._slots or task.number in self._playing:
            raise RuntimeError(f"trial {task.number} is running, or no slot of {self._slots} is free")
        self._play(_Playing(number=task.number, began=self._clock(), rest=self._tell(task.config)))

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # nothing trains
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        said = self._next(timeout_seconds)
        return [] if said is None else [said]

    def preempt(self, number: int) -> None:
        if number in self._playing:
            left: Told = (0.0, Ending(outcome="cancelled", cause=LEFT))
            self._play(_Playing(number=number, began=self._clock(), rest=iter([left])))

    def stop(self, number: int) -> None:
        self._playing.pop(number, None)

    def close(self) -> None:
        self._playing.clear()

    def _play(self, playing: _Playing) -> None:
        self._playing[playing.number] = playing
        playing.turn()
        heapq.heappush(self._order, (playing.due, next(self._count), playing))

    def _next(self, timeout_seconds: float) -> tuple[int, Message] | None:
        while self._order and self._playing.get(self._order[0][2].number) is not self._order[0][2]:
            heapq.heappop(self._order)
        if not self._order:
            return None
        due, _, playing = self._order[0]
        if due > self._clock() + timeout_seconds:
            self._clock.advance_to(self._clock() + timeout_seconds)
            return None
        self._clock.advance_to(due)
        assert playing.word is not None
        number, word = playing.number, playing.word
        if isinstance(word, Ending):
            heapq.heappop(self._order)
            self.stop(number)
        else:
            playing.turn()
            heapq.heapreplace(self._order, (playing.due, next(self._count), playing))
        return number, word


def schedule_messages(trial: ReusableTrial) -> list[Told]:
    """When after its start a trial said what.

    Its memory and its doubts before the first step; each evaluation after what comes before the first step, the
    training until then, and its part of the time that is neither; the ending after ``total_seconds``.
    """
    measured, curve = trial.ending.measurements, trial.evaluations
    before = float(sum(measured.get(name, 0.0) for name in _BEFORE))
    trained = float(measured.get("train_seconds", curve[-1].train_seconds if curve else 0.0))
    total = max(float(measured.get("total_seconds", 0.0)), before + trained)
    pause = (total - before - trained) / (len(curve) + 1)
    said: list[Told] = [(before, _first_words(trial.ending))]
    for turn, told in enumerate(curve, 1):
        said.append((min(before + told.train_seconds + pause * turn, total), told))
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
