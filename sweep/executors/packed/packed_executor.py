"""An executor that trains several trials at once on each device, to measure accuracy only.

The times that such a trial measures are not those of a trial alone: they are recorded as the clock gave them, with the
quality flag ``packed``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from sweep.config.metrics import METRICS
from sweep.config.trial_config import TrialConfig
from sweep.executors.base import Executor, ExecutorWrapper
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.attempt_causes import CROWDED
from sweep.records.messages import Ending, Message, Progress, Task, TrialTask
from sweep.records.quality_flags import PACKED


@final
class PackedExecutor(ExecutorWrapper):
    """``inner``, which trains by ``process``: one trial on each device until :meth:`pack`. Probes always run alone."""

    def __init__(self, inner: Executor, process: ProcessExecutor) -> None:
        super().__init__(inner)
        self.process = process
        self._num_devices = process.slots
        self._per_device, self._divided = 1, 1
        self._fits_alone: Callable[[TrialConfig], bool] = lambda _config: False
        self._device_class = ""
        self._environment: dict[str, str] = {}
        self._packed: dict[int, TrialConfig] = {}  # the packed trials that run
        self._running: set[int] = set()

    def pack(
        self,
        per_device: int,
        device_class: str,
        fits_alone: Callable[[TrialConfig], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """From now on ``per_device`` processes run at once on each device of ``device_class``, with the variables of
        ``environment``. A single trial per device is not packed."""
        self._per_device = per_device
        self._device_class, self._fits_alone = device_class, fits_alone
        self._environment, self._divided = dict(environment or {}), 0

    @property
    def slots(self) -> int:
        return self._num_devices * self._per_device

    def describe(self) -> dict[str, Any]:
        self._divide_devices(1)
        return super().describe()

    def start(self, task: Task) -> None:
        is_trial = isinstance(task, TrialTask)
        self._divide_devices(self._per_device if is_trial else 1)
        if is_trial and self._per_device > 1:
            self._packed[task.number] = task.config
        super().start(task)
        self._running.add(task.number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._flag(number, message)) for number, message in super().poll(timeout_seconds)]

    def stop(self, number: int) -> None:
        super().stop(number)
        self._remove(number)

    def _divide_devices(self, per_device: int) -> None:
        if not self._running and per_device != self._divided:
            self.process.divide(per_device, self._environment if per_device > 1 else {})
            self._divided = per_device

    def _flag(self, number: int, message: Message) -> Message:
        config = self._packed.get(number)
        if isinstance(message, Ending):
            self._remove(number)
        if config is None or not isinstance(message, Progress | Ending):
            return message
        flagged = replace(message, quality_flags=tuple(dict.fromkeys((PACKED, *message.quality_flags))))
        return self._describe_shared(config, flagged) if isinstance(flagged, Ending) else flagged

    def _describe_shared(self, config: TrialConfig, ending: Ending) -> Ending:
        if ending.outcome == "out_of_memory" and self._fits_alone(config):
            error = f"out of memory while other trials shared the device: {ending.error}".strip(": ")
            return Ending(outcome="crashed", error=error, cause=CROWDED)
        # the readings of a device are those of all its trials, and its class is that of the whole device
        own = {name: value for name, value in ending.measurements.items() if not _is_reading(name)}
        return replace(ending, measurements=own, device=self._device_class if ending.device else "", bottleneck="")

    def _remove(self, number: int) -> None:
        self._running.discard(number)
        self._packed.pop(number, None)


def _is_reading(name: str) -> bool:
    return METRICS[name].unit_facts.measures == "hardware" or name == "gpu_utilization"
