"""Stops a search trial that cannot reach the Pareto front any more, for any number of objectives.

An evaluation stops a trial where two conditions hold. The trial was behind at the last rung of the schedule, by
non-dominated rank; and a complete trial dominates its best plausible end, at the time and the memory that it will have
taken. The first condition alone would stop slow starters that end on the front, the second alone would judge before
the curves differ.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from sweep.analysis.statistics.extrapolation import CurveFamily
from sweep.analysis.statistics.pareto import Values, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.messages import Evaluation, Progress
from sweep.records.quality_flags import find_time_doubts
from sweep.records.store.store import Store
from sweep.records.trial_record import TrialRecord
from sweep.search.pruners.running_curves import (
    CURVES,
    MEMORY,
    SECONDS,
    Rungs,
    RunningCurves,
    make_cost_key,
    measure_budget_share,
)

_NUM_RESTORED = 500  # curves that are read when a study is resumed
_NO_DIFFERENCE = 1e-9


@final
class FrontPruner:
    """Decides which running search trials of a study are stopped early."""

    def __init__(self, objectives: Sequence[str]) -> None:
        self._objectives = list(objectives)
        followed = [name for name in self._objectives if name in CURVES] + [SECONDS]
        self._families = {name: CurveFamily(is_share=name == "val_accuracy") for name in followed}
        self._rungs = Rungs()
        self._curves: dict[int, RunningCurves] = {}
        self._progress: dict[int, Progress] = {}
        self._likely_ends: dict[int, tuple[dict[str, float | int], dict[str, float]]] = {}  # with their errors
        self._memory: dict[str, float] = {}  # by cost key, as measured
        self._device = ""
        self._rivals = np.empty((0, len(self._objectives)))
        # between trials of equal time and memory the other objectives decide, however noisy their measurement
        self._judged = [index for index, name in enumerate(self._objectives) if name in CURVES]
        self._peers: dict[str, Values] = defaultdict(lambda: np.empty((0, len(self._judged))))

    # ------------------------------------------------------------------ while a trial runs

    def should_prune(self, record: TrialRecord, message: Progress | Evaluation) -> bool:
        """Takes a message of a running trial into account; returns whether to stop the trial."""
        if isinstance(message, Evaluation):
            return self._is_dominated(record, message)
        self._progress[record.number] = message
        return False

    def partial_measurements(self, number: int) -> dict[str, float | int]:
        """The measurements that a running trial has reported so far, for its ending."""
        progress = self._progress.get(number)
        return {MEMORY: progress.peak_memory_bytes} if progress and progress.peak_memory_bytes is not None else {}

    def _is_dominated(self, record: TrialRecord, evaluation: Evaluation) -> bool:
        curves = self._follow(record, evaluation)
        if curves is None or curves.is_ahead or curves.shares[-1] >= 1.0:
            return False
        ends = self._best_ends(record.number, curves)
        if (self._peers[curves.key] < ends[self._judged] - _NO_DIFFERENCE).all(axis=1).any():
            return True
        progress = self._progress.get(record.number)
        if progress is not None and find_time_doubts(progress.quality_flags):
            return False
        worse_nowhere = (self._rivals <= ends + _NO_DIFFERENCE).all(axis=1)
        better_somewhere = (self._rivals < ends - _NO_DIFFERENCE).any(axis=1)
        return bool((worse_nowhere & better_somewhere).any())

    def _follow(self, record: TrialRecord, evaluation: Evaluation) -> RunningCurves | None:
        share = measure_budget_share(record.config.apply_rules().budget, evaluation)
        if not share:
            return None
        if record.number not in self._curves:
            self._curves[record.number] = RunningCurves(key=make_cost_key(record.config))
        curves = self._curves[record.number]
        curves.add(share, evaluation)
        if curves.shares:
            self._rungs.record_costs(curves, self._row(record.number, curves))
        return curves if curves.shares else None

    def _row(self, number: int, curves: RunningCurves) -> list[float]:
        costs = {name: curves.last(name) for name in curves.costs}
        costs[MEMORY] = self._memory_of(number, curves.key)
        return [costs[name] for name in self._objectives]

    def _best_ends(self, number: int, curves: RunningCurves) -> Values:
        share = curves.shares[-1]
        ends = {name: family.best_end(share, curves.last(name)) for name, family in self._families.items()}
        memory = self._memory_of(number, curves.key)
        ends[MEMORY] = -np.inf if math.isnan(memory) else memory
        return np.array([ends[name] for name in self._objectives])

    def _memory_of(self, number: int, key: str) -> float:
        progress = self._progress.get(number)
        if progress is not None and progress.peak_memory_bytes is not None:
            return float(progress.peak_memory_bytes)
        return self._memory.get(key, math.nan)

    # ------------------------------------------------------------------ what ended trials contribute

    def restore_trial(self, record: TrialRecord, evaluations: Iterable[Evaluation]) -> None:
        """Takes an ended search trial of an earlier run into account."""
        if (memory := record.measurements.get(MEMORY)) is not None:
            self._progress[record.number] = Progress(
                step=0, num_steps=0, epoch=0.0, images_per_second=0.0, peak_memory_bytes=int(memory)
            )
        for evaluation in evaluations:
            self._follow(record, evaluation)
        self.learn(record)

    def learn(self, record: TrialRecord) -> None:
        curves = self._curves.pop(record.number, RunningCurves(key=""))
        self._progress.pop(record.number, None)
        if record.outcome == "pruned" and curves.shares:
            self._likely_ends[record.number] = self._extrapolate(curves)
        if record.outcome == "complete":
            if curves.shares:
                for name, family in self._families.items():
                    family.add(curves.shares, curves.costs[name])
            self._add_rival(record)

    def extrapolate_record(self, record: TrialRecord) -> TrialRecord:
        """The record with the likely final measurements of a pruned trial and their standard errors, for a sampler; any
        other unchanged."""
        if record.number not in self._likely_ends:
            return record
        ends, errors = self._likely_ends[record.number]
        return replace(record, measurements=record.measurements | ends, errors=errors)

    def _extrapolate(self, curves: RunningCurves) -> tuple[dict[str, float | int], dict[str, float]]:
        ends: dict[str, float | int] = {}
        errors: dict[str, float] = {}
        for name, family in self._families.items():
            share, cost = curves.shares[-1], curves.last(name)
            end, error = family.likely_end(share, cost), family.end_error(share, cost)
            if name == SECONDS:
                ends[name], errors[name] = math.exp(end), math.exp(end) * error
            else:
                ends[name], errors[name] = METRICS[name].sign * end, error
        return ends, errors

    def _add_rival(self, record: TrialRecord) -> None:
        measured, key = record.measurements, make_cost_key(record.config)
        if record.device != self._device:  # times and memory of another device are not comparable
            self._device, self._rivals = record.device, self._rivals[:0]
            self._memory.clear()
        if (memory := measured.get(MEMORY)) is not None:
            self._memory[key] = float(memory)
        if any(name not in measured for name in self._objectives):
            return
        row = np.array([_cost(name, measured[name]) for name in self._objectives])
        self._peers[key] = _front(np.vstack([self._peers[key], row[self._judged]]))
        if SECONDS not in self._objectives or SECONDS not in record.errors:
            self._rivals = _front(np.vstack([self._rivals, row]))


def make_pruner(spec: StudySpec, store: Store, ended: Sequence[TrialRecord]) -> FrontPruner | None:
    """The pruner that the study names, which learns from the latest ``ended`` search trials; None stops no trial."""
    if spec.pruner == "none":
        return None
    pruner = FrontPruner(spec.objectives)
    for record in ended[-_NUM_RESTORED:]:
        if record.outcome in ("complete", "pruned"):
            pruner.restore_trial(record, store.evaluations(spec.name, record.number))
    return pruner


def _cost(name: str, value: float) -> float:
    return math.log(value) if name == SECONDS else METRICS[name].sign * value


def _front(rows: Values) -> Values:
    return np.unique(rows[non_dominated(rows)], axis=0) if rows.shape[1] else rows[:0]
