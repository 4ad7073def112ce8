"""What is looked at before a database is taken for a store: the file's head and length, the tables, their version."""

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from sweep.config.errors import InputError
from sweep.records.store.migrating import migrate
from sweep.records.store.schema import (
    VERSION,
    VERSIONS,
    add_missing_columns,
    check_version,
    create_tables,
    present_columns,
)

_SQLITE_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
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


def prepare(engine: Engine, where: str, *, create: bool, read_only: bool) -> dict[str, frozenset[str]]:
    """Makes what is missing (with ``create`` all tables), in one transaction; returns the columns of each table.

    Raises:
        InputError: there is no study, or a newer version wrote it.
    """
    with engine.begin() as connection:
        if not read_only and connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TABLES_LOCK})
        _check_tables(connection, where, create and not read_only)
        version = check_version(connection, where)
        present = present_columns(connection, where)
        if read_only:
            return present
        if version != VERSION:
            migrate(connection)
            present = present_columns(connection, where)
        add_missing_columns(connection, present)
        return present_columns(connection, where)


def _check_tables(connection: Connection, where: str, create: bool) -> None:
    tables = inspect(connection).get_table_names()
    if VERSIONS.name in tables:
        return
    if tables and connection.dialect.name == "sqlite":
        raise InputError(f"{where}: it holds other tables, but no study; give another file or a new name.")
    if not create:
        raise InputError(f"{where}: no study is recorded there; run one first.")
    create_tables(connection)
