"""Writes as actions on a connection, to be done again when it was lost before they were on record."""

from collections.abc import Callable
from typing import TypeVar, final

from sqlalchemy import Connection, Engine

from sweep.records.store.supervision import Supervision, may_pass

T = TypeVar("T")


def endure(step: Callable[[], T], supervision: Supervision | None) -> T:
    """The result of ``step``, which is tried again while a supervisor's database does not answer."""
    while True:
        try:
            result = step()
        except Exception as error:
            if supervision is None or not may_pass(error):
                raise
            supervision.wait(error)
        else:
            if supervision is not None:
                supervision.calm()
            return result


@final
class Unit:
    """Writes that are on record together or not at all. Each is done at once, and kept to be done again."""

    def __init__(self, engine: Engine, supervision: Supervision | None) -> None:
        self._engine, self._supervision = engine, supervision
        self._actions: list[Callable[[Connection], object]] = []
        self._connection: Connection | None = None
        self._is_in_doubt = False  # a commit was sent, and no answer came

    def add(self, action: Callable[[Connection], T]) -> T:
        """Does one more write."""

        def attempt() -> T:
            return self._guarded(lambda connection: action(connection))

        result = endure(attempt, self._supervision)
        self._actions.append(action)
        return result

    def commit(self) -> None:
        """Puts all of it on record."""
        if self._actions:
            endure(self._commit, self._supervision)

    def roll_back(self) -> None:
        """Undoes all of it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._supervision is None:
            connection.close()
        elif not connection.invalidated:
            connection.rollback()

    def _commit(self) -> None:
        if self._is_in_doubt and self._is_on_record():
            return
        self._guarded(self._send_commit)

    def _is_on_record(self) -> bool:
        supervision = self._supervision
        if supervision is None or supervision.num_on_record() == supervision.num_writes:
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

    def _guarded(self, step: Callable[[Connection], T]) -> T:
        # with a lost connection all that was done on it is lost too
        try:
            return step(self._ready())
        except Exception as error:
            if may_pass(error):
                self.roll_back()
            raise

    def _ready(self) -> Connection:
        # a connection on which every write so far was done
        if self._connection is None:
            self._connection = self._begun()
            for action in self._actions:
                action(self._connection)
        return self._connection

    def _begun(self) -> Connection:
        if self._supervision is not None:
            return self._supervision.begin()
        connection = self._engine.connect()
        try:
            connection.begin()
        except BaseException:
            connection.close()
            raise
        return connection
