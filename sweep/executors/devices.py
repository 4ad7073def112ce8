"""Which devices there are and how a child is pinned to one, without ever initialising CUDA in the supervisor."""

import os
from collections.abc import Mapping

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def available_devices() -> list[str]:
    """``cuda:0``, ``cuda:1`` ... as CUDA would number what ``CUDA_VISIBLE_DEVICES`` shows; ``cpu`` without a GPU."""
    num_gpus = _num_gpus()
    visible = _visible_entries(os.environ)
    if num_gpus and visible is not None:
        num_gpus = len(visible)
    return [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]


def pinned_environment(device: str) -> dict[str, str]:
    """The environment variables that leave a process nothing but ``device``, which it then calls ``cuda``.

    ``cuda:1`` is the second entry of this process's own ``CUDA_VISIBLE_DEVICES`` where that is set. ``cuda:2,cuda:3``
    leaves both, for a trial of two ranks.
    """
    if not device.startswith("cuda"):
        return {}
    visible = _visible_entries(os.environ)
    chosen = ",".join(_entry(name, visible) for name in device.split(","))
    # NVML counts by bus; CUDA does only when told so
    return {_VISIBLE: chosen, "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}


def bus_address(device: str) -> str | None:
    """Where a GPU sits on the PCI bus, as the kernel writes it (``0000:3b:00.0``), of several the first; None where the
    driver does not tell."""
    entry = _entry(device.split(",")[0], _visible_entries(os.environ))
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver
        return None
    try:
        find = pynvml.nvmlDeviceGetHandleByIndex if entry.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        place = pynvml.nvmlDeviceGetPciInfo(find(int(entry) if entry.isdigit() else entry))
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0"
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _entry(device: str, visible: list[str] | None) -> str:
    index = int(device.partition(":")[2] or 0)
    if visible is None:
        return str(index)
    if index >= len(visible):
        raise ValueError(f"device {device!r}: {_VISIBLE} shows {len(visible)} device(s): {','.join(visible)}")
    return visible[index]


def _visible_entries(environment: Mapping[str, str]) -> list[str] | None:
    """The shown devices, or None when all are. CUDA stops reading at the first entry that is no device."""
    if _VISIBLE not in environment:
        return None
    entries = []
    for entry in environment[_VISIBLE].split(","):
        name = entry.strip()
        if not (name.isdigit() or name.startswith(("GPU-", "MIG-"))):
            break
        entries.append(name)
    return entries


def _num_gpus() -> int:
    """What the driver counts; 0 without a driver, or where its library is missing or refuses."""
    try:
        import pynvml
    except ImportError:
        return 0
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
    finally:
        pynvml.nvmlShutdown()
