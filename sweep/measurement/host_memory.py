"""The memory of the machine: how much is available, and a limit for this process. Imports no torch."""

import resource
from pathlib import Path

import psutil

# Memory of a training that is not in tensors: stacks of threads, images in queues, the measurement.
_OTHER_DATA_BYTES = 512 << 20
_GROUP = Path("/sys/fs/cgroup")


def measure_available_bytes() -> int:
    """Bytes that a new process could use without swapping, also inside a container with a limit."""
    free = int(psutil.virtual_memory().available)
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    if limit is None or used is None:
        return free
    return max(min(free, limit - used + (_reclaimable_bytes() or 0)), 0)


def limit_own_data(limit_bytes: int) -> None:
    """Limits this process to about ``limit_bytes`` more; a larger allocation fails at once.

    Uses the limit on private writable memory (RLIMIT_DATA), which does not count memory that is only reserved. Without
    it the kernel would overcommit and kill some process when the memory is used.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _own_data_bytes() + limit_bytes + _OTHER_DATA_BYTES
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _own_data_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def _reclaimable_bytes() -> int | None:
    # the file cache counts as used, and the kernel reclaims it when needed
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
