"""An open database of records: an SQLite file by path, or any SQLAlchemy URL (SQLite, PostgreSQL).

A transaction is repeated where its connection is lost before the commit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, final

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from sweep.config.errors import InputError, hide_credentials
from sweep.records.address import parse_url, store_path
from sweep.records.disk_space import describe_shortage
from sweep.records.store.database_errors import StoreError, cause_of, describe_failure, is_full
from sweep.records.store.engines import server_engine, sqlite_engine
from sweep.records.store.opening import check_file, prepare_tables
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
        result = with_retries(lambda: self._run(action), self._supervision)
        self._actions.append(action)
        return result

    def commit(self) -> None:
        if self._actions:
            with_retries(self._commit, self._supervision)

    def roll_back(self) -> None:
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


@final
@dataclass(kw_only=True)
class Database:
    """An open database of records. ``where`` names it without its password.

    While ``supervision`` is set, reads and writes are retried when a server does not answer. Errors of the database are
    raised as :class:`StoreError`.
    """

    engine: Engine
    url: str = field(repr=False)  # with its password, never to be printed
    where: str
    file: Path | None = None  # of SQLite
    supervision: Supervision | None = field(default=None, repr=False)
    _transaction: Transaction | None = field(default=None, repr=False)

    def write(self, action: Callable[[Connection], T]) -> T:
        """The result of ``action``, whose changes are then on the disk. It may be called again after a lost connection,
        never after its commit. Inside :meth:`transaction` it is part of that transaction."""
        with self.transaction():
            assert self._transaction is not None
            return self._transaction.add(action)

    def read(self, action: Callable[[Connection], T]) -> T:
        """The result of ``action``, from one consistent snapshot."""
        if self._transaction is not None:
            with self._translated():
                return self._transaction.add(action)

        def step() -> T:
            with self.engine.begin() as connection:
                return action(connection)

        with self._translated():
            return with_retries(step, self.supervision)

    @property
    def in_transaction(self) -> bool:
        """Whether a write would be part of a transaction that is not yet committed."""
        return self._transaction is not None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for all writes inside: at its end all of them are on the disk, after an error none."""
        with self._translated():
            if self._transaction is not None:
                yield
                return
            transaction = self._transaction = Transaction(self.engine, self.supervision)
            try:
                yield
                transaction.commit()
            except BaseException:
                transaction.roll_back()
                raise
            finally:
                self._transaction = None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that is not retried, for changes that are no record of a running study."""
        with self._translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OverflowError) as error:
            shortage = describe_shortage(self.file.parent) if self.file is not None and is_full(error) else ""
            raise StoreError(describe_failure(error, self.where, shortage)) from error


def open_database(target: str | Path, *, create: bool = False, read_only: bool = False) -> Database:
    """Opens, or with ``create`` makes, the tables of records at ``target``.

    Raises:
        InputError: nothing there, not ours, torn, written by another version, or not reachable.
    """
    path = store_path(target)
    if path is None:
        url = parse_url(str(target))
        where, engine = hide_credentials(str(target)), server_engine(url, read_only)
    else:
        url, where = URL.create("sqlite", database=str(path.resolve())), str(path)
        check_file(path, create)
        engine = sqlite_engine(path, read_only)
    try:
        prepare_tables(engine, where, create=create, read_only=read_only)
    except SQLAlchemyError as error:
        engine.dispose()
        raise InputError(_refusal(error, where, path)) from None
    except BaseException:
        engine.dispose()
        raise
    return Database(engine=engine, url=url.render_as_string(hide_password=False), where=where, file=path)


def _refusal(error: SQLAlchemyError, where: str, path: Path | None) -> str:
    cause = cause_of(error).rstrip(".")
    if path is None:
        return f"{where}: the database cannot be opened: {cause}. Check that the server runs and the URL is right."
    if is_full(error):
        return describe_failure(error, where, describe_shortage(path.parent))
    if isinstance(error, DatabaseError) and not isinstance(error, OperationalError):
        return f"{where}: it is no store of this program ({cause}); give the folder or study.sqlite of a study."
    return f"{where}: the store cannot be opened: {cause}."
