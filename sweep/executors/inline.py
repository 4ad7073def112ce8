"""Trains in the supervisor's own process: for debugging, for tests, and where no child may be started.

A crash of the trial is a crash of the supervisor here, and a step that hangs cannot be stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, cast, final

from sweep.executors.base import PROGRAM, Executor, Runner, WorkerProgram, make_uncaught_ending
from sweep.executors.devices import list_devices
from sweep.records.messages import Ending, Message, Task, decode_message, decode_task, encode_message, encode_task
from sweep.training.processes import SUPERVISOR_LINK


@final
class InlineExecutor(Executor):
    """One trial at a time; it advances by one message inside each :meth:`poll`, which therefore may take longer than
    its time limit. A task whose device is ``auto`` gets ``device``."""

    def __init__(self, device: str = "auto", program: WorkerProgram = PROGRAM) -> None:
        self._device, self._program = device, program
        self._number: int | None = None
        self._messages: Iterator[Message] = iter(())

    @property
    def slots(self) -> int:
        return 1

    def describe(self) -> dict[str, Any]:
        runners = (PROGRAM.runner, PROGRAM.describer)
        for module in (*self._program.modules, *(name.partition(":")[0] for name in runners)):
            import_module(module)  # before the first trial, whose time would contain the import
        description: dict[str, Any] = resolve_name(self._program.describer)(self._device, None)
        return description

    def start(self, task: Task) -> None:
        if self._number is not None:
            raise RuntimeError(f"trial {self._number} is running and there is one slot")
        if task.device == "auto":
            task = replace(task, device=self._device)
        # The task is encoded as in the other executors, so that all behave alike. A limit would outlast the trial here.
        task = replace(decode_task(encode_task(task)), memory_limit_bytes=None)
        SUPERVISOR_LINK.reset()  # an earlier trial may have been preempted
        self._messages = _run(self._program.runner_of(task), task)
        self._number = task.number

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # all trials are trained on the same device
        named = {"auto": list_devices()[0], "cuda": "cuda:0"}
        return (named.get(self._device, self._device),)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        del timeout_seconds  # a step cannot be interrupted
        if self._number is None:
            return []
        # The iterator is exhausted if an earlier poll was interrupted.
        sent = next(self._messages, Ending(outcome="crashed", error="interrupted"))
        number, message = self._number, decode_message(encode_message(sent))
        if isinstance(message, Ending):
            self.stop(number)
        return [(number, message)]

    def preempt(self, number: int) -> None:
        if number == self._number:
            SUPERVISOR_LINK.preempt()

    def stop(self, number: int) -> None:
        if number == self._number:
            messages, self._messages, self._number = self._messages, iter(()), None
            cast(Any, messages).close()

    def close(self) -> None:
        if self._number is not None:
            self.stop(self._number)


def _run(runner: str, task: Task) -> Iterator[Message]:
    """The messages of the trial, and an ending if it breaks off without one."""
    try:
        for message in cast(Runner, resolve_name(runner))(task):
            yield message
            if isinstance(message, Ending):
                return
        ending = Ending(outcome="crashed", error="the trial ended without an ending")
    except (Exception, SystemExit) as error:
        ending = make_uncaught_ending(error)
    yield ending
