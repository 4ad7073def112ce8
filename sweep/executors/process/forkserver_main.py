"""The forkserver: a process that has the heavy modules imported, forks one child per trial, and says how each ended.

It is ours, not :mod:`multiprocessing`'s: nothing is pickled, the caller's main module is never run again, there is no
resource tracker to outlive us, and a child is killed and reaped by the one process that cannot mistake its id.

The supervisor speaks first, one JSON datagram per request over a socket: ``{"fork": key, ...}`` with two file
descriptors (messages, output), or ``{"signal": number, "key": key, "alone": whether its group is spared}``.
The answers: ``{"forked": key, "pid": ...}``, ``{"refused": key, "error": ...}``, ``{"exited": key, "exit_code": ...}``
(negative: the signal that killed it).
"""

import json
import os
import selectors
import signal
import socket
import warnings
from contextlib import suppress
from typing import Any, final

from sweep.executors.process.child import run_child
from sweep.executors.process.interpreter import python_command
from sweep.executors.process.preload import preload
from sweep.training.parent_death import adopt_orphans, die_with_parent

MAX_REQUEST_BYTES = 200_000


def main(control_fd: int, supervisor_pid: int, modules: tuple[str, ...]) -> None:
    """The whole life of the forkserver; ends when the supervisor closes its end of the socket, or dies."""
    die_with_parent(supervisor_pid)
    for number in (signal.SIGINT, signal.SIGUSR1):  # Ctrl-C and pre-emption are the supervisor's to decide
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    preload(modules)
    # numpy's BLAS has idle threads after its import and knows how to fork with them
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    with socket.socket(fileno=control_fd) as control, suppress(BrokenPipeError, ConnectionResetError):
        _Server(control).serve()


@final
class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._keys: dict[int, int] = {}  # by process id; the processes are ours to reap, so the ids cannot be reused
        self._woken, self._wakeup = socket.socketpair()
        for end in (self._woken, self._wakeup):
            end.setblocking(False)
        # the handler does nothing; the wake-up socket is what ends the wait for the next event
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._woken in ready:
                self._reap()
            if self._control in ready:
                data, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, 2)
                if not data:
                    return
                self._obey(json.loads(data), fds)

    def _obey(self, request: dict[str, Any], fds: list[int]) -> None:
        if "fork" in request:
            self._fork(request, fds)
            for fd in fds:
                os.close(fd)
        else:
            for pid, key in self._keys.items():
                if key == request["key"]:
                    send = _signal_alone if request["alone"] else _signal_group
                    send(pid, request["signal"])

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._answer({"refused": request["fork"], "error": f"cannot fork: {error}"})
            return
        if pid == 0:
            try:
                self._forget()
                run_child(request, message_fd=fds[0], output_fd=fds[1], server_pid=server_pid)
            finally:
                os._exit(1)  # never back into the server's loop
        # set here and in the child, because either may be first
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        self._keys[pid] = request["fork"]
        self._answer({"forked": request["fork"], "pid": pid})

    def _forget(self) -> None:
        """In the child: nothing of the server stays open."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()
        self._woken.close()
        self._wakeup.close()

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        # WNOWAIT leaves a zombie, which keeps the process id ours until its group is dead as well
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                key = self._keys.pop(ended.si_pid, None)
                if key is not None:
                    _signal_group(ended.si_pid, signal.SIGKILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if key is not None:
                    self._answer({"exited": key, "exit_code": os.waitstatus_to_exitcode(status)})

    def _answer(self, answer: dict[str, Any]) -> None:
        self._control.send(json.dumps(answer).encode())


def _signal_alone(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def command(control_fd: int, supervisor_pid: int, modules: tuple[str, ...]) -> list[str]:
    """The command line that runs :func:`main` in a new interpreter which finds the same modules as this one."""
    call = f"main({control_fd}, {supervisor_pid}, {modules!r})"
    return python_command(f"from sweep.executors.process.forkserver_main import main; {call}")
