"""On which kind of storage a folder is, as the Linux kernel describes it."""

import os
from pathlib import Path

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
