"""Where a child's standard output and error go, and what to quote of it when the child dies."""

import os
import tempfile
from pathlib import Path
from typing import final

_TAIL_BYTES = 16384
_TAIL_LINES = 25
_LINE_CHARACTERS = 300


@final
class OutputFile:
    """A file that children append to: at ``path``, or without a name and gone when it is closed."""

    def __init__(self, path: Path | None = None) -> None:
        self._fd = _unnamed_file() if path is None else _named_file(path)
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


def _named_file(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)


def _unnamed_file() -> int:
    fd, name = tempfile.mkstemp(prefix="sweep-output-")
    Path(name).unlink()
    return fd
