"""What executors share that follow other processes: their output, and the lines that they write."""

import os
import tempfile
from pathlib import Path
from typing import final

from sweep.records.messages import MAX_MESSAGE_BYTES

_TAIL_BYTES = 16384
_TAIL_LINES = 25
_LINE_CHARACTERS = 300


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
