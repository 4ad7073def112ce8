"""From rows to objects. Rows are fetched whole and turned by column, which makes 100,000 of them fast."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, final

from pydantic import ValidationError
from sqlalchemy import Column, ColumnElement, Connection, Select, Table, false, func, literal, or_, select, type_coerce
from sqlalchemy.exc import DatabaseError
from sqlalchemy.types import NullType

from sweep.config.errors import InputError, explain_refusal
from sweep.config.study import StudySpec
from sweep.config.study_file import admit_recorded
from sweep.records.messages import Evaluation
from sweep.records.quality import find_time_doubts
from sweep.records.records import (
    CONFIG_COLUMNS,
    EVALUATION_KINDS,
    METRIC_KINDS,
    OPTIONAL_OF_EVALUATION,
    ConfigColumn,
    ReusableTrial,
    TrialRecord,
    open_script_values,
)
from sweep.records.schema import CORRECT_IMAGES, ENVIRONMENTS, EVALUATIONS, TRIALS

Columns = Mapping[str, Sequence[Any]]
_MANY_ROWS = 5_000
_ROWS_AT_ONCE = 2_000
_NUM_ROWS_TO_GUESS_FROM = 100
_MAX_GUESSES = 4


def spec_from_json(content: str, where: str) -> StudySpec:
    """The recorded specification. Raises ``InputError`` when this version cannot read it."""
    try:
        admit_recorded(json.loads(content))
        return StudySpec.model_validate_json(content)
    except ValidationError as error:
        raise InputError(explain_refusal(error, f"{where}: recorded study")) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: recorded study: {error}; the record is damaged.") from None


@final
class Repeated(Sequence[Any]):
    """A column of equal cells: most keys of a configuration do not vary within a study."""

    def __init__(self, value: Any, num_rows: int) -> None:
        self.value, self._num_rows = value, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: Any) -> Any:
        return ((self.value,) * self._num_rows)[index]

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.value, self._num_rows)

    def __contains__(self, value: object) -> bool:
        return self._num_rows > 0 and value == self.value


def read_columns(connection: Connection, table: Table, where: ColumnElement[bool] | None = None) -> Columns:
    """The rows of ``table`` in the order of its key, by column, with the driver's types."""
    equal = _equal_columns(connection, table, where)
    varying = [column for column in table.c if column.name not in equal] or [*table.c][:1]  # no query of no columns
    query = _narrow(select(*varying).order_by(*table.primary_key.columns), where)
    cells: dict[str, list[Any]] = {column.name: [] for column in varying}
    for rows in _fetch(connection, query):
        for column, more in zip(cells.values(), zip(*rows, strict=True), strict=True):
            column.extend(more)
    return cells | equal


def _fetch(connection: Connection, query: Select[Any]) -> Iterator[list[Any]]:
    # Without SQLAlchemy's row objects, which take two thirds of the time, and so without its errors. In parts, because
    # otherwise the garbage collector traverses all rows again and again.
    result = connection.execute(query)
    assert result.cursor is not None
    try:
        while rows := result.cursor.fetchmany(_ROWS_AT_ONCE):
            yield list(rows)
    except connection.dialect.loaded_dbapi.Error as error:
        raise DatabaseError("reading rows", None, error) from error
    finally:
        result.close()


def _equal_columns(connection: Connection, table: Table, where: ColumnElement[bool] | None) -> dict[str, Repeated]:
    # Guessed from the rows at both ends of the table, then checked for every row inside the database, which takes a
    # tenth of the time of fetching the cells. Rows that contradict the guess are added to those that it is made from.
    num_rows = connection.execute(_narrow(select(func.count()).select_from(table), where)).scalar_one()
    if num_rows < _MANY_ROWS:
        return {}
    keys, columns = table.primary_key.columns, list(table.c)
    ends = [_narrow(select(*columns).order_by(*order), where) for order in (keys, [key.desc() for key in keys])]
    rows = [row for query in ends for row in _few(connection, query)]
    for _ in range(_MAX_GUESSES):
        cells = zip(columns, zip(*rows, strict=True), strict=True)
        equal = {column: values[0] for column, values in cells if len(set(values)) == 1}
        differs = or_(false(), *(_differs(column, value) for column, value in equal.items()))
        against = _few(connection, _narrow(select(*columns).where(differs), where))
        if not against:
            return {column.name: Repeated(value, num_rows) for column, value in equal.items()}
        rows += against
    return {}


def _few(connection: Connection, query: Select[Any]) -> list[Any]:
    return [row for rows in _fetch(connection, query.limit(_NUM_ROWS_TO_GUESS_FROM)) for row in rows]


def _differs(column: Column[Any], value: Any) -> ColumnElement[bool]:
    # the cells with the driver's types, not converted to the type of the column
    plain = type_coerce(column, NullType())
    return plain.is_distinct_from(None if value is None else literal(value, NullType()))


def _narrow(query: Select[Any], where: ColumnElement[bool] | None) -> Select[Any]:
    return query if where is None else query.where(where)


def config_cells(column: ConfigColumn, columns: Columns, num_rows: int) -> Sequence[Any]:
    cells = columns[column.name]
    if isinstance(cells, Repeated):
        return Repeated(column.from_cell(cells.value), num_rows)
    if column.kind == "bool" or column.has_numbers or (column.null_value is not None and None in cells):
        return tuple(column.from_cell(cell) for cell in cells)
    return cells


def trial_records(connection: Connection, where: ColumnElement[bool]) -> list[TrialRecord]:
    """The trials that ``where`` selects, by study and number."""
    return records_of_columns(read_columns(connection, TRIALS, where))


def records_of_columns(columns: Columns) -> list[TrialRecord]:
    """The rows of a table of trials, given by column."""
    num_rows = len(columns["number"])
    paths = [column.path for column in CONFIG_COLUMNS]
    config_rows = zip(*(config_cells(column, columns, num_rows) for column in CONFIG_COLUMNS), strict=True)
    metric_rows = zip(*(columns[name] for name in METRIC_KINDS), strict=True)
    others = ("number", "phase", "outcome", "trial_key", "shape_digest", "reused_from", "device", "error")
    rows = zip(*(columns[name] for name in (*others, "is_enqueued", "quality_flags")), strict=True)
    return [
        TrialRecord(
            **dict(zip(others, cells, strict=True)),
            values=_open_values(dict(zip(paths, config, strict=True))),
            measurements={name: value for name, value in zip(METRIC_KINDS, measured, strict=True) if value is not None},
            is_enqueued=bool(is_enqueued),
            quality_flags=tuple(flags.split(",")) if flags else (),
        )
        for (*cells, is_enqueued, flags), config, measured in zip(rows, config_rows, metric_rows, strict=True)
    ]


def _open_values(values: dict[str, Any]) -> dict[str, Any]:
    return values | open_script_values(values.pop("script"))


def evaluations_of(connection: Connection, study: str, number: int) -> list[Evaluation]:
    """The evaluations of a trial by step, of the latest attempt that made any."""
    of_trial = (EVALUATIONS.c.study == study, EVALUATIONS.c.number == number)
    latest = select(func.max(EVALUATIONS.c.attempt)).where(*of_trial).scalar_subquery()
    query = (
        select(*(EVALUATIONS.c[name] for name in EVALUATION_KINDS))
        .where(*of_trial, EVALUATIONS.c.attempt == latest)
        .order_by(EVALUATIONS.c.step)
    )
    return [make_evaluation(dict(row)) for row in connection.execute(query).mappings()]


def find_correct_texts(connection: Connection, study: str, numbers: Sequence[int]) -> dict[int, str]:
    """By number, the recorded texts of the validation images that the trials ``numbers`` got right."""
    texts: dict[int, str] = {}
    for start in range(0, len(numbers), _ROWS_AT_ONCE):  # databases limit the parameters of a query
        some = list(numbers[start : start + _ROWS_AT_ONCE])
        query = select(CORRECT_IMAGES.c.number, CORRECT_IMAGES.c.correct_images)
        rows = connection.execute(query.where(CORRECT_IMAGES.c.study == study, CORRECT_IMAGES.c.number.in_(some)))
        texts |= dict(map(tuple, rows))
    return texts


def make_evaluation(row: Mapping[str, Any]) -> Evaluation:
    """The evaluation with these cells; a missing one is NaN where the field is not optional."""
    missing = {name: None if name in OPTIONAL_OF_EVALUATION else math.nan for name, cell in row.items() if cell is None}
    cells: dict[str, Any] = {**row, **missing}
    return Evaluation(**cells)


def find_reusable(connection: Connection, key: str) -> ReusableTrial | None:
    """The complete trial of that content key to take: one without a doubt about its times, with the fewest quality
    flags, and trained rather than reused, in this order; None where there is none."""
    columns = (TRIALS.c.study, TRIALS.c.number, TRIALS.c.quality_flags, TRIALS.c.reused_from)
    rows = connection.execute(select(*columns).where(TRIALS.c.outcome == "complete", TRIALS.c.trial_key == key))
    candidates = []
    for study, number, text, reused in rows:
        flags = text.split(",") if text else []
        candidates.append((bool(find_time_doubts(flags)), len(flags), bool(reused), study, number))
    return _load_reusable(connection, *min(candidates)[3:]) if candidates else None


def _load_reusable(connection: Connection, study: str, number: int) -> ReusableTrial:
    columns = read_columns(connection, TRIALS, (TRIALS.c.study == study) & (TRIALS.c.number == number))
    (record,) = records_of_columns(columns)
    ending = replace(
        record.ending,
        environment=_load_environment(connection, study, columns["environment_digest"][0]),
        bottleneck=columns["bottleneck"][0] or "",
        correct_images=find_correct_texts(connection, study, [number]).get(number, ""),
    )
    evaluations = evaluations_of(connection, study, number)
    origin = record.reused_from or f"{study}/{number}"
    is_timed = record.values.get("budget.seconds") is not None
    return ReusableTrial(origin=origin, ending=ending, evaluations=tuple(evaluations), is_timed=is_timed)


def _load_environment(connection: Connection, study: str, digest: str | None) -> dict[str, Any]:
    of_study = (ENVIRONMENTS.c.study == study, ENVIRONMENTS.c.environment_digest == digest)
    content = connection.execute(select(ENVIRONMENTS.c.environment).where(*of_study)).scalar()
    try:
        environment: dict[str, Any] = json.loads(content or "{}")
    except (ValueError, RecursionError):
        raise InputError(f"study {study!r}: an environment on record is no JSON; the record is damaged.") from None
    return environment
