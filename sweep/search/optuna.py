"""Optuna's view of a study: the space and the records in its terms, and a copy of the trials in its tables.

The copy, in the database of the records, is for optuna-dashboard alone; this program never reads it."""

import contextlib
import json
import logging
import math
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from sweep.config.errors import InputError, hide_credentials
from sweep.config.space import Parameter, Space
from sweep.config.study import StudySpec
from sweep.config.trial import Scalar
from sweep.records.address import parse_url, store_path
from sweep.records.database import server_arguments, server_engine, sqlite_creator
from sweep.records.messages import INFEASIBLE
from sweep.records.records import TrialRecord

_CONSTRAINT = "infeasible"  # Optuna: <= 0 is feasible
_NUMBER_ATTRIBUTE = "number"  # user attribute: the number of the trial on record


def make_optuna_name(path: str, parameter: Parameter) -> str:
    """The parameter's name in Optuna, where a power of two is searched by its exponent."""
    return f"{path} (log2)" if parameter.log2 is not None else path


def list_directions(spec: StudySpec) -> list[Literal["minimize", "maximize"]]:
    return [spec.metric(name).direction or "minimize" for name in spec.objectives]


def make_distributions(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distribution of each parameter, by Optuna's name of it."""
    return {make_optuna_name(path, parameter): _make_distribution(parameter) for path, parameter in space.items()}


def _make_distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choice is not None:
        return CategoricalDistribution(parameter.choice)
    if (whole := parameter.log2 or parameter.int_) is not None:
        return IntDistribution(*whole)
    if parameter.log is not None:
        return FloatDistribution(*parameter.log, log=True)
    assert parameter.float_ is not None
    return FloatDistribution(*parameter.float_)


def to_optuna_params(space: Space, values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Optuna's parameters of a point; ``values`` by dotted path, keys outside the space are left out. Raises
    ``ValueError``: when a value lies outside the space."""
    return {make_optuna_name(path, item): _to_optuna(path, item, values[path]) for path, item in space.items()}


def _to_optuna(path: str, parameter: Parameter, value: Scalar) -> Scalar:
    if parameter.choice is not None:
        for choice in parameter.choice:
            # True does not match 1, although Python calls them equal. 1.0 does: a field of floats records 1 like that.
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"{path}: {value!r} is none of {parameter.choice}")
    if not isinstance(value, int | float):
        raise ValueError(f"{path}: {value!r} is no number")
    if parameter.log2 is not None:
        exponent = int(value).bit_length() - 1
        if value != 2**exponent or not parameter.log2[0] <= exponent <= parameter.log2[1]:
            raise ValueError(f"{path}: {value!r} is not in log2 = {list(parameter.log2)}")
        return exponent
    return _within(path, value, parameter.int_ or parameter.log or parameter.float_ or (), parameter.int_ is not None)


def _within(path: str, value: float, bounds: tuple[float, ...], whole: bool) -> float:
    low, high = bounds
    # A rounding error may make exp(log(low)) less than low.
    nearest = min(max(value, low), high)
    if not math.isclose(nearest, value, rel_tol=1e-9, abs_tol=1e-12):
        raise ValueError(f"{path}: {value!r} is outside [{low}, {high}]")
    return int(nearest) if whole else float(nearest)


def from_optuna_params(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`to_optuna_params`: values by dotted path, ready for ``spec.config``."""
    values = {}
    for path, parameter in space.items():
        value = params[make_optuna_name(path, parameter)]
        values[path] = 2**value if parameter.log2 is not None else value
    return values


def _read_objectives(record: TrialRecord, spec: StudySpec) -> list[float] | None:
    """The record's objectives in order; None where one was not measured or is not finite."""
    values = [record.measurements.get(name) for name in spec.objectives]
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    return finite if len(finite) == len(values) else None


def find_worst_values(records: Iterable[TrialRecord], spec: StudySpec) -> list[float]:
    """The worst value of each objective among complete ``records``; if there is none, the worst of its metric."""
    rows = [values for record in records if record.outcome == "complete" and (values := _read_objectives(record, spec))]
    return _pick_worst(rows, spec) if rows else [spec.metric(name).worst for name in spec.objectives]


def _pick_worst(rows: Sequence[list[float]], spec: StudySpec) -> list[float]:
    """The worst value of each objective among ``rows``, shape ``[n, objectives]``."""
    columns = zip((spec.metric(name).sign for name in spec.objectives), zip(*rows, strict=True), strict=True)
    return [max(column, key=lambda value: sign * value) for sign, column in columns]


def make_frozen_trial(record: TrialRecord, spec: StudySpec, worst: list[float]) -> FrozenTrial:
    """An ended search trial as Optuna records it.

    A trial that ended because of its configuration is COMPLETE with the ``worst`` values as placeholders and a
    constraint above 0: if it were FAIL, samplers would propose such configurations again and again. A crash is not due
    to the configuration and is FAIL; so is a complete trial that lacks an objective. Raises ``ValueError``: the trial
    still runs or its configuration is outside the space."""
    if record.outcome is None:
        raise ValueError(f"trial {record.number} still runs")
    objectives = _read_objectives(record, spec)
    state, values, constraint = TrialState.FAIL, None, None
    if record.outcome in INFEASIBLE:
        state, values, constraint = TrialState.COMPLETE, list(worst), 1.0
    elif record.outcome == "pruned":
        state, constraint = TrialState.PRUNED, 0.0
    elif record.outcome == "complete" and objectives is not None:
        state, values, constraint = TrialState.COMPLETE, objectives, 0.0
    attributes: dict[str, Any] = {_NUMBER_ATTRIBUTE: record.number, "outcome": record.outcome, "phase": record.phase}
    attributes["seed"] = record.values.get("seed")
    if record.reused_from:
        attributes["reused_from"] = record.reused_from
    return create_trial(
        state=state,
        values=values,
        params=to_optuna_params(spec.space, record.values),
        distributions=make_distributions(spec.space),
        user_attrs=attributes,
        constraints=None if constraint is None else {_CONSTRAINT: constraint},
    )


# ---------------------------------------------------------------------- the copy in Optuna's tables

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
        """Appends the ended search trials among ``records`` to what waits to be written."""
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
        if record.outcome == "complete" and (values := _read_objectives(record, self._spec)):
            self._worst = _pick_worst([self._worst, values], self._spec)
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
            key = {"study": self._spec.name, "key": _NUMBER_ATTRIBUTE}
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
    """The mirror in the database ``url``, for reading; a write through it fails. Raises ``InputError``: nothing has
    been mirrored there yet, or by another version of Optuna."""
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
        # Without a pool, because its connections could not be closed if the constructor fails.
        return RDBStorage(url=url, engine_kwargs={**options, "poolclass": NullPool}, skip_table_creation=True)
    except RuntimeError:  # the tables are not in the layout of the installed version
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
