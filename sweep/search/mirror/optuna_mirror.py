"""Writes a copy of the records to Optuna's tables in the same database, for optuna-dashboard alone.

A mirror that fails causes a warning and never ends the study, because the records can fill it again at any time.
"""

import contextlib
import json
import logging
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, final

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from sweep.config.errors import InputError, hide_credentials
from sweep.config.study import StudySpec
from sweep.records.address import parse_url, store_path
from sweep.records.database import server_arguments, server_engine, sqlite_creator
from sweep.records.trial_record import TrialRecord
from sweep.search.mirror.optuna_conversion import (
    NUMBER_ATTRIBUTE,
    find_worst_values,
    list_directions,
    make_frozen_trial,
    pick_worst,
    read_objectives,
)

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 30.0  # after a failure
_TABLES_LOCK = text("SELECT pg_advisory_xact_lock(7234013)")  # while Optuna makes its tables

# The numbers of the mirrored trials by SQL: Optuna loads every trial, which takes 31 s for 100,000 of them.
_MIRRORED_NUMBERS = text(
    "SELECT a.value_json FROM trial_user_attributes a JOIN trials t ON t.trial_id = a.trial_id "
    "JOIN studies s ON s.study_id = t.study_id WHERE s.study_name = :study AND a.key = :key"
)


@final
class Mirror:
    """Ended search trials of one study in Optuna's tables of the database ``url``. No method raises."""

    def __init__(self, url: str, spec: StudySpec) -> None:
        self._url, self._spec = url, spec
        self._waiting: deque[TrialRecord] = deque()
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._mirrored: set[int] = set()
        self._worst: list[float] = []
        self._retry_at = 0.0
        self._has_warned = False

    def add(self, records: Iterable[TrialRecord]) -> None:
        """Appends those of ``records`` that are ended search trials to those that wait to be written."""
        self._waiting.extend(each for each in records if each.phase == "search" and each.outcome is not None)

    def write_next(self) -> None:
        """Writes the next waiting trial that is not there yet, if any; takes 6 ms, or 13 ms if there are 100,000."""
        if not self._waiting or time.monotonic() < self._retry_at:
            return
        try:
            study = self._study or self._open()
            while self._waiting and self._waiting[0].number in self._mirrored:
                self._waiting.popleft()
            if self._waiting:
                self._write(study, self._waiting[0])
                self._waiting.popleft()
        except Exception as error:
            self.close()
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if not self._has_warned:
                _log.warning("the copy for optuna-dashboard is not kept up (the records are): %s", error)
            self._has_warned = True

    def write_all(self) -> None:
        """Writes all waiting trials, unless one fails."""
        self._retry_at = 0.0
        while self._waiting and not self._retry_at:
            self.write_next()

    def close(self) -> None:
        """Closes the connections."""
        if self._storage is not None:
            with contextlib.suppress(Exception):
                self._storage.remove_session()
                self._storage.engine.dispose()
        self._storage = self._study = None

    def _write(self, study: optuna.Study, record: TrialRecord) -> None:
        if record.outcome == "complete" and (values := read_objectives(record, self._spec)):
            self._worst = pick_worst([self._worst, values], self._spec)
        study.add_trial(make_frozen_trial(record, self._spec, self._worst))
        self._mirrored.add(record.number)

    def _open(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its other messages disturb the display
        with _hold_tables(self._url):
            self._storage = RDBStorage(url=self._url, engine_kwargs=_engine_options(self._url))
        study = optuna.create_study(
            storage=self._storage,
            study_name=self._spec.name,
            directions=list_directions(self._spec),
            load_if_exists=True,
        )
        with self._storage.engine.connect() as connection:
            key = {"study": self._spec.name, "key": NUMBER_ATTRIBUTE}
            self._mirrored = {int(json.loads(row[0])) for row in connection.execute(_MIRRORED_NUMBERS, key)}
        self._worst = find_worst_values(self._waiting, self._spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(self._spec.objectives))
        self._study = study
        return study


@contextlib.contextmanager
def _hold_tables(url: str) -> Iterator[None]:
    """Prevents studies that start at the same time from making Optuna's tables in one server at once."""
    if store_path(url) is not None:
        yield
        return
    engine = server_engine(parse_url(url), read_only=False)
    try:
        with engine.begin() as connection:
            connection.execute(_TABLES_LOCK)
            yield
    finally:
        engine.dispose()


def open_read_only(url: str) -> RDBStorage:
    """The mirror in the database ``url``, for reading; a write through it fails.

    Raises:
        InputError: nothing has been mirrored there yet, or by another version of Optuna.
    """
    options = _engine_options(url, read_only=True)
    engine = create_engine(url, **options)
    try:
        if not inspect(engine).has_table("trials"):
            raise InputError(
                f"{hide_credentials(url)}: nothing to browse yet; wait until the study's first trial has ended."
            )
    finally:
        engine.dispose()
    try:
        # no pool: its connections could not be closed where the constructor fails
        return RDBStorage(url=url, engine_kwargs={**options, "poolclass": NullPool}, skip_table_creation=True)
    except RuntimeError:  # the tables have another layout than those of the installed version
        raise InputError(
            f"{hide_credentials(url)}: another version of Optuna made what is to be browsed; bring it up to date by "
            "`optuna storage upgrade --storage URL`."
        ) from None


def _engine_options(url: str, read_only: bool = False) -> dict[str, Any]:
    path = store_path(url)
    if path is not None:
        return {"creator": sqlite_creator(path, read_only, isolation_level="DEFERRED"), "hide_parameters": True}
    arguments = server_arguments(parse_url(url))
    options: dict[str, Any] = {"pool_pre_ping": True, "hide_parameters": True, "connect_args": arguments}
    return options | ({"execution_options": {"postgresql_readonly": True}} if read_only else {})
