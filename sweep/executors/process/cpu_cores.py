"""Which processor cores the trials of one machine run on, so that none takes another's."""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweep.executors.devices import bus_address

_CPUS = Path("/sys/devices/system/cpu")
_SIBLINGS = "cpu{}/topology/thread_siblings_list"
_BUS = Path("/sys/bus/pci/devices")


def divide_cores(devices: Sequence[str], allowed: frozenset[int]) -> list[tuple[int, ...]]:
    """For each of ``devices`` (one for each slot) its share of the ``allowed`` cores, near the device where the machine
    tells which are. Nothing for a single slot, which has all of them, or where there are fewer cores than slots.
    """
    if len(devices) < 2 or len(allowed) < len(devices):
        return []
    near = [_near(device, allowed) for device in devices]
    if _overlap(set(near)) or any(len(cores) < near.count(cores) for cores in near):
        near = [allowed] * len(devices)
    shares = {cores: iter(_shares(_ordered(cores), near.count(cores))) for cores in near}
    return [next(shares[cores]) for cores in near]


def _shares(cores: Sequence[int], count: int) -> list[tuple[int, ...]]:
    bounds = [len(cores) * index // count for index in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def _overlap(sets: set[frozenset[int]]) -> bool:
    return len(frozenset().union(*sets)) < sum(map(len, sets))


def _ordered(cores: frozenset[int]) -> list[int]:
    """Neighbours last apart: by memory node, then the threads of one core together."""
    return sorted(
        cores, key=lambda core: (_node_of(core), min(_listed(_CPUS / _SIBLINGS.format(core)) or {core}), core)
    )


def _node_of(core: int) -> str:
    return next((path.name for path in (_CPUS / f"cpu{core}").glob("node[0-9]*")), "")


def _near(device: str, allowed: frozenset[int]) -> frozenset[int]:
    """The cores on the memory node of a GPU (of several, the first); all where that is not known."""
    address = bus_address(device) if device.startswith("cuda") else None
    listed = _listed(_BUS / address / "local_cpulist") if address else frozenset()
    return (listed & allowed) or allowed


def _listed(path: Path) -> frozenset[int]:
    """What ``0-3,8`` in a file of the kernel stands for; nothing where there is no such file."""
    found: set[int] = set()
    with suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def pin(cores: Sequence[int]) -> None:
    """Keeps this process, and what it will start, on ``cores``; nothing happens where the system will not have it."""
    with suppress(OSError):
        os.sched_setaffinity(0, cores)
