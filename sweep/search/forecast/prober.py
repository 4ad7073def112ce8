"""Probes and estimates as the supervisor has them: taken from the records where they are there, else asked for."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from sweep.config.errors import InputError
from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import Shape, micro_batch, probed_config, shape_key, shape_of
from sweep.records.content_key import code_digest
from sweep.records.messages import Ending, EstimateTask, ProbeTask, Task
from sweep.records.probe_records import ProbeBook, ProbeRecord, forecast_record, open_book, probe_record
from sweep.records.store.store import StoreError

_log = logging.getLogger(__name__)
Ask = Callable[[Task], Ending]


@dataclass(frozen=True)
class ProbePlan:
    """What every question has in common. ``device`` as a task names it, ``device_class`` as records do."""

    device: str
    device_class: str
    plugin: str | None = None
    memory_limit_bytes: int | None = None


@final
class Prober:
    """Looks shapes up and has the others probed by ``ask``; ``book`` keeps them for every study of a root."""

    def __init__(self, ask: Ask, plan: ProbePlan, book: ProbeBook | None = None) -> None:
        self._ask = ask
        self._plan = plan
        self._book = book
        self._code = code_digest([Path(plan.plugin)] if plan.plugin else [])
        kept = book.of_device(plan.device_class) if book else []
        self._known = {probe.shape_key: probe for probe in kept}
        self._has_warned = False
        self.used: dict[str, ProbeRecord] = {}  # by shape key, what this one handed out
        self.forecasts: dict[str, ProbeRecord] = {}  # by shape key, what was estimated without running anything

    def valid(self) -> list[ProbeRecord]:
        """The known probes that today's code would make again."""
        return [probe for key, probe in self._known.items() if key == self._key(Shape.from_text(probe.shape))]

    def find(self, config: TrialConfig) -> ProbeRecord | None:
        """The probe of the shape of ``config`` where there is one."""
        key = self._key(shape_of(config))
        if key not in self._known:
            return None
        self.used[key] = self._known[key]
        return self._known[key]

    def probe(self, config: TrialConfig, timed_seconds: float) -> ProbeRecord:
        """Probes the shape of ``config`` now, and keeps what it told."""
        shape = shape_of(config)
        ending, launch_seconds = self._run(probed_config(config), timed_seconds)
        record = probe_record(self._key(shape), shape.text, micro_batch(config), ending, launch_seconds)
        self._known[record.shape_key] = self.used[record.shape_key] = record
        if self._book and record.outcome != "crashed":
            try:
                self._book.keep(record, ending.environment)
            except StoreError as error:
                _log.warning("a probe was not kept: %s", error)
        return _within(record, self._plan.memory_limit_bytes)

    def time_steps(self, config: TrialConfig, timed_seconds: float) -> Ending:
        """Times the steps of ``config`` as they are, with all their micro batches; keeps nothing."""
        return self._run(config, timed_seconds)[0]

    def estimate_peak_memory_bytes(self, config: TrialConfig) -> int | None:
        """The estimated peak of a training step of ``config``; None where it cannot be estimated."""
        ending = self._ask(EstimateTask(number=0, config=config, device=self._plan.device, plugin=self._plan.plugin))
        if ending.outcome != "complete":
            if not self._has_warned:
                _log.warning("no estimate of memory, so nothing is held back for it: %s", _last_line(ending.error))
            self._has_warned = True
            return None
        shape = shape_of(config)
        key, device = self._key(shape), self._plan.device_class
        self.forecasts[key] = forecast_record(key, device, shape.text, micro_batch(config), ending.measurements)
        return int(ending.measurements["peak_memory_bytes"])

    def _run(self, config: TrialConfig, timed_seconds: float) -> tuple[Ending, float]:
        began = time.monotonic()
        task = ProbeTask(
            number=0,
            config=config,
            device=self._plan.device,
            plugin=self._plan.plugin,
            memory_limit_bytes=self._plan.memory_limit_bytes,
            timed_seconds=timed_seconds,
        )
        ending = self._ask(task)
        spent = float(ending.measurements.get("total_seconds", 0.0))
        return ending, max(time.monotonic() - began - spent, 0.0)

    def _key(self, shape: Shape) -> str:
        return shape_key(shape, self._code)


@contextlib.contextmanager
def shared_book(root: Path) -> Iterator[ProbeBook | None]:
    """The book of all studies under ``root``; None, with a warning, where there can be none: probes are forgotten."""
    try:
        book = open_book(root)
    except (InputError, StoreError, OSError) as error:
        _log.warning("probes are not kept: %s", error)
        yield None
        return
    with contextlib.closing(book):
        yield book


def _within(record: ProbeRecord, limit_bytes: int | None) -> ProbeRecord:
    # it ran, but used more than it may
    if limit_bytes is None or not record.is_complete or (record.peak_memory_bytes or 0) <= limit_bytes:
        return record
    error = f"a peak of {record.peak_memory_bytes} bytes, above the limit of {limit_bytes}"
    return replace(record, outcome="not_fitting", error=error)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
