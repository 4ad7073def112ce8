"""Searches on recorded trainings: the tuner of real studies, a replaying executor, a simulated clock.

All time of trainings counts, also that of pruned trials. The computing time of the sampler does not, because it is
that of this machine and not of the one that recorded the table. Nothing is probed: the sampler learns the cost of a
shape from trials alone.
"""

import contextlib
import heapq
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from sweep.analysis.statistics import Mask, Values, hypervolume, non_dominated, reference_point
from sweep.config.errors import InputError, hide_credentials
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter, Space
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import Scalar, TrialConfig, flatten_config
from sweep.executors.base import Executor
from sweep.records.loading import curves_of_frame, load_frames, records_of_frame
from sweep.records.messages import LEFT, Ending, Message, Progress, Task
from sweep.records.records import ReusableTrial, TrialRecord
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler
from sweep.search.tuner import TrialEnded, Tuner

Point = tuple[Scalar, ...]  # values in the order of the space
TimedMessage = tuple[float, Message]  # seconds after the start of the trial, and the message
_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
_MEMORY = Path("/dev/shm")  # nosec B108 # a folder with a random name is made there


# ---------------------------------------------------------------------- a table of recorded trainings


@dataclass(frozen=True)
class RecordedTable:
    """Recorded trainings of a whole grid by point of the space and by seed: any records of one study, as ``sweep
    export`` writes them, with a row for each training, several seeds for each configuration, the evaluations, and which
    validation images the trainings got right."""

    spec: StudySpec
    curves: dict[Point, dict[int, ReusableTrial]]

    @cached_property
    def points(self) -> list[Point]:
        return sorted(self.curves, key=repr)

    @cached_property
    def row_of(self) -> dict[Point, int]:
        return {point: row for row, point in enumerate(self.points)}

    @cached_property
    def space(self) -> Space:
        """The study's space as a grid; a continuous parameter has the values that were recorded."""
        recorded = {path: {point[i] for point in self.points} for i, path in enumerate(self.spec.space)}
        return {path: _gridded(parameter, recorded[path]) for path, parameter in self.spec.space.items()}

    @cached_property
    def means(self) -> Values:
        """Each point's mean over its seeds of every objective, shape ``[points, m]``; NaN where a seed has none."""
        endings = [[trial.ending for trial in self.curves[point].values()] for point in self.points]
        names = self.spec.objectives
        rows = [[np.mean([_objective(each, name) for each in seeds]) for name in names] for seeds in endings]
        return np.array(rows, dtype=np.float64)

    @cached_property
    def num_fresh_seeds(self) -> int:
        """How many trainings every point has besides the one that a search sees."""
        return min(len(seeds) for seeds in self.curves.values()) - 1

    @cached_property
    def on_front(self) -> Mask:
        return non_dominated(self.means, self.signs)

    @cached_property
    def signs(self) -> Values:
        """-1 for an objective to be maximized; shape ``[m]``."""
        return np.array([METRICS[name].sign for name in self.spec.objectives])

    @cached_property
    def reference(self) -> Values:
        """The reference point of hypervolumes, a tenth of the range beyond the worst mean; shape ``[m]``."""
        return reference_point(self.means, self.signs)

    def share(self, rows: Sequence[int]) -> float:
        whole = hypervolume(self.means[self.on_front], self.reference, self.signs)
        return hypervolume(self.means[list(rows)], self.reference, self.signs) / whole if rows else 0.0

    def point_of(self, config: TrialConfig) -> Point:
        flat = flatten_config(config)
        return tuple(flat[path] for path in self.spec.space)

    def training(self, config: TrialConfig) -> ReusableTrial:
        """The recorded training at the configuration's point; its seed selects one of the recorded seeds, another one
        for each of as many consecutive seeds as were recorded."""
        seeds = self.curves[self.point_of(config)]
        return seeds[sorted(seeds)[config.seed % len(seeds)]]


def _objective(ending: Ending, name: str) -> float:
    return float(ending.measurements.get(name, np.nan)) if ending.outcome == "complete" else np.nan


def _gridded(parameter: Parameter, recorded: set[Scalar]) -> Parameter:
    if parameter.grid_values is not None and recorded <= set(parameter.grid_values):
        return parameter
    return Parameter(choice=tuple(sorted(recorded, key=lambda value: (str(type(value)), value))))


def read_table(place: str | Path) -> RecordedTable:
    """The table in ``place``: a folder that ``sweep export`` wrote, a study's folder or a database URL."""
    frames = load_frames(place, evaluations=True, correct_images=True)
    if len(frames.specs) != 1:
        raise InputError(
            f"{hide_credentials(place)}: a table is one study, and here are {len(frames.specs)}; export one alone."
        )
    assert frames.evaluations is not None
    assert frames.correct_images is not None
    spec = next(iter(frames.specs.values()))
    if not spec.space:
        raise InputError(
            f"{hide_credentials(place)}: the study {spec.name!r} varies nothing, so there is nothing to search."
        )
    curves = curves_of_frame(frames.evaluations)
    correct = dict(zip(frames.correct_images["number"], frames.correct_images["correct_images"], strict=True))
    table = RecordedTable(spec, {})
    for record in records_of_frame(frames.trials):
        if record.outcome in (None, "cancelled", "crashed", "pruned"):
            continue  # not the whole training
        curve = curves.get((spec.name, record.number), ())
        ending = replace(record.ending, correct_images=correct.get(record.number, ""))
        trial = ReusableTrial(origin=f"{spec.name}/{record.number}", ending=ending, evaluations=curve)
        point = tuple(record.values[path] for path in spec.space)
        table.curves.setdefault(point, {})[int(str(record.values["seed"]))] = trial
    if not np.isfinite(table.means).all(axis=1).any():
        missing = ", ".join(spec.objectives)
        raise InputError(
            f"{hide_credentials(place)}: no configuration has every objective ({missing}) in all its trainings."
        )
    return table


def make_replay_study(table: RecordedTable, name: str, **changes: Any) -> StudySpec:
    """The table's study over the recorded grid, with other values of its plain keys.

    ``confirm.seeds`` is at most :attr:`RecordedTable.num_fresh_seeds`, so that the search trial of a configuration and
    its confirming trials, whose seeds follow the study's, are different recorded trainings whatever the study's seed.

    Raises:
        InputError: a value that a study refuses.
    """
    # another sampler has a usual pruner of its own
    left_out = {"space", "first", "search_timeout", *(["pruner"] if "sampler" in changes else [])}
    plain = table.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)
    space = {path: item.model_dump(mode="json", by_alias=True, exclude_none=True) for path, item in table.space.items()}
    values = {**plain, "space": space, "name": name, "timeout": None, "trial_timeout": None, **changes}
    spec = build_study(values, name)
    confirm = spec.confirm.model_copy(update={"seeds": min(spec.confirm.seeds, table.num_fresh_seeds)})
    return spec.model_copy(update={"confirm": confirm})


# ---------------------------------------------------------------------- an executor on a simulated clock


@final
class SimulatedClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, seconds: float) -> None:
        self._now = max(self._now, seconds)


class _Due(NamedTuple):
    """The next message of a trial. The earliest comes first, and of equal ones the one that was added first."""

    seconds: float  # by the clock
    order: int
    number: int
    message: Message
    began: float
    rest: Iterator[TimedMessage]


@final
class ReplayingExecutor(Executor):
    """``slots`` trials at once, each as fast as it was recorded. ``messages_of`` gives the timed messages of the
    training of a configuration, the last of which is an ``Ending``.
    """

    def __init__(
        self, messages_of: Callable[[TrialConfig], Iterator[TimedMessage]], clock: SimulatedClock, device: str,
        slots: int = 1,
    ) -> None:  # fmt: skip
        self._messages_of, self._clock, self._device, self._slots = messages_of, clock, device, slots
        self._running: dict[int, Iterator[TimedMessage]] = {}  # the messages that follow, by trial
        self._order: list[_Due] = []  # a heap; some may have been stopped since
        self._count = count()

    @property
    def slots(self) -> int:
        return self._slots

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def start(self, task: Task) -> None:
        if len(self._running) >= self._slots or task.number in self._running:
            raise RuntimeError(f"trial {task.number} is running, or no slot of {self._slots} is free")
        self._schedule(task.number, self._clock(), self._messages_of(task.config))

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # nothing trains
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        message = self._next(timeout_seconds)
        return [] if message is None else [message]

    def preempt(self, number: int) -> None:
        if number in self._running:
            self._schedule(number, self._clock(), iter([(0.0, Ending(outcome="cancelled", cause=LEFT))]))

    def stop(self, number: int) -> None:
        self._running.pop(number, None)

    def close(self) -> None:
        self._running.clear()

    def _schedule(self, number: int, began: float, rest: Iterator[TimedMessage]) -> None:
        self._running[number] = rest
        seconds, message = next(rest)
        heapq.heappush(self._order, _Due(began + seconds, next(self._count), number, message, began, rest))

    def _next(self, timeout_seconds: float) -> tuple[int, Message] | None:
        while self._order and self._running.get(self._order[0].number) is not self._order[0].rest:
            heapq.heappop(self._order)
        until = self._clock() + timeout_seconds
        if not self._order:
            return None
        if self._order[0].seconds > until:
            self._clock.advance_to(until)
            return None
        due = heapq.heappop(self._order)
        self._clock.advance_to(due.seconds)
        if isinstance(due.message, Ending):
            self.stop(due.number)
        else:
            self._schedule(due.number, due.began, due.rest)
        return due.number, due.message


def schedule_messages(trial: ReusableTrial) -> list[TimedMessage]:
    """The messages of a recorded trial with their seconds after its start.

    A progress message with memory and quality flags comes before the first step; each evaluation after the time before
    the first step, the training until then, and its share of the remaining time; the ending after ``total_seconds``.
    """
    measured, curve = trial.ending.measurements, trial.evaluations
    before = float(sum(measured.get(name, 0.0) for name in _BEFORE))
    trained = float(measured.get("train_seconds", curve[-1].train_seconds if curve else 0.0))
    total = max(float(measured.get("total_seconds", 0.0)), before + trained)
    pause = (total - before - trained) / (len(curve) + 1)
    memory = measured.get("peak_memory_bytes")
    first = Progress(
        step=0, num_steps=int(measured.get("num_steps", 0)), epoch=0.0,
        images_per_second=float(measured.get("images_per_second", 0.0)),
        peak_memory_bytes=None if memory is None else int(memory), quality_flags=trial.ending.quality_flags,
    )  # fmt: skip
    messages: list[TimedMessage] = [(before, first)]
    for index, evaluation in enumerate(curve, 1):
        messages.append((min(before + evaluation.train_seconds + pause * index, total), evaluation))
    return [*messages, (total, trial.ending)]


# ---------------------------------------------------------------------- a search


@final
@dataclass(kw_only=True)
class ReplayedSearch:
    """The results of one replayed search, which grow while it runs. Seconds are those of the simulated clock."""

    progress: list[tuple[float, float]] = field(default_factory=list)  # seconds, share of the table's hypervolume
    search_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    pruned_front: list[Point] = field(default_factory=list)  # configurations of the true front that were pruned
    rows: list[int] = field(default_factory=list)  # of the table's points: those that were measured
    ended_seconds: list[float] = field(default_factory=list)  # when each search trial ended

    @property
    def share(self) -> float:
        return self.progress[-1][1] if self.progress else 0.0

    def seconds_to(self, share: float) -> float:
        """Seconds until that share of the hypervolume was reached; infinite if it was not."""
        return next((seconds for seconds, reached in self.progress if reached >= share), float("inf"))

    def add_record(self, record: TrialRecord, seconds: float, table: RecordedTable) -> None:
        if record.phase == "confirm":
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
    table: RecordedTable, spec: StudySpec, until: float | None = None,
    on_end: Callable[[TrialRecord], None] = lambda _record: None,
) -> ReplayedSearch:  # fmt: skip
    """Runs ``spec``, a study over the table's space (:func:`make_replay_study`), to
    its end, or until its search has reached the share ``until`` of the table's hypervolume. ``on_end`` is called with
    each trial that ended."""
    clock, search = SimulatedClock(), ReplayedSearch()
    device = next(iter(next(iter(table.curves.values())).values())).ending.device
    executor = ReplayingExecutor(lambda config: iter(schedule_messages(table.training(config))), clock, device)
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

    return RunPlan(key_of=lambda config: config.model_dump_json(), clock=clock, make_sampler=sampler, device="cpu")
