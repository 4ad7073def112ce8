"""An executor that trains several trials at once on each device, to measure accuracy only.

The times and the memory that such a trial measures are not those of a trial alone. They are replaced by those of solo
probes, with the quality flag ``packed``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from sweep.config.metrics import METRICS, list_following
from sweep.config.trial_config import TrialConfig
from sweep.executors.base import Executor, ExecutorWrapper
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.attempt_causes import CROWDED
from sweep.records.messages import Ending, Evaluation, Message, Progress, Task, TrialTask
from sweep.records.quality_flags import CONFIGURATION_FLAGS, PACKED


@final
@dataclass(frozen=True, kw_only=True)
class ProbedCost:
    """What solo probes have measured of a configuration; None for what they have not."""

    epoch_seconds: float | None = None  # of training
    peak_memory_bytes: int | None = None
    eval_peak_memory_bytes: int | None = None
    device: str = ""  # class of the probed device
    flags: tuple[str, ...] = ()  # quality flags of the probes

    def train_seconds(self, epochs: float) -> float:
        """Of ``epochs`` epochs; NaN if unknown."""
        return math.nan if self.epoch_seconds is None else self.epoch_seconds * epochs


@final
class PackedExecutor(ExecutorWrapper):
    """``inner``, which trains by ``process``: one trial on each device until :meth:`pack`. Probes always run alone."""

    def __init__(self, inner: Executor, process: ProcessExecutor) -> None:
        super().__init__(inner)
        self.process = process
        self._num_devices = process.slots
        self._per_device, self._divided = 1, 1
        self._cost_of: Callable[[TrialConfig], ProbedCost] = lambda _config: ProbedCost()
        self._environment: dict[str, str] = {}
        self._costs: dict[int, ProbedCost] = {}  # of the packed trials that run
        self._running: set[int] = set()

    def pack(
        self,
        per_device: int,
        cost_of: Callable[[TrialConfig], ProbedCost],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """From now on ``per_device`` trials run at once on each device, with the variables of ``environment``. A single
        trial per device is not packed: its own measurements are valid."""
        self._per_device, self._cost_of = per_device, cost_of
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
            self._costs[task.number] = self._cost_of(task.config)
        super().start(task)
        self._running.add(task.number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._convert(number, message)) for number, message in super().poll(timeout_seconds)]

    def stop(self, number: int) -> None:
        super().stop(number)
        self._remove(number)

    def _divide_devices(self, per_device: int) -> None:
        if not self._running and per_device != self._divided:
            self.process.divide(per_device, self._environment if per_device > 1 else {})
            self._divided = per_device

    def _convert(self, number: int, message: Message) -> Message:
        cost = self._costs.get(number)
        if isinstance(message, Ending):
            self._remove(number)
        return message if cost is None else replace_by_probed(message, cost)

    def _remove(self, number: int) -> None:
        self._running.discard(number)
        self._costs.pop(number, None)


def replace_by_probed(message: Message, cost: ProbedCost) -> Message:
    """A packed trial's ``message`` with the times and the memory of solo probes in place of its own."""
    if isinstance(message, Progress):
        flags = (PACKED, *_flags_of_configuration(message.quality_flags))
        return replace(message, peak_memory_bytes=cost.peak_memory_bytes, quality_flags=flags)
    if isinstance(message, Evaluation):
        return replace(message, train_seconds=cost.train_seconds(message.epoch))
    if not isinstance(message, Ending):
        return message
    if message.outcome == "out_of_memory" and cost.peak_memory_bytes is not None:
        # alone it fits
        error = f"out of memory while other trials shared the device: {message.error}".strip(": ")
        return Ending(outcome="crashed", error=error, cause=CROWDED)
    kept = {name: value for name, value in message.measurements.items() if not METRICS[name].is_of_a_device}
    flags = (PACKED, *_flags_of_configuration(message.quality_flags), *cost.flags)
    return replace(
        message,
        measurements=kept | _probed_measurements(message.measurements, cost),
        device=cost.device if message.device else "",
        quality_flags=tuple(dict.fromkeys(flags)),
        bottleneck="",
    )


def _probed_measurements(own: Mapping[str, float | int], cost: ProbedCost) -> dict[str, float | int]:
    measurements: dict[str, float | int] = {}
    peaks = {"peak_memory_bytes": cost.peak_memory_bytes, "eval_peak_memory_bytes": cost.eval_peak_memory_bytes}
    if own.get("num_epochs"):
        measurements |= {name: value for name, value in peaks.items() if value is not None}
    seconds = cost.train_seconds(float(own.get("num_epochs", 0.0)))
    if seconds > 0.0:
        measurements |= replace_train_seconds(own, seconds)
    return measurements


def replace_train_seconds(own: Mapping[str, float | int], seconds: float) -> dict[str, float | int]:
    """``train_seconds``, and the values of ``own`` that follow from it."""
    measurements: dict[str, float | int] = {}
    if own.get("train_seconds"):
        factor = seconds / own["train_seconds"]
        for name in filter(own.__contains__, list_following("train_seconds")):
            is_rate = METRICS[name].unit_facts.measures == "rate"
            measurements[name] = own[name] / factor if is_rate else own[name] * factor
    if "steps_to_target" in own and own.get("num_steps", 0) > 0:
        # the quotient first, so that a training that ends at its target takes exactly the same time to it
        measurements["seconds_to_target"] = seconds * (own["steps_to_target"] / own["num_steps"])
    return measurements | {"train_seconds": seconds}


def _flags_of_configuration(flags: tuple[str, ...]) -> tuple[str, ...]:
    # what the flags of the shared device do not replace
    return tuple(flag for flag in flags if flag in CONFIGURATION_FLAGS)
