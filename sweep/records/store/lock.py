"""One supervisor per study: a lock that the kernel (or the database server) releases when its holder dies."""

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, text

from sweep.config.errors import InputError
from sweep.records.database import Database

LOCK_FILE = "study.lock"
_IDENTITY_SECONDS = 2.0
_TRY_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended(:key, 0))")
# names are those of :func:`sweep.records.database.server_arguments`; others' start may be hidden from this user
_HOLDER = text(
    "SELECT application_name, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(:key, 0)"
)


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Holds the study in ``folder`` for this process; the folder is made where it is missing.

    The lock file is never removed: two holders could then lock two files of one name.

    Raises:
        InputError: another process holds it; the message says which, where and since when.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: the study is running already: {_wait_for_holder(descriptor)}.") from None
        _write_holder(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether the process that the lock file names may still run, without taking the lock: a study that starts at this
    moment is not refused."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return _read_holder(descriptor)[1]
    finally:
        os.close(descriptor)


def _write_holder(descriptor: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _wait_for_holder(descriptor: int) -> str:
    # a new holder writes its identity after a moment; until then the file is empty, or names one that was killed
    deadline = time.monotonic() + _IDENTITY_SECONDS
    told, is_alive = _read_holder(descriptor)
    while not is_alive and time.monotonic() < deadline:
        time.sleep(0.02)
        told, is_alive = _read_holder(descriptor)
    return told


def _read_holder(descriptor: int) -> tuple[str, bool]:
    """The holder that the file names, and whether it may be alive; of another host's processes nothing is known."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        told = f"process {holder['pid']} on {holder['host']} since {holder['since']}; wait for it or end it"
        return told, holder["host"] != socket.gethostname() or Path(f"/proc/{holder['pid']}").exists()
    except (ValueError, KeyError, TypeError):
        return "by a process that is not identified yet; try again", False


@contextmanager
def database_lock(database: Database, study: str) -> Iterator[None]:
    """Holds ``study`` on a PostgreSQL server for this process; nothing to do on SQLite, where :func:`study_lock` guards
    the file. The server frees it when this process ends, or when it loses the connection.

    Raises:
        InputError: another process holds it; the message says which and since when.
        StoreError: the server cannot be reached.
    """

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
