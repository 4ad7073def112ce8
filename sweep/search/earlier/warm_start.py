"""``--warm-start``: reads earlier results from each kind of place.

A place is a study's folder or file, a folder of studies, an export, a database URL of records or of Optuna's own
storage (``URL#study`` where it holds several), or one table of trials as Parquet or CSV.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from sweep.config.errors import InputError, describe_unknown, hide_credentials
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.address import store_path
from sweep.records.columns import CONFIG_PREFIX
from sweep.records.frames.exchange import is_export
from sweep.records.frames.frame_files import cells_of
from sweep.records.frames.frames import load_frames, records_of_frame
from sweep.records.messages import OUTCOMES
from sweep.records.schema import VERSIONS
from sweep.search.earlier.earlier_results import EarlierResult, select_fitting
from sweep.search.earlier.optuna_storage import read_storage
from sweep.search.earlier.reuse_index import list_study_files

_TABLES = (".parquet", ".csv")


def read_earlier(place: str, spec: StudySpec) -> list[EarlierResult]:
    """The results at ``place`` that ``spec`` can learn from.

    Raises:
        InputError: nothing is there, it cannot be read, or nothing of it fits the study.
    """
    where, _, study = place.partition("#")
    return select_fitting(_read_place(where, study or None, spec), spec, hide_credentials(place))


def _read_place(where: str, study: str | None, spec: StudySpec) -> Iterable[EarlierResult]:
    path = None if "://" in where else Path(where)
    if path is not None and path.suffix in _TABLES:
        return _read_table(path, spec)
    if path is not None and path.is_dir():
        files = [] if is_export(path) else list_study_files(path)
        return [result for place in (files or [path]) for result in _read_records(str(place), study)]
    return _read_records(where, study) if _holds_records(where) else read_storage(_make_url(where), study, spec)


def _make_url(where: str) -> str:
    return where if "://" in where else f"sqlite:///{Path(where).resolve()}"


def _holds_records(where: str) -> bool:
    path = store_path(where)
    if path is not None and not path.is_file():
        raise InputError(
            f"--warm-start {hide_credentials(where)}: nothing is there; give a study, an export, a table or a "
            "storage URL."
        )
    try:
        engine = create_engine(_make_url(where), hide_parameters=True)
        try:
            return inspect(engine).has_table(VERSIONS.name)
        finally:
            engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        raise InputError(f"--warm-start: the database cannot be opened: {cause}.") from None


def _read_records(where: str, study: str | None) -> list[EarlierResult]:
    return [
        EarlierResult(
            values=record.values,
            outcome=record.outcome or "running",
            measurements=record.measurements,
            device=record.device,
            quality_flags=record.quality_flags,
        )
        for record in records_of_frame(load_frames(where, study).trials)
    ]


def _read_table(path: Path, spec: StudySpec) -> Iterator[EarlierResult]:
    frame = _load_frame(path)
    columns = {str(name).removeprefix(CONFIG_PREFIX): cells_of(frame[name]) for name in frame}
    if missing := [key for key in spec.space if key not in columns]:
        raise InputError(f"--warm-start {path}: it has no column {missing[0]}, which this study varies.")
    if not any(name in columns for name in spec.objectives):
        raise InputError(f"--warm-start {path}: it has no column of an objective ({', '.join(spec.objectives)}).")
    for cells in zip(*columns.values(), strict=True):
        yield _parse_row(dict(zip(columns, cells, strict=True)), path)


def _parse_row(row: Mapping[str, Any], path: Path) -> EarlierResult:
    outcome = row.get("outcome") or "complete"
    if outcome not in OUTCOMES:
        raise InputError(f"--warm-start {path}: {describe_unknown('outcome', str(outcome), OUTCOMES)}")
    return EarlierResult(
        values={name: value for name, value in row.items() if value is not None},
        outcome=outcome,
        measurements={name: _check_number(row[name], name, path) for name in METRICS if row.get(name) is not None},
        device=row.get("device"),
        quality_flags=tuple(filter(None, str(row.get("quality_flags") or "").split(","))),
    )


def _check_number(value: Any, name: str, path: Path) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"--warm-start {path}: {name} = {value!r} is no number.")
    return value


def _load_frame(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"--warm-start {path}: the file is not there.") from None
    except (OSError, ValueError, UnicodeDecodeError, csv.Error, pd.errors.ParserError) as error:
        raise InputError(f"--warm-start {path}: cannot be read: {error}.") from None
