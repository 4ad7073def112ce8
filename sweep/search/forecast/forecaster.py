"""What a study knows of its configurations before it trains them: probes, costs, the gate, the forecast."""

from typing import Any, final

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.queryable import QueryableExecutor
from sweep.probing.shape import Shape
from sweep.records.probe_records import ProbeBook
from sweep.records.store.store import Store
from sweep.search.forecast.memory_breakdown import estimate_trained
from sweep.search.forecast.memory_gate import MemoryGate, largest_micro, memory_limit_bytes
from sweep.search.forecast.prober import ProbePlan, Prober
from sweep.search.forecast.remaining_work import PlannedTrials, outlook_of
from sweep.search.forecast.study_forecast import Forecast, make_forecast
from sweep.search.forecast.trial_cost import CostModel


@final
class Forecaster:
    """Made once for a study's run; ``machine`` is what the executor says of itself."""

    def __init__(
        self,
        spec: StudySpec,
        executor: QueryableExecutor,
        book: ProbeBook | None,
        machine: dict[str, Any],
        device: str = "auto",
        plugin: str | None = None,
    ) -> None:
        self._spec = spec
        self._slots = executor.slots
        limit = memory_limit_bytes(int(machine.get("device_memory_bytes", 0)))
        self.prober = Prober(executor.ask, ProbePlan(device, str(machine["device"]), plugin, limit), book)
        self.costs = CostModel(self.prober.valid())
        self.device_class = str(machine["device"])
        self.gate = MemoryGate(limit, self._predict_bytes, largest_micro(spec))

    def forecast(self, ahead: PlannedTrials) -> Forecast:
        """What is to be expected of the rest of the study; probes a few shapes where that is worth it."""
        outlook = outlook_of(self._spec, ahead, self._slots)
        return make_forecast(outlook, self.costs, self.prober.find, self.prober.probe, self.gate)

    def keep_in(self, store: Store) -> None:
        """Puts the probes that were used, and what was estimated, into the study's own records."""
        book = ProbeBook(store, self._spec.name)
        earlier = {probe.shape_key: probe for probe in book.of_device(self.device_class)}
        used, forecasts = self.prober.used, self.prober.forecasts
        for key in dict.fromkeys((*used, *forecasts)):
            # a probe tells more than an estimate, and does not take its place
            best = used.get(key) or earlier.get(key) or forecasts[key]
            book.keep(best.with_forecast_of(forecasts.get(key) or earlier.get(key) or best))

    def explain_memory(self, store: Store) -> None:
        """Has the memory of what was trained estimated by what it is for, as far as there is time; for the report."""
        book = ProbeBook(store, self._spec.name)
        known = {Shape.from_text(probe.shape) for probe in book.of_device(self.device_class) if probe.forecast}
        estimate_trained(store.trial_records(self._spec.name), known, self.prober.estimate_peak_memory_bytes)
        self.keep_in(store)

    def _predict_bytes(self, config: TrialConfig) -> int | None:
        # what was measured goes before what is estimated
        measured = self.costs.predict_peak_memory_bytes(config)
        return self.prober.estimate_peak_memory_bytes(config) if measured is None else measured
