"""The machine's memory and storage, as the Linux kernel describes them, and a limit for this process.

Imports no torch.
"""

import os
import resource
from pathlib import Path

import psutil

_OTHER_DATA_BYTES = 512 << 20  # of a training, not in tensors: stacks of threads, images in queues, the measurement
_GROUP = Path("/sys/fs/cgroup")
_BLOCK_DEVICES, _MOUNTS = Path("/sys/dev/block"), Path("/proc/self/mountinfo")
_STORAGE = {"0": "solid-state disk", "1": "rotational disk"}


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


def name_storage(folder: Path, block_devices: Path = _BLOCK_DEVICES, mounts: Path = _MOUNTS) -> str:
    """``solid-state disk`` or ``rotational disk`` where the kernel knows the device of ``folder``, or of its nearest
    parent that exists; otherwise its file system, such as ``tmpfs``, ``nfs4`` or ``overlay``; "" for neither.

    A virtual machine's disk is what its host declares it to be.
    """
    path = folder.absolute()
    try:
        number = next(parent for parent in (path, *path.parents) if parent.exists()).stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        return _read_disk(block_devices / device) or _find_file_system(device, mounts)
    except (OSError, StopIteration):
        return ""


def _read_disk(device: Path) -> str:
    # A partition has no queue of its own: the disk, which has it, is one folder above.
    for folder in (device, device.resolve().parent):
        path = folder / "queue" / "rotational"
        if path.is_file():
            return _STORAGE.get(path.read_text(encoding="ascii").strip(), "")
    return ""


def _find_file_system(device: str, mounts: Path) -> str:
    # A line by proc(5): "36 35 98:0 /root /mount options - ext3 /dev/root options".
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[2:3] == [device] and system:
            return system.split()[0]
    return ""
