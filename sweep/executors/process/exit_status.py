"""How a trial's process ended that did not say so itself."""

import signal

from sweep.executors.process.forkserver import Child
from sweep.records.attempt_causes import FORKSERVER_LOST
from sweep.records.messages import Ending


def ending_of_dead(child: Child) -> Ending:
    """The ending of a trial whose process left without one."""
    return Ending(outcome="crashed", error=death(child), cause=FORKSERVER_LOST if child.lost else _signal_of(child))


def death(child: Child) -> str:
    """How a process ended that did not say so itself, with the last lines of its output."""
    tail = child.output.tail()
    return f"{_cause_of_death(child)}\n{tail}" if tail else _cause_of_death(child)


def _cause_of_death(child: Child) -> str:
    if child.lost:
        return child.lost
    if child.exit_code is None:
        return "still running"
    if child.exit_code >= 0:
        return f"exit code {child.exit_code} without a result"
    name = _signal_of(child)
    if name == "SIGKILL":
        return "killed by SIGKILL; the kernel does that when the machine runs out of memory (see `dmesg`), or a user"
    return f"killed by {name}"


def _signal_of(child: Child) -> str:
    """The name of the signal that killed it; empty where none did."""
    if child.exit_code is None or child.exit_code >= 0:
        return ""
    return signal.Signals(-child.exit_code).name if -child.exit_code in set(signal.Signals) else str(-child.exit_code)
