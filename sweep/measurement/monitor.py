"""Reads the sensors of devices twice a second while trials train on them, and summarizes the readings of each trial.

The supervisor never waits for the thread that reads. A failure leaves fields empty and does not affect the trial.
"""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeVar, final

import numpy as np
import psutil

from sweep.records.quality import BUSY_HOST

Value = TypeVar("Value")
Span = tuple[float, float]  # from, to; seconds by time.perf_counter(), which on Linux all processes share

_INTERVAL_SECONDS = 0.5
_LATEST = 4  # readings of a live value
_MAX_READINGS = 20_000  # of one trial on one device, about three hours; then every second one is dropped
_READINGS_PER_TREE = 4
_MIN_READINGS = 2  # in training; fewer are no summary
_MIN_SHARE = 0.5  # of the time between two readings that must be training
_MIN_SECONDS = 1.0  # between readings, from which a mean load is one
_BUSY = 0.1  # share of the cores that others use
_THROTTLED = 0.05  # of the readings
_FOREIGN_BYTES = 2 << 30  # more than the driver itself holds

# The library's bits for hardware slowdown, heat by software and by hardware, and a lack of power. Other reasons why a
# clock is below its highest, such as idleness or a power cap, hold for every trial alike.
_THROTTLING = 0x8 | 0x20 | 0x40 | 0x80
_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- readings and their summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorReading:
    """All sensors at one moment; None where one cannot be read. Of counters only differences have a meaning."""

    at: float = 0.0  # by time.perf_counter()
    utilization: float | None = None  # of the GPU, as a fraction
    power_watts: float | None = None
    energy_joules: float | None = None  # a counter
    temperature_celsius: float | None = None
    is_throttled: bool | None = None  # for heat or lack of power
    num_others: int | None = None  # processes of other programs on the device
    other_memory_bytes: int | None = None  # in use on the device, by other programs
    busy_seconds: float | None = None  # a counter: of all cores, by any process
    own_busy_seconds: float | None = None  # a counter: by this program's processes
    num_processors: int = 1


@dataclass(frozen=True)
class DeviceSummary:
    """``measurements`` by name of the metric table, and quality flags."""

    measurements: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def summarize_readings(readings: Sequence[SensorReading], spans: Sequence[Span]) -> DeviceSummary:
    """Summarizes the ``readings`` of one device (in the order of time) over the ``spans`` in which the trial trained.

    Readings outside the spans do not count. Differences of counters count where most of the time between two readings
    was training. With too few readings the summary is empty.
    """
    inside = [reading for reading in readings if _is_inside(spans, reading.at)]
    steps = [
        (one, two)
        for one, two in pairwise(readings)
        if _seconds_inside(spans, one.at, two.at) >= _MIN_SHARE * (two.at - one.at) > 0
    ]
    if len(inside) < _MIN_READINGS:
        return DeviceSummary()
    counted, load = _measure_growth(steps, "energy_joules"), _load_by_others(steps)
    measured = {
        "gpu_utilization": _combine(inside, "utilization", np.mean),
        # The counter also covers the time between two readings.
        "power_watts": counted[0] if counted else _combine(inside, "power_watts", np.mean),
        # Mean power times all seconds of training, because readings do not fall on the edges of spans.
        "energy_joules": counted[0] * sum(end - begin for begin, end in spans) if counted else None,
        "temperature_celsius": _combine(inside, "temperature_celsius", np.max),
    }
    foreign_bytes, throttled = _combine(inside, "other_memory_bytes", np.median), _list_values(inside, "is_throttled")
    raised = {
        "other_process": any(_list_values(inside, "num_others")) or (foreign_bytes or 0.0) >= _FOREIGN_BYTES,
        "throttled": sum(throttled) > 0 and sum(throttled) >= _THROTTLED * len(throttled),
        BUSY_HOST: load is not None and load >= _BUSY,
    }
    return DeviceSummary(
        {name: value for name, value in measured.items() if value is not None},
        tuple(name for name, is_raised in raised.items() if is_raised),
    )


def merge_summaries(summaries: Sequence[DeviceSummary]) -> DeviceSummary:
    """The summary of a trial's devices: sums of power and energy, the maximum of temperature, means of others."""
    merging: dict[str, Callable[[list[float]], float]]
    merging = {"power_watts": sum, "energy_joules": sum, "temperature_celsius": max}
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for name, value in summary.measurements.items():
            values.setdefault(name, []).append(value)
    merged = {name: float(merging.get(name, np.mean)(listed)) for name, listed in values.items()}
    return DeviceSummary(merged, tuple(dict.fromkeys(flag for summary in summaries for flag in summary.flags)))


def _is_inside(spans: Sequence[Span], at: float) -> bool:
    index = bisect_right(spans, (at, float("inf"))) - 1
    return index >= 0 and at <= spans[index][1]


def _seconds_inside(spans: Sequence[Span], begin: float, end: float) -> float:
    """Seconds of ``begin`` to ``end`` inside the spans, which are in the order of time."""
    first = max(0, bisect_right(spans, (begin, float("inf"))) - 1)
    total = 0.0
    for low, high in spans[first:]:
        if low > end:
            break
        total += max(0.0, min(high, end) - max(low, begin))
    return total


def _list_values(readings: Sequence[SensorReading], name: str) -> list[float]:
    return [value for reading in readings if (value := getattr(reading, name)) is not None]


def _combine(readings: Sequence[SensorReading], name: str, combine: Callable[[list[float]], float]) -> float | None:
    values = _list_values(readings, name)
    return float(combine(values)) if values else None


def _measure_growth(steps: Sequence[tuple[SensorReading, SensorReading]], *names: str) -> tuple[float, ...] | None:
    """Growth of counters over time, in their units a second; None where one is missing."""
    total, growths = 0.0, [0.0] * len(names)
    for one, two in steps:
        ends = [(getattr(one, name), getattr(two, name)) for name in names]
        if any(low is None or high is None or high < low for low, high in ends):  # a counter may begin anew
            continue
        total += two.at - one.at
        growths = [growth + high - low for growth, (low, high) in zip(growths, ends, strict=True)]
    return tuple(growth / total for growth in growths) if total else None


def _load_by_others(steps: Sequence[tuple[SensorReading, SensorReading]]) -> float | None:
    if sum(two.at - one.at for one, two in steps) < _MIN_SECONDS:
        return None
    rates = _measure_growth(steps, "busy_seconds", "own_busy_seconds")
    return max(0.0, rates[0] - rates[1]) / steps[0][0].num_processors if rates else None


# ---------------------------------------------------------------------- the thread that reads


class SensorSource(ABC):
    """The sensors of one device. Used from one thread."""

    @abstractmethod
    def read(self) -> SensorReading:
        """The present values; None where one cannot be read."""

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Releases the sensors."""


@final
class Monitor:
    """Monitors trials by number. ``source_of`` makes the source of a device (``cuda:0``, ``cpu``), in the thread."""

    def __init__(self, source_of: Callable[[str], SensorSource], interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._source_of, self._interval = source_of, interval_seconds
        self._sources: dict[str, SensorSource | None] = {}
        self._watches: dict[int, dict[str, list[SensorReading]]] = {}  # by trial and device
        self._lock = threading.Lock()
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()

    def begin(self, number: int, devices: Sequence[str]) -> None:
        with self._lock:
            self._watches[number] = {device: [] for device in devices}
        self._wake.set()
        if self._thread is None:
            # a daemon thread, because a driver that hangs must not keep the program from ending
            self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
            self._thread.start()

    def read_utilization(self, number: int) -> float | None:
        """Share of the last two seconds in which the GPUs of trial ``number`` were busy; None where it is not read."""
        with self._lock:
            latest = [reading for readings in self._watches.get(number, {}).values() for reading in readings[-_LATEST:]]
        shares = _list_values(latest, "utilization")
        return sum(shares) / len(shares) if shares else None

    def end(self, number: int, spans: Sequence[Span] = ()) -> DeviceSummary:
        """Ends the monitoring of trial ``number``; its summary over ``spans``, in which it trained."""
        with self._lock:
            watch = self._watches.pop(number, None)
        if watch is None or not spans:
            return DeviceSummary()
        return merge_summaries([summarize_readings(readings, spans) for readings in watch.values()])

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * self._interval)

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                devices = {device for watch in self._watches.values() for device in watch}
                if not devices:
                    self._wake.clear()
            if not devices:
                self._wake.wait()
                continue
            for device in devices:
                self._read_device(device)
            self._closed.wait(self._interval)
        for source in self._sources.values():
            if source is not None:
                source.close()

    def _read_device(self, device: str) -> None:
        try:
            if device not in self._sources:
                self._sources[device] = None  # also where making one fails
                self._sources[device] = self._source_of(device)
            source = self._sources[device]
            if source is not None:
                self._keep(device, source.read())
        except Exception as error:  # whatever a driver's library may raise
            if device not in self._warned:
                self._warned.add(device)
                text = "%s is not monitored (%s: %s); its measurements stay empty"
                _log.warning(text, device, type(error).__name__, error)

    def _keep(self, device: str, reading: SensorReading) -> None:
        with self._lock:
            for readings in [watch[device] for watch in self._watches.values() if device in watch]:
                readings.append(reading)
                if len(readings) > _MAX_READINGS:
                    del readings[::2]


# ---------------------------------------------------------------------- the sensors of the host


@final
class HostSource(SensorSource):
    """Reads the processors that this process may use, and the process tree under ``root_pid`` (this process's)."""

    def __init__(self, root_pid: int | None = None) -> None:
        self._root = psutil.Process(root_pid)
        self._processors = sorted(os.sched_getaffinity(0))
        self._tree: list[psutil.Process] = []
        self._num_readings = 0

    def read(self) -> SensorReading:
        return SensorReading(
            at=time.perf_counter(),
            busy_seconds=self._busy_seconds(),
            own_busy_seconds=self._own_seconds(),
            num_processors=len(self._processors),
        )

    def _busy_seconds(self) -> float | None:
        # "Steal" time, which the host of a virtual machine takes, counts as used by others. The kernel includes the
        # time of guests in user and nice already.
        times = psutil.cpu_times(percpu=True)
        allowed = [times[number] for number in self._processors if number < len(times)]
        excluded = ("idle", "iowait", "guest", "guest_nice")
        return float(sum(sum(one) - sum(getattr(one, name, 0.0) for name in excluded) for one in allowed))

    def _own_seconds(self) -> float | None:
        # The tree need not be walked, which reads a file per process, at each reading: the time of an ended process is
        # added to its parent, and the counter of a process that is found late is complete.
        if self._num_readings % _READINGS_PER_TREE == 0:
            self._tree = [self._root, *self._root.children(recursive=True)]
        self._num_readings += 1
        total = 0.0
        for process in self._tree:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        return total


# ---------------------------------------------------------------------- the sensors of a GPU, by NVIDIA's library


def query_nvml(query: Callable[[Any], Value]) -> Value | None:
    """The result of ``query``, called with NVIDIA's library; None where the library or the driver is missing or the
    query fails."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, or one that does not fit: each raises something else
        return None
    try:
        return query(pynvml)
    except Exception:
        return None
    finally:
        pynvml.nvmlShutdown()


@cache
def read_driver_version() -> str:
    """Version of NVIDIA's driver, or ``""``."""
    return query_nvml(lambda nvml: str(nvml.nvmlSystemGetDriverVersion())) or ""


def find_gpu(library: Any, entry: str) -> Any:
    """The library's handle of a GPU, by its number in the order of the bus or by its UUID (``GPU-...``; ``MIG-...`` for
    a part of one). Raises ``Exception``: the library's own, when it does not know the device."""
    return (
        library.nvmlDeviceGetHandleByIndex(int(entry)) if entry.isdigit() else library.nvmlDeviceGetHandleByUUID(entry)
    )


def read_power_limit(uuid: str) -> float:
    """The power limit of the GPU ``GPU-...`` in watts; 0.0 where it cannot be read."""
    milliwatts = query_nvml(lambda nvml: nvml.nvmlDeviceGetPowerManagementLimit(find_gpu(nvml, uuid)))
    return float((milliwatts or 0) / 1e3)


def read_process_bytes(uuid: str) -> int:
    """All bytes that this process holds on the GPU ``GPU-...``; 0 where the driver does not report them, as inside most
    containers."""

    def query(nvml: Any) -> int:
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(find_gpu(nvml, uuid))
        return sum(process.usedGpuMemory or 0 for process in listed if process.pid == os.getpid())

    return query_nvml(query) or 0


def _list_own_pids() -> frozenset[int]:
    own = psutil.Process()
    return frozenset({own.pid, *(child.pid for child in own.children(recursive=True))})


@final
class NvmlSource(SensorSource):
    """Reads one GPU. ``entry`` is its number in the order of the bus, or its UUID, as in :func:`find_gpu`.

    A query that fails leaves its field empty and is warned of once; the others continue. Raises ``Exception``: of the
    library, when it is missing, does not fit the driver or does not know the device."""

    def __init__(self, entry: str, library: Any = None, ours: Callable[[], Collection[int]] = _list_own_pids) -> None:
        self._entry, self._library, self._ours = entry, library or import_module("pynvml"), ours
        self._library.nvmlInit()
        self._device = find_gpu(self._library, entry)
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
            # the older name of the call, which older libraries have as well
            is_throttled=self._query(
                "clock reasons", lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & _THROTTLING)
            ),
            num_others=num_others,
            other_memory_bytes=None if memory is None or own_memory is None else memory - own_memory,
        )

    def close(self) -> None:
        self._query("shutdown", self._library.nvmlShutdown)

    def _temperature(self) -> float:
        return float(self._library.nvmlDeviceGetTemperature(self._device, self._library.NVML_TEMPERATURE_GPU))

    def _processes(self) -> tuple[int, int | None]:
        # The number of other programs' processes, and the bytes of this program's. In a container the ids may be of
        # another namespace: then one process is taken to be this program's, and the bytes are unknown.
        listed = self._library.nvmlDeviceGetComputeRunningProcesses(self._device)
        own = set(self._ours())
        held = [process.usedGpuMemory for process in listed if process.pid in own]
        if not held:
            return max(0, len(listed) - 1), None
        return len(listed) - len(held), None if None in held else sum(held)

    def _query(self, what: str, query: Callable[[], Value]) -> Value | None:
        try:
            return query()
        except Exception as error:  # each version of the library has its own
            if what not in self._refused:
                self._refused.add(what)
                _log.warning("GPU %s: its %s cannot be read (%s); the field stays empty", self._entry, what, error)
            return None
