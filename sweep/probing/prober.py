"""Probes and estimates for the supervisor, from the records where they are there, else made by the executor; and the
training times of trials that the sampler learns, for which disturbed shapes are probed. Imports no torch."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

from sweep.analysis.costs import clock_trials, estimate_times, list_references, predict_alone, scale_with_time
from sweep.config.errors import InputError, StoreError
from sweep.config.metrics import METRICS
from sweep.config.sections import DataSection
from sweep.config.study import StudySpec
from sweep.config.tables import DataFacts
from sweep.config.trial import TrialConfig
from sweep.probing.shape import Shape, derive_shape, make_probed_config, make_shape_key
from sweep.records.inputs import PROBE, digest_code
from sweep.records.messages import Ending, EstimateTask, ProbeTask, Task
from sweep.records.quality import LOADS_BESIDE, find_time_doubts, has_undisturbed_windows
from sweep.records.records import (
    CONFIG_PREFIX,
    MEMORY_PARTS,
    ProbeRecord,
    TrialRecord,
    make_forecast_record,
    make_probe_record,
)
from sweep.records.store import ProbeBook, open_book
from sweep.training.data.sources import find_facts

_TIMED_SECONDS = 1.5  # of a probe for a disturbed trial: several readings of a monitor
_MAX_TRIES = 2  # probes of one shape
_MAX_SHARE = 0.1  # of the time of the trials that is spent on such probes
_USUAL_SECONDS = 2.0  # of a probe

_log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- training times to learn, from records


def estimate_record_times(
    records: Sequence[TrialRecord], spec: StudySpec, probes: Iterable[ProbeRecord]
) -> list[TrialRecord]:
    """``records`` of one study with the training times to use. A time that cannot be used for certain stays as
    measured, with its standard error in ``errors``."""
    rows = [row for row, record in enumerate(records) if record.outcome == "complete"]
    # Within a study only the keys of its space vary.
    clocked = clock_trials(_frame([records[row] for row in rows], spec.space))
    times = estimate_times(clocked, list_references(probes))
    estimated = list(records)
    for row, seconds, error in zip(rows, times.seconds.tolist(), times.errors.tolist(), strict=True):
        record = records[row]
        measured = record.measurements.get("train_seconds")
        if error:
            speeds = {name: value for name, value in record.measurements.items() if METRICS[name].is_speed}
            errors = {name: error * float(value) for name, value in speeds.items()}
            estimated[row] = replace(record, errors=record.errors | errors)
        elif measured and seconds != measured:
            estimated[row] = replace(record, measurements=scale_with_time(record.measurements, seconds / measured))
    return estimated


def is_disturbed(record: TrialRecord) -> bool:
    """Whether the measured training time of ``record`` may not be the one to use."""
    return bool(find_time_doubts(record.quality_flags) or not LOADS_BESIDE.isdisjoint(record.quality_flags))


def _frame(records: Sequence[TrialRecord], keys: Iterable[str] = ()) -> pd.DataFrame:
    """What the times of ``records`` depend on, with the configuration ``keys``, in the form of the analysis."""
    keys = (*keys, "budget.seconds", "budget.target", "batch.schedule")
    rows = []
    for record in records:
        row: dict[str, Any] = {f"{CONFIG_PREFIX}{key}": record.values.get(key) for key in keys}
        row |= record.measurements | {"device": record.device, "shape_digest": record.shape_digest}
        rows.append(row | {"quality_flags": ",".join(record.quality_flags)})
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------- probes and estimates


@final
class Prober:
    """Looks shapes up in ``book``, which all studies of a root share, and has ``run_query`` probe the others.
    ``device`` is its name in a task, ``device_class`` that in the records."""

    def __init__(
        self,
        run_query: Callable[[Task], Ending],
        book: ProbeBook | None = None,
        *,
        device: str,
        device_class: str,
        plugin: str | None = None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._run_query, self._book, self._device_class = run_query, book, device_class
        self._device, self._plugin, self._limit_bytes = device, plugin, memory_limit_bytes
        self._code = digest_code(plugin, PROBE)
        recorded = book.of_device(device_class) if book else []
        self._probes = {probe.shape_key: probe for probe in recorded}
        self._has_warned = False
        self._facts: dict[DataSection, DataFacts | None] = {}
        self.used: dict[str, ProbeRecord] = {}  # by shape key, the probes that were returned
        self.estimates: dict[str, ProbeRecord] = {}  # by shape key, the estimates that were made

    def list_valid(self) -> list[ProbeRecord]:
        """The known probes that were made by the present code."""
        return [probe for key, probe in self._probes.items() if key == self._key(Shape.from_text(probe.shape))]

    def find(self, config: TrialConfig) -> ProbeRecord | None:
        """The probe of the shape of ``config`` where there is one."""
        key = self._key(derive_shape(config))
        if probe := self._probes.get(key):
            self.used[key] = probe
        return probe

    def probe(self, config: TrialConfig, timed_seconds: float) -> ProbeRecord:
        """Probes the shape of ``config`` now, and records the result."""
        shape = derive_shape(config)
        ending, launch_seconds = self._run_probe(make_probed_config(config), timed_seconds)
        record = make_probe_record(self._key(shape), shape.text, config.micro_batch, ending, launch_seconds)
        self._probes[record.shape_key] = self.used[record.shape_key] = record
        if self._book and record.outcome != "crashed":
            try:
                self._book.keep(record, ending.environment)
            except StoreError as error:
                _log.warning("a probe was not recorded: %s", error)
        limit = self._limit_bytes
        if limit is None or not record.is_complete or (record.peak_memory_bytes or 0) <= limit:
            return record
        reason = f"a peak of {record.peak_memory_bytes} bytes, above the limit of {limit}"
        return replace(record, outcome="not_fitting", error=reason)

    def time_steps(self, config: TrialConfig, timed_seconds: float) -> Ending:
        """Times the steps of ``config`` as they are, with all their micro batches; records nothing."""
        return self._run_probe(config, timed_seconds)[0]

    def estimate_peak_memory_bytes(self, config: TrialConfig) -> int | None:
        """The estimated peak of a training step of ``config``, which also bounds the peak of an evaluation; None where
        it cannot be estimated."""
        facts = self.find_data_facts(config)
        task = EstimateTask(number=0, config=config, device=self._device, plugin=self._plugin, facts=facts)
        ending = self._run_query(task)
        if ending.outcome != "complete":
            if not self._has_warned:
                lines = ending.error.strip().splitlines()
                _log.warning("no memory estimate, so no trial is refused for it: %s", lines[-1] if lines else "")
            self._has_warned = True
            return None
        shape = derive_shape(config)
        key, micro = self._key(shape), config.micro_batch
        self.estimates[key] = make_forecast_record(key, self._device_class, shape.text, micro, ending.measurements)
        return int(ending.measurements["peak_memory_bytes"])

    def estimate_memory_parts(self, config: TrialConfig) -> dict[str, int]:
        """The estimated bytes of a training step by its :data:`~sweep.records.records.MEMORY_PARTS`; empty where
        it cannot be estimated."""
        if self.estimate_peak_memory_bytes(config) is None:
            return {}
        forecast = self.estimates[self._key(derive_shape(config))].forecast
        return {category: forecast[f"forecast_{category}_bytes"] for category in MEMORY_PARTS}

    def find_data_facts(self, config: TrialConfig) -> DataFacts | None:
        """Shape and number of the training images of ``config``; None where they are not there."""
        section = config.data
        if section not in self._facts:  # a folder of many images is read once for all configurations
            try:
                self._facts[section] = find_facts(section)
            except InputError:
                self._facts[section] = None  # the estimate reports why
        return self._facts[section]

    def _run_probe(self, config: TrialConfig, timed_seconds: float) -> tuple[Ending, float]:
        began = time.monotonic()
        task = ProbeTask(
            number=0,
            config=config,
            device=self._device,
            plugin=self._plugin,
            memory_limit_bytes=self._limit_bytes,
            timed_seconds=timed_seconds,
        )
        ending = self._run_query(task)
        spent = float(ending.measurements.get("total_seconds", 0.0))
        return ending, max(time.monotonic() - began - spent, 0.0)

    def _key(self, shape: Shape) -> str:
        return make_shape_key(shape, self._code)


@final
class SoloProbes:
    """Probes the shapes of disturbed trials while no trial runs, so that their time can be estimated.

    ``can_probe``: the executor runs a probe at once. Probes take a tenth of the time of the trials at most.
    """

    def __init__(self, prober: Prober, device_class: str, *, can_probe: bool) -> None:
        self._prober, self._device_class, self._can_probe = prober, device_class, can_probe
        self._num_tries: Counter[str] = Counter()  # by digest of the shape
        self._trial_seconds, self._probe_seconds = 0.0, 0.0

    def list_used(self) -> list[ProbeRecord]:
        """The probes that the study has used or made."""
        return list(self._prober.used.values())

    def note(self, record: TrialRecord, *, is_idle: bool) -> None:
        """Takes an ended trial into account, and probes its shape where it was disturbed and has no reference.
        ``is_idle``: no trial is running, so that a probe would run alone and would disturb none."""
        self._trial_seconds += float(record.measurements.get("total_seconds", 0.0))
        config, shape = record.config, record.shape_digest
        is_comparable = record.outcome == "complete" and record.device == self._device_class and shape
        # whether a solo probe of its shape can change the training time to use
        is_open = is_disturbed(record) and not has_undisturbed_windows(record.quality_flags, record.measurements)
        if not is_comparable or config.budget.seconds is not None or not is_open:
            return
        self._prober.find(config)  # it then counts as used
        is_affordable = self._probe_seconds + _USUAL_SECONDS <= _MAX_SHARE * self._trial_seconds
        may_probe = self._can_probe and is_idle and is_affordable and self._num_tries[shape] < _MAX_TRIES
        if (
            may_probe
            and not np.isfinite(predict_alone(clock_trials(_frame([record])), list_references(self.list_used())))[0]
        ):
            self._num_tries[shape] += 1
            began = time.monotonic()
            self._prober.probe(config, _TIMED_SECONDS)
            self._probe_seconds += time.monotonic() - began


@contextlib.contextmanager
def open_shared_book(root: Path) -> Iterator[ProbeBook | None]:
    """The probes that all studies under ``root`` share; None, with a warning, where they cannot be recorded."""
    try:
        book = open_book(root)
    except (InputError, StoreError, OSError) as error:
        _log.warning("probes are not recorded: %s", error)
        yield None
        return
    with contextlib.closing(book):
        yield book
