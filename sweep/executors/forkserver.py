"""The forkserver: a process that has imported the heavy modules, forks a child per trial and reports how each ends.

Here are its three parts: the supervisor's side, the inside of a child, and the forkserver's own process.
"""

import faulthandler
import gc
import json
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn, cast, final

from sweep.executors.base import Describer, Runner, make_uncaught_ending
from sweep.executors.devices import limit_spinning, pin_process
from sweep.measurement.host_memory import limit_own_data
from sweep.records.inputs import digest_code
from sweep.records.messages import FORKSERVER_LOST, MAX_MESSAGE_BYTES, Ending, Heartbeat, TaggedCodec, encode_message
from sweep.training.processes import (
    SUPERVISOR_LINK,
    adopt_orphans,
    bind_forks_to_parent,
    describe_exit,
    die_with_parent,
    exit_at_once,
    find_signal_name,
    make_python_command,
    receive_task,
)

_START_SECONDS = 300.0  # importing torch from a cold network disk can take minutes
_STOP_SECONDS = 2.0
_KILL_SECONDS = 30.0
_READ_BYTES = 65536
_MAX_READS = 64
_MAX_REQUEST_BYTES = 200_000
_TAIL_BYTES = 16384  # of the output that is read for its last lines
_TAIL_LINES = 25
_LINE_CHARACTERS = 300
# When memory runs out the kernel shall kill the trial, not the supervisor that records it.
_OUT_OF_MEMORY_SCORE = "500"


# ---------------------------------------------------------------------- requests and answers, a JSON datagram each


@dataclass(frozen=True, kw_only=True)
class ChildRequest:
    """A new child; two file descriptors come with it: for its messages and for its output.

    It carries out ``task`` with a runner, or describes ``device`` with ``threads`` by a describer if there is none.
    """

    key: int = 0  # set by the forkserver's client
    function: str  # the runner or describer, as ``module:function``
    environment: dict[str, str]
    cores: tuple[int, ...]  # empty: all
    task: str | None = None  # encoded
    device: str = ""
    threads: int | None = None


@dataclass(frozen=True)
class _SignalRequest:
    key: int
    number: int
    is_alone: bool  # False: to all processes of the child's group


@dataclass(frozen=True)
class _Forked:
    key: int
    pid: int


@dataclass(frozen=True)
class _ForkFailed:
    key: int
    error: str


@dataclass(frozen=True)
class _Exited:
    key: int
    exit_code: int  # negative: the signal that killed it


_Answer = _Forked | _ForkFailed | _Exited
_REQUESTS = TaggedCodec[ChildRequest | _SignalRequest](ChildRequest, _SignalRequest)
_ANSWERS = TaggedCodec[_Answer](_Forked, _ForkFailed, _Exited)


# ---------------------------------------------------------------------- the supervisor's side


@final
class OutputFile:
    """A file that processes append to: at ``path``, or without a name and gone when it is closed."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._fd, name = tempfile.mkstemp(prefix="sweep-output-")
            Path(name).unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._start = os.fstat(self._fd).st_size  # an earlier attempt may have written before

    def fileno(self) -> int:
        return self._fd

    def tail(self) -> str:
        """The last lines that were written since this file was opened, long ones shortened."""
        size = os.fstat(self._fd).st_size
        begin = max(self._start, size - _TAIL_BYTES)
        text = os.pread(self._fd, max(size - begin, 0), begin).decode(errors="replace")
        return "\n".join(line[:_LINE_CHARACTERS] for line in text.splitlines()[-_TAIL_LINES:])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@final
class LineBuffer:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def take_lines(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes; an unfinished one is kept until it is too long for a message."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_MESSAGE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return lines


@final
class Child:
    """A process that the forkserver has made, the lines that it wrote, and how it ended."""

    def __init__(self, key: int, message_fd: int, output: OutputFile) -> None:
        self.key, self.output = key, output
        self.pid: int | None = None
        self.exit_code: int | None = None  # negative: killed by that signal
        self.lost_error = ""  # why there is no exit code and never will be
        self.is_open = True  # whether more may come from it
        self._fd, self._lines = message_fd, LineBuffer()

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or bool(self.lost_error)

    def fileno(self) -> int:
        return self._fd

    def read_lines(self) -> list[bytes]:
        """Whole lines that have arrived, without waiting; of an ended child all but an unfinished one.

        ``is_open`` is False once there can be no more.
        """
        lines: list[bytes] = []
        num_reads = 0
        while self.is_open and (self.has_ended or num_reads < _MAX_READS):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            self.is_open = bool(data)
            lines += self._lines.take_lines(data)
            num_reads += 1
        return lines

    def describe_end(self) -> str:
        """How the process ended, with the last lines of its output."""
        end = self.lost_error or "still running" if self.exit_code is None else describe_exit(self.exit_code)
        return f"{end}\n{self.output.tail()}".rstrip("\n")

    def make_ending(self) -> Ending:
        """The ending of a trial whose process ended without sending one."""
        cause = FORKSERVER_LOST if self.lost_error else find_signal_name(self.exit_code)
        return Ending(outcome="crashed", error=self.describe_end(), cause=cause)

    def close_pipe(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self.is_open = -1, False

    def close(self) -> None:
        self.close_pipe()
        self.output.close()


@final
class ForkServer:
    """A running forkserver. It dies with the thread that made this object, and every child dies with it."""

    def __init__(self, modules: tuple[str, ...], output: OutputFile) -> None:
        self._output = output
        self._children: dict[int, Child] = {}
        self._num_forks = 0
        self._is_alive = True
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            call = f"run_forkserver({theirs.fileno()}, {os.getpid()}, {modules!r})"
            self._process = subprocess.Popen(
                make_python_command(f"from {__name__} import {run_forkserver.__name__}; {call}"),
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=output.fileno(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """According to what was read from it."""
        return self._is_alive

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, request: ChildRequest, output: OutputFile) -> Child:
        """A new child for ``request``, whose key is set here. It exists, or ``lost_error`` states why it does not.
        Raises ``RuntimeError``: the forkserver did not answer; its own output is quoted."""
        self._num_forks += 1
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        child = self._children[self._num_forks] = Child(self._num_forks, reader, output)
        try:
            self._send(replace(request, key=child.key), [writer, output.fileno()])
        finally:
            os.close(writer)
        deadline = time.monotonic() + _START_SECONDS
        while child.pid is None and not child.has_ended:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no new process within {_START_SECONDS:g} s:\n{self._output.tail()}")
            self.read_answers(1.0)
        return child

    def read_answers(self, timeout_seconds: float = 0.0) -> None:
        """Updates the children that began or ended; waits for the first such answer at most this long."""
        readable = select.poll()
        readable.register(self._control, select.POLLIN)
        while self._is_alive and readable.poll(timeout_seconds * 1000):
            timeout_seconds = 0.0
            try:
                data = self._control.recv(_READ_BYTES)
            except ConnectionResetError:
                data = b""
            if data:
                self._update_child(_ANSWERS.decode(data))
            else:
                self._lose_all()

    def signal(self, child: Child, number: int, *, is_alone: bool = False) -> None:
        """Sends a signal to ``child`` and, unless ``is_alone``, all that it started; has no effect if it has ended."""
        self._send(_SignalRequest(child.key, number, is_alone), [])

    def kill(self, children: list[Child]) -> None:
        """Ends ``children`` and all that they started: SIGTERM, then SIGKILL for those that ignore it. Raises
        ``RuntimeError``: a process survived SIGKILL, as one does that is stuck in a driver."""
        for number, wait_seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            for child in children:
                if not child.has_ended:
                    self.signal(child, number)
            deadline = time.monotonic() + wait_seconds
            while not all(child.has_ended for child in children) and time.monotonic() < deadline:
                self.read_answers(0.1)
        stuck = [str(child.pid) for child in children if not child.has_ended]
        if stuck:
            raise RuntimeError(f"process {', '.join(stuck)} is still there {_KILL_SECONDS:g} s after SIGKILL")

    def close(self) -> None:
        """Ends the forkserver and with it every child; idempotent."""
        self._control.close()
        self._is_alive = False
        self._process.kill()  # it has nothing to clean up, and does not read its socket while it imports
        self._process.wait()
        self._output.close()

    def _send(self, request: ChildRequest | _SignalRequest, fds: list[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next read finds out
            socket.send_fds(self._control, [_REQUESTS.encode(request)], fds)

    def _update_child(self, answer: _Answer) -> None:
        if isinstance(answer, _Forked):
            self._children[answer.key].pid = answer.pid
        elif isinstance(answer, _ForkFailed):
            self._children.pop(answer.key).lost_error = answer.error
        else:
            self._children.pop(answer.key).exit_code = answer.exit_code

    def _lose_all(self) -> None:
        """The forkserver is dead, and the kernel kills its children with it; their groups are killed here."""
        self._is_alive = False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._process.kill()
        exit_code = self._process.wait()
        error = f"the forkserver ended ({exit_code}) and its children with it\n{self._output.tail()}".strip()
        for child in self._children.values():
            child.lost_error = error
            if child.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        self._children.clear()


# ---------------------------------------------------------------------- a child, from the fork to its end


def _run_child(request: ChildRequest, message_fd: int, output_fd: int, server_pid: int) -> NoReturn:
    """Carries out ``request`` and exits: code 0, or 1 with a traceback in the output. Never returns."""
    exit_code = 1
    try:
        die_with_parent(server_pid)
        _set_up_process(request.environment, message_fd, output_fd)
        if request.cores:
            pin_process(request.cores)  # before anything starts threads, which stay on the cores of their start
        for line in _generate_lines(request):
            _write(message_fd, line + b"\n")
        exit_code = 0
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise again
        traceback.print_exc()
        if request.task is not None:
            with suppress(OSError):
                _write(message_fd, encode_message(make_uncaught_ending(error)) + b"\n")
    finally:
        exit_at_once(exit_code)


def _set_up_process(environment: dict[str, str], message_fd: int, output_fd: int) -> None:
    os.setpgid(0, 0)  # so that it can be killed with all that it starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SUPERVISOR_LINK.connect(lambda: _send_heartbeat(message_fd))
    signal.signal(signal.SIGUSR1, lambda _number, _frame: SUPERVISOR_LINK.preempt())
    bind_forks_to_parent()
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.set_inheritable(message_fd, False)
    os.close(output_fd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # the output of a killed child must be in the file
    faulthandler.enable()
    os.environ.update(environment)
    random.seed()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)


def _generate_lines(request: ChildRequest) -> Iterator[bytes]:
    """The answer, one JSON document at a time; JSON contains no bare line end."""
    function = resolve_name(request.function)
    if request.task is None:
        yield json.dumps(cast(Describer, function)(request.device, request.threads)).encode()
        return
    task = receive_task(request.task.encode())
    if task.memory_limit_bytes is not None and task.device == "cpu":  # a GPU's allocator is limited by the runner
        limit_own_data(task.memory_limit_bytes)
    for message in cast(Runner, function)(task):
        yield encode_message(message)


def _send_heartbeat(fd: int) -> None:
    writable = select.poll()
    writable.register(fd, select.POLLOUT)
    if writable.poll(0):  # a supervisor that does not read must not block a step
        _write(fd, encode_message(Heartbeat()) + b"\n")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# ---------------------------------------------------------------------- the forkserver's process


def run_forkserver(control_fd: int, supervisor_pid: int, modules: tuple[str, ...]) -> None:
    """The whole life of the forkserver; ends when the supervisor closes its end of the socket, or dies."""
    die_with_parent(supervisor_pid)
    for number in (signal.SIGINT, signal.SIGUSR1):  # the supervisor handles Ctrl-C and preemption
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    _preload(modules)
    # NumPy's BLAS has idle threads after its import, and supports being forked with them.
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
        # The handler does nothing; the wake-up socket ends the wait for the next event.
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
                data, fds, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, 2)
                if not data:
                    return
                self._execute(_REQUESTS.decode(data), fds)

    def _execute(self, request: ChildRequest | _SignalRequest, fds: list[int]) -> None:
        if not isinstance(request, _SignalRequest):
            self._fork(request, fds)
            for fd in fds:
                os.close(fd)
            return
        for pid, key in self._keys.items():
            if key == request.key:
                _send_signal(pid, request.number, is_alone=request.is_alone)

    def _fork(self, request: ChildRequest, fds: list[int]) -> None:
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(_ForkFailed(request.key, f"cannot fork: {error}"))
            return
        if pid == 0:
            try:
                self._close_in_child()
                _run_child(request, message_fd=fds[0], output_fd=fds[1], server_pid=server_pid)
            finally:
                os._exit(1)  # never back into the server's loop
        # The group is set here and in the child, because either may be first.
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        self._keys[pid] = request.key
        self._answer(_Forked(request.key, pid))

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
                    self._answer(_Exited(key, os.waitstatus_to_exitcode(status)))

    def _answer(self, answer: _Answer) -> None:
        self._control.send(_ANSWERS.encode(answer))


def _send_signal(pid: int, number: int, *, is_alone: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        (os.kill if is_alone else os.killpg)(pid, number)
