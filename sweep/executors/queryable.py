"""An executor that can be asked for small work between the trials: a probe, an estimate."""

from dataclasses import replace
from typing import Any, final

from sweep.executors.base import Executor
from sweep.executors.silence import listen
from sweep.records.attempt_causes import STALLED
from sweep.records.messages import Ending, Message, Task

_POLL_SECONDS = 1.0


@final
class QueryableExecutor(Executor):
    """Hands everything on to ``inner``. What trials say while an answer is awaited is told at the next :meth:`poll`.

    Work of which nothing was heard for ``stall_seconds`` is given up.
    """

    def __init__(self, inner: Executor, stall_seconds: float = float("inf")) -> None:
        self._inner = inner
        self._stall_seconds = stall_seconds
        self._num_asked = 0
        self._overheard: list[tuple[int, Message]] = []

    def ask(self, task: Task) -> Ending:
        """How ``task`` ended, whatever its number. Wants a free slot; a probe wants the device to itself."""
        self._num_asked += 1
        task = replace(task, number=-self._num_asked)
        self._inner.start(task)
        silent_seconds = 0.0
        try:
            while silent_seconds < self._stall_seconds:
                news, seconds = listen(self._inner, _POLL_SECONDS)
                said = [message for number, message in news if number == task.number]
                self._overheard += [(number, message) for number, message in news if number != task.number]
                silent_seconds = 0.0 if said else silent_seconds + seconds
                if said and isinstance(said[-1], Ending):
                    return said[-1]
        except BaseException:
            self._inner.stop(task.number)
            raise
        self._inner.stop(task.number)
        return Ending(outcome="crashed", error=f"nothing was heard of it for {self._stall_seconds:g} s", cause=STALLED)

    @property
    def slots(self) -> int:
        return self._inner.slots

    def describe(self) -> dict[str, Any]:
        return self._inner.describe()

    def start(self, task: Task) -> None:
        self._inner.start(task)

    def devices_of(self, number: int) -> tuple[str, ...]:
        return self._inner.devices_of(number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        news, self._overheard = self._overheard, []
        return news + self._inner.poll(0.0 if news else timeout_seconds)

    def ask_to_leave(self, number: int) -> None:
        self._inner.ask_to_leave(number)

    def stop(self, number: int) -> None:
        self._inner.stop(number)
        self._overheard = [(sender, message) for sender, message in self._overheard if sender != number]

    def close(self) -> None:
        self._inner.close()
