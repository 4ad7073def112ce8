"""Checks of a database before it is used as a store: the file's header and length, the version and its tables."""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.schema import CreateColumn

from sweep.config.errors import InputError
from sweep.config.trial_config import Scalar
from sweep.records.store.schema import (
    ABSENT_COLUMNS,
    ABSENT_TABLES,
    LATER_COLUMNS,
    LATER_TABLES,
    METADATA,
    VERSION,
    VERSIONS,
)

AbsentColumns = dict[str, dict[str, Scalar]]
_SQLITE_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_EARLIER_VERSIONS = ("0001",)  # that this program reads, and completes where it writes
_TABLES_LOCK = 7_234_012  # PostgreSQL advisory lock while tables are made or changed


def check_file(path: Path, create: bool) -> None:
    """Refuses a file that cannot be a whole SQLite database; with ``create`` there need not be one.

    Raises:
        InputError: it is not there, not readable, something else, or torn.
    """
    if not path.exists():
        if not create:
            raise InputError(f"{path}: no study is recorded there; give the folder of a study that has run.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path.parent}: the folder cannot be made: {error.strerror}.") from None
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER_BYTES)
        num_bytes = path.stat().st_size
        log = path.with_name(path.name + "-wal")
        has_log = log.exists() and log.stat().st_size > 0
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if head and head[: len(_SQLITE_MAGIC)] != _SQLITE_MAGIC:
        raise InputError(f"{path}: it is no store of this program (not an SQLite file); give the folder of a study.")
    if not has_log and num_bytes < (whole := _whole_bytes(head)):  # with a log its pages may be there
        raise InputError(f"{path}: the file is torn: {num_bytes} of {whole} bytes are there; restore it from a copy.")


def _whole_bytes(head: bytes) -> int:
    # https://www.sqlite.org/fileformat.html, 1.3: page size at 16, pages at 28
    if 0 < len(head) < _HEADER_BYTES:
        return _HEADER_BYTES
    page_bytes = int.from_bytes(head[16:18], "big")
    return (65_536 if page_bytes == 1 else page_bytes) * int.from_bytes(head[28:32], "big")


def prepare_tables(engine: Engine, where: str, *, create: bool, read_only: bool) -> None:
    """Creates the tables (with ``create``) or completes those of an older version, in one transaction. Where they are
    only read, the columns that they lack are named in the execution options of ``engine``.

    Raises:
        InputError: there is no study, or another version wrote it that this one cannot read.
    """
    with engine.begin() as connection:
        if not read_only and connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TABLES_LOCK})
        version = _read_version(connection, where)
        if version is None and not (create and not read_only):
            raise InputError(f"{where}: no study is recorded there; run one first.")
        if version != VERSION and not read_only:
            migrate(connection)
        absent_tables = frozenset(table.name for table in LATER_TABLES if read_only and version != VERSION)
        absent = _check_columns(connection, where, absent_tables)
        if not read_only:
            _add_columns(connection, absent)
    lacks = {ABSENT_COLUMNS: absent if read_only else {}, ABSENT_TABLES: absent_tables}
    engine.update_execution_options(**lacks)


def _read_version(connection: Connection, where: str) -> str | None:
    """The version of the tables; None where there are none."""
    tables = inspect(connection).get_table_names()
    if VERSIONS.name not in tables:
        if tables and connection.dialect.name == "sqlite":
            raise InputError(f"{where}: it holds other tables, but no study; give another file or a new name.")
        return None
    found = connection.execute(VERSIONS.select()).scalars().all()
    if len(found) != 1 or found[0] not in (*_EARLIER_VERSIONS, VERSION):
        raise InputError(
            f"{where}: its schema is version {', '.join(map(str, found))[:100] or 'unknown'}, this program requires "
            f"{VERSION}; use the version of batch-sweep that wrote it."
        )
    return str(found[0])


def migrate(connection: Connection) -> None:
    """Runs the missing scripts of ``migrations`` in the transaction of ``connection``: a kill changes nothing."""
    from alembic.config import Config  # 0.1 s, and most stores have the tables of today
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).with_name("migrations")))

    def steps(revision: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), scripts, fn=steps, destination_rev="head") as environment:
        # Optuna's tables in the same database have alembic's default name for theirs
        environment.configure(connection=connection, version_table=VERSIONS.name)
        environment.run_migrations()


def _check_columns(connection: Connection, where: str, absent_tables: frozenset[str]) -> AbsentColumns:
    """By table the columns that it lacks because it is older than a key or a measurement, each with its cell."""
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    absent: AbsentColumns = {}
    for table in METADATA.sorted_tables:
        if table.name in absent_tables:
            continue
        found = {column["name"] for column in inspector.get_columns(table.name)} if table.name in tables else set()
        if found:
            later = LATER_COLUMNS.get(table.name, {})
            absent[table.name] = {name: cell for name, cell in later.items() if name not in found}
            found |= absent[table.name].keys()
        if different := ", ".join(sorted(found ^ set(table.c.keys()))):
            raise InputError(
                f"{where}: {table.name} differs from this version's in {different[:200]}; "
                "use the version of batch-sweep that wrote it, or move the file away."
            )
    return absent


def _add_columns(connection: Connection, absent: AbsentColumns) -> None:
    for table in METADATA.sorted_tables:
        if not (cells := absent.get(table.name)):
            continue
        for name in cells:
            column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column}")
        connection.execute(table.update().values({table.c[name]: cell for name, cell in cells.items()}))
