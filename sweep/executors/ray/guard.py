"""The process between the supervisor and all processes of Ray: whatever happens to either, nothing is left behind.

Ray does not ensure that itself: after a ``kill -9`` of the program that started a cluster, its agents live on. Here
they become children of the guard, which ends them. It also allows Ray to end the process that uses it, as it does when
a cluster is lost, without ending the supervisor.
"""

import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from sweep.executors.ray.driver import run_driver
from sweep.training.subprocesses import adopt_orphans, die_with_parent, list_children

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the supervisor handles them


def run_guard(control_fd: int, supervisor_pid: int, folder: str) -> NoReturn:
    """The whole life of the guard: until the driver that it forks, or the supervisor, has ended. ``folder`` is for the
    files of a cluster and is removed afterwards."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    supervisor = os.pidfd_open(supervisor_pid) if os.getppid() == supervisor_pid else -1
    if supervisor >= 0:
        driver_pid = _fork_driver(control_fd, folder)
        either = select.poll()
        for fd in (supervisor, os.pidfd_open(driver_pid)):
            either.register(fd, select.POLLIN)
        either.poll()
    end_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    # this closes the supervisor's socket, when all are gone
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
        run_driver(control_fd, Path(folder))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def end_descendants() -> None:
    """Kills every process that descends from this one and reaps it; orphans have become children of this one."""
    while True:
        for pid in list_children(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return
