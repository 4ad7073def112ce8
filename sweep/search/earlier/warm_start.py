"""``--warm-start``: where earlier results lie and how each kind of place is read.

A place is a study's folder or file, a folder of studies, an export, a database URL of records or of Optuna's own
storage (``URL#study`` where it holds several), or one table of trials as Parquet or CSV.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from sweep.config.errors import InputError, shown, unknown_name
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.columns import CONFIG_PREFIX
from sweep.records.frames.exchange import is_export
from sweep.records.frames.frame_files import cells_of
from sweep.records.frames.frame_records import records_of_frame
from sweep.records.frames.frames import load_frames
from sweep.records.messages import OUTCOMES
from sweep.records.store.database import store_path
from sweep.records.store.schema import VERSIONS
from sweep.records.trial_record import TrialRecord
from sweep.search.earlier.earlier_results import EarlierResult, select_fitting
from sweep.search.earlier.optuna_storage import read_storage
from sweep.search.earlier.reuse_index import list_study_files

_TABLES = (".parquet", ".csv")


def read_earlier(place: str, spec: StudySpec) -> list[EarlierResult]:
    """What there is at ``place`` for ``spec`` to learn from.

    Raises:
        InputError: nothing is there, it cannot be read, or nothing of it fits the study.
    """
    where, _, study = place.partition("#")
    return select_fitting(_read(where, study or None, spec), spec, shown(place))


def _read(where: str, study: str | None, spec: StudySpec) -> list[EarlierResult]:
    path = None if "://" in where else Path(where)
    if path is None or path.suffix not in _TABLES:
        if path is not None and path.is_dir() and not is_export(path) and (files := list_study_files(path)):
            return [earlier for file in files for earlier in _of_store(str(file), study)]
        if path is not None and path.is_dir():
            return _of_store(where, study)
        return _of_store(where, study) if _is_ours(where) else read_storage(_url(where), study, spec)
    return list(_of_table(path, spec))


def _url(where: str) -> str:
    return where if "://" in where else f"sqlite:///{Path(where).resolve()}"


def _is_ours(where: str) -> bool:
    path = store_path(where)
    if path is not None and not path.is_file():
        raise InputError(
            f"--warm-start {shown(where)}: nothing is there; give a study, an export, a table or a storage URL."
        )
    try:
        engine = create_engine(_url(where), hide_parameters=True)
        try:
            return inspect(engine).has_table(VERSIONS.name)
        finally:
            engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        raise InputError(f"--warm-start: the database cannot be opened: {cause}.") from None


def _of_store(where: str, study: str | None) -> list[EarlierResult]:
    return [_of_record(record) for record in records_of_frame(load_frames(where, study).trials)]


def _of_record(record: TrialRecord) -> EarlierResult:
    outcome = record.outcome or "running"
    return EarlierResult(record.values, outcome, record.measurements, record.device, record.quality_flags)


def _of_table(path: Path, spec: StudySpec) -> Iterator[EarlierResult]:
    frame = _read_table(path)
    columns = {str(name): cells_of(frame[name]) for name in frame}
    plain = {name.removeprefix(CONFIG_PREFIX): cells for name, cells in columns.items()}
    for wanted in spec.space:
        if wanted not in plain:
            raise InputError(f"--warm-start {path}: it has no column {wanted}, which this study varies.")
    if not any(name in plain for name in spec.objectives):
        raise InputError(f"--warm-start {path}: it has no column of an objective ({', '.join(spec.objectives)}).")
    for cells in zip(*plain.values(), strict=True):
        yield _of_row(dict(zip(plain, cells, strict=True)), path)


def _of_row(row: Mapping[str, Any], path: Path) -> EarlierResult:
    outcome = row.get("outcome") or "complete"
    if outcome not in OUTCOMES:
        raise InputError(f"--warm-start {path}: {unknown_name('outcome', str(outcome), OUTCOMES)}")
    measured = {name: _number(row[name], name, path) for name in METRICS if row.get(name) is not None}
    values = {name: value for name, value in row.items() if value is not None}
    flags = tuple(filter(None, str(row.get("quality_flags") or "").split(",")))
    return EarlierResult(values, outcome, measured, row.get("device"), flags)


def _number(value: Any, name: str, path: Path) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"--warm-start {path}: {name} = {value!r} is no number.")
    return value


def _read_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"--warm-start {path}: the file is not there.") from None
    except (OSError, ValueError, UnicodeDecodeError, csv.Error, pd.errors.ParserError) as error:
        raise InputError(f"--warm-start {path}: cannot be read: {error}.") from None
