"""The store on real SQLite files: what is written is there after a kill, nothing else is taken for a store, and one
supervisor holds a study, whoever dies and however."""

import contextlib
import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from postgres_server import Server, postgres
from records_factory import (
    add_trials,
    fill_mirror,
    make_config,
    make_ending,
    make_evaluation,
    make_spec,
    make_store,
    open_at_once,
)
from sqlalchemy import event, inspect, text

from sweep.config.errors import InputError, StoreError
from sweep.records.database import study_lock
from sweep.records.loading import load_frames
from sweep.records.schema import METADATA, VERSION, VERSIONS
from sweep.records.store import Store, open_store

__all__ = ["postgres"]

TESTS = Path(__file__).parent


def test_a_study_is_recorded_once_and_its_changeable_keys_change(tmp_path: Path) -> None:
    spec = make_spec(base={"data.subset": 100, "rules.lr": "linear"}, question="ü?")
    store = make_store(tmp_path / "study.sqlite", spec)
    assert store.load_spec("s") == spec
    assert store.load_spec("t") is None
    with pytest.raises(InputError, match="already holds a study 's'"):
        store.create_study(spec)
    changed = spec.model_copy(update={"trials": 99})
    store.update_spec(changed)
    store.close()
    again = open_store(tmp_path)  # the folder names its store
    assert again.load_spec("s") == changed
    assert again.study_names() == ["s"]
    with pytest.raises(StoreError, match="no study 't'"):
        again.update_spec(make_spec("t"))
    again.close()


def test_a_trial_goes_from_open_to_ended_and_stays_so(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.add_trial("s", 4, "search", make_config(4), "key4", "other/2")
    (record,) = store.trial_records("s")
    assert (record.number, record.outcome, record.measurements, record.reused_from) == (4, None, {}, "other/2")
    assert record.config == make_config(4)
    assert store.start_attempt("s", 4) == 1
    store.end_attempt("s", 4, 1, "SIGKILL", 1.5)
    with pytest.raises(StoreError, match="attempt 1 is not open"):
        store.end_attempt("s", 4, 1, "", 2.5)
    assert [store.start_attempt("s", 4), store.start_attempt("s", 4)] == [2, 3]
    causes = load_frames(tmp_path).attempts["cause"].fillna("open").tolist()
    assert causes == ["SIGKILL", "supervisor_lost", "open"]
    ending = make_ending(4, quality_flags=("throttled",), error="")
    store.finish_trial("s", 4, ending)
    for later in (ending, make_ending(4, "crashed")):
        with pytest.raises(StoreError, match="trial 4 is not open"):
            store.finish_trial("s", 4, later)
    (record,) = store.trial_records("s")
    assert (record.outcome, record.measurements) == ("complete", ending.measurements)
    assert (record.device, record.quality_flags) == ("cpu", ("throttled",))
    assert isinstance(record.measurements["peak_memory_bytes"], int)
    store.close()


def test_what_the_rules_forbid_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete"])
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add_trial("s", 0, "search", make_config(0), "key")
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.add_trial("t", 0, "search", make_config(0), "key")
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.add_evaluation("s", 7, 1, make_evaluation(1))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.add_evaluation("s", 0, 1, make_evaluation(10))
    store.add_trial("s", 1, "search", make_config(1), "key1")
    with pytest.raises(StoreError, match="val_acuracy is no metric"):
        store.finish_trial("s", 1, make_ending(1, measurements={"val_acuracy": 0.5}))
    assert store.trial_records("s")[1].outcome is None
    store.close()


def test_an_error_that_no_database_takes_is_kept_in_substance(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.add_trial("s", 0, "search", make_config(0), "key")
    store.finish_trial("s", 0, make_ending(0, "crashed", error="half \udc80 zero \0 " + "x" * 100_000 + "the end"))
    (record,) = store.trial_records("s")
    assert record.error.startswith("half ? zero \\0 xxx")
    assert record.error.endswith("the end")
    assert len(record.error) < 21_000
    store.close()


def test_reusable_trials_are_complete_and_unflagged_ones_come_first(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.create_study(make_spec("t"))
    endings = [
        ("s", "crashed", (), ""),
        ("s", "complete", ("throttled",), ""),
        ("s", "complete", (), "elsewhere/7"),
        ("t", "complete", (), ""),
    ]
    for number, (study, outcome, flags, reused) in enumerate(endings):
        store.add_trial(study, number, "search", make_config(number), "same", reused)
        store.add_evaluation(study, number, 0, make_evaluation(5, number / 10))
        store.finish_trial(study, number, make_ending(number, outcome, quality_flags=flags))
    found = store.find_by_key("same")
    assert found is not None
    assert found.origin == "t/3"
    assert found.ending == make_ending(3)
    assert found.evaluations == (make_evaluation(5, 0.3),)
    assert store.find_by_key("absent") is None
    for number, flags in ((4, ("uncertain_time",)), (5, ("spread", "reference_drift"))):
        store.add_trial("t", number, "search", make_config(number), "doubtful", "")
        store.finish_trial("t", number, make_ending(number, quality_flags=flags))
    found = store.find_by_key("doubtful")
    assert found is not None
    assert found.origin == "t/5"  # of more flags, but its times are evidence
    store.close()


@pytest.mark.parametrize("content", [b"\x00\x01random bytes" * 100, b"SQLite format 3\0" + b"\xff" * 5000, b"name,x\n"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "study.sqlite"
    path.write_bytes(content)
    for options in ({"create": True}, {"read_only": True}, {}):
        with pytest.raises(InputError, match=r"study\.sqlite"):
            open_store(path, **options)
    assert path.read_bytes() == content


def test_other_databases_and_other_versions_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite"
    with contextlib.closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    with pytest.raises(InputError, match="holds other tables"):
        open_store(foreign, create=True)
    make_store(tmp_path / "newer.sqlite").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "newer.sqlite")) as connection, connection:
        connection.execute("UPDATE sweep_version SET version_num = '0099'")
    with pytest.raises(InputError, match=r"version 0099, this program requires 0001"):
        open_store(tmp_path / "newer.sqlite")
    with pytest.raises(InputError, match="no study is recorded there"):
        open_store(tmp_path / "absent.sqlite")
    for url, message in [
        ("nonsense", "no study is recorded"),
        ("oracle+none://x/y", "unknown kind of database"),
        ("mysql+pymysql://user:canary@localhost/x", "not installed"),
        ("://", "URL cannot be read"),
    ]:
        with pytest.raises(InputError, match=message) as refused:
            open_store(url)
        assert "canary" not in str(refused.value)


@pytest.mark.parametrize(("change", "name"), [
    ("ALTER TABLE sweep_trials DROP COLUMN bottleneck", "bottleneck"),
    ('ALTER TABLE sweep_trials ADD COLUMN "config.optimizer.magic" TEXT', "config.optimizer.magic"),
    ("DROP TABLE sweep_queue", "point"),
])  # fmt: skip
def test_tables_of_another_version_are_refused_and_stay_what_they_are(tmp_path: Path, change: str, name: str) -> None:
    path = tmp_path / "study.sqlite"
    make_store(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(InputError, match=rf"differs from this version's in .*{name}.*; use the version"):
            open_store(path, read_only=read_only)
    assert path.read_bytes() == before


WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from records_factory import add_trials
from sweep.records.store import open_store
store = open_store(sys.argv[1])
for number in range(int(sys.argv[2]), 100_000, 2):
    add_trials(store, ["complete"], first=number)
    print(number, flush=True)
"""


def _start(script: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *map(str, words)], stdout=subprocess.PIPE, text=True)


def test_a_killed_writer_loses_nothing_that_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    make_store(path).close()
    writer = _start(WRITER, path, 0, TESTS)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(8)]
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()
    outcomes = load_frames(tmp_path).trials.set_index("number")["outcome"]  # a reader comes first
    assert (outcomes.loc[told] == "complete").all()
    assert len(outcomes) - len(told) <= 1  # at most the one that was being written
    store = open_store(path)
    add_trials(store, ["complete"], first=99_999)
    with store.database.transaction() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
    store.close()


def test_two_writers_and_a_reader_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    make_store(path).close()
    writers = [_start(WRITER, path, first, TESTS) for first in (0, 1)]
    seen: list[int] = []
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        while not seen or seen[-1] < 20:
            frames = load_frames(path, evaluations=True)
            assert frames.evaluations is not None
            seen.append(int((frames.trials["outcome"] == "complete").sum()))
            assert len(frames.evaluations) >= 2 * seen[-1]  # one picture of all tables
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert seen == sorted(seen)
    assert len(load_frames(path).trials) >= 20


def test_several_programs_may_make_the_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "study.sqlite"
    stores = open_at_once(path, 6)
    stores[0].create_study(make_spec())
    assert all(store.study_names() == ["s"] for store in stores)
    for store in stores:
        store.close()


def test_opening_waits_for_who_makes_the_file_or_writes_without_the_log(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    make_store(path).close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN IMMEDIATE")  # SQLite lets nobody switch to the log now, and does not wait
        release = threading.Timer(0.5, lambda: other.execute("COMMIT"))
        release.start()
        store = open_store(path)
        assert not other.in_transaction
        assert store.study_names() == ["s"]
        store.close()
        release.join()


def test_a_full_disk_is_said_and_costs_nothing_that_was_recorded(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete"])
    with store.database.transaction() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar()
        connection.execute(text(f"PRAGMA max_page_count = {pages + 3}"))  # SQLite's own way to be full
    with pytest.raises(StoreError, match=r"full.*Free some space"):
        add_trials(store, ["crashed"] * 200, first=1)
    kept = len(store.trial_records("s"))
    with store.database.transaction() as connection:
        connection.execute(text("PRAGMA max_page_count = 1000000"))
    add_trials(store, ["complete"], first=5000)
    assert len(store.trial_records("s")) == kept + 1
    store.close()


def test_a_write_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    with store.database.transaction() as connection:
        modes = [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2]
    commits: list[object] = []
    event.listen(store.database.engine, "commit", commits.append)
    add_trials(store, ["complete"] * 20)
    assert len(commits) == 1 + 20 * 6  # of the study, and of each trial
    with contextlib.closing(sqlite3.connect(tmp_path / "study.sqlite")) as reader:
        assert reader.execute("SELECT count(*) FROM sweep_trials WHERE outcome = 'complete'").fetchone() == (20,)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["study.sqlite"]


def test_writes_together_are_all_there_or_none(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    with store.database.transaction():
        store.add_trial("s", 0, "search", make_config(0), "key0")
        assert store.start_attempt("s", 0) == 1
    with pytest.raises(StoreError, match="attempt 7 is not open"), store.database.transaction():  # noqa: PT012
        store.add_trial("s", 1, "search", make_config(1), "key1")
        store.finish_trial("s", 0, make_ending(0))  # with an environment that is new
        store.end_attempt("s", 0, 7, "", 1.0)
    assert [(record.number, record.outcome) for record in store.trial_records("s")] == [(0, None)]
    store.finish_trial("s", 0, make_ending(0))
    store.close()
    frames = load_frames(tmp_path / "study.sqlite")
    assert len(frames.environments) == 1
    assert frames.trials["outcome"].tolist() == ["complete"]


KILLED = """
import os, signal, sys
from sweep.records import database
from sweep.records.store import open_store
database.inspect = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
open_store(sys.argv[1], create=True)
"""


def _assert_a_kill_leaves_nothing(place: str | Path) -> None:
    """Kills the making of the tables before its commit."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place)], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(InputError, match="no study is recorded there"):
        open_store(place)


def _assert_tables(store: Store) -> None:
    with store.database.transaction() as connection:
        names = {name for name in inspect(connection).get_table_names() if name.startswith("sweep_")}
        assert names == METADATA.tables.keys()
        assert connection.execute(VERSIONS.select()).scalars().all() == [VERSION]


def test_the_tables_are_made_whole_or_not_at_all_and_stand_beside_optunas(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    _assert_a_kill_leaves_nothing(path)
    with contextlib.closing(make_store(path)) as store:
        add_trials(store, ["complete"])
        fill_mirror(store, make_spec())
        _assert_tables(store)
    with contextlib.closing(open_store(path, create=True)) as store:
        assert len(store.trial_records("s")) == 1
        _assert_tables(store)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)  # Optuna's


@pytest.mark.wide
def test_the_same_on_a_server(postgres: Server) -> None:
    _assert_a_kill_leaves_nothing(postgres.url)
    with contextlib.closing(open_store(postgres.url, create=True)) as store:
        _assert_tables(store)


HOLDER = """
import sys, time
from pathlib import Path
from sweep.records.database import study_lock
from sweep.config.errors import InputError
try:
    with study_lock(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)
except InputError as error:
    print(error, flush=True)
"""


def test_of_simultaneous_starts_one_wins_and_the_others_learn_who(tmp_path: Path) -> None:
    processes = [_start(HOLDER, tmp_path / "study") for _ in range(3)]
    lines = {}
    for process in processes:
        assert process.stdout is not None
        lines[process.pid] = process.stdout.readline()
    winners = [pid for pid, line in lines.items() if line == "held\n"]
    assert len(winners) == 1
    with (
        pytest.raises(InputError, match=rf"running already: process {winners[0]} on .* since 20\d\d-"),
        study_lock(tmp_path / "study"),
    ):
        pass
    assert all("the study is running already" in line for pid, line in lines.items() if pid not in winners)
    os.kill(winners[0], signal.SIGKILL)
    for process in processes:
        process.communicate()
    with study_lock(tmp_path / "study"):  # the kernel freed it
        pass


def test_the_lock_is_free_again_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), study_lock(tmp_path):
            raise KeyError
    with study_lock(tmp_path), pytest.raises(InputError), study_lock(tmp_path):
        pass


@pytest.mark.parametrize("left_behind", ["", '{"pid": 4194305, "host": "HERE", "since": "2020-01-01"}'])
def test_a_holder_that_has_not_signed_is_not_named(tmp_path: Path, left_behind: str) -> None:
    path = tmp_path / "study.lock"
    path.write_text(left_behind.replace("HERE", socket.gethostname()))  # of a holder that was killed
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="is not identified yet"), study_lock(tmp_path):
            pass
