"""Trains trials of one shape together in the processes of a process executor.

Trials wait until a process is free. It then takes those that can be trained together with the one that has waited
longest, up to ``depth`` of them; a trial without a partner is trained the ordinary way.
"""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from sweep.executors.base import Executor, ExecutorWrapper, receive_message
from sweep.executors.packed.stack_key import find_stack_key
from sweep.records.attempt_causes import FAULTS_OF_THE_MACHINE, LEFT, STACK_FAILED
from sweep.records.messages import Ending, Heartbeat, MemberMessage, Message, StackTask, Task, TrialTask
from sweep.training.supervisor_link import HEARTBEAT_SECONDS

_FIRST_NUMBER = -1_000_001  # of a process that trains several trials; further ones count down


@final
@dataclass
class _Stack:
    """The members of a process that have no ending yet, and the ending of the last of them.

    It is held back until the process is gone, as the ending of a trial alone, so that a slot that is free is free.
    """

    active: set[int]
    held: list[tuple[int, Ending]] = field(default_factory=list)


@final
class StackedExecutor(ExecutorWrapper):
    """With a ``depth`` of 1, as at first, it is ``inner``: nothing waits and nothing is trained together.

    A trial whose process failed while it trained several is trained alone from then on.
    """

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self.depth = 1
        self._waiting: dict[int, TrialTask] = {}  # by number, in the order of their arrival
        self._stacks: dict[int, _Stack] = {}  # by the number of the process
        self._next_number = _FIRST_NUMBER
        self._alone: set[int] = set()  # trials that run by themselves
        self._failed: set[int] = set()  # numbers of trials whose stack has failed
        self._sent: list[tuple[int, Message]] = []  # not yet returned
        self._folder = tempfile.TemporaryDirectory(prefix="sweep-stacks-")
        self._next_heartbeat = 0.0

    @property
    def slots(self) -> int:
        return super().slots * self.depth

    def start(self, task: Task) -> None:
        if self.depth == 1 or not isinstance(task, TrialTask):
            super().start(task)
            self._alone.add(task.number)
            return
        running = self._numbers()
        if task.number in running or len(running) >= self.slots:
            raise RuntimeError(f"trial {task.number} cannot start: trials {sorted(running)} are running")
        self._waiting[task.number] = task

    def devices_of(self, number: int) -> tuple[str, ...]:
        """Empty for a trial that waits or shares its process: nothing that a device shows is its own."""
        return super().devices_of(number) if number in self._alone else ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        self._launch_waiting()
        for number, message in super().poll(0.0 if self._sent else timeout_seconds):
            self._receive(number, message)
        if self._waiting and time.monotonic() >= self._next_heartbeat:
            self._next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
            self._sent += [(number, Heartbeat(is_queued=True)) for number in self._waiting]
        messages, self._sent = self._sent, []
        return messages

    def preempt(self, number: int) -> None:
        """Preempts the other members of its process too."""
        if self._waiting.pop(number, None) is not None:
            self._sent.append((number, Ending(outcome="cancelled", cause=LEFT)))
            return
        super().preempt(self._process_of(number))

    def stop(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._sent = [(sender, message) for sender, message in self._sent if sender != number]
        process = self._process_of(number)
        stack = self._stacks.get(process)
        if stack and number in stack.active:
            (Path(self._folder.name) / str(number)).touch()
            stack.active.discard(number)
        if stack is None or not stack.active:
            self._stacks.pop(process, None)
            self._alone.discard(number)
            super().stop(process)

    def close(self) -> None:
        super().close()
        self._waiting.clear()
        self._stacks.clear()
        self._alone.clear()
        self._folder.cleanup()

    def _numbers(self) -> set[int]:
        return {*self._waiting, *self._alone, *(number for stack in self._stacks.values() for number in stack.active)}

    def _process_of(self, number: int) -> int:
        return next((process for process, stack in self._stacks.items() if number in stack.active), number)

    def _launch_waiting(self) -> None:
        while self._waiting and (num_free := super().slots - len(self._stacks) - len(self._alone)) > 0:
            first, *others = self._choose(num_free)
            for task in (first, *others):
                del self._waiting[task.number]
            if not others:
                super().start(first)
                self._alone.add(first.number)
                continue
            members = (first, *others)
            for member in members:
                (Path(self._folder.name) / str(member.number)).unlink(missing_ok=True)  # of an earlier attempt
            stack = StackTask(
                number=self._next_number,
                config=first.config,
                device=first.device,
                threads=first.threads,
                plugin=first.plugin,
                members=members,
                stop_folder=self._folder.name,
            )
            super().start(stack)
            self._stacks[stack.number] = _Stack({member.number for member in members})
            self._next_number -= 1

    def _choose(self, num_free: int) -> list[TrialTask]:
        """The trial that has waited longest, with an even share of those that it can be trained together with."""
        first = next(iter(self._waiting.values()))
        key = self._key_of(first)
        if key is None:
            return [first]
        equal = [task for task in self._waiting.values() if self._key_of(task) == key]
        return equal[: min(self.depth, -(-len(equal) // num_free))]

    def _key_of(self, task: TrialTask) -> str | None:
        return None if task.number in self._failed else find_stack_key(task)

    def _receive(self, process: int, message: Message) -> None:
        stack = self._stacks.get(process)
        if stack is None:
            self._sent.append((process, message))
            if isinstance(message, Ending):
                self._alone.discard(process)
        elif isinstance(message, MemberMessage):
            self._receive_of_member(stack, message)
        elif isinstance(message, Ending):
            del self._stacks[process]
            lost = stack.active - {number for number, _ in stack.held}
            self._failed |= lost
            self._sent += [*stack.held, *((number, _explain_failure(message)) for number in sorted(lost))]
        else:
            self._sent += [(number, message) for number in sorted(stack.active)]  # a heartbeat is one of all

    def _receive_of_member(self, stack: _Stack, message: MemberMessage) -> None:
        if message.number not in stack.active:
            return
        own = receive_message(message.text.encode())
        if isinstance(own, Ending) and stack.active == {message.number}:
            stack.held.append((message.number, own))
            return
        self._sent.append((message.number, own))
        if isinstance(own, Ending):
            stack.active.discard(message.number)


def _explain_failure(ending: Ending) -> Ending:
    """The ending of a member whose process ended before it: that attempt is lost, and the trial is not."""
    cause = ending.cause if ending.cause in FAULTS_OF_THE_MACHINE else STACK_FAILED
    error = ending.error or "the process that trained it together with others ended without a result"
    return Ending(outcome="crashed", error=error, cause=cause)
