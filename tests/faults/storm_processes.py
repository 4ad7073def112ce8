"""The processes of a study as the kernel shows them: found by a mark in their environment, hit without mistaking one
for another, and looked for when they should be gone."""

import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

_MARK = "SWEEP_STORM_MARK"
_SETTLED_SECONDS = 5.0  # a younger process may not have its own environment yet
# 2 s are promised; a machine that is busy with other things makes no zombies of them
_PATIENCE_SECONDS = 15.0


@dataclass(frozen=True)
class Process:
    """One process; its start tells it from a later one of the same id."""

    pid: int
    started: int  # clock ticks since the machine's start
    parent: int
    state: str  # as in /proc/PID/stat

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started


def process(pid: int) -> Process | None:
    try:
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(rest[19]), int(rest[1]), rest[0])


def trial_of(pid: int) -> int | None:
    """The number of the trial that ``pid`` trains, by the file that it prints to."""
    try:
        found = re.search(r"/trial-(\d+)\.log", str(Path(f"/proc/{pid}/fd/1").readlink()))
    except OSError:
        return None
    return int(found[1]) if found else None


def hit(victim: Process, number: int) -> bool:
    """Sends a signal to exactly this process; False where it did not live any more."""
    try:
        handle = os.pidfd_open(victim.pid)
    except ProcessLookupError:
        return False
    try:
        now = process(victim.pid)  # whatever has the id from here on has been had by the handle
        if now is None or now.identity != victim.identity or now.state in "ZX":
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


@final
class Watch:
    """All processes that began with this object's mark in their environment, and what they leave in shared memory."""

    def __init__(self, shared_memory: Path) -> None:
        self._value = uuid.uuid4().hex
        self._strangers: set[int] = set()
        self._known: dict[tuple[int, int], Process] = {}
        self._shared_memory = shared_memory

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {_MARK: self._value, "OMP_WAIT_POLICY": "PASSIVE"}

    def command(self, *words: str) -> list[str]:
        if not may_unshare():
            return list(words)
        self._shared_memory.mkdir(exist_ok=True)
        script = 'mount --bind "$0" /dev/shm && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, str(self._shared_memory), *words]

    def look(self) -> list[Process]:
        pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        self._strangers &= pids
        known = {pid for pid, _ in self._known}
        for pid in pids - self._strangers - known - {os.getpid()}:
            self._meet(pid)
        return [now for now in self._still_there() if now.state not in "ZX"]

    def zombies(self) -> list[Process]:
        """Who is still there, dead or alive, when all should be gone."""
        begun = time.monotonic()
        self.look()
        while (left := self._still_there()) and time.monotonic() - begun < _PATIENCE_SECONDS:
            time.sleep(0.01)
            self.look()
        return left

    def leftovers(self) -> list[str]:
        """What stayed in shared memory; empty where it could not be told from that of others."""
        return sorted(path.name for path in self._shared_memory.glob("*"))

    def _meet(self, pid: int) -> None:
        found = process(pid)
        try:
            is_ours = f"{_MARK}={self._value}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return
        if found is not None and is_ours:
            self._known[found.identity] = found
        elif found is not None and _age_seconds(found) > _SETTLED_SECONDS:
            self._strangers.add(pid)

    def _still_there(self) -> list[Process]:
        present = []
        for identity in list(self._known):
            now = process(identity[0])
            if now is not None and now.identity == identity:
                present.append(now)
            else:
                del self._known[identity]
        return present


def _age_seconds(one: Process) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - one.started / os.sysconf("SC_CLK_TCK")


@cache
def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = 'mount --bind "$0" /dev/shm'
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", script, "/tmp"], capture_output=True, check=False)
    return tried.returncode == 0
