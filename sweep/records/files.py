"""Frames as files and back: Parquet for programs, CSV for spreadsheets. Files are checked, and nothing is executed."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import pandas as pd
from sqlalchemy import Connection, Table

from sweep.config.errors import InputError, StoreError, describe_unknown
from sweep.config.trial import build_config, config_keys, default_settings
from sweep.records.frames import (
    FRAME_PARTS,
    LATER_PARTS,
    MAX_CELL_CHARACTERS,
    MAX_FILE_BYTES,
    FrameColumn,
    FramePart,
    Frames,
    build_frame,
    check_frames,
    refuse_oversized,
    refuse_too_many,
)
from sweep.records.records import CONFIG_COLUMNS, CONFIG_PREFIX, Kind
from sweep.records.schema import CORRECT_IMAGES, EVALUATIONS, PROBES, STUDIES, TRIALS
from sweep.records.store import Store

# A spreadsheet executes a cell that starts so; the prefix makes it text, and is removed on import.
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "'")
_PREFIX = "'"
_MAX_LINE_CHARACTERS = 2**24


def write_table(frame: pd.DataFrame, declared: Sequence[FrameColumn], path: Path) -> None:
    """Writes ``frame`` to ``path``; the name's ending, .parquet or .csv, says how."""
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
        return
    columns = [[_to_text(column, cell) for cell in cells_of(frame[column.name])] for column in declared]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.name for column in declared])
        writer.writerows(zip(*columns, strict=True))


def read_table(path: Path, declared: Sequence[FrameColumn], defaults: Mapping[str, Any]) -> pd.DataFrame:
    """The frame in ``path``. A missing column has its default or missing cells; unknown columns are ignored.

    Raises:
        InputError: naming the file, and the column where one is wrong.
    """
    try:
        cells = _read_parquet(path, declared) if path.suffix == ".parquet" else _read_csv(path, declared)
    except FileNotFoundError:
        raise InputError(f"{path}: the file is missing; export the study again.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None
    num_rows = max(map(len, cells.values()), default=0)
    cells |= {name: [value] * num_rows for name, value in defaults.items() if name not in cells}
    for column in declared:
        _check_complete(path, column, cells)
    try:
        return build_frame(declared, cells, num_rows)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: {error}.") from None


def _check_complete(path: Path, column: FrameColumn, cells: Mapping[str, Sequence[Any]]) -> None:
    if column.nullable or (column.kind == "float" and column.name in cells):
        return
    if column.name not in cells:
        raise InputError(f"{path}: column {column.name} is missing; export the study again.")
    if column.kind != "float" and None in cells[column.name]:
        raise InputError(f"{path}: column {column.name}: a cell is missing; every row needs a value.")


def _column_names(path: Path) -> list[str]:
    """The names of the columns in ``path``; errors as :func:`read_table`."""
    try:
        if path.suffix == ".parquet":
            return list(map(str, _open_parquet(path).schema_arrow.names))
        with _open_text(path) as file:
            return next(csv.reader(_lines(file, path)), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None


def cells_of(series: "pd.Series[Any]") -> list[Any]:
    """The cells as Python's own types, None for missing ones."""
    return series.astype(object).where(series.notna(), None).tolist()


# ---------------------------------------------------------------------- CSV


def _to_text(column: FrameColumn, cell: Any) -> str:
    if cell is None:
        return ""
    if column.kind == "text":
        # a lone prefix is an empty text; an empty cell is a missing one
        needs_prefix = cell.startswith(_DANGEROUS) or (not cell and column.nullable)
        return _PREFIX + cell if needs_prefix else str(cell)
    return cell.isoformat() if column.kind == "time" else repr(cell)


def _from_text(column: FrameColumn, text: str) -> Any:
    if column.kind == "text":
        if not text and column.nullable:
            return None
        return text.removeprefix(_PREFIX)
    if not text:
        return None
    return _PARSERS[column.kind](text)


def _parse_bool(text: str) -> bool:
    if text not in {"True", "False"}:
        raise ValueError(f"{text[:50]!r} is neither True nor False")
    return text == "True"


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    "int": int, "float": float, "bool": _parse_bool, "time": datetime.fromisoformat,
}  # fmt: skip


def _read_csv(path: Path, declared: Sequence[FrameColumn]) -> dict[str, list[Any]]:
    with _open_text(path) as file, _wide_cells():
        reader = csv.reader(_lines(file, path), strict=True)
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise InputError(f"{path}: a column occurs twice.")
        rows = []
        for row in reader:
            if len(row) != len(header):
                raise InputError(f"{path}:{reader.line_num}: {len(row)} cells, the header has {len(header)}.")
            rows.append(row)
            refuse_too_many(path, len(rows), len(header))
    texts = dict(zip(header, zip(*rows, strict=True) if rows else ((),) * len(header), strict=True))
    cells = {}
    for column in declared:
        try:
            if column.name in texts:
                cells[column.name] = [_from_text(column, text) for text in texts[column.name]]
        except ValueError as error:
            raise InputError(f"{path}: column {column.name}: {error}.") from None
    return cells


def _open_text(path: Path) -> TextIO:
    refuse_oversized(path)
    return path.open(encoding="utf-8", newline="")


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    last = "\n"
    while line := file.readline(_MAX_LINE_CHARACTERS):
        if len(line) == _MAX_LINE_CHARACTERS:
            raise InputError(f"{path}: a line of more than {_MAX_LINE_CHARACTERS} characters; it is no table.")
        yield line
        last = line
    if not last.endswith("\n"):  # a truncated number would be read as another number
        raise InputError(f"{path}: the file is torn, its last line has no end; export the study again.")


@contextmanager
def _wide_cells() -> Iterator[None]:
    before = csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# ---------------------------------------------------------------------- Parquet


def _open_parquet(path: Path, texts: Sequence[str] = ()) -> Any:
    """The file as pyarrow's, with the columns ``texts`` that it has as dictionaries. Raises ``InputError`` for
    anything else."""
    import pyarrow as pa  # 0.2 s, and only these files need it
    from pyarrow import parquet

    refuse_oversized(path)
    try:
        present = parquet.read_schema(path).names
        return parquet.ParquetFile(path, read_dictionary=[name for name in texts if name in present])
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{path}: no Parquet file: {str(error).splitlines()[0]}.") from None


def _read_parquet(path: Path, declared: Sequence[FrameColumn]) -> dict[str, list[Any]]:
    """The cells of those columns that are declared. Raises ``InputError`` for a damaged or oversized file, and for a
    column of another type."""
    import pyarrow as pa

    known = {column.name: column for column in declared}
    # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
    file = _open_parquet(path, texts=[name for name, column in known.items() if column.kind == "text"])
    names = [name for name in file.schema_arrow.names if name in known]
    refuse_too_many(path, file.metadata.num_rows, len(names))
    num_bytes = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
    if num_bytes > MAX_FILE_BYTES:
        raise InputError(f"{path}: {num_bytes} bytes unpacked, at most {MAX_FILE_BYTES} are taken.")
    try:
        table = file.read(columns=names)
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{path}: damaged: {str(error).splitlines()[0]}.") from None
    for name in names:
        if not _type_fits(table.schema.field(name).type, known[name].kind):
            raise InputError(f"{path}: column {name} holds {table.schema.field(name).type}, not {known[name].kind}.")
    return {name: _convert_parquet_column(table.column(name), f"{path}: column {name}") for name in names}


def _convert_parquet_column(column: Any, where: str) -> list[Any]:
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
    """The frames that ``sweep export`` wrote, except of the tables ``left_out``. Raises ``InputError`` on
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
    counts = dict.fromkeys(LATER_PARTS, 0) | manifest["num_rows"]
    for part in FRAME_PARTS:  # a table that was truncated between two rows looks complete
        if part.field in frames and (found := len(frames[part.field])) != (written := counts.get(part.file)):
            raise InputError(f"{folder}: {part.file} has {found} of {written} rows, a file is torn; export again.")
    return Frames(**frames)


def _refuse_unknown_keys(path: Path) -> None:
    known = {column.name for column in CONFIG_COLUMNS}
    unknown = [name for name in _column_names(path) if name.startswith(CONFIG_PREFIX) and name not in known]
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
    for name, spec in frames.specs.items():
        if spec.name != name:
            raise InputError(f"{folder}: study {name!r} has the specification of {spec.name!r}.")
    check_frames(frames, str(folder))
    _check_configurations(frames.trials, folder)

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


def _check_configurations(trials: pd.DataFrame, folder: Path) -> None:
    unique = trials[[column.name for column in CONFIG_COLUMNS]].drop_duplicates()
    cells = [cells_of(unique[column.name]) for column in CONFIG_COLUMNS]
    for row in zip(*cells, strict=True):
        values = {column.path: column.from_cell(cell) for column, cell in zip(CONFIG_COLUMNS, row, strict=True)}
        build_config(values, f"{folder}: trials")
