"""An executor that trains several trials at once on each device, for accuracy alone.

What such a trial measures of time and memory is not what it would be alone, and is dropped. In its place stands what
solo probes tell, under the quality flag ``packed``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from sweep.config.metrics import METRICS
from sweep.config.trial_config import TrialConfig
from sweep.executors.base import Executor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.measurement.quality import OF_THE_CONFIGURATION, PACKED
from sweep.records.attempt_causes import CROWDED
from sweep.records.messages import Ending, Evaluation, Message, Progress, Task, TrialTask


@final
@dataclass(frozen=True)
class Quote:
    """What solo probes tell of a configuration; None where they do not. ``flags`` are the doubts about them."""

    epoch_seconds: float | None = None  # of training
    peak_memory_bytes: int | None = None
    device: str = ""  # the class of the one that was probed
    flags: tuple[str, ...] = ()

    def train_seconds(self, epochs: float) -> float:
        """Of so many epochs; NaN where nothing is known."""
        return math.nan if self.epoch_seconds is None else self.epoch_seconds * epochs


@final
class PackedExecutor(Executor):
    """Hands everything on to ``inner``, whose trials ``process`` trains: one at a time on each device until
    :meth:`pack` is called. Probes keep running alone."""

    def __init__(self, inner: Executor, process: ProcessExecutor) -> None:
        self._inner, self.process = inner, process
        self._num_devices = process.slots
        self._per_device, self._divided = 1, 1
        self._quote_of: Callable[[TrialConfig], Quote] = lambda _config: Quote()
        self._environment: dict[str, str] = {}
        self._quotes: dict[int, Quote] = {}  # of the trials that run packed
        self._running: set[int] = set()

    def pack(
        self, per_device: int, quote_of: Callable[[TrialConfig], Quote], environment: Mapping[str, str] | None = None
    ) -> None:
        """So many trials at once on each device from now on, each with ``environment`` beside its own. One at a time is
        not packed: it measures for itself."""
        self._per_device, self._quote_of = per_device, quote_of
        self._environment, self._divided = dict(environment or {}), 0

    @property
    def slots(self) -> int:
        return self._num_devices * self._per_device

    def describe(self) -> dict[str, Any]:
        self._divide(1)
        return self._inner.describe()

    def start(self, task: Task) -> None:
        is_trial = isinstance(task, TrialTask)
        self._divide(self._per_device if is_trial else 1)
        if is_trial and self._per_device > 1:
            self._quotes[task.number] = self._quote_of(task.config)
        self._inner.start(task)
        self._running.add(task.number)

    def devices_of(self, number: int) -> tuple[str, ...]:
        return self._inner.devices_of(number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._told(number, said)) for number, said in self._inner.poll(timeout_seconds)]

    def ask_to_leave(self, number: int) -> None:
        self._inner.ask_to_leave(number)

    def stop(self, number: int) -> None:
        self._inner.stop(number)
        self._forget(number)

    def close(self) -> None:
        self._inner.close()

    def _divide(self, per_device: int) -> None:
        if not self._running and per_device != self._divided:
            self.process.divide(per_device, self._environment if per_device > 1 else {})
            self._divided = per_device

    def _told(self, number: int, said: Message) -> Message:
        quote = self._quotes.get(number)
        if isinstance(said, Ending):
            self._forget(number)
        return said if quote is None else as_probed(said, quote)

    def _forget(self, number: int) -> None:
        self._running.discard(number)
        self._quotes.pop(number, None)


def as_probed(said: Message, quote: Quote) -> Message:
    """What a packed trial said, with the times and the memory of solo probes in the place of its own."""
    if isinstance(said, Progress):
        flags = (PACKED, *_kept(said.quality_flags))
        return replace(said, peak_memory_bytes=quote.peak_memory_bytes, quality_flags=flags)
    if isinstance(said, Evaluation):
        return replace(said, train_seconds=quote.train_seconds(said.epoch))
    if not isinstance(said, Ending):
        return said
    if said.outcome == "out_of_memory" and quote.peak_memory_bytes is not None:
        # alone it fits
        return Ending(
            outcome="crashed", error=f"memory ran out beside other trials: {said.error}".strip(": "), cause=CROWDED
        )
    kept = {name: value for name, value in said.measurements.items() if not METRICS[name].is_of_a_device}
    flags = tuple(dict.fromkeys((PACKED, *_kept(said.quality_flags), *quote.flags)))
    return replace(
        said,
        measurements=kept | _probed(said.measurements, quote),
        device=quote.device if said.device else "",
        quality_flags=flags,
        bottleneck="",
    )


def _probed(own: Mapping[str, float | int], quote: Quote) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    if quote.peak_memory_bytes is not None and own.get("num_epochs"):
        found["peak_memory_bytes"] = quote.peak_memory_bytes
    seconds = quote.train_seconds(float(own.get("num_epochs", 0.0)))
    if seconds > 0.0:
        found["train_seconds"] = seconds
        if "train_seconds" in own:
            rates = {name: value for name, value in own.items() if METRICS[name].is_rate}
            found |= {name: value * own["train_seconds"] / seconds for name, value in rates.items()}
    return found


def _kept(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if flag in OF_THE_CONFIGURATION)
