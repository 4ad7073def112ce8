"""Sensors of a GPU by NVIDIA's management library; fields stay empty where the library is missing or fails."""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, final

from sweep.measurement.device_trace import SensorReading
from sweep.measurement.host import list_own_pids
from sweep.measurement.monitor import SensorSource

_log = logging.getLogger(__name__)
Value = TypeVar("Value")

# The library's bits for why a clock is below its highest, by their names in ``SensorReading.slow_reasons``.
_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}


@cache
def read_driver_version() -> str:
    """Version of NVIDIA's driver, or ``""``."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, or one that does not fit: each raises something else
        return ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:
        return ""
    finally:
        pynvml.nvmlShutdown()


def find_gpu(library: Any, entry: str) -> Any:
    """The library's handle of a GPU: by its number in the order of the bus, or by its UUID (``GPU-...``), also that of
    a part of one (``MIG-...``), of which as much as is unambiguous suffices, as CUDA accepts it.

    Raises:
        Exception: of the library, when it does not know the device.
    """
    if entry.isdigit():
        return library.nvmlDeviceGetHandleByIndex(int(entry))
    try:
        return library.nvmlDeviceGetHandleByUUID(entry)
    except Exception:  # an abbreviated one, or torch's name of a part
        found = [handle for handle, uuid in _list_gpus(library) if _strip_kind(uuid).startswith(_strip_kind(entry))]
        if len(found) != 1:
            raise
        return found[0]


def _list_gpus(library: Any) -> Iterator[tuple[Any, str]]:
    # with the parts of each, where it is divided
    for index in range(library.nvmlDeviceGetCount()):
        device = library.nvmlDeviceGetHandleByIndex(index)
        handles = [device]
        with suppress(Exception):  # most GPUs cannot be divided
            for part in range(library.nvmlDeviceGetMaxMigDeviceCount(device)):
                with suppress(Exception):  # not every place is taken
                    handles.append(library.nvmlDeviceGetMigDeviceHandleByIndex(device, part))
        for handle in handles:
            uuid = library.nvmlDeviceGetUUID(handle)
            yield handle, uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _strip_kind(uuid: str) -> str:
    return uuid.removeprefix("MIG-").removeprefix("GPU-")


def read_power_limit(uuid: str) -> float:
    """The power limit of the GPU ``GPU-...`` in watts; 0.0 where it cannot be read."""
    return _read_gpu(uuid, lambda nvml, gpu: float(nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3)) or 0.0


def read_process_bytes(uuid: str) -> int:
    """Bytes that this process holds on the GPU ``GPU-...``, all included; 0 where the driver does not report them, as
    inside most containers."""

    def query(nvml: Any, gpu: Any) -> int:
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        return sum(process.usedGpuMemory or 0 for process in listed if process.pid == os.getpid())

    return _read_gpu(uuid, query) or 0


def _read_gpu(uuid: str, query: Callable[[Any, Any], Value]) -> Value | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, or one that does not fit
        return None
    try:
        return query(pynvml, find_gpu(pynvml, uuid))
    except Exception:
        return None
    finally:
        pynvml.nvmlShutdown()


@final
class NvmlSource(SensorSource):
    """Reads one GPU. ``entry`` is its number in the order of the bus, or its UUID, as in :func:`find_gpu`.

    A query that fails leaves its field empty and is warned of once; the others continue.

    Raises:
        Exception: of the library, when it is missing, does not fit the driver or does not know the device.
    """

    def __init__(self, entry: str, library: Any = None, ours: Callable[[], Collection[int]] = list_own_pids) -> None:
        self._library, self._ours, self._entry = library or import_module("pynvml"), ours, entry
        library = self._library
        library.nvmlInit()
        self._device = find_gpu(library, entry)
        self._refused: set[str] = set()

    def read(self) -> SensorReading:
        nvml, device = self._library, self._device
        memory = self._query("memory", lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).used))
        num_others, own_memory = self._query("processes", self._processes) or (None, None)
        return SensorReading(
            at=time.perf_counter(),
            utilization=self._query("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100),
            power_watts=self._query("power", lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3),
            energy_joules=self._query("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3),
            temperature_celsius=self._query("temperature", self._temperature),
            clock_hertz=self._query("clock", lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
            max_clock_hertz=self._query(
                "highest clock", lambda: 1e6 * nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)
            ),
            slow_reasons=self._query("clock reasons", self._slow_reasons),
            num_others=num_others,
            other_memory_bytes=None if memory is None or own_memory is None else memory - own_memory,
        )

    def close(self) -> None:
        self._query("shutdown", self._library.nvmlShutdown)

    def _temperature(self) -> float:
        return float(self._library.nvmlDeviceGetTemperature(self._device, self._library.NVML_TEMPERATURE_GPU))

    def _slow_reasons(self) -> frozenset[str]:
        # by its older name, which older libraries have as well
        bits = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._device)
        return frozenset(name for bit, name in _REASONS.items() if bits & bit)

    def _processes(self) -> tuple[int, int | None]:
        # Number of other programs' processes, and bytes of this one's. In a container the ids may be those of another
        # namespace, so that none is found: then one of them is taken to be this program's, and the bytes are unknown.
        listed = self._library.nvmlDeviceGetComputeRunningProcesses(self._device)
        own = set(self._ours())
        ours = [process for process in listed if process.pid in own]
        if not ours:
            return max(0, len(listed) - 1), None
        held = [process.usedGpuMemory for process in ours]
        return len(listed) - len(ours), None if None in held else sum(held)

    def _query(self, what: str, query: Callable[[], Value]) -> Value | None:
        try:
            return query()
        except Exception as error:  # each version of the library has its own
            if what not in self._refused:
                self._refused.add(what)
                _log.warning("GPU %s: its %s cannot be read (%s); the field stays empty", self._entry, what, error)
            return None
