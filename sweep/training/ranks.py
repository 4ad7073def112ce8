"""A trial on several ranks, in the process that is to carry it out.

That process trains nothing. It starts the agent (see :mod:`sweep.training.rank_agent`), passes on the messages of the
first rank, and yields the ending when every rank is gone.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from sweep.records.messages import Ending, Message, TrialTask, decode_message, encode_task
from sweep.training.processes import SUPERVISOR_LINK, describe_exit, find_signal_name, make_python_command
from sweep.training.rank_agent import PREEMPT, REPORTS, RankDied, RankMessage, run_agent
from sweep.training.trial import run_trial

_MAX_REPORT_BYTES = 2**20
# From the first failure to the next report: the neighbor of a killed rank may notice before the agent does.
_GRACE_SECONDS = 2.0
_EXIT_SECONDS = 30.0  # from the first rank's ending to the end of all


@final
@dataclass(kw_only=True)
class _Reports:
    """What the ranks and their agent have reported so far."""

    num_ranks: int
    endings: dict[int, Ending] = field(default_factory=dict)  # by rank, in the order of their arrival
    death: RankDied | None = None
    deadline: float = float("inf")  # on the monotonic clock

    def add(self, report: RankMessage | RankDied) -> Message | None:
        """Returns the message for the supervisor, if there is one yet."""
        if isinstance(report, RankDied):
            self.death = report
            return None
        message = decode_message(report.message.encode())
        if not isinstance(message, Ending):
            return message
        self.endings[report.rank] = message
        wait_seconds = _EXIT_SECONDS if message.outcome == "complete" else _GRACE_SECONDS
        self.deadline = min(self.deadline, time.monotonic() + wait_seconds)
        return None

    @property
    def failures(self) -> list[tuple[int, Ending]]:
        return [(rank, ending) for rank, ending in self.endings.items() if ending.outcome != "complete"]

    @property
    def is_settled(self) -> bool:
        """Nothing will change the ending any more: only a crash may be the consequence of another rank's death."""
        has_cause = any(ending.outcome != "crashed" for _, ending in self.failures)
        return self.death is not None or len(self.failures) == self.num_ranks or has_cause

    def make_ending(self) -> Ending:
        """The trial's: complete if the first rank is; else a killed rank is the cause, else the first failure."""
        failures = self.failures
        if 0 in self.endings and self.endings[0].outcome == "complete":
            return self.endings[0]  # all had finished; only their shutdown can have failed
        if self.death is not None:
            ending = self.endings.get(0) or (failures[0][1] if failures else Ending(outcome="crashed"))
            error = f"rank {self.death.rank}: {describe_exit(self.death.exit_code)}"
            return replace(ending, outcome="crashed", error=error, cause=find_signal_name(self.death.exit_code))
        if failures:
            rank, ending = failures[0]
            return replace(ending, error=f"rank {rank}: {ending.error}") if rank else ending
        return Ending(outcome="crashed", error="the ranks ended without a result")


def launch_trial(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` in this process, or on as many ranks as its configuration requires; see
    :func:`sweep.training.trial.run_trial` for the messages."""
    return run_ranks(task) if task.config.distributed.world_size > 1 else run_trial(task)


def run_ranks(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` on its ``distributed.world_size`` ranks: the messages of the first of them, and one ending.

    Closing the iterator ends every rank.
    """
    reports = _Reports(num_ranks=task.config.distributed.world_size)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            agent_pid = _start_agent(encode_task(task).decode(), theirs)
        try:
            SUPERVISOR_LINK.forward_preemption(lambda: _send_preemption(ours))
            yield from _receive(ours, reports)
        finally:
            SUPERVISOR_LINK.forward_preemption(None)
            with suppress(ProcessLookupError):
                os.kill(agent_pid, signal.SIGKILL)  # and the kernel ends the ranks with it
            os.waitpid(agent_pid, 0)
            _await_closed(ours)
    yield reports.make_ending()


def _send_preemption(ours: socket.socket) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # all are gone already
        ours.send(PREEMPT)


def _receive(ours: socket.socket, reports: _Reports) -> Iterator[Message]:
    while not reports.is_settled:
        is_open_ended = reports.deadline == float("inf")
        ours.settimeout(None if is_open_ended else max(0.001, reports.deadline - time.monotonic()))
        try:
            data = ours.recv(_MAX_REPORT_BYTES)
        except TimeoutError:
            return
        if not data:
            return
        if message := reports.add(REPORTS.decode(data)):
            yield message


def _await_closed(ours: socket.socket) -> None:
    """Returns when no rank holds the other end any more."""
    deadline = time.monotonic() + _EXIT_SECONDS
    with suppress(TimeoutError, ConnectionResetError):
        while (left := deadline - time.monotonic()) > 0:
            ours.settimeout(left)
            if not ours.recv(_MAX_REPORT_BYTES):
                return


def _start_agent(text: str, theirs: socket.socket) -> int:
    """Forked if this process has no other thread, which the fork would lose; else in a new interpreter."""
    parent_pid, fd = os.getpid(), theirs.fileno()
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork() or run_agent(text, fd, parent_pid)
    call = f"run_agent(sys.argv[1], {fd}, {parent_pid})"
    command = [*make_python_command(f"from sweep.training.rank_agent import run_agent; {call}"), text]
    theirs.set_inheritable(True)
    # in a process group of its own, because the terminal's Ctrl-C is for the caller
    return os.posix_spawn(sys.executable, command, dict(os.environ), setpgroup=0)
