"""A Parquet file with a row per run, such as a DataFrame that was saved."""

from pathlib import Path

from sweep.foreign.foreign_table import ForeignTable, Run, compute_digest, tabulate_runs
from sweep.foreign.sources.delimited_text import find_role
from sweep.foreign.sources.parquet_rows import read_parquet_rows


def read_plain_parquet(path: Path) -> ForeignTable:
    """The rows of ``path``. Raises ``InputError`` for a damaged or oversized file."""
    rows, nested = read_parquet_rows(path)
    cells, curves = tabulate_runs([Run(cells=row) for row in rows], path)
    return ForeignTable(
        program="Parquet",
        place=str(path),
        digest=compute_digest([path], path),
        cells=cells,
        roles={str(name): find_role(str(name), "CSV") for name in cells},
        curves=curves,
        notes=(f"Columns whose cells are no single values were not read: {', '.join(nested)}.",) if nested else (),
    )
