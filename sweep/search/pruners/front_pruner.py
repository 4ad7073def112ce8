"""Stops a search trial that cannot reach the front any more, with any number of objectives.

Two questions are asked at an evaluation. Was the trial behind at the last rung of the schedule, by non-dominated rank?
One that was ahead goes on to the next rung. Of the others: is the best end that is plausible for it beaten by a
complete trial, at the time and the memory that it will have taken? Only then it is stopped. The first question alone
would stop slow starters that end on the front, the second alone would judge before anything has shown itself.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from sweep.analysis.statistics.extrapolation import CurveFamily
from sweep.analysis.statistics.pareto import Values, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.measurement.quality import CONFIGURATION_FLAGS, PACKED
from sweep.records.messages import Evaluation, Progress
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

_NUM_RECALLED = 500  # curves that are read when a study is opened again
_NO_DIFFERENCE = 1e-9
# These say nothing about the time; what bears any other flag is not compared by it.
_NOT_ABOUT_TIME = CONFIGURATION_FLAGS | {PACKED}


class Pruner(ABC):
    """Judges the search trials of a study."""

    @abstractmethod
    def hear(self, record: TrialRecord, message: Progress | Evaluation) -> bool:
        """Takes news of a running trial; whether it should be stopped."""

    @abstractmethod
    def known(self, number: int) -> dict[str, float | int]:
        """What a running trial has said of its measurements, for its ending."""

    @abstractmethod
    def learn(self, record: TrialRecord) -> None:
        """Takes an ended trial into account."""

    @abstractmethod
    def completed(self, record: TrialRecord) -> TrialRecord:
        """A trial that was stopped as it would probably have ended, for a sampler to learn from; any other as it is."""


@final
class NoPruner(Pruner):
    """Lets every trial go to its end."""

    def hear(self, record: TrialRecord, message: Progress | Evaluation) -> bool:
        del record, message
        return False

    def known(self, number: int) -> dict[str, float | int]:
        del number
        return {}

    def learn(self, record: TrialRecord) -> None:
        del record

    def completed(self, record: TrialRecord) -> TrialRecord:
        return record


@final
class FrontPruner(Pruner):
    """Stops what cannot reach the front."""

    def __init__(self, objectives: Sequence[str]) -> None:
        self._objectives = list(objectives)
        followed = [name for name in self._objectives if name in CURVES] + [SECONDS]
        self._families = {name: CurveFamily(is_share=name == "val_accuracy") for name in followed}
        self._rungs = Rungs()
        self._courses: dict[int, RunningCurves] = {}
        self._said: dict[int, Progress] = {}
        self._likely_ends: dict[int, dict[str, float | int]] = {}
        self._memory: dict[str, float] = {}  # by cost key, as measured
        self._device = ""
        self._rivals = np.empty((0, len(self._objectives)))
        # among trials of equal time and memory, however noisy their measurement, the rest decides
        self._judged = [index for index, name in enumerate(self._objectives) if name in CURVES]
        self._peers: dict[str, Values] = defaultdict(lambda: np.empty((0, len(self._judged))))

    # ------------------------------------------------------------------ while a trial runs

    def hear(self, record: TrialRecord, message: Progress | Evaluation) -> bool:
        if isinstance(message, Evaluation):
            return self._is_hopeless(record, message)
        self._said[record.number] = message
        return False

    def known(self, number: int) -> dict[str, float | int]:
        said = self._said.get(number)
        return {MEMORY: said.peak_memory_bytes} if said and said.peak_memory_bytes is not None else {}

    def _is_hopeless(self, record: TrialRecord, evaluation: Evaluation) -> bool:
        course = self._follow(record, evaluation)
        if course is None or course.is_ahead or course.shares[-1] >= 1.0:
            return False
        ends = self._best_ends(record.number, course)
        if (self._peers[course.key] < ends[self._judged] - _NO_DIFFERENCE).all(axis=1).any():
            return True
        said = self._said.get(record.number)
        if said is not None and not _is_time_clean(said.quality_flags):
            return False
        worse_nowhere = (self._rivals <= ends + _NO_DIFFERENCE).all(axis=1)
        better_somewhere = (self._rivals < ends - _NO_DIFFERENCE).any(axis=1)
        return bool((worse_nowhere & better_somewhere).any())

    def _follow(self, record: TrialRecord, evaluation: Evaluation) -> RunningCurves | None:
        share = measure_budget_share(record.config.budget, evaluation)
        if not share:
            return None
        if record.number not in self._courses:
            self._courses[record.number] = RunningCurves(key=make_cost_key(record.config))
        course = self._courses[record.number]
        course.add(share, evaluation)
        if course.shares:
            self._rungs.pass_by(course, self._row(record.number, course))
        return course if course.shares else None

    def _row(self, number: int, course: RunningCurves) -> list[float]:
        known = {name: course.last(name) for name in course.costs}
        known[MEMORY] = self._memory_of(number, course.key)
        return [known[name] for name in self._objectives]

    def _best_ends(self, number: int, course: RunningCurves) -> Values:
        share = course.shares[-1]
        ends = {name: family.best_end(share, course.last(name)) for name, family in self._families.items()}
        memory = self._memory_of(number, course.key)
        ends[MEMORY] = -np.inf if math.isnan(memory) else memory
        return np.array([ends[name] for name in self._objectives])

    def _memory_of(self, number: int, key: str) -> float:
        said = self._said.get(number)
        if said is not None and said.peak_memory_bytes is not None:
            return float(said.peak_memory_bytes)
        return self._memory.get(key, math.nan)

    # ------------------------------------------------------------------ what ended trials teach

    def recall(self, record: TrialRecord, evaluations: Iterable[Evaluation]) -> None:
        """Takes an ended search trial of an earlier run into account."""
        if (memory := record.measurements.get(MEMORY)) is not None:
            self._said[record.number] = Progress(
                step=0, num_steps=0, epoch=0.0, images_per_second=0.0, peak_memory_bytes=int(memory)
            )
        for evaluation in evaluations:
            self._follow(record, evaluation)
        self.learn(record)

    def learn(self, record: TrialRecord) -> None:
        course = self._courses.pop(record.number, RunningCurves(key=""))
        self._said.pop(record.number, None)
        if record.outcome == "pruned" and course.shares:
            self._likely_ends[record.number] = self._likely(course)
        if record.outcome == "complete":
            if course.shares:
                for name, family in self._families.items():
                    family.add(course.shares, course.costs[name])
            self._add_rival(record)

    def completed(self, record: TrialRecord) -> TrialRecord:
        ends = self._likely_ends.get(record.number, {})
        return replace(record, measurements=record.measurements | ends) if ends else record

    def _likely(self, course: RunningCurves) -> dict[str, float | int]:
        found: dict[str, float | int] = {}
        for name, family in self._families.items():
            end = family.likely_end(course.shares[-1], course.last(name))
            found[name] = math.exp(end) if name == SECONDS else METRICS[name].sign * end
        return found

    def _add_rival(self, record: TrialRecord) -> None:
        measured, key = record.measurements, make_cost_key(record.config)
        if record.device != self._device:  # its times and memory compare to nothing that was
            self._device, self._rivals = record.device, self._rivals[:0]
            self._memory.clear()
        if (memory := measured.get(MEMORY)) is not None:
            self._memory[key] = float(memory)
        if any(name not in measured for name in self._objectives):
            return
        row = np.array([_cost(name, measured[name]) for name in self._objectives])
        self._peers[key] = _front(np.vstack([self._peers[key], row[self._judged]]))
        if SECONDS not in self._objectives or _is_time_clean(record.quality_flags):
            self._rivals = _front(np.vstack([self._rivals, row]))


def make_pruner(spec: StudySpec, store: Store, ended: Sequence[TrialRecord]) -> Pruner:
    """The pruner that the study names, knowing its latest ``ended`` search trials."""
    if spec.pruner == "none":
        return NoPruner()
    pruner = FrontPruner(spec.objectives)
    for record in ended[-_NUM_RECALLED:]:
        if record.outcome in ("complete", "pruned"):
            pruner.recall(record, store.evaluations(spec.name, record.number))
    return pruner


def _cost(name: str, value: float) -> float:
    return math.log(value) if name == SECONDS else METRICS[name].sign * value


def _front(rows: Values) -> Values:
    return np.unique(rows[non_dominated(rows)], axis=0) if rows.shape[1] else rows[:0]


def _is_time_clean(flags: Iterable[str]) -> bool:
    return _NOT_ABOUT_TIME.issuperset(flags)
