"""A process that dies with its parent, however the parent dies."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent dies; ends it now when ``parent_pid`` is no longer its
    parent, because then the kernel will not.

    The kernel means the parent's *thread* that started this process: that thread must live as long as the parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def bind_forks_to_parent() -> None:
    """Every process that this one forks from now on, and theirs in turn, begins with :func:`die_with_parent`.

    This reaches the workers of a DataLoader with the ``fork`` context. A process that is started by executing a new
    program keeps nothing of it and has to ask for itself.
    """
    parent_pid = os.getpid()

    def after_fork() -> None:
        nonlocal parent_pid
        die_with_parent(parent_pid)
        parent_pid = os.getpid()

    os.register_at_fork(after_in_child=after_fork)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
