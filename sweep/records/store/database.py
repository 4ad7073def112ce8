"""An open database of records: an SQLite file by path, or any SQLAlchemy URL (SQLite, PostgreSQL)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, final

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from sweep.config.errors import InputError, shown
from sweep.records.address import STORE_FILE, parse_url, store_path
from sweep.records.disk_space import lacking
from sweep.records.store.database_errors import StoreError, cause_of, explain, is_full
from sweep.records.store.engines import server_engine, sqlite_creator, sqlite_engine
from sweep.records.store.opening import check_file, prepare
from sweep.records.store.supervision import Supervision
from sweep.records.store.transactions import Unit, endure

T = TypeVar("T")

__all__ = ["STORE_FILE", "Database", "StoreError", "open_database", "sqlite_creator", "store_path"]


@final
@dataclass
class Database:
    """An open database of records. ``where`` names it without its password.

    While ``supervision`` is set, reads and writes wait for a server that does not answer. Errors of the database come
    out as :class:`StoreError`.
    """

    engine: Engine
    url: str = field(repr=False)  # with its password, never to be printed
    where: str
    present: dict[str, frozenset[str]]  # columns by table; an older store that is only read lacks some
    file: Path | None = None  # of SQLite
    supervision: Supervision | None = field(default=None, repr=False)
    _unit: Unit | None = field(default=None, repr=False)

    def write(self, action: Callable[[Connection], T]) -> T:
        """What ``action`` returns; what it changed is on the disk. It may be called again when a connection was lost,
        never after it is on record. Inside :meth:`together` it is part of that."""
        with self.together():
            assert self._unit is not None
            return self._unit.add(action)

    def read(self, action: Callable[[Connection], T]) -> T:
        """What ``action`` returns, from one consistent picture."""
        if self._unit is not None:
            with self._translated():
                return self._unit.add(action)

        def step() -> T:
            with self.engine.begin() as connection:
                return action(connection)

        with self._translated():
            return endure(step, self.supervision)

    @property
    def is_joined(self) -> bool:
        """Whether a write would be part of others that are not yet on record."""
        return self._unit is not None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Makes all writes inside one transaction, which is on the disk when this has ended, or none of them."""
        with self._translated():
            if self._unit is not None:
                yield
                return
            unit = self._unit = Unit(self.engine, self.supervision)
            try:
                yield
                unit.commit()
            except BaseException:
                unit.roll_back()
                raise
            finally:
                self._unit = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction for what is no record of a running study: it is not tried again."""
        with self._translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OverflowError) as error:
            room = lacking(self.file.parent) if self.file is not None and is_full(error) else ""
            raise StoreError(explain(error, self.where, room)) from error


def open_database(target: str | Path, *, create: bool = False, read_only: bool = False) -> Database:
    """Opens (or with ``create`` makes) the tables of records at ``target``. Opened for writing, an older store is
    brought up to this version.

    Raises:
        InputError: nothing there, not ours, torn, written by a newer version, or not reachable.
    """
    path = store_path(target)
    if path is None:
        url = parse_url(str(target))
        where, engine = shown(str(target)), server_engine(url, read_only)
    else:
        url, where = URL.create("sqlite", database=str(path.resolve())), str(path)
        check_file(path, create)
        engine = sqlite_engine(path, read_only)
    try:
        present = prepare(engine, where, create=create, read_only=read_only)
    except SQLAlchemyError as error:
        engine.dispose()
        raise InputError(_refusal(error, where, path)) from None
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, url.render_as_string(hide_password=False), where, present, path)


def _refusal(error: SQLAlchemyError, where: str, path: Path | None) -> str:
    cause = cause_of(error).rstrip(".")
    if path is None:
        return f"{where}: the database cannot be opened: {cause}. Check that the server runs and the URL is right."
    if is_full(error):
        return explain(error, where, lacking(path.parent))
    if isinstance(error, DatabaseError) and not isinstance(error, OperationalError):
        return f"{where}: it is no store of this program ({cause}); give the folder or study.sqlite of a study."
    return f"{where}: the store cannot be opened: {cause}."
