"""How a supervisor and the jobs of a cluster hear of one another: by files that both see, each with one writer.

A file is opened anew for each look and each word, because a network's file system shows others what was closed.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal, final

from sweep.records.messages import MAX_MESSAGE_BYTES

Order = Literal["", "leave", "stop"]
SUPERVISOR = "supervisor"  # in the folder of all jobs: which run of the study they belong to, and a count
ORDER = "order"  # in the folder of a job
MEETING = "meeting"  # in the folder of a job of several nodes: where their ranks meet, until it is over
BEAT_SECONDS = 10.0
_READ_BYTES = 1 << 24  # at one look


@final
class Tail:
    """The lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read_lines(self) -> list[bytes]:
        """Whole lines that have come since the last look; the torn last one waits."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:  # not there yet, or a server that does not answer just now
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_MESSAGE_BYTES:  # no message of ours; as a line it is refused
            lines.append(self._rest)
            self._rest = b""
        return lines


def messages_of(folder: Path, node: int = 0) -> Path:
    """Where a node of the job of ``folder`` writes what it has to say."""
    return folder / f"messages-{node}.jsonl"


def append_lines(path: Path, lines: list[bytes]) -> None:
    """Writes whole lines to the end of ``path``."""
    with path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def put(path: Path, text: str) -> None:
    """Gives the file another content, at once."""
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    beside.replace(path)


def look(path: Path) -> str:
    """The content; empty where there is none to be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


@final
class Pulse:
    """A thread that shows by a file that run ``run`` of a study lives, as long as this process does."""

    def __init__(self, folder: Path, run: str) -> None:
        self._path, self._run = folder / SUPERVISOR, run
        self._over = threading.Event()
        put(self._path, f"{run} 0")
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The run is over: jobs of it that nobody knows of shall end."""
        self._over.set()
        self._thread.join()
        self._show("over 0")

    def _beat(self) -> None:
        count = 0
        while not self._over.wait(BEAT_SECONDS):
            count += 1
            self._show(f"{self._run} {count}")

    def _show(self, sign: str) -> None:
        # a file system that does not answer is tried again; another run that has taken over is left alone
        with suppress(OSError):
            if look(self._path).startswith(self._run):
                put(self._path, sign)
