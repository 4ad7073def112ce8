"""The memory of the machine: how much is to be had, and how a process keeps to a part of it. No torch here."""

import resource
from pathlib import Path

import psutil

# What a training holds that is no tensor: stacks of threads, images on their way, the measuring itself.
_OTHER_DATA_BYTES = 512 << 20
_GROUP = Path("/sys/fs/cgroup")


def measure_available_bytes() -> int:
    """What a new process could use without swapping, also inside a container with a limit."""
    free = int(psutil.virtual_memory().available)
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if limit is None or used is None:
        return free
    return max(min(free, limit - used + (_reclaimable_bytes() or 0)), 0)


def limit_own_data(limit_bytes: int) -> None:
    """From here on this process gets about ``limit_bytes`` more; asking for more than that fails at once.

    By the limit on private writable memory (RLIMIT_DATA), for what is only reserved does not count there. Without it
    the kernel would promise the memory and kill some process when it is used.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _own_data_bytes() + limit_bytes + _OTHER_DATA_BYTES
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _own_data_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def _reclaimable_bytes() -> int | None:
    # the file cache counts as used, and the kernel takes it back when it is wanted
    try:
        lines = (_GROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), None)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
