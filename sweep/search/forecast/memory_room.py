"""How much of a device's memory trials can use, and how many of them at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from sweep.measurement.host_memory import measure_available_bytes

_USABLE_SHARE = 0.9  # of the memory; the rest is for gaps between tensors and workspaces that no forecast contains
_PROCESS_BYTES = 600 * 2**20  # where it was not measured


@final
@dataclass(frozen=True)
class MemoryRoom:
    """The memory of one device, in bytes.

    ``free_bytes`` is for the tensors of one process that has the device to itself: without what other programs hold,
    and without ``process_bytes``, which each process requires beside its tensors: the context of a GPU, or torch's
    libraries.
    """

    free_bytes: int
    process_bytes: int

    @property
    def limit_bytes(self) -> int:
        """What a process may allocate, resident images included: nine tenths of what is free for it."""
        return int(_USABLE_SHARE * self.free_bytes)

    def count_processes(self, reserved_bytes: int) -> int:
        """How many processes fit at once, each of which reserves ``reserved_bytes`` for its tensors."""
        together = _USABLE_SHARE * (self.free_bytes + self.process_bytes)
        return int(together // (reserved_bytes + self.process_bytes))


def measure_room(machine: Mapping[str, Any]) -> MemoryRoom:
    """The room on the device of ``machine`` (:func:`sweep.measurement.environment.describe_machine`); on a CPU, that of
    what is available on this machine now."""
    total = int(machine.get("device_memory_bytes", 0))
    if not total:
        return MemoryRoom(measure_available_bytes(), _PROCESS_BYTES)
    process_bytes = int(machine.get("process_bytes", 0)) or _PROCESS_BYTES
    return MemoryRoom(int(machine.get("device_free_bytes", max(total - process_bytes, 0))), process_bytes)
