"""Storages of Optuna that leave no connection open: Python 3.13 warns of those that are never closed."""

from pathlib import Path

from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool


def open_storage(path: Path) -> RDBStorage:
    """The storage in the SQLite file ``path``, made if there is none."""
    return RDBStorage(f"sqlite:///{path}", engine_kwargs={"poolclass": NullPool})
