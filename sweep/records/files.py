"""Frames as files: Parquet, which is read back and checked, and CSV for other programs. Nothing is executed."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from sqlalchemy import Connection, Table

from sweep.config.errors import InputError, StoreError, describe_unknown, shorten_text
from sweep.records.frames import (
    FRAME_PARTS,
    MAX_CELL_CHARACTERS,
    MAX_FILE_BYTES,
    FrameColumn,
    FramePart,
    Frames,
    build_frame,
    check_frames,
    open_script_columns,
    refuse_oversized,
    refuse_too_many,
)
from sweep.records.reading import Repeated
from sweep.records.records import CONFIG_COLUMNS, CONFIG_PREFIX, SCRIPT_COLUMN, Kind, build_recorded, find_missing
from sweep.records.schema import CORRECT_IMAGES, EVALUATIONS, TRIALS
from sweep.records.store import Store

_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "'")  # a spreadsheet executes a cell that starts so
_PREFIX = "'"  # makes it text


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Writes ``frame`` to ``path``; the name's ending, .parquet or .csv, says how."""
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return
    names = [str(name) for name, dtype in frame.dtypes.items() if dtype == "str"]
    texts: dict[str, Any] = {
        name: frame[name].map(lambda text: _PREFIX + text if text.startswith(_DANGEROUS) else text, na_action="ignore")
        for name in names
    }
    frame.assign(**texts).to_csv(path, index=False)


def read_table(path: Path, declared: Sequence[FrameColumn]) -> pd.DataFrame:
    """The frame in the Parquet file ``path``. A missing column has its default or missing cells; unknown columns are
    ignored, except those of configuration keys. Raises ``InputError``: naming the file, and the column where one is
    wrong."""
    cells, num_rows = _read_parquet(path, declared)
    for column in declared:
        if column.name not in cells and column.default is not None:
            cells[column.name] = Repeated(column.default, num_rows)
        is_required = not column.nullable and column.kind != "float"
        # a script has no value of a key that it is not given
        may_be_empty = column.name.startswith(CONFIG_PREFIX) and column.name in cells
        if is_required and not may_be_empty and None in cells.get(column.name, (None,)):
            raise InputError(f"{path}: column {column.name} is missing, or a cell of it; export the study again.")
    try:
        return build_frame(declared, cells, num_rows)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: {error}.") from None


def cells_of(series: "pd.Series[Any]") -> list[Any]:
    """The cells as Python's own types, None for missing ones."""
    return series.astype(object).where(series.notna(), None).tolist()


def _read_parquet(path: Path, declared: Sequence[FrameColumn]) -> tuple[dict[str, Sequence[Any]], int]:
    """The cells of those columns that are declared, and the number of rows. Raises ``InputError`` for a damaged or
    oversized file, for a column of another type, and for that of an unknown configuration key."""
    import pyarrow as pa  # 0.2 s, and only these files need it
    from pyarrow import parquet

    refuse_oversized(path)
    known = {column.name: column for column in declared}
    try:
        present = parquet.read_schema(path).names
        names = [name for name in present if name in known]
        # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
        file = parquet.ParquetFile(path, read_dictionary=[name for name in names if known[name].kind == "text"])
        num_rows = file.metadata.num_rows
        num_bytes = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
        refuse_too_many(path, num_rows, len(names), num_bytes)
        table = file.read(columns=names)
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing; export the study again.") from None
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {str(error).splitlines()[0]}.") from None
    for name in present:
        if name.startswith(CONFIG_PREFIX) and name not in known and not name.startswith(f"{SCRIPT_COLUMN}."):
            raise InputError(
                f"{path}: unknown key {shorten_text(name.removeprefix(CONFIG_PREFIX))!r}: another version of this "
                "program wrote these records, which reads them."
            )
    for name in names:
        if not _type_fits(table.schema.field(name).type, known[name].kind):
            raise InputError(f"{path}: column {name} holds {table.schema.field(name).type}, not {known[name].kind}.")
    return {name: _convert_column(table.column(name), f"{path}: column {name}") for name in names}, num_rows


def _convert_column(column: Any, where: str) -> list[Any]:
    """The cells of a column of pyarrow's. Raises ``InputError`` where all texts of a dictionary are too long."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return list(column.to_pylist())
    cells: list[Any] = []
    num_characters = 0
    for chunk in column.chunks:
        lengths = compute.utf8_length(chunk.dictionary)
        if (compute.max(lengths).as_py() or 0) > MAX_CELL_CHARACTERS:
            raise InputError(f"{where}: a cell of more than {MAX_CELL_CHARACTERS} characters.")
        num_characters += compute.sum(lengths.take(chunk.indices)).as_py() or 0
        if num_characters > MAX_FILE_BYTES:
            raise InputError(f"{where}: more than {MAX_FILE_BYTES} characters.")
        words = chunk.dictionary.to_pylist()
        cells.extend(None if index is None else words[index] for index in chunk.indices.to_pylist())
    return cells


def _type_fits(arrow_type: Any, kind: Kind) -> bool:
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return kind == "text" and _type_fits(arrow_type.value_type, kind)
    fits: dict[Kind, tuple[Callable[[Any], bool], ...]] = {
        "int": (types.is_signed_integer,),
        "float": (types.is_floating,),
        "bool": (types.is_boolean,),
        "text": (types.is_string, types.is_large_string),
        "time": (types.is_timestamp,),
    }
    return types.is_null(arrow_type) or any(check(arrow_type) for check in fits[kind])


# ---------------------------------------------------------------------- exports: all frames in a folder

_MANIFEST = "export.json"
_KIND = "batch-sweep export"
_VERSION = 1
FORMATS = ("parquet", "csv")
_MAX_MANIFEST_BYTES = 100_000


def export_frames(frames: Frames, folder: Path, format: Literal["parquet", "csv"] | str = "parquet") -> None:
    """Writes every frame of ``frames`` into ``folder``; an earlier export there is replaced. Raises ``InputError``:
    unknown format, evaluations not loaded, or the folder holds other files or cannot be written."""
    if format not in FORMATS:
        raise InputError(describe_unknown("format", format, FORMATS))
    if frames.evaluations is None or frames.correct_images is None:
        raise InputError(
            "the evaluations were not loaded; use load_frames(place, evaluations=True, correct_images=True)."
        )
    try:
        _empty_folder(folder)
        for part in FRAME_PARTS:
            write_table(getattr(frames, part.field), folder / f"{part.file}.{format}")
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
    present = {path.name for path in folder.iterdir()}
    if others := present - ours:
        raise InputError(f"{folder}: it holds other files ({min(others)}); give a new or empty folder.")
    for name in sorted(present, key=lambda name: name != _MANIFEST):
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
    is_ours = isinstance(manifest, dict) and (manifest.get("kind"), manifest.get("version")) == (_KIND, _VERSION)
    if not is_ours or not isinstance(manifest.get("num_rows"), dict):
        raise InputError(f"{path}: it does not describe an export of this version of the program.")
    if manifest.get("format") != "parquet":
        raise InputError(
            f"{folder}: an export as CSV is for other programs; export as Parquet what is to be read again."
        )
    return manifest


def exported_study(folder: Path) -> str:
    """The name of the one study in an export. Raises ``InputError`` when it holds none or several."""
    names = list(read_export(folder).specs)
    if len(names) != 1:
        raise InputError(f"{folder}: it holds {len(names)} studies ({', '.join(names)}); export one alone.")
    return names[0]


def read_export(folder: Path, left_out: Sequence[Table] = (EVALUATIONS, CORRECT_IMAGES)) -> Frames:
    """The frames that ``sweep export`` wrote, except of the tables ``left_out``. Raises ``InputError`` on
    anything else."""
    num_rows = _read_manifest(folder)["num_rows"]
    frames: dict[str, Any] = {}
    for part in FRAME_PARTS:
        if part.table in left_out:
            continue
        if part.file not in num_rows:  # the export is older than this table
            frames[part.field] = build_frame(part.columns, {}, 0)
            continue
        frame = read_table(folder / f"{part.file}.parquet", part.columns)
        frames[part.field] = open_script_columns(frame) if part.table is TRIALS else frame
        if (found := len(frames[part.field])) != num_rows[part.file]:
            raise InputError(
                f"{folder}: {part.file} has {found} of {num_rows[part.file]} rows, a file is torn; export again."
            )
    return Frames(**frames)


def import_records(folder: Path, store: Store) -> int:
    """Puts an export into ``store``, all of it or nothing; returns the number of trials. Raises ``InputError``: not an
    export, damaged, a value that the rules of a configuration refuse, or a study of that name is in the store already.
    """
    frames = read_export(folder, left_out=())
    taken = set(frames.specs) & set(store.study_names())
    if taken:
        raise InputError(f"{folder}: the store already holds a study {min(taken)!r}; import into a new folder.")
    for name, spec in frames.specs.items():
        if spec.name != name:
            raise InputError(f"{folder}: study {name!r} has the specification of {spec.name!r}.")
    check_frames(frames, str(folder))
    _check_configurations(frames, folder)

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


def _check_configurations(frames: Frames, folder: Path) -> None:
    unique = frames.trials[["study", *(column.name for column in CONFIG_COLUMNS)]].drop_duplicates()
    studies, *cells = (cells_of(unique[name]) for name in unique)
    for study, *row in zip(studies, *cells, strict=True):
        values = {column.path: column.from_cell(cell) for column, cell in zip(CONFIG_COLUMNS, row, strict=True)}
        spec = frames.specs.get(study)
        if (spec is None or spec.script is None) and (missing := find_missing(values)):
            raise InputError(f"{folder}: trials: a cell of config.{missing} is missing; export the study again.")
        build_recorded(values, f"{folder}: trials")
