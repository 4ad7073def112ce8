"""The memory of the machine: how much is available, and a limit for this process. Imports no torch."""

import os
import resource
from pathlib import Path

import psutil

# Memory of a training that is not in tensors: stacks of threads, images in queues, the measurement.
_OTHER_DATA_BYTES = 512 << 20
_GROUP = Path("/sys/fs/cgroup")


def measure_available_bytes() -> int:
    """Bytes that a new process could use without swapping, also inside a container with a limit."""
    free = int(psutil.virtual_memory().available)
    limit, used = _read(_GROUP / "memory.max"), _read(_GROUP / "memory.current")
    if not (limit.isdigit() and used.isdigit()):
        return free
    # the file cache counts as used, and the kernel reclaims it when needed
    reclaimable = _find_field(_read(_GROUP / "memory.stat"), "inactive_file ")
    return max(min(free, int(limit) - int(used) + reclaimable), 0)


def limit_own_data(limit_bytes: int) -> None:
    """Limits this process to about ``limit_bytes`` more; a larger allocation fails at once.

    Uses the limit on private writable memory (RLIMIT_DATA), which does not count memory that is only reserved. Without
    it the kernel would overcommit and kill some process when the memory is used.
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


# On which kind of storage a folder is, as the Linux kernel describes it.

_BLOCK_DEVICES, _MOUNTS = Path("/sys/dev/block"), Path("/proc/self/mountinfo")
_KINDS = {"0": "solid-state disk", "1": "rotational disk"}


def name_storage(folder: Path, block_devices: Path = _BLOCK_DEVICES, mounts: Path = _MOUNTS) -> str:
    """``solid-state disk`` or ``rotational disk`` where the kernel knows the device of ``folder``, or of its nearest
    parent that exists; otherwise its file system, such as ``tmpfs``, ``nfs4`` or ``overlay``; "" for neither.

    A virtual machine's disk is what its host declares it to be.
    """
    place = folder.absolute()
    try:
        number = next(each for each in (place, *place.parents) if each.exists()).stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        return _read_kind(block_devices / device) or _find_file_system(device, mounts)
    except (OSError, StopIteration):
        return ""


def _read_kind(device: Path) -> str:
    # a partition has no queue of its own: that of the disk is one folder above
    for folder in (device, device.resolve().parent):
        path = folder / "queue" / "rotational"
        if path.is_file():
            return _KINDS.get(path.read_text(encoding="ascii").strip(), "")
    return ""


def _find_file_system(device: str, mounts: Path) -> str:
    # "36 35 98:0 /root /mount options - ext3 /dev/root options", by proc(5)
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[2:3] == [device] and system:
            return system.split()[0]
    return ""
