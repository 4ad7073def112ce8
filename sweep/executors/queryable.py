"""An executor that also carries out small tasks between the trials: probes and estimates."""

from dataclasses import replace
from typing import final

from sweep.executors.base import Executor, ExecutorWrapper, poll_with_silence
from sweep.records.attempt_causes import STALLED
from sweep.records.messages import Ending, Message, Task

_POLL_SECONDS = 1.0


@final
class QueryableExecutor(ExecutorWrapper):
    """Messages of trials that arrive during :meth:`run_query` are returned by the next :meth:`poll`.

    A task that sends nothing for ``stall_seconds`` is stopped.
    """

    def __init__(self, inner: Executor, stall_seconds: float = float("inf")) -> None:
        super().__init__(inner)
        self._stall_seconds = stall_seconds
        self._num_queries = 0
        self._deferred: list[tuple[int, Message]] = []

    def run_query(self, task: Task) -> Ending:
        """The ending of ``task``, whose number is ignored. Requires a free slot; a probe requires an idle device."""
        self._num_queries += 1
        task = replace(task, number=-self._num_queries)
        self._inner.start(task)
        silent_seconds = 0.0
        try:
            while silent_seconds < self._stall_seconds:
                messages, seconds = poll_with_silence(self._inner, _POLL_SECONDS)
                own = [message for number, message in messages if number == task.number]
                self._deferred += [(number, message) for number, message in messages if number != task.number]
                silent_seconds = 0.0 if own else silent_seconds + seconds
                if own and isinstance(own[-1], Ending):
                    return own[-1]
        finally:
            self._inner.stop(task.number)  # has no effect on one that has ended
        return Ending(outcome="crashed", error=f"no message for {self._stall_seconds:g} s", cause=STALLED)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        messages, self._deferred = self._deferred, []
        return messages + super().poll(0.0 if messages else timeout_seconds)

    def stop(self, number: int) -> None:
        super().stop(number)
        self._deferred = [(sender, message) for sender, message in self._deferred if sender != number]
