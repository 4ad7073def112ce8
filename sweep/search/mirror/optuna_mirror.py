"""Writes a copy of the records to Optuna's tables in the same database, for optuna-dashboard alone.

A mirror that fails causes a warning and never ends the study, because the records can fill it again at any time. For
the same reason it replaces the tables of another major version of Optuna.
"""

import contextlib
import json
import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, final

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from sweep.config.errors import InputError, hide_credentials
from sweep.config.study import StudySpec
from sweep.records.address import parse_url, store_path
from sweep.records.store.database_errors import is_outage
from sweep.records.store.engines import server_arguments, sqlite_creator
from sweep.records.trial_record import TrialRecord
from sweep.search.mirror.optuna_conversion import (
    NUMBER_ATTRIBUTE,
    find_worst_values,
    list_directions,
    make_frozen_trial,
    pick_worst,
    read_objectives,
)
from sweep.search.mirror.optuna_tables import drop_other_layouts, drop_other_versions, hold_tables_lock

T = TypeVar("T")

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 10.0  # after a server did not answer

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
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._mirrored: set[int] = set()
        self._worst: list[float] = []
        self._failed = False
        self._has_warned = False
        self._retry_at = 0.0
        self._expected: deque[TrialRecord] = deque()

    def expect(self, records: Iterable[TrialRecord]) -> None:
        """Adds ended search trials to those that :meth:`push_next` mirrors, in this order."""
        self._expected.extend(records)

    def push_next(self) -> None:
        """Mirrors the next expected trial that is not mirrored yet, if any."""

        def push() -> None:
            if self._study is None and self._expected:
                self._open(list(self._expected))
            while self._expected and not self._add(self._expected.popleft()):
                pass

        self._guard(push, None)

    def pending(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Those of ``records`` that have to be mirrored and are not yet, by number."""
        listed = list(records)

        def find() -> list[TrialRecord]:
            if self._study is None:
                self._open(listed)
            return sorted(filter(self._is_missing, listed), key=lambda record: record.number)

        return self._guard(find, [])

    def _is_missing(self, record: TrialRecord) -> bool:
        is_ended_search = record.phase == "search" and record.outcome is not None
        return is_ended_search and record.number not in self._mirrored

    def push(self, record: TrialRecord) -> None:
        """Mirrors one ended trial; takes 6 ms, or 13 ms if there are 100,000."""
        self._guard(lambda: self._add(record), None)

    def _add(self, record: TrialRecord) -> bool:
        """Mirrors ``record`` unless that was done already; returns whether it was mirrored now."""
        study = self._study or self._open([record])
        if not self._is_missing(record):
            return False
        if record.outcome == "complete" and (values := read_objectives(record, self._spec)):
            self._worst = pick_worst([self._worst, values], self._spec)
        study.add_trial(make_frozen_trial(record, self._spec, self._worst))
        self._mirrored.add(record.number)
        return True

    def catch_up(self, records: Iterable[TrialRecord], limit: int | None = None) -> int:
        """Mirrors what is missing, at most ``limit`` trials; returns how many trials were tried."""
        missing = self.pending(records)[:limit]
        for record in missing:
            self.push(record)
        return len(missing)

    def close(self) -> None:
        """Closes the connections for good."""
        self._disconnect()
        self._failed = True

    def _disconnect(self) -> None:
        if self._storage is not None:
            with contextlib.suppress(Exception):
                self._storage.remove_session()
                self._storage.engine.dispose()
        self._storage = self._study = None

    def _open(self, records: list[TrialRecord]) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its other messages disturb the display
        with hold_tables_lock(self._url):
            self._storage = self._open_storage()
        study = optuna.create_study(
            storage=self._storage,
            study_name=self._spec.name,
            directions=list_directions(self._spec),
            load_if_exists=True,
        )
        with self._storage.engine.connect() as connection:
            key = {"study": self._spec.name, "key": NUMBER_ATTRIBUTE}
            self._mirrored = {int(json.loads(row[0])) for row in connection.execute(_MIRRORED_NUMBERS, key)}
        self._worst = find_worst_values((record for record in records if record.phase == "search"), self._spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(list(self._spec.objectives))
        self._study = study
        return study

    def _open_storage(self) -> RDBStorage:
        is_new = drop_other_versions(self._url)
        options = _engine_options(self._url)
        storage = RDBStorage(url=self._url, engine_kwargs=options, skip_compatibility_check=True)
        if drop_other_layouts(storage, self._url):
            storage.remove_session()
            storage.engine.dispose()
            storage, is_new = RDBStorage(url=self._url, engine_kwargs=options), True
        if is_new:
            _log.warning("another version of Optuna made the copy for optuna-dashboard; it is filled anew")
        return storage

    def _guard(self, action: Callable[[], T], default: T) -> T:
        """The result of ``action``; ``default``, with a warning the first time, where it fails."""
        if self._failed or time.monotonic() < self._retry_at:
            return default
        try:
            return action()
        except Exception as error:
            self._disconnect()
            self._failed = not is_outage(error.__cause__ or error)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            if not self._has_warned:
                _log.warning("the copy for optuna-dashboard is not kept up (the records are): %s", error)
            self._has_warned = True
            return default


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
            f"{hide_credentials(url)}: another version of Optuna made what is to be browsed; run the study's command "
            "again, which makes it anew."
        ) from None


def _engine_options(url: str, read_only: bool = False) -> dict[str, Any]:
    path = store_path(url)
    if path is not None:
        return {"creator": sqlite_creator(path, read_only, isolation_level="DEFERRED"), "hide_parameters": True}
    arguments = server_arguments(parse_url(url))
    options: dict[str, Any] = {"pool_pre_ping": True, "hide_parameters": True, "connect_args": arguments}
    return options | ({"execution_options": {"postgresql_readonly": True}} if read_only else {})
