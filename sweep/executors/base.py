"""The interface of executors: they run attempts at trials somewhere and return their messages, without any store."""

import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, final

from sweep.records.messages import STALLED, Ending, Message, Task

Runner = Callable[[Task], Iterator[Message]]
Describer = Callable[[str, int | None], dict[str, Any]]  # of a device and a number of threads

# Named, not imported: these modules import torch, which the supervisor does without.
RUNNER = "sweep.training.ranks:launch_trial"
_OTHER_RUNNERS = {"probe": "sweep.probing.probe:run_probe", "estimate": "sweep.probing.memory:run_estimate"}
_QUERY_SECONDS = 1.0  # of one wait for the messages of a query


@final
@dataclass(frozen=True)
class WorkerProgram:
    """What a trial's process imports and calls; functions are given as ``package.module:function``."""

    runner: str = RUNNER  # of trials
    describer: str = "sweep.measurement.device:describe_machine"
    modules: tuple[str, ...] = (  # imported once, before processes are forked
        "torch",
        "sweep.measurement.device",
        "sweep.training.vision",
        "sweep.training.trial",
    )

    def runner_of(self, task: Task) -> str:
        """The name of the function that carries out ``task``."""
        if getattr(task, "script", None) is not None:
            return "sweep.script.runner:run_script"
        return _OTHER_RUNNERS.get(task.kind, self.runner)


PROGRAM = WorkerProgram()


class Executor(ABC):
    """Runs up to ``slots`` trials at once. Used from one thread, which must outlive it.

    Each started trial yields its messages in order, the last of which is exactly one ``Ending``, whatever happens to
    the process that trains it; a stopped one yields nothing more.
    """

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many trials may run at once."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The environment of the machine on which trials run; the class of its device under ``device``."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Begins an attempt. Raises ``RuntimeError`` when no slot is free or the trial's number is running."""

    @abstractmethod
    def devices_of(self, number: int) -> tuple[str, ...]:
        """The devices of a running trial: ``cuda:0`` ... as this process counts them, ``cpu``, or none if elsewhere."""

    @abstractmethod
    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        """New messages as (trial number, message); waits for the first at most this long.

        Returns at once when no trial is running.
        """

    @abstractmethod
    def preempt(self, number: int) -> None:
        """Requests that a running trial ends this attempt: after its timed window, with a checkpoint, as ``cancelled``
        with the cause ``left``. This may take long, or the trial may end otherwise. Unknown numbers are ignored.
        """

    @abstractmethod
    def stop(self, number: int) -> None:
        """Ends an attempt now, with all that it started, and drops its messages. Unknown numbers are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ExecutorWrapper(Executor):
    """Delegates everything to ``inner``; subclasses override what they change."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner

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
        return self._inner.poll(timeout_seconds)

    def preempt(self, number: int) -> None:
        self._inner.preempt(number)

    def stop(self, number: int) -> None:
        self._inner.stop(number)

    def close(self) -> None:
        self._inner.close()


Attempt = TypeVar("Attempt")


class PollingExecutor(Executor, Generic[Attempt]):
    """Executors that collect the messages of attempts from other processes; ``Attempt`` is what they keep of each."""

    def __init__(self) -> None:
        self._running: dict[int, Attempt] = {}  # by number of the trial
        self._messages: list[tuple[int, Message]] = []  # not yet returned
        self._is_closed = False

    @abstractmethod
    def _collect(self, timeout_seconds: float) -> None:
        """Appends what has arrived to ``_messages``; waits for it at most this long, and may return earlier."""

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        deadline = time.monotonic() + timeout_seconds
        self._collect(0.0)
        while not self._messages and self._running and (left := deadline - time.monotonic()) > 0:
            self._collect(left)
        messages, self._messages = self._messages, []
        return messages

    def devices_of(self, number: int) -> tuple[str, ...]:
        """Empty unless overridden: trials run on other machines."""
        del number
        return ()

    def _check_start(self, number: int) -> None:
        if self._is_closed:
            raise RuntimeError("the executor is closed")
        if number in self._running or len(self._running) >= self.slots:
            raise RuntimeError(f"trial {number} cannot start: trials {sorted(self._running)} are running")

    def _drop_messages(self, number: int) -> None:
        self._messages = [(sender, message) for sender, message in self._messages if sender != number]


def poll_with_silence(executor: Executor, timeout_seconds: float) -> tuple[list[tuple[int, Message]], float]:
    """What ``executor.poll`` returns, and the seconds without messages that count for trials which sent none.

    These are never more than ``timeout_seconds``: a supervisor that was suspended or busy finds what was sent meanwhile
    at its next call, and must not take a trial for stalled.
    """
    began = time.monotonic()
    messages = executor.poll(timeout_seconds)
    return messages, min(time.monotonic() - began, timeout_seconds)


def make_uncaught_ending(error: BaseException) -> Ending:
    """The ending of a trial whose runner let an exception through: a crash with the last lines of the traceback.

    Trials convert every exception into an ending; but torch may raise one while they do, because it reports the death
    of a data worker by an exception at whatever line the process happens to execute.
    """
    text = "".join(traceback.format_exception(error, limit=-10))
    if "torch" not in sys.modules or not isinstance(error, Exception):
        return Ending(outcome="crashed", error=text)  # it was not a training that failed
    from sweep.training.outcomes import find_cause  # imports torch

    return Ending(outcome="crashed", error=text, cause=find_cause(error))


@final
class QueryableExecutor(ExecutorWrapper):
    """Also carries out small tasks between the trials: probes and estimates.

    Messages of trials that arrive during :meth:`run_query` are returned by the next :meth:`poll`. A task that sends
    nothing for ``stall_seconds`` is stopped.
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
                messages, seconds = poll_with_silence(self._inner, _QUERY_SECONDS)
                answers = [message for number, message in messages if number == task.number]
                self._deferred += [(number, message) for number, message in messages if number != task.number]
                silent_seconds = 0.0 if answers else silent_seconds + seconds
                if answers and isinstance(answers[-1], Ending):
                    return answers[-1]
        finally:
            self._inner.stop(task.number)  # has no effect on one that has ended
        return Ending(outcome="crashed", error=f"no message for {self._stall_seconds:g} s", cause=STALLED)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        messages, self._deferred = self._deferred, []
        return messages + super().poll(0.0 if messages else timeout_seconds)

    def stop(self, number: int) -> None:
        super().stop(number)
        self._deferred = [(sender, message) for sender, message in self._deferred if sender != number]
