"""Reads the sensors of devices twice a second while trials train on them, in a thread that the supervisor never waits
for. A failure leaves fields empty and does not affect the trial."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

from sweep.measurement.device_trace import DeviceSummary, SensorReading, Span, merge_summaries, summarize_readings

_log = logging.getLogger(__name__)
_INTERVAL_SECONDS = 0.5
_LATEST = 4  # readings of a live value
_MAX_READINGS = 20_000  # of one trial on one device, about three hours; then every second one is dropped


class SensorSource(ABC):
    """The sensors of one device. Used from one thread."""

    @abstractmethod
    def read(self) -> SensorReading:
        """The present values; None where one cannot be read."""

    @abstractmethod
    def close(self) -> None:
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
            latest = [readings[-_LATEST:] for readings in self._watches.get(number, {}).values()]
        shares = [each.utilization for readings in latest for each in readings if each.utilization is not None]
        return sum(shares) / len(shares) if shares else None

    def end(self, number: int, spans: Sequence[Span]) -> DeviceSummary:
        """Ends the monitoring of trial ``number``; its summary over ``spans``, in which it trained."""
        with self._lock:
            watch = self._watches.pop(number, None)
        if watch is None or not spans:
            return DeviceSummary()
        return merge_summaries([summarize_readings(readings, spans) for readings in watch.values()])

    def drop(self, number: int) -> None:
        with self._lock:
            self._watches.pop(number, None)

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
            self._warn(device, error)

    def _keep(self, device: str, reading: SensorReading) -> None:
        with self._lock:
            for readings in [watch[device] for watch in self._watches.values() if device in watch]:
                readings.append(reading)
                if len(readings) > _MAX_READINGS:
                    del readings[::2]

    def _warn(self, device: str, error: Exception) -> None:
        if device not in self._warned:
            self._warned.add(device)
            _log.warning(
                "%s is not monitored (%s: %s); its measurements stay empty", device, type(error).__name__, error
            )
