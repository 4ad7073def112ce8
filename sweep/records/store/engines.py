"""How every reader and writer connects: SQLite with a write-ahead log and full sync, a server with time limits."""

import os
import socket
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError

from sweep.config.errors import InputError
from sweep.records.store.database_errors import BUSY_SECONDS

# A server that vanishes without closing its connections is detected after about a minute instead of hours.
_TIME_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}


def sqlite_creator(
    path: Path, read_only: bool = False, isolation_level: Literal["DEFERRED"] | None = None
) -> Callable[[], sqlite3.Connection]:
    """A function that connects to the file with a write-ahead log and full synchronization.

    ``isolation_level`` is the driver's: None leaves it to the caller to begin transactions.
    """
    uri = f"file:{quote(str(path.resolve()))}?mode={_mode(path, read_only)}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=isolation_level, check_same_thread=False
        )
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    return connect


def _mode(path: Path, read_only: bool) -> str:
    if not read_only:
        return "rwc"
    # Reading with a write-ahead log requires its index file; where none can be created nobody writes either.
    writable = os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists()
    return "ro" if writable else "ro&immutable=1"


def sqlite_engine(path: Path, read_only: bool) -> Engine:
    """An engine on an SQLite file; a writer's transactions wait for one another."""
    engine = create_engine("sqlite://", creator=sqlite_creator(path, read_only), hide_parameters=True)

    # The driver would begin a transaction only at the first change, and never for a change of the tables; a writer
    # that begins as a reader can fail immediately instead of waiting for the lock.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def server_engine(url: URL, read_only: bool) -> Engine:
    """An engine on a server; its connections carry a name of their own.

    Raises:
        InputError: an unknown kind of database, or its driver is not installed.
    """
    options: dict[str, Any] = {"connect_args": server_arguments(url)}
    if read_only:  # one consistent picture over several tables
        options |= {"isolation_level": "REPEATABLE READ", "execution_options": {"postgresql_readonly": True}}
    try:
        return create_engine(url, pool_pre_ping=True, hide_parameters=True, **options)
    except NoSuchModuleError:
        raise InputError(f"{url.drivername}: unknown kind of database; use sqlite or postgresql+psycopg.") from None
    except ModuleNotFoundError as error:
        raise InputError(
            f"{url.drivername}: the driver {error.name!r} is not installed; pip install 'batch-sweep[postgres]'."
        ) from None


def server_arguments(url: URL) -> dict[str, Any]:
    """The arguments of a connection to PostgreSQL, except those in the URL."""
    if url.get_backend_name() != "postgresql" or not url.drivername.endswith(("psycopg", "psycopg2", "postgresql")):
        return {}
    # PostgreSQL keeps 63 bytes; the suffix makes the name unique
    name = f"batch-sweep {os.getpid()}@{socket.gethostname()[:24]} {uuid.uuid4().hex[:8]}"
    return {key: value for key, value in ({"application_name": name} | _TIME_LIMITS).items() if key not in url.query}
