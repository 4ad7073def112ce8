"""The one supervisor of a study on a server: an advisory lock that its holder's death releases, and a row of its own.

The lock shows which supervisor is alive. The row holds which one wrote last and the number of its transactions: the
database refuses a write of a supervisor that was replaced, and after a commit without an answer the number shows
whether it took place.
"""

import os
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, final

from sqlalchemy import Connection, Engine, insert, select, text, update

from sweep.config.errors import InputError
from sweep.records.store.database_errors import OUTAGE_SECONDS, RetryPolicy, StoreError, first_cause, is_outage
from sweep.records.store.schema import SUPERVISORS

_TRY_LOCK = text("SELECT pg_try_advisory_lock(hashtextextended(:key, 0))")
# After a lost connection its server process still holds the lock; it has this engine's application name.
_TERMINATE_OWN_SESSION = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND pid IN"
    " (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(:key, 0))"
)


class _TakenError(Exception):
    """Another connection holds the lock."""


@final
class Supervision:
    """Holds ``study`` on a PostgreSQL server for this process, on one connection that also makes its writes."""

    def __init__(self, engine: Engine, where: str, study: str, limit_seconds: float = OUTAGE_SECONDS) -> None:
        self._engine, self._where, self._study = engine, where, study
        self._key = {"key": f"batch-sweep/{study}"}
        self._session = uuid.uuid4().hex
        self._connection: Connection | None = None
        self._retries = RetryPolicy(where, limit_seconds)
        self._lost = ""  # the message of how the study was lost
        self.num_writes = 0  # transactions of this session that are known to be committed

    def acquire(self) -> None:
        """Acquires the study for the first time.

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
        """Releases the study, also when the server is unreachable."""
        self.drop_connection()
        self._lost = self._lost or f"{self._where}: the study {self._study!r} is no longer held by this process."

    def begin(self) -> Connection:
        """A connection in the next transaction, which is begun and counted, while the lock is held.

        Raises:
            StoreError: another process holds the study, or held it in between.
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
            self.drop_connection()
            raise
        if not is_ours:
            self._give_up(connection)
        return connection

    def count_committed(self) -> int:
        """The number of this session's transactions in the database; errors as :meth:`begin`."""
        if self._lost:
            raise StoreError(self._lost)
        connection = self._held()
        row = self._row(connection)
        if row.get("session") != self._session:
            self._give_up(connection)
        connection.rollback()
        return int(row["num_writes"])

    def wait(self, error: Exception) -> None:
        """Pauses after a transient failure; raises :class:`StoreError` at the time limit."""
        self.drop_connection()
        taken = "another connection holds the study"
        self._retries.wait(taken if isinstance(error, _TakenError) else first_cause(error))

    def reset_retries(self) -> None:
        self._retries.reset()

    def drop_connection(self) -> None:
        """Closes the connection, which releases the lock."""
        if self._connection is not None:
            _discard(self._connection)
        self._connection = None

    def _held(self) -> Connection:
        # a new connection must acquire the lock again, and no other supervisor may have written in between
        if self._connection is None:
            connection = self._engine.connect()
            try:
                self._reacquire(connection)
            except BaseException:
                _discard(connection)
                raise
            self._connection = connection
        return self._connection

    def _reacquire(self, connection: Connection) -> None:
        is_free = connection.execute(_TRY_LOCK, self._key).scalar()
        if self._row(connection).get("session") != self._session:
            self._give_up(connection)
        if not is_free:
            connection.execute(_TERMINATE_OWN_SESSION, self._key)
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
        self.drop_connection()
        raise StoreError(self._lost)


def is_transient(error: Exception) -> bool:
    """Whether a retry after :meth:`Supervision.wait` may succeed."""
    return isinstance(error, _TakenError) or is_outage(error)


def _describe(row: Mapping[str, Any]) -> str:
    if not row:
        return "by a process that is not identified yet"
    since = row["since"].astimezone(UTC).isoformat(timespec="seconds")
    return f"process {row['pid']} on {row['host']} since {since}"


def _discard(connection: Connection) -> None:
    # in the pool it would keep the lock
    connection.invalidate()
    connection.close()
