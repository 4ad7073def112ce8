"""Rows of a Parquet file of anybody's, with bounds on what it unpacks to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.records.frames.frame_files import convert_parquet_column
from sweep.records.frames.validation import MAX_FILE_BYTES, refuse_oversized, refuse_too_many


def read_parquet_rows(path: Path, wanted: Sequence[str] | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows with the columns ``wanted`` that are there (None: all), and the names of columns that were left out
    because their cells are no single values. Raises ``InputError`` for a damaged or oversized file."""
    import pyarrow as pa  # 0.2 s, and only these files need it
    from pyarrow import parquet, types

    refuse_oversized(path)
    try:
        schema = parquet.read_schema(path)
        names = [name for name in schema.names if wanted is None or name in wanted]
        nested = [name for name in names if types.is_nested(schema.field(name).type)]
        names = [name for name in names if name not in nested]
        is_text = {name: types.is_string(schema.field(name).type) for name in names}
        # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
        file = parquet.ParquetFile(path, read_dictionary=[name for name in names if is_text[name]])
        _refuse_large(file, path, len(names))
        table = file.read(columns=names)
        cells = {name: convert_parquet_column(table.column(name), f"{path}: column {name}") for name in names}
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: no Parquet file, or a damaged one: {str(error).splitlines()[0]}.") from None
    return [dict(zip(names, row, strict=True)) for row in zip(*cells.values(), strict=True)], nested


def _refuse_large(file: Any, path: Path, num_columns: int) -> None:
    refuse_too_many(path, file.metadata.num_rows, num_columns)
    num_bytes = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
    if num_bytes > MAX_FILE_BYTES:
        raise InputError(f"{path}: {num_bytes} bytes unpacked, at most {MAX_FILE_BYTES} are taken.")
