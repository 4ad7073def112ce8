"""How the nodes of one job find one another, and learn which of them failed: by files in the folder of the job."""

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import final

from sweep.executors.slurm.job_files import (
    READ_SECONDS,
    RENDEZVOUS_FILE,
    LineReader,
    message_file,
    read_text,
    replace_text,
)
from sweep.executors.slurm.protocol import JOB_LINES
from sweep.records.messages import Ending

_OVER = "over"
_GRACE_SECONDS = 5.0


@final
class Rendezvous:
    """Of the nodes of a job, as ``node`` uses it: the first opens it and reads the endings of the others, which stay
    until it is closed."""

    def __init__(self, folder: Path, num_nodes: int, node: int) -> None:
        self._path, self._node = folder / RENDEZVOUS_FILE, node
        others = range(1, num_nodes) if node == 0 else ()
        self._others = {other: LineReader(message_file(folder, other)) for other in others}

    def find_address(self) -> str:
        """Where the ranks meet, ``host:port`` on the first node; empty as long as that is not known."""
        if self._node == 0:
            replace_text(self._path, f"{_own_name()}:{_find_free_port()}")
        return read_text(self._path)

    def is_over(self) -> bool:
        """Whether the first node has closed it."""
        return self._node > 0 and read_text(self._path) == _OVER

    def close(self) -> None:
        """Closes it for all, on the first node."""
        if self._node == 0:
            replace_text(self._path, _OVER)

    def find_origin(self, ending: Ending) -> Ending:
        """``ending``, or the failure of another node that a crash here may be the consequence of."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._others and ending.outcome == "crashed" and time.monotonic() < deadline:
            if failure := self.find_failure():
                return failure
            time.sleep(READ_SECONDS)
        return ending

    def find_failure(self) -> Ending | None:
        """The ending on another node that has failed."""
        for node, reader in self._others.items():
            for line in reader.read_lines():
                ending = JOB_LINES.decode(line)
                if isinstance(ending, Ending) and ending.outcome != "complete":
                    return replace(ending, error=f"node {node}: {ending.error}")
        return None


def _own_name() -> str:
    """As the other nodes of the job call this one."""
    from submitit import JobEnvironment

    return str(JobEnvironment().hostnames[0])


def _find_free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
