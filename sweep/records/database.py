"""An open database of records, an SQLite file or a server: where it is, how it is opened, and who may write."""

import fcntl
import json
import os
import re
import shutil
import socket
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, InterfaceError, NoSuchModuleError, OperationalError, SQLAlchemyError

from sweep.config.errors import RUN_AGAIN, InputError, StoreError, hide_credentials
from sweep.records.address import IMPORTED_FILE, parse_url, store_path
from sweep.records.schema import METADATA, VERSION, VERSIONS

# SQLite's write-ahead log (4 MiB), the tables with Optuna's copy, logs, and a report with its pictures.
_SMALLEST_BYTES = 12 << 20
_TRIAL_BYTES = 16 << 10  # a trial's row, a dozen of evaluations, its copy for optuna-dashboard
_MIB = 1 << 20


def estimate_record_bytes(num_trials: int) -> int:
    """Bytes for the records of ``num_trials`` more trials, with Optuna's copy, logs and the report."""
    return _SMALLEST_BYTES + num_trials * _TRIAL_BYTES


def measure_free_bytes(folder: Path) -> int:
    """Bytes that this user can still write at ``folder``, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def describe_shortage(folder: Path, needed_bytes: int = _SMALLEST_BYTES) -> str:
    """A sentence, with a space at its end, on how much is free and how much is required."""
    free = measure_free_bytes(folder) / _MIB
    return f"{free:.1f} MiB are free in {folder.resolve()}, at least {needed_bytes / _MIB:.1f} MiB are needed. "


T = TypeVar("T")
_BUSY_SECONDS, _RETRY_SECONDS = 60.0, 0.01
_SQLITE_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_TABLES_LOCK = 7_234_012  # PostgreSQL advisory lock while tables are made or changed
# A server that vanishes without closing its connections is detected after about a minute instead of hours.
_TIME_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}


@final
@dataclass(kw_only=True)
class Database:
    """An open database of records. ``where`` names it without its password.

    Errors of the database are raised as :class:`StoreError`.
    """

    engine: Engine
    url: str = field(repr=False)  # with its password, never to be printed
    where: str
    file: Path | None = None  # of SQLite
    _holder: Connection | None = field(default=None, repr=False)  # holds the lock of a study, and makes its writes
    _open: Connection | None = field(default=None, repr=False)  # inside a transaction
    _lost: str = field(default="", repr=False)  # why the holder's connection is gone, and with it the lock

    def write(self, action: Callable[[Connection], T]) -> T:
        """The result of ``action``, whose changes are then on the disk; inside :meth:`transaction` with all others."""
        with self.transaction() as connection:
            return action(connection)

    def read(self, action: Callable[[Connection], T]) -> T:
        """The result of ``action``, from one consistent snapshot."""
        with self._translated():
            if self._open is not None:
                return action(self._open)
            with self.engine.begin() as connection:
                return action(connection)

    @property
    def in_transaction(self) -> bool:
        """Whether a write would be part of a transaction that is not yet committed."""
        return self._open is not None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction for all writes inside: at its end all of them are on the disk, after an error none."""
        if self._open is not None:
            yield self._open
            return
        with self._translated(), self._begin() as connection:
            self._open = connection
            try:
                yield connection
            finally:
                self._open = None

    @contextmanager
    def hold(self, try_lock: Callable[[Connection], None]) -> Iterator[None]:
        """Takes a lock by ``try_lock`` on a connection that makes all writes inside the block. When it is lost the lock
        is lost too: nothing is written any more."""
        with self._translated():
            connection = self.engine.connect()
            try:
                with connection.begin():
                    try_lock(connection)
                self._holder = connection
                yield
            finally:
                self._holder = None
                connection.invalidate()  # in the pool it would keep the lock
                connection.close()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        if self._lost:
            raise StoreError(self._lost)
        if self._holder is None:
            with self.engine.begin() as connection:
                yield connection
            return
        try:
            with self._holder.begin():
                yield self._holder
        except SQLAlchemyError as error:
            if self._holder.invalidated:
                self._lost = _describe_failure(error, self.where, self.file)
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OverflowError) as error:
            raise StoreError(self._lost or _describe_failure(error, self.where, self.file)) from error


def open_database(target: str | Path, *, create: bool = False, read_only: bool = False) -> Database:
    """Opens, or with ``create`` makes, the tables of records at ``target``. Raises ``InputError``: nothing there, not
    ours, torn, written by another version, or not reachable."""
    path = store_path(target)
    if path is None:
        url = parse_url(str(target))
        where, engine = hide_credentials(str(target)), server_engine(url, read_only)
    else:
        url, where = URL.create("sqlite", database=str(path.resolve())), str(path)
        _check_file(path, create)
        engine = _sqlite_engine(path, read_only)
    try:
        _prepare_tables(engine, where, create=create, read_only=read_only)
    except SQLAlchemyError as error:
        engine.dispose()
        raise InputError(_describe_failure(error, where, path)) from None
    except BaseException:
        engine.dispose()
        raise
    return Database(engine=engine, url=url.render_as_string(hide_password=False), where=where, file=path)


# ---------------------------------------------------------------------- connections


def sqlite_creator(
    path: Path, read_only: bool = False, isolation_level: Literal["DEFERRED"] | None = None
) -> Callable[[], sqlite3.Connection]:
    """A function that connects to the file with a write-ahead log and full synchronization.

    ``isolation_level`` is the driver's: None leaves it to the caller to begin transactions.
    """
    mode = "rwc"
    if read_only:
        # Reading with a write-ahead log requires its index file; where none can be created nobody writes either.
        writable = os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists()
        mode = "ro" if writable else "ro&immutable=1"
    uri = f"file:{quote(str(path.resolve()))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=isolation_level, check_same_thread=False
        )
        if not read_only:
            _set_journal_mode(connection)
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    return connect


def _set_journal_mode(connection: sqlite3.Connection) -> None:
    # SQLite does not wait here while another program makes the file or writes without the log: it fails at once
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _sqlite_engine(path: Path, read_only: bool) -> Engine:
    engine = create_engine("sqlite://", creator=sqlite_creator(path, read_only), hide_parameters=True)

    # The driver would begin a transaction only at the first change, and never for a change of the tables; a writer
    # that begins as a reader can fail immediately instead of waiting for the lock.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def server_engine(url: URL, read_only: bool) -> Engine:
    """An engine on a server; its connections carry a name of their own. Raises ``InputError``: an unknown kind of
    database, or its driver is not installed."""
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
    # who holds a study is told by this name; PostgreSQL keeps 63 bytes of it
    name = f"batch-sweep {os.getpid()}@{socket.gethostname()[:24]} {uuid.uuid4().hex[:8]}"
    return {key: value for key, value in ({"application_name": name} | _TIME_LIMITS).items() if key not in url.query}


# ---------------------------------------------------------------------- checks before a database is used


def _check_file(path: Path, create: bool) -> None:
    """Refuses a file that cannot be a whole SQLite database; with ``create`` there need not be one."""
    if not path.exists():
        if not create:
            if (path.parent / IMPORTED_FILE).is_file():
                raise InputError(
                    f"{path.parent}: another program's records, which no store holds: sweep recommend, report, claims, "
                    "compare, check and trials read them, and in Python load_foreign_frames."
                )
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


def _prepare_tables(engine: Engine, where: str, *, create: bool, read_only: bool) -> None:
    """Creates the tables (with ``create``) in one transaction, and checks those that are there. Raises ``InputError``:
    there is no study, or another version wrote it."""
    with engine.begin() as connection:
        if not read_only and connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _TABLES_LOCK})
        tables = inspect(connection).get_table_names()
        if VERSIONS.name not in tables:
            if tables and connection.dialect.name == "sqlite":
                raise InputError(f"{where}: it holds other tables, but no study; give another file or a new name.")
            if read_only or not create:
                raise InputError(f"{where}: no study is recorded there; run one first.")
            METADATA.create_all(connection)
            connection.execute(VERSIONS.insert(), {"version_num": VERSION})
        versions = connection.execute(VERSIONS.select()).scalars().all()
        if versions != [VERSION]:
            raise InputError(
                f"{where}: its schema is version {', '.join(map(str, versions))[:100] or 'unknown'}, this program "
                f"requires {VERSION}; use the version of batch-sweep that wrote it."
            )
        inspector = inspect(connection)
        tables = inspector.get_table_names()
        for table in METADATA.sorted_tables:
            present = inspector.get_columns(table.name) if table.name in tables else []
            if different := ", ".join(sorted({column["name"] for column in present} ^ set(table.c.keys()))):
                raise InputError(
                    f"{where}: {table.name} differs from this version's in {different[:200]}; "
                    "use the version of batch-sweep that wrote it, or move the file away."
                )


# ---------------------------------------------------------------------- errors


def _describe_failure(error: Exception, where: str, file: Path | None) -> str:
    """The failure of a database, which is in ``file`` unless it is on a server, with its remedy."""
    cause = " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
    remedy = ""
    if file is None and _is_outage(error):
        remedy = f" The database does not answer; what was recorded is kept. When it runs again, {RUN_AGAIN}."
    elif "is full" in cause or "disk I/O" in cause or "No space left" in cause:
        shortage = describe_shortage(file.parent) if file else ""
        remedy = f" {shortage}Free some space and {RUN_AGAIN}; what was recorded is kept."
    elif "locked" in cause:
        remedy = f" Another program has held the store for {_BUSY_SECONDS:.0f} s; end it and {RUN_AGAIN}."
    elif "malformed" in cause or "not a database" in cause:
        remedy = " The file is torn, or no store of this program; restore it from a copy."
    return f"{where}: {cause}.{remedy}"


def _is_outage(error: Exception) -> bool:
    """Whether a server is unreachable, shut down or starting."""
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # nothing came from the server
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return str(state).startswith(("08", "57P"))  # connection exceptions; it is stopped, starting or recovering


# ---------------------------------------------------------------------- one supervisor per study

_LOCK_FILE = "study.lock"
_TRY_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended(:key, 0))")
# The names are made by :func:`server_arguments`; the start of other users' sessions may be hidden.
_HOLDER = text(
    "SELECT application_name, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(:key, 0)"
)


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Holds the study in ``folder`` for this process; the kernel releases the lock when the process dies. The folder is
    made where it is missing.

    The lock file is never removed: two holders could then lock two files of one name. Raises ``InputError``: another
    process holds it; the message says which, where and since when."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: the study is running already: {_read_holder(descriptor)[0]}.") from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether the process that the lock file names may still run. The lock is not taken, so that a study that starts at
    this moment is not refused."""
    try:
        descriptor = os.open(folder / _LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _read_holder(descriptor)[1]
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> tuple[str, bool]:
    """The holder that the file names, and whether it may be alive; of another host's processes nothing is known."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        told = f"process {holder['pid']} on {holder['host']} since {holder['since']}; wait for it or end it"
        if holder["host"] != socket.gethostname() or Path(f"/proc/{holder['pid']}").exists():
            return told, True
    except (ValueError, KeyError, TypeError):
        pass
    return "by a process that is not identified yet; try again", False


@contextmanager
def database_lock(database: Database, study: str) -> Iterator[None]:
    """Holds ``study`` on a PostgreSQL server for this process; without effect on SQLite, where :func:`study_lock`
    guards the file. The server frees it when this process ends, or loses the connection. Raises ``InputError``: another
    process holds it; the message says which and since when; ``StoreError``: the server cannot be reached."""

    def try_lock(connection: Connection) -> None:
        key = {"key": f"batch-sweep/{study}"}
        if not connection.execute(_TRY_LOCK, key).scalar():
            name, since = connection.execute(_HOLDER, key).first() or ("a process that has just ended", None)
            if match := re.match(r"batch-sweep (\d+)@(\S+) ", name):
                name = f"process {match[1]} on {match[2]}"
            when = f" since {since.astimezone(UTC).isoformat(timespec='seconds')}" if since else ""
            raise InputError(
                f"{database.where}: the study {study!r} is running already: {name}{when}; wait for it or end it."
            )

    if database.engine.dialect.name != "postgresql":
        yield
        return
    with database.hold(try_lock):
        yield
