"""The supervisor's side of the forkserver: starting it, requesting children, and following their ends."""

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import final

from sweep.executors.helper_process import LineBuffer, OutputFile, end_process, receive_data, start_helper
from sweep.executors.process import forkserver_protocol as protocol
from sweep.records.attempt_causes import FORKSERVER_LOST
from sweep.records.messages import Ending
from sweep.training.subprocesses import describe_exit, find_signal_name

# Importing torch from a cold network disk can take minutes.
_START_SECONDS = 300.0
_STOP_SECONDS = 2.0
_KILL_SECONDS = 30.0
_READ_BYTES = 65536
_MAX_READS = 64


@final
class Child:
    """A process that the forkserver made for us, the lines that it wrote, and how it ended."""

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
        function = "sweep.executors.process.forkserver_main:run_forkserver"
        self._process, self._control = start_helper(function, modules, socket.SOCK_SEQPACKET, output)
        self._is_alive = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """According to what was read from it."""
        return self._is_alive

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, request: protocol.ChildRequest, output: OutputFile) -> Child:
        """A new child for ``request``, whose key is set here. It exists, or ``lost_error`` states why it does not.

        Raises:
            RuntimeError: the forkserver did not answer; its own output is quoted.
        """
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
        while self._is_alive and (data := receive_data(self._control, _READ_BYTES, timeout_seconds)) is not None:
            timeout_seconds = 0.0
            if data:
                self._update_child(protocol.ANSWERS.decode(data))
            else:
                self._lose_all()

    def signal(self, child: Child, number: int, *, is_alone: bool = False) -> None:
        """Sends a signal to ``child`` and, unless ``is_alone``, all that it started; has no effect if it has ended."""
        self._send(protocol.SignalRequest(child.key, number, is_alone), [])

    def kill(self, children: list[Child]) -> None:
        """Ends ``children`` and all that they started: SIGTERM, then SIGKILL for those that ignore it.

        Raises:
            RuntimeError: a process survived SIGKILL, as one does that is stuck in a driver.
        """
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

    def _send(self, request: protocol.ChildRequest | protocol.SignalRequest, fds: list[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next read finds out
            socket.send_fds(self._control, [protocol.REQUESTS.encode(request)], fds)

    def _update_child(self, answer: protocol.Answer) -> None:
        if isinstance(answer, protocol.Forked):
            self._children[answer.key].pid = answer.pid
        elif isinstance(answer, protocol.ForkFailed):
            self._children.pop(answer.key).lost_error = answer.error
        else:
            self._children.pop(answer.key).exit_code = answer.exit_code

    def _lose_all(self) -> None:
        """The forkserver is dead, and the kernel kills its children with it; their groups are killed here."""
        self._is_alive = False
        exit_code = end_process(self._process, _STOP_SECONDS)
        error = f"the forkserver ended ({exit_code}) and its children with it\n{self._output.tail()}".strip()
        for child in self._children.values():
            child.lost_error = error
            if child.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        self._children.clear()
