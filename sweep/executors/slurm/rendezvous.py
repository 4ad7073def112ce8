"""How the nodes of one job find one another, and hear which of them failed: by files in the folder of the job."""

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import final

from sweep.executors.slurm.job_files import MEETING, Tail, look, messages_of, put
from sweep.records.messages import Ending, decode_message

_OVER = "over"
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.2


@final
class Meeting:
    """As one of ``nodes`` sees it: the first opens it and hears the others, who stay until it is over."""

    def __init__(self, folder: Path, nodes: int, node: int) -> None:
        self._path, self._node = folder / MEETING, node
        others = range(1, nodes) if node == 0 else ()
        self._others = {other: Tail(messages_of(folder, other)) for other in others}

    def place(self) -> str:
        """Where the ranks meet, ``host:port`` on the first node; empty as long as that is not known."""
        if self._node == 0:
            put(self._path, f"{_own_name()}:{_free_port()}")
        return look(self._path)

    def is_over(self) -> bool:
        """Whether the first node has ended it."""
        return self._node > 0 and look(self._path) == _OVER

    def close(self) -> None:
        """Ends it for all, on the first node."""
        if self._node == 0:
            put(self._path, _OVER)

    def judge(self, ending: Ending) -> Ending:
        """``ending``, or how the trial ended on another node, of which a crash here may be the echo."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._others and ending.outcome == "crashed" and time.monotonic() < deadline:
            if failure := self.failure():
                return failure
            time.sleep(_LOOK_SECONDS)
        return ending

    def failure(self) -> Ending | None:
        """How the trial ended on another node, where it did before its time."""
        for node, tail in self._others.items():
            for line in tail.read_lines():
                if b'"kind": "ending"' not in line:
                    continue
                ending = decode_message(line)
                if isinstance(ending, Ending) and ending.outcome != "complete":
                    return replace(ending, error=f"node {node}: {ending.error}")
        return None


def _own_name() -> str:
    """As the other nodes of the job call this one."""
    from submitit import JobEnvironment

    return str(JobEnvironment().hostnames[0])


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
