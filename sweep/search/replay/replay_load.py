"""How busy a supervisor is with very many workers: a replay on a simulated clock, with its records on a disk.

The tuner, the sampler, the store and the mirror are those of ``sweep run``. Workers say what trainings of the table
said, in as many seconds as is asked for, with the signs of life and of progress that a running trial gives, as lines
of JSON. What counts is the time of this machine that the supervisor takes; the workers' own part is left out.
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

import numpy as np
from sqlalchemy import text

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.content_key import trial_key
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.events import Event, TrialEnded
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.replay.recorded_table import Table, study_on
from sweep.search.replay.replay import device_of
from sweep.search.replay.replay_executor import ReplayingExecutor, SimulatedClock
from sweep.search.replay.replay_workers import loosened, teller
from sweep.search.samplers.base import Sampler
from sweep.search.samplers.table import make_sampler

_MIN_ROUNDS = 3
_SIZE = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"


@dataclass(frozen=True)
class Load:
    """What simulated workers cost their supervisor once as many trials have ended, so that not all begin at once.

    In ``simulated_seconds`` it took ``busy_seconds`` of the processor, and ``wall_seconds`` with its waits for the disk
    and for other processes. ``ask_milliseconds`` are wall-clock of a proposal, median and 99th percentile;
    ``bytes_per_trial`` is what the store grew by, all that lies in its file.
    """

    num_workers: int
    num_before: int  # trials on record at the start
    num_trials: int  # that ended
    num_events: int
    simulated_seconds: float
    busy_seconds: float
    wall_seconds: float
    bytes_per_trial: float
    ask_milliseconds: tuple[float, float]

    @property
    def busy_share(self) -> float:
        """Of one core."""
        return self.busy_seconds / self.simulated_seconds

    @property
    def wall_share(self) -> float:
        """Of the simulated time; from 1 on the supervisor cannot keep up."""
        return self.wall_seconds / self.simulated_seconds

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **vars(self),
            "busy_share": self.busy_share,
            "wall_share": self.wall_share,
        }


def measure_load(
    table: Table,
    num_workers: int,
    trial_seconds: float,
    folder: Path,
    *,
    window_seconds: float = math.inf,
    prepare: Callable[[Path, StudySpec], None] | None = None,
    **changes: Any,
) -> Load:
    """A study over the table's ranges, whose records lie in ``folder``; a trial takes ``trial_seconds`` in the middle.

    It ends with its trials, or when ``window_seconds`` of the simulated clock were measured. ``prepare`` may put it on
    record first, with trials; these have no copy for optuna-dashboard, and then no trial gets one. ``changes`` are
    plain keys of the study.

    Raises:
        InputError: no worker, too few trials for them, no key over fractions, or a value that a study refuses.
    """
    if num_workers < 1:
        raise InputError(f"--workers {num_workers}: give 1 or more.")
    spec = loosened(study_on(table, "load", **changes))
    if spec.trials < _MIN_ROUNDS * num_workers:
        wanted = _MIN_ROUNDS * num_workers
        raise InputError(f"--trials {spec.trials}: {num_workers} workers want {wanted} or more, to be busy a while.")
    clock, file = SimulatedClock(), folder / "study.sqlite"
    tell = teller(table, spec, trial_seconds, clock)
    executor = ReplayingExecutor(tell, clock, device_of(table), num_workers, wire=True)
    if prepare:
        prepare(file, spec)
    with contextlib.closing(open_store(file, create=True)) as store:
        mirror = Mirror(store.url, spec)
        if prepare:
            mirror.close()
        else:
            store.create_study(spec)
        with contextlib.closing(mirror):
            return _run(spec, store, executor, mirror, clock, window_seconds)


def _run(
    spec: StudySpec,
    store: Store,
    executor: ReplayingExecutor,
    mirror: Mirror,
    clock: SimulatedClock,
    window_seconds: float,
) -> Load:
    asked: list[float] = []
    plan = RunPlan(
        key_of=lambda config: trial_key(config, "data", "code", "torch"),
        clock=clock,
        make_sampler=lambda spec, records: TimedSampler(make_sampler(spec, records), asked),
        device="cpu",
    )
    tuner = Tuner(spec, store, executor, mirror, plan)
    num_before = len(tuner.records())
    ended = heard = size = 0
    start: _Moment | None = None
    with contextlib.closing(tuner.run()) as events:
        for event in events:
            ended += isinstance(event, TrialEnded)
            heard += 1
            if start is None and ended == executor.slots:
                start, size = _Moment.of(clock(), executor), _size(store)
                ended = heard = 0
                asked.clear()
            if (start and clock() - start.clock >= window_seconds) or _is_among_the_last(event, spec, executor.slots):
                break
        assert start is not None  # there are more trials than workers
        end = _Moment.of(clock(), executor)
        grown = (_size(store) - size) / max(ended, 1)
    return Load(
        executor.slots,
        num_before,
        ended,
        heard,
        end.clock - start.clock,
        end.busy - start.busy,
        end.wall - start.wall,
        grown,
        (1e3 * median(asked), 1e3 * float(np.quantile(asked, 0.99))),
    )


def _is_among_the_last(event: Event, spec: StudySpec, num_workers: int) -> bool:
    # from there on there is not work for every worker
    return isinstance(event, TrialEnded) and event.record.number >= spec.trials - num_workers


@dataclass(frozen=True)
class _Moment:
    clock: float
    wall: float
    busy: float

    @classmethod
    def of(cls, now: float, executor: ReplayingExecutor) -> "_Moment":
        wall, busy = executor.own_seconds
        return cls(now, time.perf_counter() - wall, time.process_time() - busy)


def _size(store: Store) -> int:
    return int(store.database.read(lambda connection: connection.execute(text(_SIZE)).scalar()) or 0)


@final
class TimedSampler(Sampler):
    """Another sampler, the seconds of whose proposals are put into ``seconds``."""

    def __init__(self, inner: Sampler, seconds: list[float]) -> None:
        self._inner, self._seconds = inner, seconds

    def propose(self, index: int) -> dict[str, Any] | None:
        began = time.perf_counter()
        values = self._inner.propose(index)
        self._seconds.append(time.perf_counter() - began)
        return values

    def learn(self, record: TrialRecord) -> None:
        self._inner.learn(record)
