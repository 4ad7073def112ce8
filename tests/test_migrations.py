"""Stores of earlier schemas: read as they are, brought up to today's tables when written, never left half way."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from postgres_server import Server, postgres
from records_factory import add_trials, make_config, make_ending, make_spec, make_store
from sqlalchemy import MetaData, inspect, text

from sweep.records.frames.frames import load_frames
from sweep.records.frames.study_frames import Frames
from sweep.records.store.migrating import known_versions
from sweep.records.store.probe_records import ProbeBook
from sweep.records.store.schema import KNOWN_VERSIONS, VERSION
from sweep.records.store.store import Store, open_store
from sweep.search.mirror.optuna_mirror import open_read_only

__all__ = ["postgres"]

# Made by the first version: five search trials, one of them open, one of another outcome each; a confirming trial; a
# probe; Optuna's copy. It is never made anew.
FIRST = Path(__file__).parent / "stores" / "first_schema.sqlite"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    (tmp_path / "study").mkdir()
    return Path(shutil.copy(FIRST, tmp_path / "study" / "study.sqlite"))


def _version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM sweep_version").fetchone()[0])


def _assert_records_of_first(frames: Frames) -> None:
    outcomes = ["complete", "out_of_memory", "crashed", "open", "complete", "complete"]
    assert frames.trials["outcome"].fillna("open").tolist() == outcomes
    assert frames.trials["config.batch.micro"].tolist() == [16, 32, 64, 128, 256, 16]
    assert frames.trials["val_accuracy"].dropna().tolist() == [1 - 1 / n for n in (2, 3, 4, 6, 7)]
    assert frames.attempts["number"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frames.probes["step_seconds_median"].tolist() == [0.25]
    assert frames.evaluations is not None
    assert frames.evaluations["val_accuracy"].tolist() == [0.1, 0.2] * 5
    assert frames.spec == make_spec()


def test_every_version_has_its_script() -> None:
    assert known_versions() == KNOWN_VERSIONS


def test_a_store_of_the_first_schema_is_read_as_it_is(first: Path) -> None:
    before = first.read_bytes()
    assert _version(first) == "0001"
    _assert_records_of_first(load_frames(first, evaluations=True))
    with closing(open_store(first, read_only=True)) as store:
        assert store.trial_records("s")[4].config == make_config(4)
        open_read_only(store.url).engine.dispose()
    assert first.read_bytes() == before


def test_a_store_of_the_first_schema_is_brought_up_to_date_and_goes_on(first: Path) -> None:
    before = load_frames(first, evaluations=True)
    with closing(open_store(first)) as store:
        store.finish_trial("s", 3, make_ending(3))
        add_trials(store, ["complete"], first=6)
        assert ProbeBook(store, "s").of_device("cpu")[0].micro_batch == 16
    after = load_frames(first, evaluations=True)
    assert _version(first) == VERSION
    assert len(after.trials) == 7
    kept = after.trials[after.trials["number"].isin([0, 1, 2, 4, 5])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before.trials[before.trials["outcome"].notna()].reset_index(drop=True))


def _layout(store: Store) -> dict[str, list[tuple[str, str]]]:
    there = MetaData()
    with store.database.transaction() as connection:
        names = [name for name in inspect(connection).get_table_names() if name.startswith("sweep_")]
        there.reflect(connection, only=names)
        return {
            name: sorted((column.name, str(column.type)) for column in table.c) for name, table in there.tables.items()
        }


def test_a_migrated_store_has_the_tables_of_a_new_one(first: Path, tmp_path: Path) -> None:
    with closing(open_store(first)) as old, closing(make_store(tmp_path / "new.sqlite")) as new:
        assert _layout(old) == _layout(new)


KILLED = """
import os, signal, sys
from sweep.records.store import opening
from sweep.records.store.store import open_store
before = opening.add_missing_columns
def stop(connection, present):
    before(connection, present)
    os.kill(os.getpid(), signal.SIGKILL)
opening.add_missing_columns = stop
open_store(sys.argv[1])
"""


def _kill_amid(place: str | Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place)], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def test_a_kill_amid_a_migration_leaves_the_old_store(first: Path) -> None:
    _kill_amid(first)
    with closing(sqlite3.connect(first)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert _version(first) == "0001"
    assert "sweep_supervisors" not in tables
    _assert_records_of_first(load_frames(first, evaluations=True))
    open_store(first).close()
    _assert_records_of_first(load_frames(first, evaluations=True))
    assert _version(first) == VERSION


@pytest.mark.postgres
def test_the_same_on_a_server(postgres: Server) -> None:
    with closing(open_store(postgres.url, create=True)) as store:
        today = _layout(store)
        store.create_study(make_spec())
        add_trials(store, ["complete", None])
        with store.database.transaction() as connection:  # as the first version left it
            connection.execute(text("DROP TABLE sweep_supervisors"))
            connection.execute(text("ALTER TABLE sweep_trials DROP COLUMN bottleneck"))
            connection.execute(text("UPDATE sweep_version SET version_num = '0001'"))
        before = load_frames(postgres.url, evaluations=True)
        _kill_amid(postgres.url)
        with store.database.transaction() as connection:
            assert connection.execute(text("SELECT version_num FROM sweep_version")).scalars().all() == ["0001"]
            assert not inspect(connection).has_table("sweep_supervisors")
    with closing(open_store(postgres.url)) as store:
        assert _layout(store) == today
    after = load_frames(postgres.url, evaluations=True)
    pd.testing.assert_frame_equal(after.trials, before.trials)
    assert after.evaluations is not None
    assert before.evaluations is not None
    pd.testing.assert_frame_equal(after.evaluations, before.evaluations)
