"""The supervisor's side of the process that uses Ray, and of its guard."""

import os
import select
import socket
import subprocess
import tempfile
from contextlib import suppress
from typing import final

from sweep.executors.helper_process import LineBuffer, OutputFile, start_helper
from sweep.executors.ray.protocol import ANSWERS, REQUESTS, Answer, ClusterTerms, Request

_CLOSE_SECONDS = 10.0
_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 30
_MAX_FOLDER_CHARACTERS = 40  # the name of a socket has 107 bytes at most, of which Ray requires more than half


@final
class DriverLink:
    """The driver and its guard, started; ``environment`` is for both."""

    def __init__(self, terms: ClusterTerms, environment: dict[str, str], output: OutputFile) -> None:
        self.output = output
        self._lines = LineBuffer(_MAX_LINE_BYTES)
        folder = _make_cluster_folder()
        self._process, self._control = start_helper(
            lambda fd: f"from sweep.executors.ray.guard import run_guard; run_guard({fd}, {os.getpid()}, {folder!r})",
            socket.SOCK_STREAM,
            output,
            environment,
        )
        self.send(terms)

    @property
    def guard_pid(self) -> int:
        return self._process.pid

    def send(self, request: Request) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next read finds out
            self._control.sendall(REQUESTS.encode(request) + b"\n")

    def read_answers(self, timeout_seconds: float) -> list[Answer] | None:
        """The answers that have arrived; waits for the first at most this long. None when no more will come."""
        readable = select.poll()
        readable.register(self._control, select.POLLIN)
        if not readable.poll(timeout_seconds * 1000):
            return []
        try:
            data = self._control.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        return [ANSWERS.decode(line) for line in self._lines.take_lines(data)] if data else None

    def close(self) -> None:
        """Ends all processes of Ray that were started from here, and waits for their end."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()


def _make_cluster_folder() -> str:
    """A new folder for the files of a cluster, closed to other users."""
    usual = tempfile.gettempdir()
    is_short = len(usual) + len("/sweep-ray-12345678") <= _MAX_FOLDER_CHARACTERS
    return tempfile.mkdtemp(prefix="sweep-ray-", dir=usual if is_short else "/tmp")  # nosec B108 # a new folder
