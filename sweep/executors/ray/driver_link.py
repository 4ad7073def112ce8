"""The supervisor's end of the process that speaks with Ray, and of its guard."""

import json
import os
import select
import socket
import subprocess
import tempfile
from contextlib import suppress
from typing import Any, final

from sweep.executors.child_output import OutputFile
from sweep.executors.ray.guard import command

_CLOSE_SECONDS = 10.0
_READ_BYTES = 1 << 20
_LONGEST_FOLDER = 40  # the name of a socket has 107 bytes at most, of which Ray takes more than half


@final
class RayLink:
    """Both processes, started; see :mod:`sweep.executors.ray.driver` for ``terms`` and what is said."""

    def __init__(self, terms: dict[str, Any], environment: dict[str, str], output: OutputFile) -> None:
        self.output = output
        self._rest = b""
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                command(theirs.fileno(), os.getpid(), _cluster_folder()),
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output.fileno(),
                stderr=output.fileno(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        self.send(terms)

    def send(self, request: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next listening finds out
            self._control.sendall(json.dumps(request).encode() + b"\n")

    def read_lines(self, timeout_seconds: float) -> list[bytes] | None:
        """Whole lines that have come; waits for the first at most this long. None when no more will come."""
        readable = select.poll()
        readable.register(self._control, select.POLLIN)
        if not readable.poll(timeout_seconds * 1000):
            return []
        try:
            data = self._control.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def close(self) -> None:
        """Ends everything of Ray's that descends from here, and waits for it."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()


def _cluster_folder() -> str:
    """A new folder that nobody else may read, for the files of a cluster."""
    usual = tempfile.gettempdir()
    place = usual if len(usual) + len("/sweep-ray-12345678") <= _LONGEST_FOLDER else "/tmp"  # nosec B108 # a new folder
    return tempfile.mkdtemp(prefix="sweep-ray-", dir=place)
