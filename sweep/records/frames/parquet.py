"""Columns of a Parquet file, with limits on its unpacked size. Files are checked before they are used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.records.columns import Kind
from sweep.records.frames.frame_columns import FrameColumn
from sweep.records.frames.validation import MAX_CELL_CHARACTERS, MAX_FILE_BYTES, refuse_oversized, refuse_too_many


def open_parquet(path: Path, texts: Sequence[str] = ()) -> Any:
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


def read_parquet(path: Path, declared: Sequence[FrameColumn]) -> dict[str, list[Any]]:
    """The cells of those columns that are declared. Raises ``InputError`` for a damaged or oversized file, and for a
    column of another type."""
    import pyarrow as pa

    known = {column.name: column for column in declared}
    # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
    file = open_parquet(path, texts=[name for name, column in known.items() if column.kind == "text"])
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
    return {name: _cells(table.column(name), f"{path}: column {name}") for name in names}


def _cells(column: Any, where: str) -> list[Any]:
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
