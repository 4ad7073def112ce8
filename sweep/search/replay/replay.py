"""A search on recorded trainings: the tuner of real studies, a replaying executor, a simulated clock.

All time of trainings counts, also that of pruned trials. The computing time of the sampler does not, because it is
that of this machine and not of the one that recorded the table. Nothing is probed: the sampler learns the cost of a
shape from trials alone.
"""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


@final
@dataclass(kw_only=True)
class ReplayedSearch:
    """The results of one replayed search, which grow while it runs. Seconds are those of the simulated clock."""

    seed: int
    progress: list[tuple[float, float]] = field(default_factory=list)  # seconds, share of the table's hypervolume
    search_seconds: float = 0.0
    confirm_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    num_confirmed: int = 0
    pruned_front: list[Point] = field(default_factory=list)  # configurations of the true front that were pruned
    rows: list[int] = field(default_factory=list)  # of the table's points: those that were measured

    @property
    def share(self) -> float:
        """The share of the table's hypervolume that was reached."""
        return self.progress[-1][1] if self.progress else 0.0

    def seconds_to(self, share: float) -> float:
        """Seconds until that share of the hypervolume was reached; infinite if it was not."""
        return next((seconds for seconds, reached in self.progress if reached >= share), float("inf"))

    def add_record(self, record: TrialRecord, seconds: float, table: RecordedTable) -> None:
        """Takes a trial into account that ended after ``seconds``."""
        if record.phase == "confirm":
            self.num_confirmed += 1
            self.confirm_seconds = seconds - self.search_seconds
            return
        self.search_seconds = seconds
        self.outcomes[record.outcome or "running"] += 1
        point = table.point_of(record.config)
        row = table.row_of[point]
        if record.outcome == "pruned" and table.on_front[row]:
            self.pruned_front.append(point)
        if record.outcome == "complete" and np.isfinite(table.means[row]).all():
            self.rows.append(row)
            self.progress.append((seconds, table.share(self.rows)))


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
    clock, search = SimulatedClock(), ReplayedSearch(seed=spec.seed)
    executor = ReplayingExecutor(
        lambda config: iter(schedule_messages(table.training(config))), clock, find_device(table)
    )
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_opened(spec))
        mirror = Mirror(store.url, spec)
        mirror.close()  # a replay has no dashboard
        tuner = Tuner(spec, store, executor, mirror, _plan(table, clock))
        for event in stack.enter_context(contextlib.closing(tuner.run())):
            if isinstance(event, TrialEnded):
                search.add_record(event.record, clock(), table)
            if until is not None and search.share >= until:
                break
    return search


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
