"""The devices of this machine, its cores and threads, and how a child is restricted to its share of them.

Nothing here initializes CUDA in the supervisor: GPUs are counted by the driver's library.
"""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweep.measurement.monitor import query_nvml

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


def make_pinned_environment(device: str) -> dict[str, str]:
    """The environment variables that make only ``device`` visible to a process, which then calls it ``cuda``.

    ``cuda:1`` is the second entry of this process's own ``CUDA_VISIBLE_DEVICES`` if that is set. ``cuda:2,cuda:3``
    makes both visible, for a trial of two ranks.
    """
    if not device.startswith("cuda"):
        return {}
    visible = _list_visible()
    environment = {_VISIBLE: ",".join(_find_entry(name, visible) for name in device.split(","))}
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
    entry = _find_entry(device, visible)
    # Numbers that a user has set are in CUDA's own order, fastest first, unless the order is set as well.
    order = os.environ.get(_ORDER, _BUS_ORDER if visible is None else "")
    is_known = not entry.isdigit() or order == _BUS_ORDER or _num_gpus() == 1
    return [entry] if is_known else [str(index) for index in range(_num_gpus())]


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


def limit_spinning() -> None:
    """Limits how long OpenMP's idle threads spin before they sleep, unless the user chose; has an effect only before
    torch is imported. ``GOMP_SPINCOUNT`` is part of a trial's recorded environment.
    """
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = "1000"


def divide_cores(count: int, allowed: frozenset[int]) -> list[tuple[int, ...]]:
    """For each of ``count`` slots its share of the ``allowed`` cores, memory node by memory node, as machines count
    their GPUs. Shares are disjoint, so that trials do not compete. Empty for a single slot, which has all of them, and
    if there are fewer cores than slots.
    """
    if count < 2 or len(allowed) < count:
        return []
    cores = sorted(allowed, key=_core_order)
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def _core_order(core: int) -> tuple[str, int, int]:
    # by memory node, then with the threads of one core together
    folder = _CPUS / f"cpu{core}"
    node = next((path.name for path in folder.glob("node[0-9]*")), "")
    return node, min(_read_list(folder / "topology" / "thread_siblings_list") or {core}), core


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
