"""The place of a study's one supervisor on a server: a lock that dies with its holder, and a signed row.

The lock says who lives. The row says who wrote last and how often: every transaction of a supervisor counts in it, so
a write of one that was replaced is refused by the database, and whether a commit whose answer was lost took place is
looked up instead of guessed.
"""

import os
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, final

from sqlalchemy import Connection, Engine, insert, select, text, update

from sweep.config.errors import InputError
from sweep.records.store.database_errors import StoreError, first_cause, is_outage
from sweep.records.store.retry import OUTAGE_SECONDS, Patience
from sweep.records.store.schema import SUPERVISORS

_TRY_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended(:key, 0))")
# The half of a connection that is still there on the server keeps the lock; it bears this engine's own name.
_END_OWN_REMAINS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND pid IN"
    " (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(:key, 0))"
)


class _TakenError(Exception):
    """Another connection holds the lock; whose is not known yet."""


@final
class Supervision:
    """Holds ``study`` on a PostgreSQL server for this process, on one connection that also makes its writes."""

    def __init__(self, engine: Engine, where: str, study: str, limit_seconds: float = OUTAGE_SECONDS) -> None:
        self._engine, self._where, self._study = engine, where, study
        self._key = {"key": f"batch-sweep/{study}"}
        self._session = uuid.uuid4().hex
        self._connection: Connection | None = None
        self._patience = Patience(where, limit_seconds)
        self._lost = ""  # how the place was lost
        self.num_writes = 0  # transactions of this session that are known to be on record

    def take(self) -> None:
        """Takes the place for the first time.

        Raises:
            InputError: another process has it; the message says which.
        """
        connection = self._engine.connect()
        try:
            if not connection.execute(_TRY_LOCK, self._key).scalar():
                holder = _describe(self._row(connection))
                raise InputError(
                    f"{self._where}: the study {self._study!r} is running already: {holder}; wait for it or end it."
                )
            self._sign(connection)
            connection.commit()
        except BaseException:
            _discard(connection)
            raise
        self._connection = connection

    def release(self) -> None:
        """Frees the place; also where the server has gone."""
        self.drop()
        self._lost = self._lost or f"{self._where}: the study {self._study!r} is no longer held by this process."

    def begin(self) -> Connection:
        """The connection for the next transaction, which is begun and counted; the lock is held.

        Raises:
            StoreError: another process has the place now, or had it meanwhile.
        """
        if self._lost:
            raise StoreError(self._lost)
        connection = self._held()
        change = (
            update(SUPERVISORS)
            .where(SUPERVISORS.c.study == self._study, SUPERVISORS.c.session == self._session)
            .values(num_writes=self.num_writes + 1)
        )
        try:
            is_ours = connection.execute(change).rowcount == 1
        except BaseException:
            self.drop()
            raise
        if not is_ours:
            self._give_up(connection)
        return connection

    def num_on_record(self) -> int:
        """How many transactions of this session the database has; errors as :meth:`begin`."""
        if self._lost:
            raise StoreError(self._lost)
        connection = self._held()
        row = self._row(connection)
        if row.get("session") != self._session:
            self._give_up(connection)
        connection.rollback()
        return int(row["num_writes"])

    def wait(self, error: Exception) -> None:
        """Pauses after a failure that may pass; raises :class:`StoreError` after the last."""
        self.drop()
        taken = "another connection holds the study"
        self._patience.wait(taken if isinstance(error, _TakenError) else first_cause(error))

    def calm(self) -> None:
        """The database has answered."""
        self._patience.calm()

    def drop(self) -> None:
        """Gives the connection up, and with it the lock."""
        if self._connection is not None:
            _discard(self._connection)
        self._connection = None

    def _held(self) -> Connection:
        # a new connection has to get the lock again, and nobody may have written meanwhile
        if self._connection is None:
            connection = self._engine.connect()
            try:
                self._take_again(connection)
            except BaseException:
                _discard(connection)
                raise
            self._connection = connection
        return self._connection

    def _take_again(self, connection: Connection) -> None:
        is_free = connection.execute(_TRY_LOCK, self._key).scalar()
        if self._row(connection).get("session") != self._session:
            self._give_up(connection)
        if not is_free:
            connection.execute(_END_OWN_REMAINS, self._key)
            connection.commit()
            raise _TakenError
        connection.commit()

    def _sign(self, connection: Connection) -> None:
        values = {
            "study": self._study,
            "session": self._session,
            "num_writes": 0,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC),
        }
        same = SUPERVISORS.c.study == self._study
        if connection.execute(update(SUPERVISORS).where(same).values(values)).rowcount == 0:
            connection.execute(insert(SUPERVISORS), values)

    def _row(self, connection: Connection) -> Mapping[str, Any]:
        found = connection.execute(select(SUPERVISORS).where(SUPERVISORS.c.study == self._study)).mappings().first()
        return dict(found) if found else {}

    def _give_up(self, connection: Connection) -> NoReturn:
        holder = _describe(self._row(connection))
        self._lost = (
            f"{self._where}: the study {self._study!r} was taken over while the database did not answer: {holder}. "
            "This process stops; what it had recorded is kept."
        )
        self.drop()
        raise StoreError(self._lost)


def may_pass(error: Exception) -> bool:
    """Whether :meth:`Supervision.wait` is worth it."""
    return isinstance(error, _TakenError) or is_outage(error)


def _describe(row: Mapping[str, Any]) -> str:
    if not row:
        return "by a process that has not signed yet"
    since = row["since"].astimezone(UTC).isoformat(timespec="seconds")
    return f"process {row['pid']} on {row['host']} since {since}"


def _discard(connection: Connection) -> None:
    # back in the pool it would keep the lock
    connection.invalidate()
    connection.close()
