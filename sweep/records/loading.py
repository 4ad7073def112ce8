"""Reads records as frames, from a database or an export; writes nothing."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from sqlalchemy import Connection, Table

from sweep.config.errors import InputError, describe_unknown, hide_credentials
from sweep.config.trial import EFFECTS, compute_global_batch, default_settings
from sweep.records.address import STORE_FILE, split_study
from sweep.records.database import Database
from sweep.records.files import is_export, read_export
from sweep.records.frames import FRAME_PARTS, Frames, build_frame, check_frames, open_script_columns
from sweep.records.reading import Columns, config_cells, find_correct_texts, read_columns
from sweep.records.records import CONFIG_COLUMNS, CONFIG_PREFIX, Correct, decode_correct
from sweep.records.schema import CORRECT_IMAGES, EVALUATIONS, STUDIES, TRIALS
from sweep.records.store import open_store

T = TypeVar("T")


def load_frames(
    place: str | Path, study: str | None = None, evaluations: bool = False, correct_images: bool = False
) -> Frames:
    """Reads records and writes nothing; works while a study runs.

    Args:
        place: a study's folder, a folder that ``sweep export`` wrote, an SQLite file or a database URL, behind which a
            ``#`` may name a study.
        study: only this study; all in the database when absent.
        evaluations: load the learning curves too, of the latest attempt at each trial.
        correct_images: load which validation images each trial got right too; ``find_correct`` reads them for
            given trials.

    Raises:
        InputError: nothing is recorded there, it is no store of this program, or there is no such study.
    """
    left_out = [table for table, is_in in ((EVALUATIONS, evaluations), (CORRECT_IMAGES, correct_images)) if not is_in]
    where = hide_credentials(place)
    place, named = split_study(place)
    study, folder = study or named, _find_export(place)
    if folder is not None:
        frames = _select_study(read_export(folder, left_out), study, where)
        find_correct = partial(_find_exported, folder)
    else:
        with closing(open_store(place, read_only=True)) as store:
            frames = _read_checked(store.database, lambda connection: _read(connection, where, study, left_out))
        find_correct = partial(_find_recorded, place)
    check_frames(frames, where)
    frames = replace(frames, trials=normalize_trials(frames.trials))
    return replace(frames, place=where, is_exported=folder is not None, find_correct=find_correct)


def read_frames(database: Database, study: str) -> Frames:
    """The frames of one study of an open database, without learning curves and images: its reads are retried like those
    of a running study, and no second connection is opened. Raises ``InputError``: the records are damaged, or there is
    no such study."""
    left_out = (EVALUATIONS, CORRECT_IMAGES)
    frames = _read_checked(database, lambda connection: _read(connection, database.where, study, left_out))
    check_frames(frames, database.where)
    trials, find_correct = normalize_trials(frames.trials), partial(_find_in_database, database)
    return replace(frames, trials=trials, place=database.where, find_correct=find_correct)


def normalize_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """``trials`` with equal settings where they trained identically, see
    :func:`sweep.config.trial.normalize_values`; of the keys without an effect only those that vary are made equal."""
    columns: dict[str, Any] = {key: trials[CONFIG_PREFIX + key] for key in (*EFFECTS, "batch.micro")}
    steps = np.ceil(trials["global_batch_size"] / trials[f"{CONFIG_PREFIX}distributed.world_size"])
    is_cut = (columns["batch.micro"] > steps).fillna(False) & (trials[f"{CONFIG_PREFIX}batch.schedule"] == "constant")
    changes = {"batch.micro": columns["batch.micro"].mask(is_cut, steps.astype("int64"))} if is_cut.any() else {}
    for key, (others, holds) in EFFECTS.items():
        if columns[key].nunique(dropna=False) > 1:
            rows = zip(*(trials[CONFIG_PREFIX + other] for other in others), strict=True)
            changes[key] = columns[key].where([holds(*row) for row in rows], default_settings()[key])
    return trials.assign(**{CONFIG_PREFIX + key: column for key, column in changes.items()})


def _find_exported(folder: Path, study: str, numbers: Sequence[int]) -> dict[int, Correct]:
    rows = _select_study(read_export(folder, (EVALUATIONS,)), study, str(folder)).correct_images
    assert rows is not None
    rows = rows[rows["number"].isin(list(numbers))]
    return _decode_all(zip(rows["number"].tolist(), rows["correct_images"].tolist(), strict=True), str(folder))


def _find_recorded(place: str | Path, study: str, numbers: Sequence[int]) -> dict[int, Correct]:
    with closing(open_store(place, read_only=True)) as store:
        return _find_in_database(store.database, study, numbers)


def _find_in_database(database: Database, study: str, numbers: Sequence[int]) -> dict[int, Correct]:
    texts = _read_checked(database, lambda connection: find_correct_texts(connection, study, numbers))
    return _decode_all(texts.items(), database.where)


def _decode_all(texts: Iterable[tuple[int, str]], where: str) -> dict[int, Correct]:
    try:
        return {number: decode_correct(text) for number, text in texts}
    except ValueError as error:
        raise InputError(f"{where}: its records are damaged: {error}.") from None


def _find_export(place: str | Path) -> Path | None:
    folder = None if "://" in str(place) else Path(place)
    is_one = folder is not None and folder.is_dir() and not (folder / STORE_FILE).exists() and is_export(folder)
    return folder if is_one else None


def _read_checked(database: Database, read: Callable[[Connection], T]) -> T:
    try:
        return database.read(read)
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # SQLite takes any value into any column
        raise InputError(f"{database.where}: its records are damaged: {error}.") from None


def _select_study(frames: Frames, study: str | None, where: str) -> Frames:
    """``frames`` with the rows of one study. Raises ``InputError`` where there is none of that name."""
    if study is None:
        return frames
    _check_study(study, frames.studies["study"], where)
    parts = {part.field: getattr(frames, part.field) for part in FRAME_PARTS}
    rows: dict[str, Any] = {
        field: None if frame is None else frame[frame["study"] == study].reset_index(drop=True)
        for field, frame in parts.items()
    }
    return Frames(**rows)


def _check_study(study: str, names: Iterable[str], where: str) -> None:
    if study not in (known := list(names)):
        raise InputError(f"{where}: {describe_unknown('study', study, known)}")


def _read(connection: Connection, where: str, study: str | None, left_out: Sequence[Table]) -> Frames:
    if study is not None:
        _check_study(study, read_columns(connection, STUDIES)["study"], where)
    frames: dict[str, Any] = {}
    for part in FRAME_PARTS:
        if part.table in left_out:
            continue
        cells = read_columns(connection, part.table, None if study is None else part.table.c.study == study)
        completed = _complete_trials(cells) if part.table is TRIALS else cells
        frame = build_frame(part.columns, completed, len(cells["study"]))
        shaped = {EVALUATIONS.name: _latest, TRIALS.name: open_script_columns}.get(part.table.name)
        frames[part.field] = shaped(frame) if shaped else frame
    return Frames(**frames)


def _complete_trials(columns: Columns) -> dict[str, Any]:
    """The cells of the frame's columns; no table has all of them."""
    num_rows = len(columns["number"])
    cells: dict[str, Any] = dict(columns)
    for column in CONFIG_COLUMNS:
        # a literal in a column of numbers ("auto") becomes a missing cell, so that the column stays numeric, and a
        # number in a column of text stays text
        is_mixed = column.has_numbers or (column.kind != "text" and isinstance(column.null_value, str))
        cells[column.name] = columns.get(column.name) if is_mixed else config_cells(column, columns, num_rows)
    cells["seed"] = cells["config.seed"]
    cells["is_enqueued"] = [bool(cell) for cell in columns["is_enqueued"]]
    keys = ("batch.global", "batch.micro", "batch.accumulation", "distributed.world_size")
    rows = zip(*(cells[CONFIG_PREFIX + key] for key in keys), strict=True)
    cells["global_batch_size"] = list(starmap(compute_global_batch, rows))
    return cells


def _latest(evaluations: pd.DataFrame) -> pd.DataFrame:
    # an attempt that resumes from a checkpoint repeats the evaluations before it, so the latest attempt has the whole
    # curve
    latest = evaluations.groupby(["study", "number"])["attempt"].transform("max")
    kept = evaluations[evaluations["attempt"] == latest]
    return kept.sort_values(["study", "number", "step"], kind="stable").reset_index(drop=True)
