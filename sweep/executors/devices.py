"""The devices of this machine, its cores and threads, and how a child is restricted to its share of them.

Nothing here initializes CUDA in the supervisor: GPUs are counted by the driver's library.
"""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweep.measurement.monitor import find_gpu, query_nvml, read_uuid

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER, _BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # in which NVML counts; CUDA only if requested


def list_devices() -> list[str]:
    """``cuda:0``, ``cuda:1`` ... as CUDA numbers the GPUs of ``CUDA_VISIBLE_DEVICES``; ``cpu`` without a GPU."""
    num_gpus, visible = _num_gpus(), _list_visible()
    if num_gpus and visible is not None:
        num_gpus = len(visible)
    return [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]


def select_gpus(device: str, world_size: int, devices: Sequence[str]) -> list[str]:
    """The GPUs among ``devices`` that ``device`` names; ``cuda`` is as many as one trial of ``world_size`` requires."""
    gpus = [name for name in devices if name != "cpu"]
    named = {"auto": gpus, "cuda": gpus[:world_size], "cpu": []}
    return named.get(device, [device])


def make_pinned_environment(device: str, *, by_uuid: bool = False) -> dict[str, str]:
    """The environment variables that make only ``device`` visible to a process, which then calls it ``cuda``.

    ``cuda:1`` is the second entry of this process's own ``CUDA_VISIBLE_DEVICES`` if that is set. ``cuda:2,cuda:3``
    makes both visible, for a trial of two ranks. With ``by_uuid`` they are named by their UUIDs where these are known:
    a service that shares a GPU counts GPUs in its own way.
    """
    if not device.startswith("cuda"):
        return {}
    visible = _list_visible()
    entries = [_find_entry(name, visible) for name in device.split(",")]
    if by_uuid:
        entries = [_find_uuid(entry, visible) or entry for entry in entries]
    environment = {_VISIBLE: ",".join(entries)}
    if _ORDER in os.environ:
        environment[_ORDER] = os.environ[_ORDER]
    elif visible is None:  # numbers are those of NVML then; those that a user has set are in CUDA's own order
        environment[_ORDER] = _BUS_ORDER
    return environment


def list_nvml_names(device: str) -> list[str]:
    """The GPU ``device`` (``cuda:1``, as this process counts them) by its number in the order of the bus, or its UUID;
    all GPUs where CUDA counts them in an order of its own. Another device by its own name."""
    if not device.startswith("cuda"):
        return [device]
    visible = _list_visible()
    name = _name_in_nvml(_find_entry(device, visible), visible)
    return [str(index) for index in range(_num_gpus())] if name is None else [name]


def find_bus_address(device: str) -> str | None:
    """The PCI address of a GPU (of the first), as the kernel writes it: ``0000:3b:00.0``; None if it is not known."""
    visible = _list_visible()
    name = _name_in_nvml(_find_entry(device.split(",")[0], visible), visible)

    def query(nvml: Any) -> str:
        address = nvml.nvmlDeviceGetPciInfo(find_gpu(nvml, str(name)))
        return f"{address.domain:04x}:{address.bus:02x}:{address.device:02x}.0"

    return None if name is None else query_nvml(query)


def _find_uuid(entry: str, visible: list[str] | None) -> str | None:
    """The whole UUID of the GPU ``entry``; None where it is not known."""
    name = _name_in_nvml(entry, visible)
    return None if name is None else query_nvml(lambda nvml: read_uuid(nvml, find_gpu(nvml, name)))


def _name_in_nvml(entry: str, visible: list[str] | None) -> str | None:
    # Numbers that a user has set are in CUDA's own order, fastest first, unless the order is set as well.
    order = os.environ.get(_ORDER, _BUS_ORDER if visible is None else "")
    return entry if not entry.isdigit() or order == _BUS_ORDER or _num_gpus() == 1 else None


def _find_entry(device: str, visible: list[str] | None) -> str:
    index = int(device.partition(":")[2] or 0)
    if visible is None:
        return str(index)
    if index >= len(visible):
        raise ValueError(f"device {device!r}: {_VISIBLE} shows {len(visible)} device(s): {','.join(visible)}")
    return visible[index]


def _list_visible() -> list[str] | None:
    """The visible devices, or None if all are. CUDA stops reading at the first entry that is no device."""
    if _VISIBLE not in os.environ:
        return None
    entries = []
    for entry in os.environ[_VISIBLE].split(","):
        name = entry.strip()
        if not (name.isdigit() or name.startswith(("GPU-", "MIG-"))):
            break
        entries.append(name)
    return entries


def _num_gpus() -> int:
    """The GPUs that the driver counts; 0 without a driver, or if its library is missing or fails."""
    return query_nvml(lambda nvml: int(nvml.nvmlDeviceGetCount())) or 0


# ---------------------------------------------------------------------- threads and cores

_CPUS = Path("/sys/devices/system/cpu")
_BUS = Path("/sys/bus/pci/devices")


def limit_spinning() -> None:
    """Limits how long OpenMP's idle threads spin before they sleep, unless the user chose; has an effect only before
    torch is imported. ``GOMP_SPINCOUNT`` is part of a trial's recorded environment.
    """
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = "1000"


def divide_cores(devices: Sequence[str], allowed: frozenset[int]) -> list[tuple[int, ...]]:
    """For each of ``devices`` (one for each slot) its share of the ``allowed`` cores, near the device if the machine
    reports which are. Shares are disjoint, so that trials do not compete. Empty for a single slot, which has all of
    them, and if there are fewer cores than slots.
    """
    if len(devices) < 2 or len(allowed) < len(devices):
        return []
    near = [_cores_near(device, allowed) for device in devices]
    groups = set(near)
    have_overlap = len(frozenset().union(*groups)) < sum(map(len, groups))
    if have_overlap or any(len(cores) < near.count(cores) for cores in near):
        near = [allowed] * len(devices)
    shares = {cores: iter(_split_evenly(sorted(cores, key=_core_order), near.count(cores))) for cores in near}
    return [next(shares[cores]) for cores in near]


def _split_evenly(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def _core_order(core: int) -> tuple[str, int, int]:
    # by memory node, then with the threads of one core together
    folder = _CPUS / f"cpu{core}"
    node = next((path.name for path in folder.glob("node[0-9]*")), "")
    return node, min(_read_list(folder / "topology" / "thread_siblings_list") or {core}), core


def _cores_near(device: str, allowed: frozenset[int]) -> frozenset[int]:
    """The cores on the memory node of a GPU (of several, the first); all if that is not known."""
    address = find_bus_address(device) if device.startswith("cuda") else None
    listed = _read_list(_BUS / address / "local_cpulist") if address else frozenset()
    return (listed & allowed) or allowed


def _read_list(path: Path) -> frozenset[int]:
    """The numbers that a file of the kernel lists as ``0-3,8``; empty if there is no such file."""
    numbers: set[int] = set()
    with suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            low, _, high = part.partition("-")
            numbers.update(range(int(low), int(high or low) + 1))
    return frozenset(numbers)


def pin_process(cores: Sequence[int]) -> None:
    """Restricts this process, and what it starts, to ``cores``; has no effect if the system refuses."""
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
