"""Searches on recorded trainings: the tuner of real studies, a replaying executor, a simulated clock. Several with
other seeds are summarized: time to the target, hypervolume, wrongly pruned trials.

All time of trainings counts, also that of pruned trials. The computing time of the sampler does not, because it is
that of this machine and not of the one that recorded the table. Nothing is probed: the sampler learns the cost of a
shape from trials alone.
"""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from sweep.analysis.statistics.intervals import CONFIDENCE, NUM_RESAMPLES, Interval
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.events import TrialEnded
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.replay.recorded_table import Point, RecordedTable, make_replay_study
from sweep.search.replay.replay_executor import ReplayingExecutor, SimulatedClock, schedule_messages
from sweep.search.samplers.base import Sampler
from sweep.search.samplers.table import make_sampler

_POINTS = 50  # of the curve of hypervolume over cost
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
    ended_seconds: list[float] = field(default_factory=list)  # when each search trial ended

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
        self.ended_seconds.append(seconds)
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
    """Another sampler's proposals, each moved to the nearest recorded point that has not been tried. It estimates no
    gain, so that a replayed search never ends early: its whole course is compared."""

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


def replay_search(
    table: RecordedTable,
    spec: StudySpec,
    until: float | None = None,
    on_end: Callable[[TrialRecord], None] = lambda _record: None,
) -> ReplayedSearch:
    """Runs ``spec``, a study over the table's space (:func:`sweep.search.replay.recorded_table.make_replay_study`), to
    its end, or until its search has reached the share ``until`` of the table's hypervolume. ``on_end`` is called with
    each trial that ended."""
    clock, search = SimulatedClock(), ReplayedSearch(seed=spec.seed)
    executor = ReplayingExecutor(
        lambda config: iter(schedule_messages(table.training(config))), clock, find_device(table)
    )
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_opened(spec))
        tuner = Tuner(spec, store, executor, _plan(table, clock))
        for event in stack.enter_context(contextlib.closing(tuner.run())):
            if isinstance(event, TrialEnded):
                search.add_record(event.record, clock(), table)
                on_end(event.record)
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


# ---------------------------------------------------------------------- several searches


def replay_seeds(
    table: RecordedTable, num_seeds: int, changes: dict[str, Any], until: float | None = None
) -> Iterator[ReplayedSearch]:
    """One search for each seed from 0; ``changes`` are plain keys of the study (sampler, pruner, trials ...).

    Raises:
        InputError: no seed, or a value that a study refuses.
    """
    if num_seeds < 1:
        raise InputError(f"--seeds {num_seeds}: give 1 or more.")
    plans = [make_replay_study(table, "replay", seed=seed, **changes) for seed in range(num_seeds)]
    return (replay_search(table, spec, until) for spec in plans)


def find_median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Median and its percentile bootstrap interval (Efron, 1979) of values of which some may be infinite: a search that
    never reached the target is later than every other and must not be left out."""
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(array), size=(NUM_RESAMPLES, len(array)))
    medians = np.median(array[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(np.quantile(medians, share, method="nearest")) for share in (tail, 1 - tail))
    return Interval(float(np.median(array)), low, high, len(array))


def summarize_searches(table: RecordedTable, searches: Sequence[ReplayedSearch], target: float) -> dict[str, Any]:
    """The searches as a JSON document: an infinite number of seconds is null."""
    seconds = [search.seconds_to(target) for search in searches]
    with_confirm = [search.seconds_to(target) + search.confirm_seconds for search in searches]
    pruned = [len(search.pruned_front) for search in searches]
    return {
        "study": table.spec.name,
        "objectives": list(table.spec.objectives),
        "num_configurations": len(table.points),
        "num_front": int(table.on_front.sum()),
        "reference_point": [float(value) for value in table.reference],
        "target": target,
        "seconds_to_target": _interval(seconds),
        "seconds_to_target_and_confirm": _interval(with_confirm),
        "num_missed": sum(not np.isfinite(value) for value in seconds),
        "front_pruned": {"median": float(np.median(pruned)), "share_of_seeds_without": pruned.count(0) / len(pruned)},
        "hypervolume_over_cost": _over_cost(searches),
        "simulated_seconds": sum(search.search_seconds + search.confirm_seconds for search in searches),
        "searches": [_row(search, value) for search, value in zip(searches, seconds, strict=True)],
    }


def _row(search: ReplayedSearch, seconds: float) -> dict[str, Any]:
    return {
        "seed": search.seed,
        "seconds_to_target": _finite(seconds),
        "search_seconds": search.search_seconds,
        "confirm_seconds": search.confirm_seconds,
        "outcomes": search.outcomes,
        "num_confirmed": search.num_confirmed,
        "final_share": search.share,
        "front_pruned": [list(point) for point in search.pruned_front],
    }


def _over_cost(searches: Sequence[ReplayedSearch]) -> list[dict[str, float]]:
    """The median share of the hypervolume at even steps of the cost, with its quartiles over the seeds."""
    last = max(search.search_seconds for search in searches)
    rows = []
    for seconds in np.linspace(0.0, last, _POINTS + 1)[1:]:
        shares = [_share_at(search, float(seconds)) for search in searches]
        low, median, high = (float(value) for value in np.quantile(shares, (0.25, 0.5, 0.75)))
        rows.append({"seconds": float(seconds), "share": median, "quartile_low": low, "quartile_high": high})
    return rows


def _share_at(search: ReplayedSearch, seconds: float) -> float:
    return max((share for when, share in search.progress if when <= seconds), default=0.0)


def _interval(values: Sequence[float]) -> dict[str, float | int | None]:
    interval = find_median_interval(values)
    bounds = {"median": interval.median, "low": interval.low, "high": interval.high}
    return {**{name: _finite(value) for name, value in bounds.items()}, "n": interval.n}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
