"""Records as pandas frames: declared columns and dtypes, units in the names, the configuration as ``config.*``."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import Connection, Table

from sweep.config.errors import InputError, describe_unknown, hide_credentials
from sweep.config.trial_config import compute_global_batch
from sweep.records.address import split_study
from sweep.records.columns import CONFIG_COLUMNS, CONFIG_PREFIX
from sweep.records.frames.exchange import is_export, read_export
from sweep.records.frames.frame_columns import (
    ATTEMPT_COLUMNS,
    ENVIRONMENT_COLUMNS,
    EVALUATION_COLUMNS,
    PROBE_COLUMNS,
    STUDY_COLUMNS,
    TRIAL_COLUMNS,
    FrameColumn,
    build_frame,
)
from sweep.records.frames.study_frames import Frames
from sweep.records.frames.validation import check_frames
from sweep.records.store.database import STORE_FILE, open_database
from sweep.records.store.reading import Columns, config_cells, read_columns
from sweep.records.store.schema import ATTEMPTS, ENVIRONMENTS, EVALUATIONS, PROBES, STUDIES, TRIALS


def load_frames(place: str | Path, study: str | None = None, evaluations: bool = False) -> Frames:
    """Reads records and writes nothing; works while a study runs.

    Args:
        place: a study's folder, a folder that ``sweep export`` wrote, an SQLite file or a database URL, behind which a
            ``#`` may name a study.
        study: only this study; all in the database when absent.
        evaluations: load the learning curves too; those of the latest attempt at each trial.

    Raises:
        InputError: nothing is recorded there, it is no store of this program, or there is no such study.
    """
    frames = _load(place, study, evaluations)
    check_frames(frames, hide_credentials(place))
    return replace(frames, place=hide_credentials(place))


def _load(place: str | Path, study: str | None, evaluations: bool) -> Frames:
    place, named = split_study(place)
    study = study or named
    folder = None if "://" in str(place) else Path(place)
    if folder is not None and folder.is_dir() and not (folder / STORE_FILE).exists() and is_export(folder):
        return select_study(read_export(folder, evaluations), study, str(place))
    database = open_database(place, read_only=True)
    try:
        return database.read(lambda connection: _read(connection, database.where, study, evaluations))
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # SQLite takes any value into any column
        raise InputError(f"{database.where}: its records are damaged: {error}.") from None
    finally:
        database.engine.dispose()


def select_study(frames: Frames, study: str | None, where: str) -> Frames:
    """``frames`` with the rows of one study. Raises ``InputError`` where there is none of that name."""
    if study is None:
        return frames
    _check_study(study, list(frames.studies["study"]), where)

    def rows(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["study"] == study].reset_index(drop=True)

    return Frames(
        trials=rows(frames.trials),
        attempts=rows(frames.attempts),
        probes=rows(frames.probes),
        studies=rows(frames.studies),
        environment_rows=rows(frames.environment_rows),
        evaluations=None if frames.evaluations is None else rows(frames.evaluations),
    )


def _check_study(study: str, names: Sequence[str], where: str) -> None:
    if study not in names:
        raise InputError(f"{where}: {describe_unknown('study', study, names)}")


def _read(connection: Connection, where: str, study: str | None, evaluations: bool) -> Frames:
    def frame(table: Table, declared: Sequence[FrameColumn]) -> pd.DataFrame:
        cells = _cells(connection, table, study)
        return build_frame(declared, cells, len(cells["study"]))

    studies = frame(STUDIES, STUDY_COLUMNS)
    if study is not None and studies.empty:
        names = read_columns(connection, STUDIES)["study"]
        _check_study(study, names, where)
    return Frames(
        trials=_trials(_cells(connection, TRIALS, study)),
        attempts=frame(ATTEMPTS, ATTEMPT_COLUMNS),
        probes=frame(PROBES, PROBE_COLUMNS),
        studies=studies,
        environment_rows=frame(ENVIRONMENTS, ENVIRONMENT_COLUMNS),
        evaluations=_latest(frame(EVALUATIONS, EVALUATION_COLUMNS)) if evaluations else None,
    )


def _cells(connection: Connection, table: Table, study: str | None) -> Columns:
    return read_columns(connection, table, None if study is None else table.c.study == study)


def _trials(columns: Columns) -> pd.DataFrame:
    num_rows = len(columns["number"])
    cells: dict[str, Any] = dict(columns)
    for column in CONFIG_COLUMNS:
        # a literal in a column of numbers ("auto") becomes a missing cell, so that the column stays numeric
        is_mixed = column.kind != "text" and isinstance(column.null_value, str)
        cells[column.name] = columns.get(column.name) if is_mixed else config_cells(column, columns, num_rows)
    cells["seed"] = cells["config.seed"]
    keys = ("batch.global", "batch.micro", "batch.accumulation", "distributed.world_size")
    rows = zip(*(cells[CONFIG_PREFIX + key] for key in keys), strict=True)
    cells["global_batch_size"] = list(starmap(compute_global_batch, rows))
    return build_frame(TRIAL_COLUMNS, cells, num_rows)


def _latest(evaluations: pd.DataFrame) -> pd.DataFrame:
    # an attempt that resumes from a checkpoint repeats the evaluations before it, so the latest attempt has the whole
    # curve
    latest = evaluations.groupby(["study", "number"])["attempt"].transform("max")
    kept = evaluations[evaluations["attempt"] == latest]
    return kept.sort_values(["study", "number", "step"], kind="stable").reset_index(drop=True)
