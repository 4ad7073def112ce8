"""Transactions that are repeated when their connection is lost before the commit."""

from collections.abc import Callable
from typing import TypeVar, final

from sqlalchemy import Connection, Engine

from sweep.records.store.supervision import Supervision, is_transient

T = TypeVar("T")


def with_retries(step: Callable[[], T], supervision: Supervision | None) -> T:
    """The result of ``step``, which is retried while a supervisor's database does not answer."""
    while True:
        try:
            result = step()
        except Exception as error:
            if supervision is None or not is_transient(error):
                raise
            supervision.wait(error)
        else:
            if supervision is not None:
                supervision.reset_retries()
            return result


@final
class Transaction:
    """Writes that are committed together or not at all. Each is executed at once, and kept for a repetition."""

    def __init__(self, engine: Engine, supervision: Supervision | None) -> None:
        self._engine, self._supervision = engine, supervision
        self._actions: list[Callable[[Connection], object]] = []
        self._connection: Connection | None = None
        self._is_in_doubt = False  # a commit was sent, and its answer was lost

    def add(self, action: Callable[[Connection], T]) -> T:
        """Executes one more write and returns its result."""

        def attempt() -> T:
            return self._run(lambda connection: action(connection))

        result = with_retries(attempt, self._supervision)
        self._actions.append(action)
        return result

    def commit(self) -> None:
        """Commits all writes."""
        if self._actions:
            with_retries(self._commit, self._supervision)

    def roll_back(self) -> None:
        """Rolls all writes back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._supervision is None:
            connection.close()
        elif not connection.invalidated:
            connection.rollback()

    def _commit(self) -> None:
        if self._is_in_doubt and self._is_committed():
            return
        self._run(self._send_commit)

    def _is_committed(self) -> bool:
        supervision = self._supervision
        if supervision is None or supervision.count_committed() == supervision.num_writes:
            return False
        supervision.num_writes += 1
        return True

    def _send_commit(self, connection: Connection) -> None:
        self._is_in_doubt = True
        connection.commit()
        self._connection = None
        if self._supervision is None:
            connection.close()
        else:
            self._supervision.num_writes += 1

    def _run(self, step: Callable[[Connection], T]) -> T:
        # a lost connection loses the writes that were executed on it
        try:
            return step(self._connect())
        except Exception as error:
            if is_transient(error):
                self.roll_back()
            raise

    def _connect(self) -> Connection:
        # a connection on which every write so far was executed
        if self._connection is None:
            self._connection = self._begin()
            for action in self._actions:
                action(self._connection)
        return self._connection

    def _begin(self) -> Connection:
        if self._supervision is not None:
            return self._supervision.begin()
        connection = self._engine.connect()
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection
