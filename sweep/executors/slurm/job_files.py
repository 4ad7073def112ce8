"""The files by which a supervisor and the jobs of a cluster communicate, each with one writer, and their messages.

A file is opened anew for each read and each write, because a network file system shows others what was closed.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from sweep.executors.base import WorkerProgram
from sweep.executors.helper_process import LineBuffer
from sweep.records.messages import MAX_MESSAGE_BYTES, Ending, Evaluation, Heartbeat, Message, Progress
from sweep.records.tagged_json import TaggedCodec

Order = Literal["", "leave", "stop"]
SUPERVISOR_FILE = "supervisor"  # in the folder of all jobs: the run of the study that they belong to, and a count
ORDER_FILE = "order"  # in the folder of a job
RENDEZVOUS_FILE = "meeting"  # in the folder of a job of several nodes: where their ranks meet, until it is over
READ_SECONDS = 0.2  # between two reads for new lines
_HEARTBEAT_SECONDS = 10.0
_READ_BYTES = 1 << 24  # at once


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One attempt at a trial, or a description of the machine if there is no ``task``."""

    run: str  # of the study
    folder: str  # of the job
    path: tuple[str, ...]  # of the supervisor's modules
    log_dir: str | None
    program: WorkerProgram
    stale_seconds: float  # without a heartbeat of its supervisor, after which the job leaves
    num_nodes: int
    num_gpus: int  # of each node
    task: str | None  # encoded


@dataclass(frozen=True)
class JobBegan:
    node: str  # its name


@dataclass(frozen=True)
class MachineDescribed:
    machine: dict[str, Any]


@dataclass(frozen=True)
class JobOver:
    """The last line of a job: no process of it is left."""


JobLine = Message | JobBegan | MachineDescribed | JobOver
JOB_REQUESTS = TaggedCodec[JobRequest](JobRequest)
JOB_LINES = TaggedCodec[JobLine](
    Progress, Heartbeat, Evaluation, Ending, JobBegan, MachineDescribed, JobOver, max_bytes=MAX_MESSAGE_BYTES
)


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


def locate_messages(folder: Path, node: int = 0) -> Path:
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
        """The run is over: jobs of it that are no longer followed shall end."""
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
