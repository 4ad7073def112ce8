"""The supervisor's end of the forkserver: starting it, asking it for children, and hearing how they fare."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from contextlib import suppress
from typing import Any, final

from sweep.executors.child_output import OutputFile
from sweep.executors.process.forkserver_main import command
from sweep.records.messages import MAX_MESSAGE_BYTES

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
        self.key = key
        self.output = output
        self.pid: int | None = None
        self.exit_code: int | None = None  # negative: killed by that signal
        self.lost = ""  # why there is no exit code and never will be
        self.open = True  # whether more may come from it
        self._fd = message_fd
        self._rest = b""

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or bool(self.lost)

    def fileno(self) -> int:
        return self._fd

    def read_lines(self) -> list[bytes]:
        """Whole lines that have arrived, without waiting; of an ended child all, but a line that it did not finish.

        ``open`` is False once there can be no more.
        """
        pieces = [self._rest]
        num_reads = 0
        while self.open and (self.ended or num_reads < _MAX_READS):
            try:
                pieces.append(os.read(self._fd, _READ_BYTES))
            except BlockingIOError:
                break
            self.open = bool(pieces[-1])
            num_reads += 1
        *lines, self._rest = b"".join(pieces).split(b"\n")
        if len(self._rest) > MAX_MESSAGE_BYTES:  # no message of ours; as a line it is refused
            lines.append(self._rest)
            self._rest = b""
        return lines

    def close_pipe(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.open = False

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
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                command(theirs.fileno(), os.getpid(), modules),
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=output.fileno(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        self._alive = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        """As far as was heard."""
        return self._alive

    def fileno(self) -> int:
        return self._control.fileno()

    def fork(self, request: dict[str, Any], output: OutputFile) -> Child:
        """A new child at work on ``request``. Waits until it exists, or ``lost`` says why it does not.

        Raises:
            RuntimeError: the forkserver did not answer; its own output is quoted.
        """
        self._num_forks += 1
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        child = self._children[self._num_forks] = Child(self._num_forks, reader, output)
        try:
            self._send({"fork": child.key, **request}, [writer, output.fileno()])
        finally:
            os.close(writer)
        deadline = time.monotonic() + _START_SECONDS
        while child.pid is None and not child.ended:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no new process within {_START_SECONDS:g} s:\n{self._output.tail()}")
            self.listen(1.0)
        return child

    def listen(self, timeout_seconds: float = 0.0) -> None:
        """Hears of children that began or ended; waits for the first such news at most this long."""
        if not self._alive:
            return
        readable = select.poll()
        readable.register(self._control, select.POLLIN)
        while self._alive and readable.poll(timeout_seconds * 1000):
            timeout_seconds = 0.0
            try:
                data = self._control.recv(_READ_BYTES)
            except ConnectionResetError:
                data = b""
            if data:
                self._hear(json.loads(data))
            else:
                self._lose_all()

    def signal(self, child: Child, number: int, *, alone: bool = False) -> None:
        """Sends a signal to ``child`` and, unless ``alone``, all that it started; nothing happens when it has ended."""
        self._send({"signal": number, "key": child.key, "alone": alone}, [])

    def kill(self, children: list[Child]) -> None:
        """Ends ``children`` and all that they started: SIGTERM, and SIGKILL for those that do not heed it.

        Raises:
            RuntimeError: a process outlived SIGKILL, as one does that is stuck in a driver.
        """
        for number, patience_seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            for child in children:
                if not child.ended:
                    self.signal(child, number)
            deadline = time.monotonic() + patience_seconds
            while not all(child.ended for child in children) and time.monotonic() < deadline:
                self.listen(0.1)
        stuck = [str(child.pid) for child in children if not child.ended]
        if stuck:
            raise RuntimeError(f"process {', '.join(stuck)} outlived SIGKILL by {_KILL_SECONDS:g} s")

    def close(self) -> None:
        """Ends the forkserver and with it every child; idempotent."""
        self._control.close()
        self._alive = False
        self._process.kill()  # it has nothing to put in order, and does not listen while it imports
        self._process.wait()
        self._output.close()

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next listening finds out
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _hear(self, news: dict[str, Any]) -> None:
        if "forked" in news:
            self._children[news["forked"]].pid = news["pid"]
        elif "refused" in news:
            self._children.pop(news["refused"]).lost = news["error"]
        else:
            self._children.pop(news["exited"]).exit_code = news["exit_code"]

    def _lose_all(self) -> None:
        """The forkserver is dead, and the kernel kills its children with it; their groups are killed here."""
        self._alive = False
        try:
            exit_code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            exit_code = self._process.wait()
        for child in self._children.values():
            child.lost = f"the forkserver ended ({exit_code}) and its children with it\n{self._output.tail()}".strip()
            if child.pid is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
        self._children.clear()
