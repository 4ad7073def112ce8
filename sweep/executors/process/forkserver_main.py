"""The forkserver: a process that has imported the heavy modules, forks one child per trial, and reports how each ends.

It replaces the one of :mod:`multiprocessing`: nothing is pickled, the caller's main module is not run again, no
resource tracker outlives the supervisor, and a child is killed and reaped by the only process that cannot mistake its
id. See :mod:`sweep.executors.process.forkserver_protocol` for its messages.
"""

import gc
import os
import selectors
import signal
import socket
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from typing import final

from sweep.executors.openmp import limit_spinning
from sweep.executors.process import forkserver_protocol as protocol
from sweep.executors.process.child import run_child
from sweep.records.source_digest import digest_code
from sweep.training.subprocesses import adopt_orphans, die_with_parent


def run_forkserver(control_fd: int, supervisor_pid: int, modules: tuple[str, ...]) -> None:
    """The whole life of the forkserver; ends when the supervisor closes its end of the socket, or dies."""
    die_with_parent(supervisor_pid)
    for number in (signal.SIGINT, signal.SIGUSR1):  # the supervisor handles Ctrl-C and preemption
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    _preload(modules)
    # numpy's BLAS has idle threads after its import and supports being forked with them
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
    with socket.socket(fileno=control_fd) as control, suppress(BrokenPipeError, ConnectionResetError):
        _ForkServer(control).serve()


def _preload(modules: tuple[str, ...]) -> None:
    """Imports ``modules``. One that cannot be imported is reported on standard error; the trial that needs it fails.

    Nothing else may happen here: a tensor operation would start torch's threads, which a fork does not copy, and every
    child would hang at its first parallel region. For the same reason no module may call CUDA when it is imported.
    """
    limit_spinning()
    for name in modules:
        try:
            import_module(name)
        except Exception:
            traceback.print_exc()
    if modules:  # else nothing is trained
        digest_code()  # kept by this process, so that no child reads the source files again
    gc.collect()
    gc.freeze()  # children share these pages: their collector must not touch every object


@final
class _ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._keys: dict[int, int] = {}  # by process id, which cannot be reused before this process has reaped it
        self._woken, self._wakeup = socket.socketpair()
        for end in (self._woken, self._wakeup):
            end.setblocking(False)
        # the handler does nothing; the wake-up socket ends the wait for the next event
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
                data, fds, _, _ = socket.recv_fds(self._control, protocol.MAX_REQUEST_BYTES, 2)
                if not data:
                    return
                self._execute(protocol.REQUESTS.decode(data), fds)

    def _execute(self, request: protocol.ChildRequest | protocol.SignalRequest, fds: list[int]) -> None:
        if not isinstance(request, protocol.SignalRequest):
            self._fork(request, fds)
            for fd in fds:
                os.close(fd)
            return
        for pid, key in self._keys.items():
            if key == request.key:
                _send_signal(pid, request.number, is_alone=request.is_alone)

    def _fork(self, request: protocol.ChildRequest, fds: list[int]) -> None:
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(protocol.ForkFailed(request.key, f"cannot fork: {error}"))
            return
        if pid == 0:
            try:
                self._close_in_child()
                run_child(request, message_fd=fds[0], output_fd=fds[1], server_pid=server_pid)
            finally:
                os._exit(1)  # never back into the server's loop
        # set here and in the child, because either may be first
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        self._keys[pid] = request.key
        self._answer(protocol.Forked(request.key, pid))

    def _close_in_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for opened in (self._selector, self._control, self._woken, self._wakeup):
            opened.close()

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        # WNOWAIT leaves a zombie, so that the process id is not reused until its group is dead as well
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                key = self._keys.pop(ended.si_pid, None)
                if key is not None:
                    _send_signal(ended.si_pid, signal.SIGKILL, is_alone=False)
                _, status = os.waitpid(ended.si_pid, 0)
                if key is not None:
                    self._answer(protocol.Exited(key, os.waitstatus_to_exitcode(status)))

    def _answer(self, answer: protocol.Answer) -> None:
        self._control.send(protocol.ANSWERS.encode(answer))


def _send_signal(pid: int, number: int, *, is_alone: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        (os.kill if is_alone else os.killpg)(pid, number)
