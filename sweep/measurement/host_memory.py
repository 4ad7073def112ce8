"""The machine's memory, as the Linux kernel describes it, and a limit for this process.

Imports no torch.
"""

import resource
from pathlib import Path

import psutil

_OTHER_DATA_BYTES = 512 << 20  # of a training, not in tensors: stacks of threads, images in queues, the measurement
_GROUP = Path("/sys/fs/cgroup")


def measure_available_bytes() -> int:
    """Bytes that a new process could use without swapping, also inside a container with a limit."""
    free = int(psutil.virtual_memory().available)
    limit, used = _read(_GROUP / "memory.max"), _read(_GROUP / "memory.current")
    if not (limit.isdigit() and used.isdigit()):
        return free
    # The file cache counts as used, and the kernel reclaims it when needed.
    reclaimable = _find_field(_read(_GROUP / "memory.stat"), "inactive_file ")
    return max(min(free, int(limit) - int(used) + reclaimable), 0)


def limit_own_data(limit_bytes: int) -> None:
    """Limits this process to about ``limit_bytes`` more; a larger allocation fails at once.

    RLIMIT_DATA limits private writable memory and does not count memory that is only reserved. Without it the kernel
    would overcommit, and kill some process when the memory is used.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own_bytes = _find_field(_read(Path("/proc/self/status")), "VmData:") << 10
    limit = own_bytes + limit_bytes + _OTHER_DATA_BYTES
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _find_field(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(name)), 0)
