"""An executor whose trials are watched: what the monitor saw while a trial trained goes into its ending."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from sweep.executors.base import Executor
from sweep.executors.devices import pinned_environment
from sweep.measurement.monitor import Monitor, Source
from sweep.measurement.quality import reference_flags
from sweep.records.messages import Ending, Message, Task


@final
class MonitoredExecutor(Executor):
    """Hands everything on to ``inner``, which trains on this machine; adds metrics and quality flags to endings.

    ``references`` are the seconds that the reference work took before earlier trials, by device class.
    """

    def __init__(self, inner: Executor, monitor: Monitor, references: Mapping[str, Sequence[float]]) -> None:
        self._inner, self._monitor = inner, monitor
        self._references = {device: list(seconds) for device, seconds in references.items()}

    @property
    def slots(self) -> int:
        return self._inner.slots

    def describe(self) -> dict[str, Any]:
        return self._inner.describe()

    def start(self, task: Task) -> None:
        self._inner.start(task)
        self._monitor.begin(task.number, self._inner.devices_of(task.number))

    def devices_of(self, number: int) -> tuple[str, ...]:
        return self._inner.devices_of(number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        news = self._inner.poll(timeout_seconds)
        return [(number, self._annotated(number, said) if isinstance(said, Ending) else said) for number, said in news]

    def ask_to_leave(self, number: int) -> None:
        self._inner.ask_to_leave(number)

    def stop(self, number: int) -> None:
        self._inner.stop(number)
        self._monitor.drop(number)

    def close(self) -> None:
        self._monitor.close()
        self._inner.close()

    def _annotated(self, number: int, ending: Ending) -> Ending:
        seen = self._monitor.end(number, ending.training_spans)
        flags = (*ending.quality_flags, *seen.flags, *self._compare(ending))
        return replace(
            ending,
            measurements=ending.measurements | _of_all_attempts(seen.measurements, ending),
            quality_flags=tuple(dict.fromkeys(flags)),
        )

    def _compare(self, ending: Ending) -> tuple[str, ...]:
        seconds = ending.measurements.get("reference_seconds")
        if seconds is None:
            return ()
        others = self._references.setdefault(ending.device, [])
        flags = reference_flags(seconds, others)
        others.append(seconds)
        return flags


def _of_all_attempts(seen: dict[str, float], ending: Ending) -> dict[str, float]:
    # what the attempts before drew is lost with them; the power of this one stands for theirs
    watched_seconds = sum(end - begin for begin, end in ending.training_spans)
    if "energy_joules" not in seen or not watched_seconds:
        return seen
    trained_seconds = ending.measurements.get("train_seconds", watched_seconds)
    return seen | {"energy_joules": seen["energy_joules"] * max(1.0, trained_seconds / watched_seconds)}


def source_of(device: str) -> Source:
    """Where readings of ``device`` (``cpu``, or ``cuda:1`` as this process counts them) come from."""
    if device.startswith("cuda"):
        from sweep.measurement.nvml import NvmlSource

        return NvmlSource(pinned_environment(device)["CUDA_VISIBLE_DEVICES"])
    from sweep.measurement.host import HostSource

    return HostSource()
