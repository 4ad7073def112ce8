"""The devices of this machine and how a child is restricted to one, without initializing CUDA in the supervisor."""

import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sweep.measurement.monitor import find_gpu

Result = TypeVar("Result")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER, _BUS_ORDER = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"  # in which NVML counts; CUDA only if requested


def list_devices() -> list[str]:
    """``cuda:0``, ``cuda:1`` ... as CUDA numbers the GPUs of ``CUDA_VISIBLE_DEVICES``; ``cpu`` without a GPU."""
    num_gpus = _num_gpus()
    visible = _visible_entries()
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
    visible = _visible_entries()
    entries = [_entry(name, visible) for name in device.split(",")]
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
    visible = _visible_entries()
    name = _name_in_nvml(_entry(device, visible), visible)
    return [str(index) for index in range(_num_gpus())] if name is None else [name]


def find_bus_address(device: str) -> str | None:
    """The PCI address of a GPU (of the first), as the kernel writes it: ``0000:3b:00.0``; None if it is not known."""
    visible = _visible_entries()
    name = _name_in_nvml(_entry(device.split(",")[0], visible), visible)

    def query(nvml: Any) -> str:
        address = nvml.nvmlDeviceGetPciInfo(find_gpu(nvml, str(name)))
        return f"{address.domain:04x}:{address.bus:02x}:{address.device:02x}.0"

    return None if name is None else _query_nvml(query)


def _find_uuid(entry: str, visible: list[str] | None) -> str | None:
    """The whole UUID of the GPU ``entry``; None where it is not known."""
    name = _name_in_nvml(entry, visible)

    def query(nvml: Any) -> str:
        uuid = nvml.nvmlDeviceGetUUID(find_gpu(nvml, str(name)))
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    return None if name is None else _query_nvml(query)


def _name_in_nvml(entry: str, visible: list[str] | None) -> str | None:
    # numbers that a user has set are in CUDA's own order, fastest first, unless it is set too
    order = os.environ.get(_ORDER, _BUS_ORDER if visible is None else "")
    return entry if not entry.isdigit() or order == _BUS_ORDER or _num_gpus() == 1 else None


def _entry(device: str, visible: list[str] | None) -> str:
    index = int(device.partition(":")[2] or 0)
    if visible is None:
        return str(index)
    if index >= len(visible):
        raise ValueError(f"device {device!r}: {_VISIBLE} shows {len(visible)} device(s): {','.join(visible)}")
    return visible[index]


def _visible_entries() -> list[str] | None:
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
    return _query_nvml(lambda nvml: int(nvml.nvmlDeviceGetCount())) or 0


def _query_nvml(query: Callable[[Any], Result]) -> Result | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver
        return None
    try:
        return query(pynvml)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


# How long OpenMP's idle threads spin before they sleep, for trainings on a CPU.

_SPIN_COUNT = "1000"
_SET_BY_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def limit_spinning() -> None:
    """Sets ``GOMP_SPINCOUNT`` for this process, unless the user chose; has an effect only before torch is imported.

    The variable is part of a trial's recorded environment.
    """
    if not any(name in os.environ for name in _SET_BY_USER):
        os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT


# The processor cores of the trials on one machine, disjoint so that they do not compete.

_CPUS = Path("/sys/devices/system/cpu")
_SIBLINGS = "cpu{}/topology/thread_siblings_list"
_BUS = Path("/sys/bus/pci/devices")


def divide_cores(devices: Sequence[str], allowed: frozenset[int]) -> list[tuple[int, ...]]:
    """For each of ``devices`` (one for each slot) its share of the ``allowed`` cores, near the device if the machine
    reports which are. Empty for a single slot, which has all of them, and if there are fewer cores than slots.
    """
    if len(devices) < 2 or len(allowed) < len(devices):
        return []
    near = [_cores_near(device, allowed) for device in devices]
    if _have_overlap(set(near)) or any(len(cores) < near.count(cores) for cores in near):
        near = [allowed] * len(devices)
    shares = {cores: iter(_split_evenly(_sort_cores(cores), near.count(cores))) for cores in near}
    return [next(shares[cores]) for cores in near]


def _split_evenly(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def _have_overlap(sets: set[frozenset[int]]) -> bool:
    return len(frozenset().union(*sets)) < sum(map(len, sets))


def _sort_cores(cores: frozenset[int]) -> list[int]:
    """Sorted by memory node, then with the threads of one core together."""
    return sorted(
        cores, key=lambda core: (_node_of(core), min(_read_list(_CPUS / _SIBLINGS.format(core)) or {core}), core)
    )


def _node_of(core: int) -> str:
    return next((path.name for path in (_CPUS / f"cpu{core}").glob("node[0-9]*")), "")


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
