"""The files by which a supervisor and the jobs of a cluster communicate; each file has one writer.

A file is opened anew for each read and each write, because a network file system shows others what was closed.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal, final

from sweep.executors.helper_process import LineBuffer
from sweep.executors.slurm.protocol import JOB_LINES, JobLine

Order = Literal["", "leave", "stop"]
SUPERVISOR_FILE = "supervisor"  # in the folder of all jobs: the run of the study that they belong to, and a count
ORDER_FILE = "order"  # in the folder of a job
RENDEZVOUS_FILE = "meeting"  # in the folder of a job of several nodes: where their ranks meet, until it is over
READ_SECONDS = 0.2  # between two reads for new lines
_HEARTBEAT_SECONDS = 10.0
_READ_BYTES = 1 << 24  # at once


@final
class LineReader:
    """The lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._lines = path, 0, LineBuffer()

    def read_lines(self) -> list[bytes]:
        """Whole lines that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:  # it does not exist yet, or its server does not answer
            return []
        self._offset += len(data)
        return self._lines.take_lines(data)


def message_file(folder: Path, node: int = 0) -> Path:
    """The file to which a node of the job of ``folder`` writes its lines."""
    return folder / f"messages-{node}.jsonl"


def append_lines(path: Path, lines: list[JobLine]) -> None:
    """Writes whole lines to the end of ``path``."""
    if lines:
        with path.open("ab") as file:
            file.write(b"".join(JOB_LINES.encode(line) + b"\n" for line in lines))


def replace_text(path: Path, text: str) -> None:
    """Replaces the content of the file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def read_text(path: Path) -> str:
    """The content; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


@final
class SupervisorHeartbeat:
    """A thread that shows by a file that run ``run`` of a study lives, as long as this process does."""

    def __init__(self, folder: Path, run: str) -> None:
        self._path, self._run = folder / SUPERVISOR_FILE, run
        self._is_over = threading.Event()
        replace_text(self._path, f"{run} 0")
        self._thread = threading.Thread(target=self._count, name="supervisor heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The run is over: jobs of it that nobody follows shall end."""
        self._is_over.set()
        self._thread.join()
        self._write("over 0")

    def _count(self) -> None:
        count = 0
        while not self._is_over.wait(_HEARTBEAT_SECONDS):
            count += 1
            self._write(f"{self._run} {count}")

    def _write(self, text: str) -> None:
        # a failed write is repeated with the next count; the file of another run that has taken over is left alone
        with suppress(OSError):
            if read_text(self._path).startswith(self._run):
                replace_text(self._path, text)
