"""One supervisor per study: a lock that the kernel (or the database server) frees when its holder dies."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from sweep.config.errors import InputError
from sweep.records.store.database import Database
from sweep.records.store.database_errors import StoreError, explain
from sweep.records.store.retry import OUTAGE_SECONDS
from sweep.records.store.supervision import Supervision

LOCK_FILE = "study.lock"
_SIGNING_SECONDS = 2.0


@contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Holds the study in ``folder`` for this process; the folder is made where it is missing.

    The lock file stays behind: removing it would let two holders lock two files of one name.

    Raises:
        InputError: another process holds it; the message says which, where and since when.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: the study is running already: {_holder(descriptor)}.") from None
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _holder(descriptor: int) -> str:
    # one that has just got the lock signs in a moment; until then the file names nobody, or one that was killed
    deadline = time.monotonic() + _SIGNING_SECONDS
    told, is_alive = _signature(descriptor)
    while not is_alive and time.monotonic() < deadline:
        time.sleep(0.02)
        told, is_alive = _signature(descriptor)
    return told


def _signature(descriptor: int) -> tuple[str, bool]:
    """Who says that it holds the lock, and whether it may be so: of another host's processes nothing is known."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        told = f"process {holder['pid']} on {holder['host']} since {holder['since']}; wait for it or end it"
        return told, holder["host"] != socket.gethostname() or Path(f"/proc/{holder['pid']}").exists()
    except (ValueError, KeyError, TypeError):
        return "by a process that has not signed yet; try again", False


@contextmanager
def database_lock(database: Database, study: str, limit_seconds: float = OUTAGE_SECONDS) -> Iterator[None]:
    """Holds ``study`` on a PostgreSQL server for this process; nothing to do on SQLite, where :func:`study_lock` guards
    the file. Meanwhile reads and writes wait, ``limit_seconds`` at most, for a server that does not answer.

    Raises:
        InputError: another process holds it; the message says which, where and since when.
        StoreError: the server cannot be reached.
    """
    if database.engine.dialect.name != "postgresql":
        yield
        return
    supervision = Supervision(database.engine, database.where, study, limit_seconds)
    try:
        supervision.take()
    except SQLAlchemyError as error:
        raise StoreError(explain(error, database.where)) from error
    before, database.supervision = database.supervision, supervision
    try:
        yield
    finally:
        database.supervision = before
        supervision.release()
