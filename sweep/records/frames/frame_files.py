"""Frames as files and back: Parquet for programs, CSV for spreadsheets. Files are checked, and nothing is executed."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from sweep.config.errors import InputError
from sweep.records.columns import Kind
from sweep.records.frames.frame_columns import FrameColumn, build_frame
from sweep.records.frames.validation import MAX_CELL_CHARACTERS, MAX_FILE_BYTES, refuse_oversized, refuse_too_many

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


def column_names(path: Path) -> list[str]:
    """The names of the columns in ``path``; errors as :func:`read_table`."""
    try:
        if path.suffix == ".parquet":
            return list(map(str, _open_parquet(path).schema_arrow.names))
        with _open_text(path) as file:
            return next(csv.reader(_lines(file, path)), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None


def cells_of(series: "pd.Series[Any]") -> list[Any]:
    """The cells as Python's own types, None where one is missing."""
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
    "int": int,
    "float": float,
    "bool": _parse_bool,
    "time": datetime.fromisoformat,
}


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
    return {column.name: _parse_column(path, column, texts[column.name]) for column in declared if column.name in texts}


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


def _parse_column(path: Path, column: FrameColumn, texts: Sequence[str]) -> list[Any]:
    try:
        return [_from_text(column, text) for text in texts]
    except ValueError as error:
        raise InputError(f"{path}: column {column.name}: {error}.") from None


@contextmanager
def _wide_cells() -> Iterator[None]:
    before = csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# ---------------------------------------------------------------------- Parquet


def _open_parquet(path: Path, texts: Sequence[str] = ()) -> Any:
    """The file as pyarrow's, with those of the columns ``texts`` that it has as dictionaries. Raises ``InputError`` for
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
    return {name: convert_parquet_column(table.column(name), f"{path}: column {name}") for name in names}


def convert_parquet_column(column: Any, where: str) -> list[Any]:
    """The cells of a column of pyarrow's; of texts that were read as a dictionary only where all of them together are
    not too long. Raises ``InputError`` otherwise."""
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


def _type_fits(found: Any, kind: Kind) -> bool:
    from pyarrow import types

    if types.is_dictionary(found):
        return kind == "text" and _type_fits(found.value_type, kind)
    fits: dict[Kind, tuple[Callable[[Any], bool], ...]] = {
        "int": (types.is_signed_integer,),
        "float": (types.is_floating,),
        "bool": (types.is_boolean,),
        "text": (types.is_string, types.is_large_string),
        "time": (types.is_timestamp,),
    }
    return types.is_null(found) or any(check(found) for check in fits[kind])
