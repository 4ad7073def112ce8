"""A server that goes away in mid-study: nothing lost, nothing doubled, nobody else let in."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from postgres_server import Server, postgres
from records_factory import add_trials, make_config, make_ending, make_evaluation, make_spec, make_store
from sqlalchemy import Connection, Engine, event, text

from sweep.config.study import StudySpec
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.records.frames.frames import load_frames
from sweep.records.store.database_errors import RetryPolicy, StoreError
from sweep.records.store.lock import database_lock
from sweep.records.store.store import Store, open_store
from sweep.search.loop.events import TrialEnded
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror

pytestmark = pytest.mark.postgres

__all__ = ["postgres"]


@pytest.fixture
def store(postgres: Server) -> Iterator[Store]:
    with closing(open_store(postgres.url, create=True)) as opened, opened.database.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    with closing(open_store(postgres.url, create=True)) as opened:
        opened.create_study(make_spec())
        yield opened


def _run(store: Store, spec: StudySpec, between: Callable[[int], None]) -> list[int]:
    """Runs the study; ``between`` is called at the end of each trial. Returns the numbers that were told as ended."""
    told: list[int] = []
    executor = InlineExecutor("cpu", WorkerProgram("tuner_runners:formula", "tuner_runners:describe"))
    plan = RunPlan(key_of=lambda config: config.model_dump_json())
    with executor, closing(Mirror(store.url, spec)) as mirror:
        with closing(Tuner(spec, store, executor, mirror, plan).run()) as events:
            for news in events:
                if isinstance(news, TrialEnded):
                    told.append(news.record.number)
                    between(len(told))
        mirror.catch_up(store.trial_records("s"))
    return told


def _assert_equal_records(one: str, other: Path) -> None:
    left, right = load_frames(one, evaluations=True), load_frames(other, evaluations=True)
    assert left.evaluations is not None
    assert right.evaluations is not None
    pd.testing.assert_frame_equal(left.trials, right.trials)
    pd.testing.assert_frame_equal(left.evaluations, right.evaluations)
    columns = ["number", "attempt", "cause"]
    pd.testing.assert_frame_equal(left.attempts[columns], right.attempts[columns])


@pytest.mark.parametrize("outage_seconds", [10.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_a_study_goes_on_after_restarts_and_its_records_are_those_of_an_undisturbed_one(
    postgres: Server, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, outage_seconds: float
) -> None:
    spec = make_spec(trials=10, confirm={"max_configurations": 2, "seeds": 3})
    starters: list[threading.Timer] = []

    def disturb(num_ended: int) -> None:
        if num_ended not in (3, 5, 7, 11):  # the last one among the confirming trials
            return
        postgres.stop()
        starters.append(threading.Timer(outage_seconds if num_ended == 7 else 0.0, postgres.start))
        starters[-1].start()

    with database_lock(store.database, "s"):
        told = _run(store, spec, disturb)
    for starter in starters:
        starter.join()
    undisturbed = make_store(tmp_path / "study.sqlite")
    _run(undisturbed, spec, lambda _number: None)
    undisturbed.close()
    assert len(starters) == 4
    assert sorted(told) == sorted(set(told))
    _assert_equal_records(store.url, tmp_path / "study.sqlite")
    lines = [record.message for record in caplog.records if record.name == "sweep.records.store.database_errors"]
    assert sum("Retrying for at most 300 s" in line for line in lines) == 4
    assert sum("answers again after" in line for line in lines) == 4
    assert "canary" not in caplog.text


def _lose(engine: Engine, postgres: Server, *, after: bool) -> None:
    """The server crashes once around the next commit: before it gets there, or before its answer does."""
    left = [1]

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if left and left.pop():
            if after:
                assert connection.connection.driver_connection is not None
                connection.connection.driver_connection.commit()
            postgres.restart()


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_without_an_answer_is_done_once(postgres: Server, store: Store, after: bool) -> None:
    writes: list[Callable[[], Any]] = [
        lambda: store.add_trial("s", 0, "search", make_config(0), "key0"),
        lambda: store.start_attempt("s", 0),
        lambda: store.add_evaluation("s", 0, 1, make_evaluation(10)),
        lambda: store.end_attempt("s", 0, 1, "", 1.5),
        lambda: store.finish_trial("s", 0, make_ending(0)),
        lambda: store.update_spec(make_spec(trials=7)),
    ]
    with database_lock(store.database, "s"):
        results = []
        for write in writes:
            _lose(store.database.engine, postgres, after=after)
            results.append(write())
        _lose(store.database.engine, postgres, after=after)
        with store.transaction():
            store.add_trial("s", 1, "search", make_config(1), "key1")
            assert store.start_attempt("s", 1) == 1
            assert store.start_attempt("s", 1) == 2
    assert results[1] == 1
    assert [(record.number, record.outcome) for record in store.trial_records("s")] == [(0, "complete"), (1, None)]
    attempts = load_frames(store.url).attempts
    assert attempts[["number", "attempt"]].to_numpy().tolist() == [[0, 1], [1, 1], [1, 2]]
    assert store.evaluations("s", 0) == [make_evaluation(10)]


def test_a_connection_that_is_lost_amid_writes_that_belong_together(postgres: Server, store: Store) -> None:
    with database_lock(store.database, "s"), store.transaction():
        store.add_trial("s", 0, "search", make_config(0), "key0")
        postgres.restart()
        assert store.start_attempt("s", 0) == 1
        postgres.restart()
        store.end_attempt("s", 0, 1, "", 1.0)
        postgres.restart()
    assert load_frames(store.url).attempts["busy_seconds"].tolist() == [1.0]


def test_who_takes_the_study_during_an_outage_keeps_it(postgres: Server, store: Store) -> None:
    other = open_store(postgres.url)
    add_trials(store, ["complete"])
    with database_lock(store.database, "s"):
        store.add_trial("s", 1, "search", make_config(1), "key1")
        postgres.restart()
        with database_lock(other.database, "s"):
            add_trials(other, ["complete"], first=2)
            with pytest.raises(StoreError, match=r"'s' was taken over .*: process \d+ on \S+ since 20"):
                store.start_attempt("s", 1)
        with pytest.raises(StoreError, match="taken over"):  # also when the other one has ended
            store.finish_trial("s", 1, make_ending(1))
    other.close()
    assert [(record.number, record.outcome) for record in store.trial_records("s")] == [
        (0, "complete"),
        (1, None),
        (2, "complete"),
    ]


def test_a_lock_whose_connection_alone_was_lost_is_taken_again(postgres: Server, store: Store) -> None:
    del postgres
    held = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    with database_lock(store.database, "s"):
        with store.database.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"))
        while store.database.read(lambda connection: connection.execute(held).scalar()):
            time.sleep(0.01)
        add_trials(store, ["complete"])
        assert store.database.read(lambda connection: connection.execute(held).scalar()) == 1
    deadline = time.monotonic() + 10  # the server lets go of it when it notices that the connection is closed
    while store.database.read(lambda connection: connection.execute(held).scalar()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_remains_of_an_own_connection_do_not_keep_the_lock(postgres: Server, store: Store) -> None:
    del postgres
    with database_lock(store.database, "s"):
        add_trials(store, ["complete"])
        supervision = store.database.supervision
        assert supervision is not None
        remains, supervision._connection = supervision._connection, None  # as behind a network that swallows packets
        add_trials(store, ["complete"], first=1)
        assert remains is not None
        remains.invalidate()
        remains.close()
    assert len(store.trial_records("s")) == 2


def test_few_connections_are_open(postgres: Server, store: Store) -> None:
    del postgres
    most = []

    def count(_number: int) -> None:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE datname = 'sweep'")
        most.append(store.database.read(lambda connection: connection.execute(query).scalar()))

    with database_lock(store.database, "s"):
        _run(store, make_spec(trials=4), count)
    assert max(most) <= 4  # the study's place, reading, and two of Optuna's


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_retries_have_an_end_and_an_interruption_ends_it_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = _Clock()
    retries = RetryPolicy("here", 20.0, lambda: clock.now, clock.sleep)
    with pytest.raises(StoreError, match=r"here: gone\. It was retried for 2\d s; .* run the same command again\."):  # noqa: PT012
        while True:
            retries.wait("gone")
    assert clock.pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    with pytest.raises(StoreError):
        retries.wait("gone")  # cleaning up does not wait again
    retries.reset()
    retries.wait("gone")
    assert [record.message for record in caplog.records] == [
        "here: gone. Retrying for at most 20 s.",
        "here: it answers again after 21 s; resuming.",
        "here: gone. Retrying for at most 20 s.",
    ]

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    impatient = RetryPolicy("here", 20.0, lambda: clock.now, interrupt)
    with pytest.raises(KeyboardInterrupt):
        impatient.wait("gone")
    with pytest.raises(StoreError):
        impatient.wait("gone")
