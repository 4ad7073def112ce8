"""The process between the supervisor and everything of Ray's: whatever happens to either, nothing is left behind.

Ray's own processes do not see to that: after a ``kill -9`` of the program that started a cluster, its agents live on.
Here they become children of the guard, which ends them. It also lets Ray end the process that speaks with it, as
it does when a cluster is lost, without ending the supervisor.
"""

import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sweep.executors.process.interpreter import python_command
from sweep.training.parent_death import adopt_orphans, die_with_parent

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the supervisor's to decide


def main(control_fd: int, supervisor_pid: int, folder: str) -> NoReturn:
    """The whole life of the guard: until the driver that it forks has ended, or the supervisor. ``folder`` is for a
    cluster's files and removed afterwards."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    supervisor = os.pidfd_open(supervisor_pid) if os.getppid() == supervisor_pid else -1
    if supervisor >= 0:
        _watch(supervisor, _fork_driver(control_fd, folder))
    end_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    # the supervisor hears the end of the socket now, when all are gone
    os._exit(0)


def _fork_driver(control_fd: int, folder: str) -> int:
    guard_pid = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        die_with_parent(guard_pid)
        for number in _IGNORED[1:]:
            signal.signal(number, signal.SIG_DFL)
        from sweep.executors.ray.driver import drive

        drive(control_fd, Path(folder))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _watch(supervisor: int, driver_pid: int) -> None:
    """Waits until one of both has ended."""
    either = select.poll()
    for fd in (supervisor, os.pidfd_open(driver_pid)):
        either.register(fd, select.POLLIN)
    either.poll()


def end_descendants() -> None:
    """Kills every process that descends from this one and reaps it; orphans have become children of this one."""
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(word) for word in text.split()]


def command(control_fd: int, supervisor_pid: int, folder: str) -> list[str]:
    """The command line that runs :func:`main`."""
    call = f"main({control_fd}, {supervisor_pid}, {folder!r})"
    return python_command(f"from sweep.executors.ray.guard import main; {call}")
