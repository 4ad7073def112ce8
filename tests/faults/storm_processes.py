"""The processes of a study as the kernel shows them: found by a mark in their environment, hit without mistaking one
for another, and looked for when they should be gone."""

import os
import re
import shutil
import subprocess
import time
import uuid
from functools import cache
from pathlib import Path
from typing import final

import psutil

_MARK = "SWEEP_STORM_MARK"
# 2 s are promised; a machine that is busy with other things makes no zombies of them
_PATIENCE_SECONDS = 15.0


def trial_of(pid: int) -> int | None:
    """The number of the trial that ``pid`` trains, by the file that it prints to."""
    try:
        found = re.search(r"/trial-(\d+)\.log", str(Path(f"/proc/{pid}/fd/1").readlink()))
    except OSError:
        return None
    return int(found[1]) if found else None


def hit(victim: psutil.Process, number: int) -> bool:
    """Sends a signal to exactly this process; False where it did not live any more."""
    if not lives(victim):
        return False
    try:
        victim.send_signal(number)  # to no later process of the same id
    except psutil.NoSuchProcess:
        return False
    return True


def lives(one: psutil.Process) -> bool:
    try:
        return one.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def parent_of(one: psutil.Process | None) -> psutil.Process | None:
    try:
        return one.parent() if one is not None else None
    except psutil.NoSuchProcess:
        return None


@final
class Watch:
    """All processes that began with this object's mark in their environment, and what they leave in shared memory."""

    def __init__(self, shared_memory: Path) -> None:
        self._value = uuid.uuid4().hex
        self._known: set[psutil.Process] = set()
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

    def look(self) -> list[psutil.Process]:
        """Those that live."""
        for pid in {*psutil.pids()} - {each.pid for each in self._known} - {os.getpid()}:
            try:
                found = psutil.Process(pid)
                if found.environ().get(_MARK) == self._value:
                    self._known.add(found)
            except psutil.Error:
                continue
        self._known = {each for each in self._known if each.is_running()}  # also one that is dead and not reaped
        return [each for each in self._known if lives(each)]

    def zombies(self) -> set[psutil.Process]:
        """Who is still there, dead or alive, when all should be gone."""
        begun = time.monotonic()
        self.look()
        while self._known and time.monotonic() - begun < _PATIENCE_SECONDS:
            time.sleep(0.01)
            self.look()
        return self._known

    def leftovers(self) -> list[str]:
        """What stayed in shared memory; empty where it could not be told from that of others."""
        return sorted(path.name for path in self._shared_memory.glob("*"))


@cache
def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = 'mount --bind "$0" /dev/shm'
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", script, "/tmp"], capture_output=True, check=False)
    return tried.returncode == 0
