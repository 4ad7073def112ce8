"""An open database of records: an SQLite file by path, or any SQLAlchemy URL (SQLite, PostgreSQL)."""

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
from sweep.records.store.supervision import Supervision
from sweep.records.store.transactions import Transaction, with_retries

T = TypeVar("T")


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
