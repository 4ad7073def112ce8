"""Drops the tables of another major version of Optuna, which the records can fill again."""

from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import Connection, Enum, MetaData, inspect, select, text

from sweep.records.address import parse_url, store_path
from sweep.records.store.engines import server_engine, sqlite_engine
from sweep.records.store.schema import STUDIES

# The tables of every version of Optuna so far. No other table is changed.
_TABLES = frozenset(
    (
        "alembic_version",
        "version_info",
        "studies",
        "study_directions",
        "study_user_attributes",
        "study_system_attributes",
        "trials",
        "trial_user_attributes",
        "trial_system_attributes",
        "trial_params",
        "trial_values",
        "trial_intermediate_values",
        "trial_heartbeats",
        "trial_constraints",
    )
)
_LOCK = 7_234_013  # PostgreSQL advisory lock, held while these tables are made or dropped


@contextmanager
def hold_tables_lock(url: str) -> Iterator[None]:
    """Prevents other programs from making or dropping these tables, in a database that several of them write."""
    if store_path(url) is not None:
        yield
        return
    with _connect(url) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        yield


def drop_other_versions(url: str) -> bool:
    """Drops Optuna's tables in the database ``url`` if another major version made them; returns whether it did.

    Raises:
        RuntimeError: they hold studies that are not recorded in the database.
    """
    with _connect(url) as connection:
        if not inspect(connection).has_table("version_info"):
            return False
        version = connection.execute(text("SELECT library_version FROM version_info")).scalar()
        if str(version or "").partition(".")[0] == optuna.__version__.partition(".")[0]:
            return False
        _drop(connection)
        return True


def drop_other_layouts(storage: RDBStorage, url: str) -> bool:
    """Drops Optuna's tables if their layout is not that of the installed version; returns whether it did.

    Raises:
        RuntimeError: as :func:`drop_other_versions`.
    """
    if storage.get_current_version() == storage.get_head_version():
        return False
    with _connect(url) as connection:
        _drop(connection)
    return True


@contextmanager
def _connect(url: str) -> Iterator[Connection]:
    path = store_path(url)
    engine = server_engine(parse_url(url), read_only=False) if path is None else sqlite_engine(path, read_only=False)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _drop(connection: Connection) -> None:
    _check_studies(connection)
    present = MetaData()
    names = sorted(_TABLES & set(inspect(connection).get_table_names()))
    present.reflect(connection, only=names, resolve_fks=False)
    types = {
        column.type.name for table in present.tables.values() for column in table.c if isinstance(column.type, Enum)
    }
    present.drop_all(connection)
    if connection.dialect.name == "postgresql":
        quote = connection.dialect.identifier_preparer.quote
        for name in sorted(name for name in types if name):
            connection.execute(text(f"DROP TYPE IF EXISTS {quote(name)}"))


def _check_studies(connection: Connection) -> None:
    if not inspect(connection).has_table("studies"):
        return
    recorded = set(connection.execute(select(STUDIES.c.study)).scalars())
    others = sorted(set(connection.execute(text("SELECT study_name FROM studies")).scalars()) - recorded)
    if others:
        raise RuntimeError(
            f"Optuna's tables were made by another version and hold studies that are not recorded here ({others[0]}); "
            "bring them up to date by `optuna storage upgrade`"
        )
