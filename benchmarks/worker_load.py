"""How busy a supervisor is with many workers: a replay on a simulated clock, with its records on a disk.

The tuner, the sampler, the store and the mirror are those of ``sweep run``. Workers send what recorded trainings sent,
stretched to the requested time, with the heartbeats and the progress of a running trial, as lines of JSON. Measured is
the time of this machine that the supervisor takes, without that of the simulated workers.
"""

import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, final

import numpy as np
from sqlalchemy import text

from benchmarks.replay import (
    RecordedTable,
    ReplayingExecutor,
    SimulatedClock,
    TimedMessage,
    find_device,
    make_replay_study,
    schedule_messages,
)
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig, flatten_config
from sweep.executors.base import ExecutorWrapper
from sweep.records.content_key import trial_key
from sweep.records.messages import Ending, Heartbeat, Message, Progress, Task, decode_message, encode_message
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.events import Event, TrialEnded
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler
from sweep.training.supervisor_link import HEARTBEAT_SECONDS, PROGRESS_SECONDS

_MIN_ROUNDS = 3
_SIZE = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"


@dataclass(frozen=True, kw_only=True)
class Load:
    """The cost of simulated workers for their supervisor, once as many trials have ended as there are workers."""

    num_workers: int
    num_before: int  # trials on record at the start
    num_trials: int  # that ended
    num_events: int
    simulated_seconds: float
    busy_seconds: float  # of the processor
    wall_seconds: float  # with waits for the disk and for other processes
    bytes_per_trial: float  # by which the store grew
    ask_milliseconds: tuple[float, float]  # wall-clock time of a proposal, median and 99th percentile

    @property
    def busy_share(self) -> float:
        """Of one core."""
        return self.busy_seconds / self.simulated_seconds

    @property
    def wall_share(self) -> float:
        """Of the simulated time; from 1 on the supervisor cannot keep up."""
        return self.wall_seconds / self.simulated_seconds


def measure_load(
    table: RecordedTable,
    num_workers: int,
    trial_seconds: float,
    folder: Path,
    *,
    window_seconds: float = math.inf,
    prepare: Callable[[Path, StudySpec], None] | None = None,
    **changes: Any,
) -> Load:
    """Replays a study over the table's ranges with its records in ``folder``; a median trial takes ``trial_seconds``.

    It ends with its trials, or after ``window_seconds`` of the simulated clock. ``prepare`` may record the study first,
    with trials; then no trial is mirrored for optuna-dashboard. ``changes`` are plain keys of the study.

    Raises:
        InputError: too few trials for the workers, no key over fractions, or a value that a study refuses.
    """
    spec = _widen_grid(make_replay_study(table, "load", **changes))
    least = _MIN_ROUNDS * num_workers
    if spec.trials < least:
        raise InputError(f"trials = {spec.trials}: {num_workers} workers require {least} or more, to be busy a while.")
    clock, file = SimulatedClock(), folder / "study.sqlite"
    play = _make_player(table, spec, trial_seconds, clock)
    executor = JsonLines(ReplayingExecutor(play, clock, find_device(table), num_workers))
    if prepare:
        prepare(file, spec)
    with contextlib.closing(open_store(file, create=True)) as store:
        mirror = Mirror(store.url, spec)
        if prepare:
            mirror.close()
        else:
            store.create_study(spec)
        with contextlib.closing(mirror):
            return _Measurement(spec, store, executor, clock).run(mirror, window_seconds)


@final
class JsonLines(ExecutorWrapper):
    """Sends messages as lines of JSON, as another process would. ``own_seconds`` are the wall-clock and the processor
    time of the simulated workers, which do not count; reading a line does."""

    def __init__(self, inner: ReplayingExecutor) -> None:
        super().__init__(inner)
        self.own_seconds = (0.0, 0.0)

    def start(self, task: Task) -> None:
        with self._timed():
            self._inner.start(task)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        with self._timed():
            lines = [(number, _encode(message)) for number, message in self._inner.poll(timeout_seconds)]
        return [(number, decode_message(line)) for number, line in lines]

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            wall, busy = self.own_seconds
            self.own_seconds = (wall + time.perf_counter() - began[0], busy + time.process_time() - began[1])


@lru_cache(4096)  # most messages are sent again and again
def _encode_once(message: Message) -> bytes:
    return encode_message(message)


def _encode(message: Message) -> bytes:
    return encode_message(message) if isinstance(message, Ending) else _encode_once(message)


class _Moment(NamedTuple):
    clock: float
    wall: float
    busy: float
    size: int


@final
class _Measurement:
    def __init__(self, spec: StudySpec, store: Store, executor: JsonLines, clock: SimulatedClock) -> None:
        self._spec, self._store, self._executor, self._clock = spec, store, executor, clock
        self._ask_seconds: list[float] = []

    def run(self, mirror: Mirror, window_seconds: float) -> Load:
        """Runs the study and measures from the time when as many trials have ended as there are workers."""
        plan = RunPlan(
            key_of=lambda config: trial_key(config, "data", "code", {}),
            clock=self._clock,
            make_sampler=lambda spec, records: TimedSampler(make_sampler(spec, records), self._ask_seconds),
            device="cpu",
        )
        num_workers = self._executor.slots
        tuner = Tuner(self._spec, self._store, self._executor, mirror, plan)
        num_before = len(tuner.records())
        num_ended = num_events = 0
        start: _Moment | None = None
        with contextlib.closing(tuner.run()) as events:
            for event in events:
                num_ended += isinstance(event, TrialEnded)
                num_events += 1
                if start is None and num_ended == num_workers:
                    start, num_ended, num_events = self._moment(), 0, 0
                    self._ask_seconds.clear()
                if (start and self._clock() - start.clock >= window_seconds) or self._is_among_the_last(event):
                    break
            assert start is not None  # there are more trials than workers
            end = self._moment()
        return Load(
            num_workers=num_workers,
            num_before=num_before,
            num_trials=num_ended,
            num_events=num_events,
            simulated_seconds=end.clock - start.clock,
            busy_seconds=end.busy - start.busy,
            wall_seconds=end.wall - start.wall,
            bytes_per_trial=(end.size - start.size) / max(num_ended, 1),
            ask_milliseconds=(1e3 * median(self._ask_seconds), 1e3 * float(np.quantile(self._ask_seconds, 0.99))),
        )

    def _moment(self) -> _Moment:
        wall, busy = self._executor.own_seconds
        size = int(self._store.database.read(lambda connection: connection.execute(text(_SIZE)).scalar()) or 0)
        return _Moment(self._clock(), time.perf_counter() - wall, time.process_time() - busy, size)

    def _is_among_the_last(self, event: Event) -> bool:
        # from here on there are not trials for every worker
        last = self._spec.trials - self._executor.slots
        return isinstance(event, TrialEnded) and event.record.number >= last


@final
class TimedSampler(Sampler):
    """Another sampler; the seconds of its proposals are appended to ``seconds``."""

    def __init__(self, inner: Sampler, seconds: list[float]) -> None:
        self._inner, self._seconds = inner, seconds

    def propose(self, index: int) -> dict[str, Any] | None:
        began = time.perf_counter()
        values = self._inner.propose(index)
        self._seconds.append(time.perf_counter() - began)
        return values

    def learn(self, record: TrialRecord) -> None:
        self._inner.learn(record)


def _widen_grid(spec: StudySpec) -> StudySpec:
    """``spec`` with each recorded list of fractions as a range, so that there are enough points.

    Raises:
        InputError: there is no such list.
    """
    space = {path: _widen(parameter) for path, parameter in spec.space.items()}
    if all(parameter.grid_values is not None for parameter in space.values()):
        raise InputError("the table varies no key over fractions, so there are not enough points for many trials.")
    return spec.model_copy(update={"space": space})


def _widen(parameter: Parameter) -> Parameter:
    numbers = [value for value in parameter.grid_values or () if isinstance(value, float)]
    if len(numbers) < 2 or len(numbers) < len(parameter.grid_values or ()):
        return parameter
    low, high = min(numbers), max(numbers)
    return Parameter(log=(low, high)) if low > 0 else Parameter(float_=(low, high))


def _make_player(
    table: RecordedTable, spec: StudySpec, trial_seconds: float, clock: SimulatedClock
) -> Callable[[TrialConfig], Iterator[TimedMessage]]:
    """The messages of a configuration: those of the nearest recorded one, stretched. Heartbeats begin when the first
    trials have ended, because nothing before that is measured."""
    schedules = [schedule_messages(next(iter(table.curves[point].values()))) for point in table.points]
    stretch = trial_seconds / median(messages[-1][0] for messages in schedules)
    rows = {point: row for row, point in enumerate(table.points)}
    axes = [sorted({point[axis] for point in table.points}, key=str) for axis in range(len(spec.space))]

    def play(config: TrialConfig) -> Iterator[TimedMessage]:
        flat = flatten_config(config)
        nearest = tuple(_find_nearest(flat[path], axis) for path, axis in zip(spec.space, axes, strict=True))
        return stretch_messages(schedules[rows.get(nearest, 0)], stretch, max(0.0, trial_seconds - clock()))

    return play


def _find_nearest(value: Scalar, recorded: Sequence[Scalar]) -> Scalar:
    numbers = [each for each in recorded if isinstance(each, float)]
    return min(numbers, key=lambda each: abs(each - value)) if isinstance(value, float) and numbers else value


def stretch_messages(
    messages: list[TimedMessage], stretch: float, quiet_seconds: float = 0.0
) -> Iterator[TimedMessage]:
    """``messages`` over ``stretch`` times their time, with the heartbeats and the progress of a running trial between
    the first and the last, from ``quiet_seconds`` after the start."""
    first, last = max(messages[0][0] * stretch, quiet_seconds), messages[-1][0] * stretch
    progress = Progress(step=1, num_steps=1, epoch=0.0, images_per_second=1.0)
    stretched = ((seconds * stretch, message) for seconds, message in messages)
    between = (_repeat(PROGRESS_SECONDS, progress, first, last), _repeat(HEARTBEAT_SECONDS, Heartbeat(), first, last))
    return heapq.merge(stretched, *between, key=lambda told: told[0])


def _repeat(seconds: float, message: Message, first: float, last: float) -> Iterator[TimedMessage]:
    when = first + seconds
    while when < last:
        yield when, message
        when += seconds
