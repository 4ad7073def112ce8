"""Records of other programs as one table with a row per run. Optuna's files are read by Optuna, from a copy, because it
writes tables and locks beside what it reads."""

import csv
import hashlib
import json
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sweep.config.errors import InputError, shorten_text
from sweep.foreign.imported import is_imported
from sweep.records.frames import MAX_FILE_BYTES, refuse_oversized, refuse_too_many
from sweep.records.schema import VERSIONS

Cell = str | int | float | bool | None
# The words for how a run ended, of W&B, MLflow and Optuna, in lower case; "" for a run that has not ended.
STATES = {
    "finished": "complete", "complete": "complete", "pruned": "pruned", "failed": "crashed", "fail": "crashed",
    "crashed": "crashed", "killed": "cancelled", "preempted": "cancelled", "running": "", "pending": "",
    "preempting": "", "scheduled": "", "waiting": "",
}  # fmt: skip
_STATE_COLUMNS = ("state", "State", "status")
_MISSING = {"", "nan", "none", "null", "n/a", "na", "-"}
_SETTING_PREFIXES = ("params.", "params_", "config.")
_SQLITE = b"SQLite format 3\0"
_KNOWN = "a CSV, TSV or Parquet file with a row per run, or Optuna's database or journal"


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """The runs of a source in its order."""

    program: str
    place: str
    digest: str
    cells: pd.DataFrame  # a row per run; Python objects, None where nothing is recorded
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(map(str, self.cells))

    @property
    def state(self) -> str:
        """The column that states how a run ended in words of ``STATES``, or ""."""
        columns = [name for name in _STATE_COLUMNS if name in self.cells]
        return next((name for name in columns if STATES.keys() & set(map(str.lower, map(str, self.cells[name])))), "")


def is_setting(column: str) -> bool:
    """Whether the name says that a program recorded the column as a hyperparameter."""
    return column.startswith(_SETTING_PREFIXES)


def is_foreign(place: str) -> bool:
    """Whether ``place`` is a file of another program, or a study that ``sweep import`` made of one."""
    path = Path(place)
    if "://" in place or not path.exists():
        return False
    if path.is_dir():
        return is_imported(path)
    if _begins_as_sqlite(path):
        return VERSIONS.name not in _list_tables(path)
    return path.suffix != ".sqlite"


def read_foreign_table(place: Path | pd.DataFrame, study: str = "") -> ForeignTable:
    """The runs at ``place``. ``study`` names one where the source holds several.

    Raises:
        InputError: no program is known that writes such a file, or it is damaged, too large or empty.
    """
    if isinstance(place, pd.DataFrame):
        digest = hashlib.sha256(place.to_csv().encode()).hexdigest()
        return _tabulate(place, "pandas", "the DataFrame", digest)
    if not place.exists():
        raise InputError(f"{place}: nothing is there; give {_KNOWN}.")
    refuse_oversized(place)
    program, read = _find_reader(place, study)
    try:
        found = read()
    except InputError:
        raise
    except Exception as error:  # a library may raise anything on a damaged file
        cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"{place}: it cannot be read as {program}: {shorten_text(cause.rstrip('.'))}.") from None
    with place.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _tabulate(found, program, str(place), digest)


def _find_reader(path: Path, study: str) -> tuple[str, Callable[[], pd.DataFrame]]:
    suffix = path.suffix.lower()
    if _begins_as_sqlite(path):
        if {"studies", "trials", "trial_params", "trial_values"} <= _list_tables(path):
            return "Optuna", lambda: _read_optuna(path, study, is_journal=False)
    elif suffix in {".csv", ".tsv"}:
        return "CSV", lambda: _read_delimited(path)
    elif suffix == ".parquet":
        return "Parquet", lambda: _read_parquet(path)
    elif _begins_as_journal(path):
        return "Optuna", lambda: _read_optuna(path, study, is_journal=True)
    raise InputError(f"{path}: what wrote it is not known; give {_KNOWN}.")


# ---------------------------------------------------------------------- one reader per program


def _read_delimited(path: Path) -> pd.DataFrame:
    # not pandas.read_csv: it fills short rows and renames equal columns without a word
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)
        if delimiter not in first:
            raise InputError(f"{path}: its first line has no comma, semicolon or tab; a table of runs has a header.")
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        names = [name.strip() or f"column {number}" for number, name in enumerate(next(reader), start=1)]
        rows: list[list[str]] = []
        for row in filter(None, reader):
            if len(row) != len(names):
                raise InputError(f"{path}:{reader.line_num}: {len(row)} cells, the header has {len(names)}.")
            rows.append(row)
            refuse_too_many(path, len(rows), len(names))
    return pd.DataFrame(rows, columns=names, dtype=object)


def _read_parquet(path: Path) -> pd.DataFrame:
    from pyarrow import parquet, types  # 0.2 s, and only these files need it

    metadata = parquet.read_metadata(path)
    num_bytes = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    refuse_too_many(path, metadata.num_rows, metadata.num_columns, num_bytes)
    # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
    texts = [field.name for field in parquet.read_schema(path) if types.is_string(field.type)]
    return pd.read_parquet(path, read_dictionary=texts)


def _read_optuna(path: Path, study: str, *, is_journal: bool) -> pd.DataFrame:
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.pool import NullPool

    with _copy_aside(path) as copy, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_journal:
            storage: Any = JournalStorage(JournalFileBackend(str(copy)))
        else:
            storage = RDBStorage(f"sqlite:///{copy}", engine_kwargs={"poolclass": NullPool})
        try:
            names = optuna.get_all_study_names(storage)
            loaded = optuna.load_study(study_name=_choose(names, study, path), storage=storage)
            cells = loaded.trials_dataframe(("number", "state", "value", "duration", "params", "user_attrs"))
            points = [trial.intermediate_values for trial in loaded.trials]
        finally:
            if not is_journal:
                storage.remove_session()
                storage.engine.dispose()
    cells["duration_seconds"] = pd.to_timedelta(cells.pop("duration")).dt.total_seconds()
    if any(points):
        cells["intermediate_value"] = [values[max(values)] if values else None for values in points]
    return cells


def _choose(names: Sequence[str], requested: str, path: Path) -> str:
    if requested in names or (len(names) == 1 and not requested):
        return requested or names[0]
    known = ", ".join(map(repr, sorted(names))) or "none"
    raise InputError(f'{path}: its studies are {known}; name one in the map: study = "...".')


# ---------------------------------------------------------------------- files and cells


@contextmanager
def _copy_aside(path: Path) -> Iterator[Path]:
    # a copy of the file and of the write-ahead log of a database
    with tempfile.TemporaryDirectory(prefix="sweep-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        if (log := path.with_name(f"{path.name}-wal")).is_file():
            shutil.copyfile(log, f"{copy}-wal")
        yield copy


def _list_tables(path: Path) -> frozenset[str]:
    refuse_oversized(path)
    try:
        with _copy_aside(path) as copy, closing(sqlite3.connect(copy)) as connection:
            return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))
    except (sqlite3.DatabaseError, OSError) as error:
        raise InputError(f"{path}: it cannot be read as an SQLite database: {error}.") from None


def _begins_as_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _begins_as_journal(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.readline(100_000)
    try:
        first = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"op_code", "worker_id"} <= first.keys()


def _tabulate(found: pd.DataFrame, program: str, place: str, digest: str) -> ForeignTable:
    cells = found if isinstance(found.index, pd.RangeIndex) else found.reset_index()
    if not len(cells):
        raise InputError(f"{place}: it holds no run.")
    refuse_too_many(Path(place), *cells.shape)
    names = [str(name) for name in cells.columns]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{place}: column {min(twice)!r} occurs twice; rename one of them.")
    columns = {name: cells.iloc[:, index].astype(object) for index, name in enumerate(names)}
    nested = [name for name, column in columns.items() if column.map(pd.api.types.is_list_like).any()]
    read = {name: [_simplify_cell(cell) for cell in columns[name]] for name in columns if name not in nested}
    if sum(len(cell) for column in read.values() for cell in column if isinstance(cell, str)) > MAX_FILE_BYTES:
        raise InputError(f"{place}: more than {MAX_FILE_BYTES} characters in its cells.")
    notes = [f"Columns whose cells are no single values were not read: {', '.join(nested)}."] if nested else []
    return ForeignTable(
        program=program,
        place=place,
        digest=digest,
        cells=pd.DataFrame(read, dtype=object),
        notes=tuple(notes),
    )


def _simplify_cell(cell: Any) -> Cell:
    # programs write a missing value in several ways
    if isinstance(cell, str):
        return None if len(cell) < 20 and cell.strip().lower() in _MISSING else cell
    if pd.isna(cell):
        return None
    value: Any = cell.item() if isinstance(cell, np.generic) else cell
    return value if isinstance(value, int | float | bool) else str(value)
