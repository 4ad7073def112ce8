"""Store, frames, mirror and lock on a real PostgreSQL server: the same code, the same values; and how it may end."""

import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import optuna
import pandas as pd
import pytest
from cli_calls import INLINE
from postgres_server import Server, postgres, url
from records_factory import add_trials, make_config, make_ending, make_spec, make_store, open_at_once, write_study
from sqlalchemy import text

from sweep.config.errors import InputError, StoreError
from sweep.records import reading
from sweep.records.database import database_lock
from sweep.records.files import export_frames, import_records
from sweep.records.loading import load_frames
from sweep.records.store import Store, open_store
from sweep.search.optuna import open_read_only

pytestmark = pytest.mark.wide

__all__ = ["postgres", "url"]


def _fill(store: Store) -> None:
    add_trials(store, ["complete", None, "out_of_memory"])
    store.add_trial("s", 3, "confirm", make_config(3), "key3")
    measured = {"val_loss": float("nan"), "val_accuracy": 1 / 3, "num_steps": 2**62}
    store.finish_trial("s", 3, make_ending(3, "diverged", measurements=measured, error="zero \0 byte"))


@pytest.mark.parametrize("many_rows", [5_000, 1])  # the second: columns of equal cells take their short cut
def test_the_same_records_make_the_same_frames_as_on_sqlite(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_rows: int
) -> None:
    monkeypatch.setattr(reading, "_MANY_ROWS", many_rows)
    server, file = open_store(url, create=True), make_store(tmp_path / "study.sqlite")
    server.create_study(make_spec())
    for store in (server, file):
        _fill(store)
    one, other = load_frames(url, evaluations=True, correct_images=True), load_frames(tmp_path, evaluations=True)
    assert one.specs == other.specs
    for name in ("trials", "evaluations", "environment_rows", "probes"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)
    pd.testing.assert_frame_equal(one.attempts.drop(columns="started_at"), other.attempts.drop(columns="started_at"))
    assert abs(one.attempts["started_at"] - other.attempts["started_at"]).max() < pd.Timedelta("1min")
    assert server.trial_records("s") == file.trial_records("s")
    assert server.find_by_key("key0") == file.find_by_key("key0")
    export_frames(one, tmp_path / "out")
    copy = open_store(tmp_path / "copy.sqlite", create=True)
    import_records(tmp_path / "out", copy)
    pd.testing.assert_frame_equal(load_frames(tmp_path / "copy.sqlite").trials, one.trials, check_exact=True)
    for store in (server, file, copy):
        store.close()


def test_rules_hold_and_readers_cannot_write(url: str) -> None:
    with pytest.raises(InputError, match="no study is recorded there"):
        open_store(url, read_only=True)
    store = open_store(url, create=True)
    store.create_study(make_spec())
    store.create_study(make_spec("t"))
    _fill(store)
    with pytest.raises(StoreError, match="trial 0 is not open"):
        store.finish_trial("s", 0, make_ending(0))
    with pytest.raises(StoreError, match="duplicate key"):
        store.add_trial("s", 0, "search", make_config(0), "key")
    store.add_trial("t", 0, "search", make_config(0), "key")
    assert [len(load_frames(f"{url}#{name}").trials) for name in ("s", "t")] == [4, 1]
    reader = open_store(url, read_only=True)
    assert reader.study_names() == ["s", "t"]
    with pytest.raises(StoreError, match="read-only") as refused:
        reader.add_trial("t", 1, "search", make_config(0), "key")
    assert "canary" not in str(refused.value)
    reader.close()
    store.close()


def test_several_programs_make_the_tables_at_once(url: str) -> None:
    for store in open_at_once(url, 4):
        store.close()


def test_one_holder_per_study_and_free_again(url: str) -> None:
    store = open_store(url, create=True)
    with database_lock(store.database, "s"):
        whose = rf"'s' is running already: process {os.getpid()} on \S+ since 20\d\d-"
        with pytest.raises(InputError, match=whose), database_lock(store.database, "s"):
            pass
        with database_lock(store.database, "t"):
            pass
    while True:  # the server ends the session, and with it the lock, some time after the connection is closed
        with suppress(InputError), database_lock(store.database, "s"):
            break
    store.close()


def test_a_study_is_kept_by_who_holds_its_connection_and_nothing_is_written_without_it(url: str) -> None:
    store, other = open_store(url, create=True), open_store(url)
    store.create_study(make_spec())
    held = text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    with database_lock(store.database, "s"):
        add_trials(store, ["complete"])
        with other.database.transaction() as connection:
            assert connection.execute(held).scalar()
        for _ in range(2):  # nor when the server answers again
            with pytest.raises(StoreError, match=r"recorded is kept\. When it runs again, run the same"):
                store.add_trial("s", 1, "search", make_config(1), "key1")
        with database_lock(other.database, "s"):
            add_trials(other, ["complete"], first=2)
    assert [record.number for record in store.trial_records("s")] == [0, 2]
    store.close()
    other.close()


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/x: .*does not answer") as refused:
        open_store("postgresql+psycopg://user:canary@127.0.0.1:1/x")
    assert "canary" not in str(refused.value)


def test_two_studies_run_at_once_into_one_database(url: str, tmp_path: Path) -> None:
    """Two of a team on machines of their own, here folders of their own; the records are read from a third."""
    names = ("hers", "his")
    running = []
    for name in names:
        study = write_study(tmp_path, name, trials=3, seeds=1)
        command = [sys.executable, "-m", "sweep.cli", "run", str(study), "--root", str(tmp_path / name), "--json"]
        environment = {**os.environ, "SWEEP_STORE": url}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for name, process in zip(names, running, strict=True):
        said, complaints = process.communicate(timeout=300)
        assert process.returncode == 0, complaints.decode()[-2000:]
        assert json.loads(said)["outcomes"] == {"complete": 4}
        assert b"canary" not in said + complaints
        assert (tmp_path / name / name / "report.html").exists()
        assert not (tmp_path / name / name / "study.sqlite").exists()
    both = load_frames(url, evaluations=True)
    assert set(both.specs) == set(names)
    assert both.evaluations is not None
    for name in names:
        own = load_frames(f"{url}#{name}", evaluations=True)
        assert own.trials["number"].tolist() == [0, 1, 2, 3]
        assert set(own.trials["phase"]) == {"search", "confirm"}
        assert own.evaluations is not None
        assert len(own.evaluations) == 4
        assert set(own.probes["study"]) <= {name}
        assert (own.attempts["cause"] == "").all()
        pd.testing.assert_frame_equal(both.trials[both.trials["study"] == name].reset_index(drop=True), own.trials)
    with closing(open_store(url)) as store:
        storage = open_read_only(store.database.url)
    assert sorted(optuna.get_all_study_names(storage)) == sorted(names)
    for name in names:
        assert len(optuna.load_study(study_name=name, storage=storage).trials) == 3
    storage.remove_session()
    storage.engine.dispose()


def test_a_run_whose_server_stops_ends_with_the_command_that_resumes_it(postgres: Server, tmp_path: Path) -> None:
    write_study(tmp_path, "outage", trials=12)
    command = [sys.executable, "-m", "sweep.cli", "run", "outage.toml", "--store", postgres.url, *INLINE]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended: list[int] = []
    while len(ended) < 2:
        assert running.poll() is None
        with suppress(InputError):
            trials = load_frames(f"{postgres.url}#outage").trials
            ended = trials[trials["outcome"] == "complete"]["number"].tolist()
    postgres.stop()
    try:
        told, complaints = running.communicate(timeout=120)
    finally:
        postgres.start()
    assert running.returncode == 1
    (message,) = [line for line in complaints.splitlines() if "does not answer" in line]
    assert "what was recorded is kept. When it runs again, run the same command again." in message
    assert "canary" not in told + complaints
    assert "Traceback" not in complaints
    before = load_frames(f"{postgres.url}#outage").trials.set_index("number")
    assert set(ended) <= set(before.index[before["outcome"] == "complete"])
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    after = load_frames(f"{postgres.url}#outage").trials.set_index("number")
    assert after["outcome"].tolist() == ["complete"] * 12
    pd.testing.assert_frame_equal(after.loc[ended], before.loc[ended])
