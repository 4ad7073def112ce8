"""Optuna's tables that another major version of Optuna made: dropped, for the records can fill them again."""

from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import Connection, Engine, Enum, MetaData, inspect, select, text

from sweep.records.address import parse_url, store_path
from sweep.records.store.engines import server_engine, sqlite_engine
from sweep.records.store.schema import STUDIES

# Of every version so far. Nothing else in the database is touched.
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


_LOCK = 7_234_013  # PostgreSQL advisory lock while these tables are made or dropped


@contextmanager
def hold_tables_lock(url: str) -> Iterator[None]:
    """Meanwhile no other program makes or drops these tables, in a database that several write."""
    if store_path(url) is not None:
        yield
        return
    with _engine(url) as engine, engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        yield


def drop_other_versions(url: str) -> bool:
    """Drops Optuna's tables in the database ``url`` where another major version made them; says whether it did.

    Raises:
        RuntimeError: studies that are no mirror of ours stand there too.
    """
    with _engine(url) as engine, engine.begin() as connection:
        if not inspect(connection).has_table("version_info"):
            return False
        made_by = connection.execute(text("SELECT library_version FROM version_info")).scalar()
        if _major(str(made_by or "")) == _major(optuna.__version__):
            return False
        _drop(connection)
        return True


def drop_other_layouts(storage: RDBStorage, url: str) -> bool:
    """The same where the layout is not the one that this Optuna wants."""
    if storage.get_current_version() == storage.get_head_version():
        return False
    with _engine(url) as engine, engine.begin() as connection:
        _drop(connection)
    return True


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    path = store_path(url)
    engine = server_engine(parse_url(url), read_only=False) if path is None else sqlite_engine(path, read_only=False)
    try:
        yield engine
    finally:
        engine.dispose()


def _drop(connection: Connection) -> None:
    _refuse_others(connection)
    there = MetaData()
    there.reflect(connection, only=sorted(_TABLES & set(inspect(connection).get_table_names())), resolve_fks=False)
    types = {column.type.name for table in there.tables.values() for column in table.c if isinstance(column.type, Enum)}
    there.drop_all(connection)
    if connection.dialect.name == "postgresql":
        quote = connection.dialect.identifier_preparer.quote
        for name in sorted(name for name in types if name):
            connection.execute(text(f"DROP TYPE IF EXISTS {quote(name)}"))


def _refuse_others(connection: Connection) -> None:
    if not inspect(connection).has_table("studies"):
        return
    ours = set(connection.execute(select(STUDIES.c.study)).scalars())
    others = sorted(set(connection.execute(text("SELECT study_name FROM studies")).scalars()) - ours)
    if others:
        raise RuntimeError(
            f"Optuna's tables were made by another version and hold studies that are not recorded here ({others[0]}); "
            "bring them up to date by `optuna storage upgrade`"
        )


def _major(version: str) -> str:
    return version.partition(".")[0]
