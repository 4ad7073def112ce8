"""The processor cores of the trials on one machine, disjoint so that they do not compete."""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweep.executors.devices import find_bus_address

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
