"""The tables are of one version, are made whole or not at all, and leave Optuna's in the same database alone."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from postgres_server import Server, postgres
from records_factory import add_trials, fill_mirror, make_spec, make_store
from sqlalchemy import inspect

from sweep.config.errors import InputError
from sweep.records.schema import METADATA, VERSION, VERSIONS
from sweep.records.store import Store, open_store

__all__ = ["postgres"]

KILLED = """
import os, signal, sys
from sweep.records import database
from sweep.records.store import open_store
database._find_absent_columns = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
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
    with closing(make_store(path)) as store:
        add_trials(store, ["complete"])
        fill_mirror(store, make_spec())
        _assert_tables(store)
    with closing(open_store(path, create=True)) as store:
        assert len(store.trial_records("s")) == 1
        _assert_tables(store)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)  # Optuna's


@pytest.mark.wide
def test_the_same_on_a_server(postgres: Server) -> None:
    _assert_a_kill_leaves_nothing(postgres.url)
    with closing(open_store(postgres.url, create=True)) as store:
        _assert_tables(store)
