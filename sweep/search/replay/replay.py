"""A search on recorded trainings: the tuner of real studies, a replaying executor, a simulated clock.

All time of trainings counts, also that of pruned trials. The computing time of the sampler does not, because it is
that of this machine and not of the one that recorded the table. Nothing is probed: the sampler learns the cost of a
shape from trials alone.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.events import TrialEnded
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.replay.recorded_table import Point, RecordedTable
from sweep.search.replay.replay_executor import ReplayingExecutor, SimulatedClock, schedule_messages
from sweep.search.samplers.base import Sampler
from sweep.search.samplers.table import make_sampler

_MEMORY = Path("/dev/shm")  # nosec B108 # a folder with a random name is made there


@dataclass(frozen=True, kw_only=True)
class ReplayedSearch:
    """The results of one replayed search. Seconds are those of the simulated clock."""

    seed: int
    progress: tuple[tuple[float, float], ...]  # seconds, and share of the table's hypervolume
    search_seconds: float
    confirm_seconds: float
    outcomes: dict[str, int]
    num_confirmed: int
    pruned_front: tuple[Point, ...]  # configurations of the true front that were pruned

    def seconds_to(self, share: float) -> float:
        """Seconds until that share of the hypervolume was reached; infinite if it was not."""
        return next((seconds for seconds, reached in self.progress if reached >= share), float("inf"))


@final
class GridSampler(Sampler):
    """Another sampler's proposals, each moved to the nearest recorded point that has not been tried."""

    def __init__(self, inner: Sampler, table: RecordedTable) -> None:
        self._inner = inner
        self._left = dict.fromkeys(table.points)
        self._space = table.space

    def propose(self, index: int) -> dict[str, Any] | None:
        values = self._inner.propose(index) if self._left else None
        if values is None:
            return None
        proposed = tuple(values[path] for path in self._space)
        point = (
            proposed if proposed in self._left else min(self._left, key=lambda other: self._distance(proposed, other))
        )
        del self._left[point]
        return dict(zip(self._space, point, strict=True))

    def learn(self, record: TrialRecord) -> None:
        self._inner.learn(record)

    def _distance(self, one: Point, other: Point) -> float:
        pairs = zip(self._space.values(), one, other, strict=True)
        return sum(_distance(parameter, a, b) for parameter, a, b in pairs)


def _distance(parameter: Parameter, one: Scalar, other: Scalar) -> float:
    # in shares of the range; two names are as far from each other as any two
    is_number = isinstance(one, int | float) and not isinstance(one, bool)
    return abs(parameter.share(one) - parameter.share(other)) if is_number else float(one != other)


def replay_search(table: RecordedTable, spec: StudySpec, until: float | None = None) -> ReplayedSearch:
    """Runs ``spec``, a study over the table's space (:func:`sweep.search.replay.recorded_table.make_replay_study`), to
    its end, or until its search has reached the share ``until`` of the table's hypervolume."""
    clock = SimulatedClock()
    results = _Results(table, clock)
    with _opened(spec) as store:
        executor = ReplayingExecutor(
            lambda config: iter(schedule_messages(table.training(config))), clock, find_device(table)
        )
        mirror = Mirror(store.url, spec)
        mirror.close()  # a replay has no dashboard
        tuner = Tuner(spec, store, executor, mirror, _plan(table, clock))
        with contextlib.closing(tuner.run()) as events:
            for event in events:
                if isinstance(event, TrialEnded):
                    results.add_record(event.record)
                if until is not None and results.share >= until:
                    break
            return results.make_result(spec.seed)


@contextlib.contextmanager
def _opened(spec: StudySpec) -> Iterator[Store]:
    # in memory where possible, because these records are not kept
    place = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-replay-", dir=place)))
        store = stack.enter_context(contextlib.closing(open_store(folder / "study.sqlite", create=True)))
        store.create_study(spec)
        yield store


def _plan(table: RecordedTable, clock: SimulatedClock) -> RunPlan:
    def sampler(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
        return GridSampler(make_sampler(spec, records), table)

    return RunPlan(
        key_of=lambda config: config.model_dump_json(),
        clock=clock,
        make_sampler=sampler,
        device="cpu",
    )


def find_device(table: RecordedTable) -> str:
    """The class of the device that the table was made on."""
    first = next(iter(table.curves.values()))
    return next(iter(first.values())).ending.device


@final
class _Results:
    """Collects the results of a running search."""

    def __init__(self, table: RecordedTable, clock: SimulatedClock) -> None:
        self._table, self._clock = table, clock
        self._rows = {point: row for row, point in enumerate(table.points)}
        self._rows_found: list[int] = []
        self._progress: list[tuple[float, float]] = []
        self._outcomes: dict[str, int] = {}
        self._pruned: list[Point] = []
        self._num_confirmed, self._search_seconds = 0, 0.0
        self.share = 0.0

    def add_record(self, record: TrialRecord) -> None:
        """Takes an ended trial into account."""
        if record.phase == "confirm":
            self._num_confirmed += 1
            return
        self._search_seconds = self._clock()
        outcome = record.outcome or "running"
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        point = self._table.point_of(record.config)
        row = self._rows[point]
        if outcome == "pruned" and self._table.on_front[row]:
            self._pruned.append(point)
        if outcome == "complete" and np.isfinite(self._table.means[row]).all():
            self._rows_found.append(row)
            self.share = self._table.share(self._rows_found)
            self._progress.append((self._clock(), self.share))

    def make_result(self, seed: int) -> ReplayedSearch:
        """The results, after the last trial."""
        confirm = self._clock() - self._search_seconds if self._num_confirmed else 0.0
        return ReplayedSearch(
            seed=seed,
            progress=tuple(self._progress),
            search_seconds=self._search_seconds,
            confirm_seconds=confirm,
            outcomes=self._outcomes,
            num_confirmed=self._num_confirmed,
            pruned_front=tuple(self._pruned),
        )
