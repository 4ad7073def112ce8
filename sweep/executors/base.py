"""What every executor can do: run attempts at trials somewhere and say what they report, never touching the store."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from sweep.records.messages import Message, Task

Runner = Callable[[Task], Iterator[Message]]
Describer = Callable[[str, int | None], dict[str, Any]]  # of a device and a number of threads

# Named, not imported: the modules behind them import torch, which the supervisor does without.
RUNNER = "sweep.training.ranks.launcher:launch_trial"
DESCRIBER = "sweep.executors.machine:describe_machine"
_OTHER_RUNNERS: dict[str, str] = {
    "probe": "sweep.probing.probe:run_probe",
    "estimate": "sweep.probing.estimate_task:run_estimate",
}


class Executor(ABC):
    """Runs up to ``slots`` trials at once. Used from one thread, which must outlive it.

    Each started trial yields its messages in order, the last of which is exactly one ``Ending``, whatever becomes of
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
        """What a running trial trains on: ``cuda:0`` and so on, as this process counts them, or ``cpu``; nothing where
        that is no device of this machine."""

    @abstractmethod
    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        """News of the running trials, as (trial number, message); waits for the first at most this long.

        Returns at once when no trial is running.
        """

    @abstractmethod
    def ask_to_leave(self, number: int) -> None:
        """Asks a running trial to end this attempt: after its step, with a checkpoint, as ``cancelled`` with the cause
        ``left``. It may take long to, or end otherwise; who cannot wait stops it. Unknown numbers are ignored.
        """

    @abstractmethod
    def stop(self, number: int) -> None:
        """Ends an attempt now, with all that it started; nothing more is heard of it. Unknown numbers are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load_function(name: str) -> Callable[..., Any]:
    """The function behind ``package.module:function``."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    return function


def runner_of(task: Task, trial_runner: str) -> str:
    """The name of the function that does the task's work, where ``trial_runner`` does trials."""
    return _OTHER_RUNNERS.get(task.kind, trial_runner)
