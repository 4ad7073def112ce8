"""Helper processes of a supervisor, each with a socket to it, and the output and the lines of such processes."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from sweep.records.messages import MAX_MESSAGE_BYTES
from sweep.training.subprocesses import make_python_command

_TAIL_BYTES = 16384
_TAIL_LINES = 25
_LINE_CHARACTERS = 300


@final
class OutputFile:
    """A file that processes append to: at ``path``, or without a name and gone when it is closed."""

    def __init__(self, path: Path | None = None) -> None:
        self._fd = _open_unnamed() if path is None else _open_named(path)
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

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._rest, self._max_bytes = b"", max_bytes

    def take_lines(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes; an unfinished one is kept until it is too long for a message."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._max_bytes:
            lines.append(self._rest)
            self._rest = b""
        return lines


def start_helper(
    call: Callable[[int], str],
    socket_type: socket.SocketKind,
    output: OutputFile,
    environment: Mapping[str, str] | None = None,
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Starts an interpreter that runs the statements ``call(fd)``; ``fd`` is its end of the returned socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket_type)
    with theirs:
        process = subprocess.Popen(
            make_python_command(call(theirs.fileno())),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output.fileno(),
            stderr=output.fileno(),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the terminal's Ctrl-C is not for it
        )
    return process, ours


def _open_named(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


def _open_unnamed() -> int:
    fd, name = tempfile.mkstemp(prefix="sweep-output-")
    Path(name).unlink()
    return fd
