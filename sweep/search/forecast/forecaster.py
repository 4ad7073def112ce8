"""The predictions for a study before it trains: probes, costs, the memory gate, the forecast."""

import time
from collections.abc import Callable, Container, Sequence
from typing import final

import numpy as np

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.queryable import QueryableExecutor
from sweep.probing.resident_images import count_resident_bytes
from sweep.probing.shape import Shape, derive_shape
from sweep.records.store.probe_book import ProbeBook
from sweep.records.store.store import Store
from sweep.records.trial_record import TrialRecord
from sweep.search.forecast.memory_gate import MemoryGate, find_largest_micro
from sweep.search.forecast.memory_room import measure_room
from sweep.search.forecast.probe_selection import select_shapes
from sweep.search.forecast.prober import Prober, ProbeSettings
from sweep.search.forecast.remaining_work import PlannedTrials, estimate_remaining_work
from sweep.search.forecast.study_forecast import Forecast, collect_costs, make_forecast
from sweep.search.forecast.study_total import draw_study_seconds
from sweep.search.forecast.trial_cost import CostModel

# Limits of the memory estimates that are made for the report after the last trial.
_REPORT_SHARE = 0.02  # of the time that the trials took
_MAX_REPORT_SECONDS = 10.0
_ESTIMATE_SECONDS = 0.5  # of one estimate, usually
_MAX_REPORT_SHAPES = 16


@final
class Forecaster:
    """Made once for a run of a study; the executor describes the machine. ``num_held_out`` images of the study are for
    validation and test."""

    def __init__(
        self,
        spec: StudySpec,
        executor: QueryableExecutor,
        book: ProbeBook | None,
        *,
        device: str = "auto",
        plugin: str | None = None,
        num_held_out: int = 0,
    ) -> None:
        self._spec = spec
        self.slots = executor.slots
        self.machine = machine = executor.describe()
        self.device_class = str(machine["device"])
        self.memory_room = measure_room(machine)
        limit_bytes = self.memory_room.limit_bytes
        settings = ProbeSettings(
            device=device, device_class=self.device_class, plugin=plugin, memory_limit_bytes=limit_bytes
        )
        self.prober = Prober(executor.run_query, settings, book)
        self.cost_model = CostModel(self.prober.list_valid())
        is_on_gpu = bool(machine.get("device_memory_bytes"))
        resident = self._count_resident_bytes if is_on_gpu else lambda _config: 0
        self._num_held_out = num_held_out
        self.memory_gate = MemoryGate(limit_bytes, self._predict_bytes, find_largest_micro(spec), resident)

    def forecast(self, planned: PlannedTrials) -> Forecast:
        """The forecast of the rest of the study; probes a few shapes where that is worth its time."""
        work = estimate_remaining_work(self._spec, planned, self.slots)
        return make_forecast(work, self.cost_model, self.prober.find, self.prober.probe, self.memory_gate)

    def forecast_other(self, spec: StudySpec, limit_seconds: float) -> Forecast:
        """The forecast of a study of other size, which has no records, from what is known; probes nothing."""
        work = estimate_remaining_work(spec, PlannedTrials(limit_seconds=limit_seconds), self.slots)
        return make_forecast(work, self.cost_model, self.prober.find, None, self.memory_gate)

    def estimate_seconds(self, spec: StudySpec) -> float | None:
        """The median seconds of a study that has no records, from the probes that are known; None without one."""
        work = estimate_remaining_work(spec, PlannedTrials(), self.slots)
        costs = collect_costs(work, self.cost_model, np.ones(len(work.sample), dtype=np.bool_))
        return None if costs is None else float(np.median(draw_study_seconds(costs)))

    def save_probes(self, store: Store) -> None:
        """Records the probes that were used, and the estimates, with the study."""
        book = ProbeBook(store, self._spec.name)
        earlier = {probe.shape_key: probe for probe in book.of_device(self.device_class)}
        used, estimates = self.prober.used, self.prober.estimates
        for key in dict.fromkeys((*used, *estimates)):
            # a probe has more facts than an estimate, which does not replace it
            best = used.get(key) or earlier.get(key) or estimates[key]
            book.keep(best.with_forecast_of(estimates.get(key) or earlier.get(key) or best))

    def estimate_breakdowns(self, store: Store) -> None:
        """Estimates what the memory of the trained shapes consists of, for the report. No trial may be running."""
        book = ProbeBook(store, self._spec.name)
        estimated = {Shape.from_text(probe.shape) for probe in book.of_device(self.device_class) if probe.forecast}
        records = store.trial_records(self._spec.name)
        estimate_trained(records, estimated, self.prober.estimate_peak_memory_bytes)
        self.save_probes(store)

    def _count_resident_bytes(self, config: TrialConfig) -> int:
        facts = self.prober.find_data_facts(config)
        room = self.memory_room.free_bytes
        return 0 if facts is None else count_resident_bytes(config, facts, self._num_held_out, room)

    def _predict_bytes(self, config: TrialConfig) -> int | None:
        measured = self.cost_model.predict_peak_memory_bytes(config)
        return self.prober.estimate_peak_memory_bytes(config) if measured is None else measured


def estimate_trained(
    records: Sequence[TrialRecord], estimated: Container[Shape], estimate: Callable[[TrialConfig], object]
) -> None:
    """Calls ``estimate`` with a configuration of each shape that completed and is not ``estimated`` yet, within a
    fiftieth of the time that the trials took."""
    spent = sum(float(each.measurements.get("total_seconds", 0.0)) for each in records if not each.reused_from)
    until = time.monotonic() + min(_REPORT_SHARE * spent, _MAX_REPORT_SECONDS)
    # where the micro batch was found while training, the shape is not that of the configuration
    trained = [each.config for each in records if each.outcome == "complete" and not each.config.batch.is_auto]
    for config in select_shapes(trained)[:_MAX_REPORT_SHAPES]:
        if time.monotonic() + _ESTIMATE_SECONDS > until:
            return
        if derive_shape(config) not in estimated:
            estimate(config)
