"""Trains in the supervisor's own process: for debugging, for tests, and where no child may be started.

A crash of the trial is a crash of the supervisor here, and a step that hangs cannot be stopped.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast, final

from sweep.executors.base import DESCRIBER, RUNNER, Describer, Executor, Runner, load_function, runner_of
from sweep.executors.devices import available_devices
from sweep.executors.uncaught import ending_of_escaped
from sweep.records.messages import (
    Ending,
    Message,
    Task,
    decode_message,
    decode_task,
    encode_message,
    encode_task,
)
from sweep.training.supervisor_link import LIFELINE


@final
class InlineExecutor(Executor):
    """One trial at a time; it advances by one message inside each :meth:`poll`, which therefore may take longer than
    its time limit. A task whose device is ``auto`` gets ``device``."""

    def __init__(self, device: str = "auto", runner: str = RUNNER, describer: str = DESCRIBER) -> None:
        self._device = device
        self._runner = runner
        self._describer = describer
        self._number: int | None = None
        self._messages: Iterator[Message] = iter(())

    @property
    def slots(self) -> int:
        return 1

    def describe(self) -> dict[str, Any]:
        describer = cast(Describer, load_function(self._describer))
        return describer(self._device, None)

    def start(self, task: Task) -> None:
        if self._number is not None:
            raise RuntimeError(f"trial {self._number} is running and there is one slot")
        if task.device == "auto":
            task = replace(task, device=self._device)
        # through the same JSON as in the other executors, so that all carry the same
        task = replace(decode_task(encode_task(task)), memory_limit_bytes=None)  # a limit would stay with this process
        LIFELINE.forget()  # what an earlier trial was asked
        self._messages = _messages(runner_of(task, self._runner), task)
        self._number = task.number

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # all are trained on the same
        named = {"auto": available_devices()[0], "cuda": "cuda:0"}
        return (named.get(self._device, self._device),)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        del timeout_seconds  # a step cannot be cut short
        if self._number is None:
            return []
        # nothing follows where an earlier poll was interrupted
        said = next(self._messages, Ending(outcome="crashed", error="interrupted"))
        number, message = self._number, decode_message(encode_message(said))
        if isinstance(message, Ending):
            self.stop(number)
        return [(number, message)]

    def ask_to_leave(self, number: int) -> None:
        if number == self._number:
            LIFELINE.ask_to_leave()

    def stop(self, number: int) -> None:
        if number != self._number:
            return
        messages, self._messages, self._number = self._messages, iter(()), None
        cast(Any, messages).close()

    def close(self) -> None:
        if self._number is not None:
            self.stop(self._number)


def _messages(runner: str, task: Task) -> Iterator[Message]:
    """What the trial says, and an ending in its place when it breaks off without one."""
    try:
        for message in cast(Runner, load_function(runner))(task):
            yield message
            if isinstance(message, Ending):
                return
        ending = Ending(outcome="crashed", error="the trial ended without saying how")
    except (Exception, SystemExit) as error:
        ending = ending_of_escaped(error)
    yield ending
