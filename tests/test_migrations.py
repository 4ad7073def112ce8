"""The tables come from the migration scripts, and Optuna's version table in the same database is left alone."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from postgres_server import Server, postgres
from records_factory import add_trials, make_store
from sqlalchemy import inspect

from sweep.config.errors import InputError
from sweep.records.store import opening
from sweep.records.store.schema import METADATA, VERSION, VERSIONS
from sweep.records.store.store import Store, open_store

__all__ = ["postgres"]

KILLED = """
import os, signal, sys
from sweep.records.store import opening
from sweep.records.store.store import open_store
opening._check_columns = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
open_store(sys.argv[1], create=True)
"""


def _kill_amid_creation(place: str | Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place)], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def _assert_tables_of_today(store: Store) -> None:
    with store.database.begin() as connection:
        names = {name for name in inspect(connection).get_table_names() if name.startswith("sweep_")}
        assert names == METADATA.tables.keys()
        assert connection.execute(VERSIONS.select()).scalars().all() == [VERSION]
        ours = {"version_table": VERSIONS.name, "include_name": lambda name, kind, _: kind != "table" or name in names}
        assert compare_metadata(MigrationContext.configure(connection, opts=ours), METADATA) == []


def test_the_last_script_makes_the_version_that_is_required() -> None:
    scripts = ScriptDirectory(str(Path(opening.__file__).with_name("migrations")))
    assert scripts.get_current_head() == VERSION


def test_a_new_store_has_the_declared_tables(tmp_path: Path) -> None:
    with closing(make_store(tmp_path / "study.sqlite")) as store:
        _assert_tables_of_today(store)


def test_a_kill_amid_the_creation_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    _kill_amid_creation(path)
    with pytest.raises(InputError, match="no study is recorded there"):
        open_store(path)
    with closing(make_store(path)) as store:
        add_trials(store, ["complete"])
        _assert_tables_of_today(store)


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    make_store(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sweep_version SET version_num = '9999'")
    with pytest.raises(InputError, match=f"version 9999, this program requires {VERSION}"):
        open_store(path)


@pytest.mark.postgres
def test_the_same_on_a_server(postgres: Server) -> None:
    _kill_amid_creation(postgres.url)
    with pytest.raises(InputError, match="no study is recorded there"):
        open_store(postgres.url)
    with closing(open_store(postgres.url, create=True)) as store:
        _assert_tables_of_today(store)
