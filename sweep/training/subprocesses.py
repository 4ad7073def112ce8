"""Processes that the kernel ends with their parent, new interpreters, and how a process ended."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent dies; exits at once if ``parent_pid`` is no longer its parent.

    The kernel watches the parent's *thread* that started this process: that thread must live as long as the parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def bind_forks_to_parent() -> None:
    """Calls :func:`die_with_parent` in every process forked from this one from now on, and in their forks in turn.

    This includes the workers of a data loader with the ``fork`` context. A process that executes a new program inherits
    nothing of it and has to call :func:`die_with_parent` itself.
    """
    parent_pid = os.getpid()

    def after_fork() -> None:
        nonlocal parent_pid
        die_with_parent(parent_pid)
        parent_pid = os.getpid()

    os.register_at_fork(after_in_child=after_fork)


def exit_at_once(exit_code: int) -> NoReturn:
    """Flushes the output and ends this process, without cleaning up what it shares with the one it was forked from."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def list_children(pid: int) -> list[int]:
    """The processes whose parent is ``pid``."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


def make_python_command(statements: str) -> list[str]:
    """The command line of a new interpreter that runs ``statements`` and finds the same modules as this one."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {statements}"]


def find_signal_name(exit_code: int | None) -> str:
    """The name of the signal that ended a process; empty if none did. ``exit_code`` is the negative signal number."""
    if exit_code is None or exit_code >= 0:
        return ""
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"


def describe_exit(exit_code: int | None) -> str:
    """How a process ended that reported no result."""
    name = find_signal_name(exit_code)
    hint = "; the kernel does that when the machine runs out of memory (see `dmesg`), or a user"
    return f"killed by {name}{hint if name == 'SIGKILL' else ''}" if name else f"exit code {exit_code} without a result"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
