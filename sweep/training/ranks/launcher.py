"""A trial on several ranks, as the process sees it that was asked for the trial.

That process trains nothing. It starts the agent (see :mod:`sweep.training.ranks.agent`), hands on what the first rank
says, and tells the ending when every rank is gone.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from sweep.records.messages import Ending, Message, TrialTask, decode_message, encode_task
from sweep.training.loop.trial import run_trial
from sweep.training.ranks.agent import LEAVE, run_agent
from sweep.training.supervisor_link import SUPERVISOR_LINK

_MAX_NEWS_BYTES = 2**20
# From the first failure to the next news: a rank whose neighbour was killed may notice before the agent does.
_GRACE_SECONDS = 2.0
_LEAVE_SECONDS = 30.0  # from the first rank's last word to the end of all


@final
@dataclass
class _Heard:
    """What the ranks and their agent have said so far."""

    size: int
    node: int = 0
    endings: dict[int, Ending] = field(default_factory=dict)  # in the order of their arrival
    death: dict[str, Any] | None = None
    deadline: float = float("inf")  # on the monotonic clock

    def take(self, news: dict[str, Any]) -> Message | None:
        """A message for the supervisor, or nothing for it yet."""
        if "died" in news:
            self.death = news
            return None
        message = decode_message(json.dumps(news["message"]).encode())
        if not isinstance(message, Ending):
            return message
        self.endings[news["rank"]] = message
        patience_seconds = _LEAVE_SECONDS if message.outcome == "complete" else _GRACE_SECONDS
        self.deadline = min(self.deadline, time.monotonic() + patience_seconds)
        return None

    @property
    def is_settled(self) -> bool:
        """Nothing more will change the ending: only a crash may be the echo of another rank's death."""
        failures = [ending for ending in self.endings.values() if ending.outcome != "complete"]
        return (
            self.death is not None
            or len(failures) == self.size
            or any(ending.outcome != "crashed" for ending in failures)
        )

    def ending(self) -> Ending:
        """How the trial ended: completed where the first rank says so; else a killed rank is the cause, else the first
        failure."""
        failures = [(rank, ending) for rank, ending in self.endings.items() if ending.outcome != "complete"]
        if 0 in self.endings and self.endings[0].outcome == "complete":
            return self.endings[0]  # all had done their part; what went wrong went wrong in leaving
        if self.death is not None:
            told = self.endings.get(0) or (failures[0][1] if failures else Ending(outcome="crashed"))
            return replace(told, outcome="crashed", error=_obituary(self.death), cause=_cause(self.death))
        if failures:
            rank, ending = failures[0]
            return replace(ending, error=f"rank {rank}: {ending.error}") if rank else ending
        # elsewhere than on the first machine ranks that have done their part say nothing
        return (
            Ending(outcome="complete")
            if self.node
            else Ending(outcome="crashed", error="the ranks ended without a result")
        )


def launch_trial(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` in this process, or on as many ranks as its configuration requires; see
    :func:`sweep.training.loop.trial.run_trial` for the messages."""
    return run_ranks(task) if task.config.distributed.world_size > 1 else run_trial(task)


def run_ranks(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` on its ``distributed.world_size`` ranks: what the first of them says, and one ending.

    Closing the iterator ends every rank. Of several machines each runs its own ranks in this way: those without the
    first rank yield an ending alone, which is none of the trial's where it is ``complete``.
    """
    heard = _Heard(
        task.config.distributed.world_size // (task.placement.num_nodes if task.placement else 1),
        task.placement.node if task.placement else 0,
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            agent_pid = _start_agent(encode_task(task).decode(), theirs)
        try:
            SUPERVISOR_LINK.forward_preemption(lambda: _tell_to_leave(ours))
            yield from _listen(ours, heard)
        finally:
            SUPERVISOR_LINK.forward_preemption(None)
            with suppress(ProcessLookupError):
                os.kill(agent_pid, signal.SIGKILL)  # and the kernel ends the ranks with it
            os.waitpid(agent_pid, 0)
            _await_silence(ours)
    yield heard.ending()


def _tell_to_leave(ours: socket.socket) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # all are gone already
        ours.send(LEAVE)


def _listen(ours: socket.socket, heard: _Heard) -> Iterator[Message]:
    while not heard.is_settled:
        try:
            ours.settimeout(None if heard.deadline == float("inf") else max(0.001, heard.deadline - time.monotonic()))
            data = ours.recv(_MAX_NEWS_BYTES)
        except TimeoutError:
            return
        if not data:
            return
        if message := heard.take(json.loads(data)):
            yield message


def _await_silence(ours: socket.socket) -> None:
    """Returns when no rank holds the other end any more."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    with suppress(TimeoutError, ConnectionResetError):
        while (left := deadline - time.monotonic()) > 0:
            ours.settimeout(left)
            if not ours.recv(_MAX_NEWS_BYTES):
                return


def _start_agent(text: str, theirs: socket.socket) -> int:
    """Forked where nothing but this thread would be lost by that, which costs nothing; else started anew."""
    parent_pid = os.getpid()
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork() or run_agent(text, theirs.fileno(), parent_pid)
    path = [str(Path(entry).absolute()) for entry in sys.path]
    program = (
        f"import sys; sys.path[:] = {path!r}; "
        f"from sweep.training.ranks.agent import run_agent; run_agent(sys.argv[1], {theirs.fileno()}, {parent_pid})"
    )
    theirs.set_inheritable(True)
    # in a process group of its own, because the terminal's Ctrl-C is for the caller
    return os.posix_spawn(sys.executable, [sys.executable, "-c", program, text], dict(os.environ), setpgroup=0)


def _obituary(death: dict[str, Any]) -> str:
    rank, name = death["died"], _cause(death)
    if not name:
        return f"rank {rank} ended with exit code {death['exit_code']} and no result"
    hint = "; the kernel does that when the machine runs out of memory (see `dmesg`), or a user"
    return f"rank {rank} was killed by {name}{hint if name == 'SIGKILL' else ''}"


def _cause(death: dict[str, Any]) -> str:
    """The name of the signal that a rank died of; empty where it died of none."""
    exit_code = death["exit_code"]
    if exit_code is None or exit_code >= 0:
        return ""
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
