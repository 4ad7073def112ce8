"""The neutral table: the runs of another program, a row each, before anybody has said what its columns mean."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from sweep.config.errors import InputError
from sweep.records.frames.validation import MAX_CELL_CHARACTERS, MAX_FILE_BYTES, refuse_oversized, refuse_too_many

# What a program says of a column: a hyperparameter, a result, or a fact about the run. "" where it does not tell.
Role = Literal["parameter", "metric", "fact", ""]
Cell = str | int | float | bool | None
CURVE_COLUMNS = ("row", "column", "step", "value")
MAX_FILES = 100_000  # of one folder
_BLOCK = 1 << 20


@dataclass(kw_only=True)
class Run:
    """One run while it is read: ``cells`` by column, and of series the values in their order as (step, value)."""

    cells: dict[str, Cell] = field(default_factory=dict)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """``cells`` has a row per run in the order of the source and a column of Python objects per name, None where
    nothing is recorded; of a series, its last value. ``roles`` has every column. ``curves`` are the series, with the
    columns ``CURVE_COLUMNS``: row of ``cells`` (int), column, step and value (float). ``outcomes`` translates the words
    of the column ``state`` into outcomes, "" for a run that has not ended."""

    program: str
    place: str
    digest: str
    cells: pd.DataFrame
    roles: Mapping[str, Role]
    curves: pd.DataFrame
    state: str = ""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def has_series(self, column: str) -> bool:
        """Whether the source has more than one value per run in ``column``."""
        return bool((self.curves["column"] == column).any())


def tabulate_runs(runs: Sequence[Run], where: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells and the curves of ``runs``. Raises ``InputError`` for none, for too many cells and for long ones."""
    if not runs:
        raise InputError(f"{where}: it holds no run.")
    names = dict.fromkeys(name for run in runs for name in (*run.cells, *run.series))
    refuse_too_many(where, len(runs), len(names))
    for run in runs:
        for name, points in run.series.items():
            run.cells.setdefault(name, points[-1][1])
    columns = {name: pd.Series([_check_cell(run.cells.get(name), name, where) for run in runs], dtype=object)
               for name in names}  # fmt: skip
    rows = [
        (row, name, step, value)
        for row, run in enumerate(runs)
        for name, series in run.series.items()
        for step, value in series
    ]
    refuse_too_many(where, len(rows), len(CURVE_COLUMNS))
    return pd.DataFrame(columns, dtype=object), pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def _check_cell(cell: Any, name: str, where: Path) -> Cell:
    if isinstance(cell, str) and len(cell) > MAX_CELL_CHARACTERS:
        raise InputError(f"{where}: column {name}: a cell of more than {MAX_CELL_CHARACTERS} characters.")
    return cell if isinstance(cell, str | int | float | bool) else None if cell is None else str(cell)


def list_files(folder: Path, pattern: str) -> list[Path]:
    """The files below ``folder`` whose names match ``pattern``, in alphabetical order. Raises ``InputError`` where they
    are too many, or together too large."""
    found: list[Path] = []
    num_bytes = 0
    for path in folder.rglob(pattern):
        if not path.is_file():
            continue
        found.append(path)
        num_bytes += path.stat().st_size
        if len(found) > MAX_FILES or num_bytes > MAX_FILE_BYTES:
            raise InputError(f"{folder}: more than {MAX_FILES} files or {MAX_FILE_BYTES} bytes; give a part of it.")
    return sorted(found)


def compute_digest(files: Iterable[Path], base: Path) -> str:
    """SHA-256 in hexadecimal of a file, or of the names below ``base`` and the contents of several."""
    every = list(files)
    if every == [base]:
        return _digest_file(base)
    lines = (f"{path.relative_to(base).as_posix()} {_digest_file(path)}\n" for path in every)
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _digest_file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def read_small_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of ``path``. Raises ``InputError`` where it is no file, no UTF-8 or too large."""
    refuse_oversized(path)
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise InputError(f"{path}: more than {max_bytes} bytes.")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: it is no text in UTF-8.") from None
