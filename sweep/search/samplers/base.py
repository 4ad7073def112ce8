"""The protocol of samplers, and the bounded window of records that model-based ones learn from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from sweep.analysis.statistics.pareto import non_dominated
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.confirmation import collect_costs

# MO-TPE takes 400 ms a proposal at 10,000 trials. Beyond 250 trials it counts no more of them as good, so
# further ones add detail about bad points only.
WINDOW = 600
# The metrics that probes predict before any trial, and a function that predicts one; None where no probe covers it.
PREDICTED_METRICS = ("train_seconds", "total_seconds", "peak_memory_bytes")
PredictCost = Callable[[str, TrialConfig], float | None]


class Sampler(ABC):
    """Proposes points of the space and learns from ended trials."""

    @abstractmethod
    def propose(self, index: int) -> dict[str, Any] | None:
        """Values for search trial ``index``; None when there are no more points."""

    @abstractmethod
    def learn(self, record: TrialRecord) -> None:
        """Takes an ended search trial into account."""

    def estimate_gain(self) -> float | None:
        """By how much (a fraction) one more trial is expected to raise the tuned accuracy of some batch size, at most;
        None where the sampler does not estimate it."""
        return None


@final
class PointSampler(Sampler):
    """A sequence whose points depend on the index alone."""

    def __init__(self, point: Callable[[int], dict[str, Any] | None]) -> None:
        self._point = point

    def propose(self, index: int) -> dict[str, Any] | None:
        return self._point(index)

    def learn(self, record: TrialRecord) -> None:
        del record  # the points do not depend on results


def select_window(records: list[TrialRecord], spec: StudySpec, size: int = WINDOW) -> list[TrialRecord]:
    """At most ``size`` records in their order: the front (of a large one an even spread), the latest half, and an even
    spread of the rest."""
    if len(records) <= size:
        return records
    complete, costs = collect_costs(records, spec.objectives)
    front = [record.number for record, keep in zip(complete, non_dominated(costs), strict=True) if keep]
    chosen = {record.number for record in records[-(size // 2) :]} | _spread(front, size // 4)
    rest = [record.number for record in records if record.number not in chosen]
    chosen |= _spread(rest, size - len(chosen))
    return [record for record in records if record.number in chosen]


def _spread(numbers: Sequence[int], count: int) -> set[int]:
    return {numbers[int(place)] for place in np.linspace(0, len(numbers) - 1, min(count, len(numbers)))}
