"""An executor whose trials are monitored: readings taken during the training are added to its ending."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final, get_args

from sweep.config.metrics import Sensor
from sweep.executors.base import Executor, ExecutorWrapper
from sweep.measurement.monitor import HostSource, Monitor, NvmlSource, SensorSource
from sweep.measurement.quality import find_reference_flags
from sweep.records.messages import Ending, Heartbeat, Message, Progress, Task
from sweep.records.quality import BUSY_HOST, PROCESSOR_WAIT, SLOWED_BY_OTHERS

SENSORS: frozenset[Sensor] = frozenset(get_args(Sensor))

_log = logging.getLogger(__name__)


@final
class MonitoredExecutor(ExecutorWrapper):
    """Adds metrics and quality flags to the endings of ``inner``, which trains on this machine.

    ``references`` are the seconds of the reference work before earlier trials, by device class.
    """

    def __init__(self, inner: Executor, monitor: Monitor, references: Mapping[str, Sequence[float]]) -> None:
        super().__init__(inner)
        self._monitor = monitor
        self._references = {device: list(seconds) for device, seconds in references.items()}
        self._unidentified: set[int] = set()  # trials that have not reported their GPUs yet

    def start(self, task: Task) -> None:
        super().start(task)
        devices = self.devices_of(task.number)
        if any(device.startswith("cuda") for device in devices):  # the trial itself reports which GPUs they are
            self._unidentified.add(task.number)
        else:
            self._monitor.begin(task.number, devices)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._add_readings(number, message)) for number, message in super().poll(timeout_seconds)]

    def stop(self, number: int) -> None:
        super().stop(number)
        self._unidentified.discard(number)
        self._monitor.end(number)

    def close(self) -> None:
        self._monitor.close()
        super().close()

    def _add_readings(self, number: int, message: Message) -> Message:
        if isinstance(message, Heartbeat) and message.gpus and number in self._unidentified:
            self._unidentified.discard(number)
            self._monitor.begin(number, message.gpus)
        if isinstance(message, Progress):
            return replace(message, gpu_utilization=self._monitor.read_utilization(number))
        return self._annotate(number, message) if isinstance(message, Ending) else message

    def _annotate(self, number: int, ending: Ending) -> Ending:
        self._unidentified.discard(number)
        seen = self._monitor.end(number, ending.training_spans)
        flags = [*ending.quality_flags, *seen.flags, *self._compare_reference(ending)]
        # On an idle host a trial has waited for its own processes, and a GPU may continue while its host waits.
        if {PROCESSOR_WAIT, BUSY_HOST} <= set(flags) and ending.environment.get("device_type") == "cpu":
            flags.append(SLOWED_BY_OTHERS)
        return replace(
            ending,
            measurements=ending.measurements | _scale_to_all_attempts(seen.measurements, ending),
            quality_flags=tuple(dict.fromkeys(flags)),
        )

    def _compare_reference(self, ending: Ending) -> tuple[str, ...]:
        seconds = ending.measurements.get("reference_seconds")
        if seconds is None:
            return ()
        others, is_probe = self._references.setdefault(ending.device, []), "step_seconds_mean" in ending.measurements
        flags = find_reference_flags(seconds, others, is_probe=is_probe)
        if not is_probe:
            others.append(seconds)
        return flags


def _scale_to_all_attempts(seen: dict[str, float], ending: Ending) -> dict[str, float]:
    # The energy of earlier attempts was not kept; the mean power of this one is used for them.
    watched_seconds = sum(end - begin for begin, end in ending.training_spans)
    if "energy_joules" not in seen or not watched_seconds:
        return seen
    trained_seconds = ending.measurements.get("train_seconds", watched_seconds)
    return seen | {"energy_joules": seen["energy_joules"] * max(1.0, trained_seconds / watched_seconds)}


def make_source(device: str) -> SensorSource:
    """The source of readings of ``device``: ``cpu``, or a GPU by its UUID, or by its number in the order of the bus."""
    return HostSource() if device == "cpu" else NvmlSource(device)


def read_sensors(name: str) -> frozenset[Sensor]:
    """The sensors of the GPU that NVML calls ``name`` which can be read at the moment."""
    try:
        with contextlib.closing(make_source(name)) as source:
            reading = source.read()
    except Exception as error:  # whatever a driver's library may raise
        _log.warning("GPU %s has no sensors (%s: %s)", name, type(error).__name__, error)
        return frozenset()
    if reading.energy_joules is not None:  # a mean power follows from the energy as well
        return SENSORS
    return frozenset({"power"}) if reading.power_watts is not None else frozenset()
