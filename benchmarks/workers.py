"""How busy a supervisor is with many workers: a replay on a simulated clock, with its records on a disk.

The tuner, the sampler and the store are those of ``sweep run``. Workers send what recorded trainings sent,
stretched to the requested time, with the heartbeats and the progress of a running trial, as lines of JSON. Measured is
the time of this machine that the supervisor takes, without that of the simulated workers.
"""

import contextlib
import heapq
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, final

from sqlalchemy import text

from benchmarks.harness import TABLES, Arms, Setting, benchmark
from benchmarks.records import fill
from benchmarks.replay import (
    RecordedTable,
    ReplayingExecutor,
    SimulatedClock,
    TimedMessage,
    find_device,
    make_replay_study,
    read_table,
    schedule_messages,
)
from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial import Scalar, TrialConfig, flatten_config
from sweep.executors.base import ExecutorWrapper
from sweep.records.inputs import trial_key
from sweep.records.messages import Ending, Heartbeat, Message, Progress, Task, decode_message, encode_message
from sweep.records.records import TrialRecord
from sweep.records.store import open_store
from sweep.search.attempts import RunPlan
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler
from sweep.search.tuner import TrialEnded, Tuner
from sweep.training.processes import HEARTBEAT_SECONDS, PROGRESS_SECONDS

_ALLOWED_SHARE = 0.2  # of one core
_TRIAL_SECONDS = 600.0
_SIZE = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"


@benchmark(
    "workers",
    f"share of one core that the supervisor of 1,000 simulated workers takes, trials of ten minutes, over the "
    f"{_ALLOWED_SHARE:.0%} that it may take: 10,000 trials on record, quasi-random",
    "of a core",
    "lower",
    1.0,
    num_pairs=5,
)
def workers(setting: Setting) -> Iterator[Arms]:
    """Theirs is what it may take."""
    num_workers, num_before = setting.pick(1_000, 10), setting.pick(10_000, 20)
    # five trials for each worker are more than the window requires
    changes = {"trials": num_before + 5 * num_workers, "sampler": "qmc", "confirm": {"max_configurations": 0}}
    loads: list[Load] = []

    def ours(_pair: int) -> float:
        spec = widen_grid(make_replay_study(read_table(TABLES / "digits"), "load", **changes))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "study.sqlite"
            fill(file, spec, num_before)
            loads.append(measure_load(read_table(TABLES / "digits"), spec, file, num_workers, _TRIAL_SECONDS, 120.0))
        return loads[-1].busy_share

    def facts() -> dict[str, Any]:
        measured = loads[1:] or loads
        return {
            "share_with_waits": median(each.wall_seconds / each.simulated_seconds for each in measured),
            "events_per_second": median(each.num_events / each.simulated_seconds for each in measured),
            "bytes_per_trial": median(each.bytes_per_trial for each in measured),
            "ask_milliseconds": median(each.ask_milliseconds for each in measured),
        }

    about = {"workers": num_workers, "trials": num_before, "trial_seconds": _TRIAL_SECONDS}
    yield Arms(ours, lambda _pair: _ALLOWED_SHARE, facts, about)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The cost of simulated workers for their supervisor, once as many trials have ended as there are workers."""

    num_trials: int  # that ended
    num_events: int
    simulated_seconds: float
    busy_seconds: float  # of the processor
    wall_seconds: float  # with waits for the disk and for other processes
    bytes_per_trial: float  # by which the store grew
    ask_milliseconds: float  # wall-clock time of a proposal, median

    @property
    def busy_share(self) -> float:
        """Of one core."""
        return self.busy_seconds / self.simulated_seconds


class _Moment(NamedTuple):
    clock: float
    wall: float
    busy: float
    size: int


def measure_load(
    table: RecordedTable, spec: StudySpec, file: Path, num_workers: int, trial_seconds: float, window_seconds: float
) -> Load:
    """Runs the recorded study ``spec`` in ``file`` on the table's trainings, of which a median one takes
    ``trial_seconds``, for ``window_seconds`` of the simulated clock from the time when as many trials have ended as
    there are workers."""
    clock, asked = SimulatedClock(), list[float]()
    play = _make_player(table, spec, trial_seconds, clock)
    executor = _JsonLines(ReplayingExecutor(play, clock, find_device(table), num_workers))
    plan = RunPlan(
        key_of=lambda config: trial_key(config, "data", "code", {}),
        clock=clock,
        make_sampler=lambda spec, records: _TimedSampler(make_sampler(spec, records), asked),
        device="cpu",
    )
    num_ended = num_events = 0
    start: _Moment | None = None
    with contextlib.closing(open_store(file)) as store:

        def look() -> _Moment:
            wall, busy = executor.own_seconds
            size = int(store.database.read(lambda connection: connection.execute(text(_SIZE)).scalar()) or 0)
            return _Moment(clock(), time.perf_counter() - wall, time.process_time() - busy, size)

        with contextlib.closing(Tuner(spec, store, executor, plan).run()) as events:
            for event in events:
                num_ended += isinstance(event, TrialEnded)
                num_events += 1
                if start is None and num_ended == num_workers:
                    start, num_ended, num_events = look(), 0, 0
                    asked.clear()
                if start and clock() - start.clock >= window_seconds:
                    break
        assert start is not None  # there are more trials than workers
        end = look()
    return Load(
        num_trials=num_ended,
        num_events=num_events,
        simulated_seconds=end.clock - start.clock,
        busy_seconds=end.busy - start.busy,
        wall_seconds=end.wall - start.wall,
        bytes_per_trial=(end.size - start.size) / max(num_ended, 1),
        ask_milliseconds=1e3 * median(asked),
    )


@final
class _JsonLines(ExecutorWrapper):
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


_encode_once = lru_cache(4096)(encode_message)  # most messages are sent again and again


def _encode(message: Message) -> bytes:
    return encode_message(message) if isinstance(message, Ending) else _encode_once(message)


@final
class _TimedSampler(Sampler):
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


def widen_grid(spec: StudySpec) -> StudySpec:
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
    axes = [sorted({point[axis] for point in table.points}, key=str) for axis in range(len(spec.space))]

    def play(config: TrialConfig) -> Iterator[TimedMessage]:
        flat = flatten_config(config)
        nearest = tuple(_find_nearest(flat[path], axis) for path, axis in zip(spec.space, axes, strict=True))
        return stretch_messages(schedules[table.row_of.get(nearest, 0)], stretch, max(0.0, trial_seconds - clock()))

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
