"""``sweep export`` and ``sweep import``: frames as files in a folder, and losslessly back into a store."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Connection, Table

from sweep.config.errors import InputError, StoreError, describe_unknown
from sweep.config.trial_config import build_config, config_keys, default_settings
from sweep.records.columns import CONFIG_COLUMNS, CONFIG_PREFIX
from sweep.records.frames.frame_columns import FRAME_PARTS, LATER_PARTS, FramePart, build_frame
from sweep.records.frames.frame_files import cells_of, column_names, read_table, write_table
from sweep.records.frames.study_frames import Frames
from sweep.records.frames.validation import check_frames
from sweep.records.schema import CORRECT_IMAGES, EVALUATIONS, PROBES, STUDIES, TRIALS
from sweep.records.store.store import Store

_MANIFEST = "export.json"
_KIND = "batch-sweep export"
_VERSION = 1
FORMATS = ("parquet", "csv")
_MAX_MANIFEST_BYTES = 100_000


def export_frames(frames: Frames, folder: Path, format: Literal["parquet", "csv"] | str = "parquet") -> None:
    """Writes every frame of ``frames`` into ``folder``; an earlier export there is replaced.

    Raises:
        InputError: unknown format, evaluations not loaded, or the folder holds other files or cannot be written.
    """
    if format not in FORMATS:
        raise InputError(describe_unknown("format", format, FORMATS))
    if frames.evaluations is None or frames.correct_images is None:
        raise InputError(
            "the evaluations were not loaded; use load_frames(place, evaluations=True, correct_images=True)."
        )
    try:
        _empty_folder(folder)
        for part in FRAME_PARTS:
            write_table(getattr(frames, part.field), part.columns, folder / f"{part.file}.{format}")
        num_rows = {part.file: len(getattr(frames, part.field)) for part in FRAME_PARTS}
        manifest = {"kind": _KIND, "version": _VERSION, "format": format, "num_rows": num_rows}
        manifest["studies"] = list(frames.studies["study"])
        # last, so that an interrupted export is not taken for one
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}.") from None


def _empty_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ours = {_MANIFEST, *(f"{part.file}.{ending}" for part in FRAME_PARTS for ending in FORMATS)}
    found = {path.name for path in folder.iterdir()}
    if found - ours:
        raise InputError(f"{folder}: it holds other files ({min(found - ours)}); give a new or empty folder.")
    for name in sorted(found, key=lambda name: name != _MANIFEST):
        (folder / name).unlink()


def is_export(folder: Path) -> bool:
    """Whether ``sweep export`` wrote ``folder``."""
    return (folder / _MANIFEST).is_file()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no export of this program ({_MANIFEST} is missing); `sweep export` writes one.")
    try:
        with path.open("rb") as file:
            manifest: dict[str, Any] = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None
    is_ours = isinstance(manifest, dict) and manifest.get("kind") == _KIND and manifest.get("format") in FORMATS
    if not is_ours or not isinstance(manifest.get("num_rows"), dict):
        raise InputError(f"{path}: it does not describe an export of this program.")
    if manifest.get("version") != _VERSION:
        raise InputError(
            f"{path}: version {manifest.get('version')!r}, this program reads {_VERSION}; "
            "use the version of batch-sweep that wrote it."
        )
    return manifest


def exported_study(folder: Path) -> str:
    """The name of the one study in an export. Raises ``InputError`` when it holds none or several."""
    names = list(read_export(folder).specs)
    if len(names) != 1:
        raise InputError(f"{folder}: it holds {len(names)} studies ({', '.join(names)}); export one alone.")
    return names[0]


def read_export(folder: Path, left_out: Sequence[Table] = (EVALUATIONS, CORRECT_IMAGES)) -> Frames:
    """The frames that ``sweep export`` wrote, without those of the tables ``left_out``. Raises ``InputError`` on
    anything else."""
    manifest = _read_manifest(folder)
    ending = manifest["format"]
    _refuse_unknown_keys(folder / f"trials.{ending}")
    # an export may be older than a key, as the recorded tables of benchmarks are, or than the inputs of a study
    settings = {column.name: column.to_cell(default_settings()[column.path]) for column in CONFIG_COLUMNS}
    shapes = {"shape_digest": ""}
    defaults: dict[Table, dict[str, Any]] = {
        TRIALS: settings | {"is_enqueued": False} | shapes, PROBES: shapes, STUDIES: {"inputs": ""}
    }  # fmt: skip
    frames: dict[str, Any] = {
        part.field: build_frame(part.columns, {}, 0)
        if part.file in LATER_PARTS and part.file not in manifest["num_rows"]
        else read_table(folder / f"{part.file}.{ending}", part.columns, defaults.get(part.table, {}))
        for part in FRAME_PARTS
        if part.table not in left_out
    }
    _check_num_rows(frames, dict.fromkeys(LATER_PARTS, 0) | manifest["num_rows"], folder)
    return Frames(**frames)


def _check_num_rows(frames: dict[str, Any], counts: dict[str, Any], folder: Path) -> None:
    # a table that was truncated between two rows looks complete
    for part in FRAME_PARTS:
        if part.field in frames and (found := len(frames[part.field])) != (written := counts.get(part.file)):
            raise InputError(f"{folder}: {part.file} has {found} of {written} rows, a file is torn; export again.")


def _refuse_unknown_keys(path: Path) -> None:
    known = {column.name for column in CONFIG_COLUMNS}
    unknown = [name for name in column_names(path) if name.startswith(CONFIG_PREFIX) and name not in known]
    if unknown:
        raise InputError(f"{path}: {describe_unknown('key', unknown[0].removeprefix(CONFIG_PREFIX), config_keys())}")


def import_records(folder: Path, store: Store) -> int:
    """Puts an export into ``store``, all of it or nothing; returns the number of trials.

    Raises:
        InputError: not an export, damaged, a value that the rules of a configuration refuse, or a study of that name
            is in the store already.
    """
    frames = read_export(folder, left_out=())
    taken = set(frames.specs) & set(store.study_names())
    if taken:
        raise InputError(f"{folder}: the store already holds a study {min(taken)!r}; import into a new folder.")
    _check(frames, folder)

    def put(connection: Connection) -> None:
        for part in FRAME_PARTS:
            if rows := list(_rows(getattr(frames, part.field), part)):
                connection.execute(part.table.insert(), rows)

    try:
        store.database.write(put)
    except StoreError as error:
        raise InputError(f"{folder}: cannot be imported: {error}") from None
    return len(frames.trials)


def _rows(frame: pd.DataFrame, part: FramePart) -> Iterable[dict[str, Any]]:
    cells = {column.name: cells_of(frame[column.name]) for column in part.columns if column.name in part.table.c}
    for column in CONFIG_COLUMNS:
        if column.name in cells:
            cells[column.name] = [column.to_cell(cell) for cell in cells[column.name]]
    return (dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True))


def _check(frames: Frames, folder: Path) -> None:
    for name, spec in frames.specs.items():
        if spec.name != name:
            raise InputError(f"{folder}: study {name!r} has the specification of {spec.name!r}.")
    check_frames(frames, str(folder))
    _check_configurations(frames.trials, folder)


def _check_configurations(trials: pd.DataFrame, folder: Path) -> None:
    unique = trials[[column.name for column in CONFIG_COLUMNS]].drop_duplicates()
    cells = [cells_of(unique[column.name]) for column in CONFIG_COLUMNS]
    for row in zip(*cells, strict=True):
        values = {column.path: column.from_cell(cell) for column, cell in zip(CONFIG_COLUMNS, row, strict=True)}
        build_config(values, f"{folder}: trials")
