"""Several trials at once on each device, to measure accuracy only.

Such a trial takes longer than one alone: its times are recorded as the clock gave them, with the quality flag
``packed``. On a GPU processes take turns, unless the user has started NVIDIA's Multi-Process Service.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

from sweep.config.metrics import METRICS
from sweep.config.trial import TrialConfig
from sweep.executors.base import Executor, ExecutorWrapper
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import CROWDED, Ending, Message, Progress, Task, TrialTask
from sweep.records.quality import PACKED


@final
class PackedExecutor(ExecutorWrapper):
    """``inner``, which trains by ``process``: one trial on each device until :meth:`pack`. Probes always run alone."""

    def __init__(self, inner: Executor, process: ProcessExecutor) -> None:
        super().__init__(inner)
        self._process = process
        self._num_devices = process.slots
        self._per_device, self._divided = 1, 1
        self._fits_alone: Callable[[TrialConfig], bool] = lambda _config: False
        self._device_class = ""
        self._running: dict[int, TrialConfig | None] = {}  # by number; None of what is not packed

    def pack(self, per_device: int, device_class: str, fits_alone: Callable[[TrialConfig], bool]) -> None:
        """From now on ``per_device`` processes run at once on each device of ``device_class``. A single trial per
        device is not packed."""
        self._per_device, self._device_class, self._fits_alone = per_device, device_class, fits_alone

    @property
    def slots(self) -> int:
        return self._num_devices * self._per_device

    def describe(self) -> dict[str, Any]:
        self._divide_devices(1)
        return super().describe()

    def start(self, task: Task) -> None:
        config = task.config if isinstance(task, TrialTask) and self._per_device > 1 else None
        self._divide_devices(self._per_device if config else 1)
        super().start(task)
        self._running[task.number] = config

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._flag(number, message)) for number, message in super().poll(timeout_seconds)]

    def stop(self, number: int) -> None:
        super().stop(number)
        self._running.pop(number, None)

    def _divide_devices(self, per_device: int) -> None:
        if not self._running and per_device != self._divided:
            self._process.divide(per_device)
            self._divided = per_device

    def _flag(self, number: int, message: Message) -> Message:
        config = self._running.get(number)
        if isinstance(message, Ending):
            self._running.pop(number, None)
        if config is None or not isinstance(message, Progress | Ending):
            return message
        flagged = replace(message, quality_flags=tuple(dict.fromkeys((PACKED, *message.quality_flags))))
        return self._describe_shared(config, flagged) if isinstance(flagged, Ending) else flagged

    def _describe_shared(self, config: TrialConfig, ending: Ending) -> Ending:
        if ending.outcome == "out_of_memory" and self._fits_alone(config):
            error = f"out of memory while other trials shared the device: {ending.error}".strip(": ")
            return Ending(outcome="crashed", error=error, cause=CROWDED)
        # A device's readings are of all its trials, and the class describes the whole device.
        measurements = {
            name: value
            for name, value in ending.measurements.items()
            if METRICS[name].unit_facts.measures != "hardware" and name != "gpu_utilization"
        }
        device = self._device_class if ending.device else ""
        return replace(ending, measurements=measurements, device=device, bottleneck="")
