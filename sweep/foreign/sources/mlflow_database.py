"""MLflow's SQLite database, read-only and without MLflow."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.foreign.foreign_table import ForeignTable, Run, compute_digest, tabulate_runs
from sweep.foreign.run_states import STATES
from sweep.foreign.sources.mlflow_folder import choose_experiment, find_mlflow_role, note_deleted
from sweep.records.frames.validation import MAX_ROWS, refuse_oversized

MLFLOW_TABLES = frozenset({"experiments", "runs", "params", "metrics", "tags"})


@contextmanager
def open_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Raises ``InputError`` where ``path`` is no SQLite database, or a damaged one."""
    refuse_oversized(path)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: it cannot be read as an SQLite database: {error}.") from None


def list_tables(path: Path) -> frozenset[str]:
    """The names of the tables; errors as :func:`open_sqlite`."""
    with open_sqlite(path) as connection:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))


def read_mlflow_database(path: Path, study: str) -> ForeignTable:
    """The runs of the experiment ``study`` ("" for the only one that has runs); deleted runs are left out.

    Raises:
        InputError: several experiments have runs, there is none of that name, or the database is damaged.
    """
    with open_sqlite(path) as connection:
        names = _fetch(
            connection,
            "SELECT DISTINCT e.name FROM experiments e JOIN runs r ON r.experiment_id = e.experiment_id",
        )
        name = choose_experiment([name for (name,) in names], study, str(path))
        runs, num_deleted = _read_runs(connection, name)
        _add_parts(connection, runs)
    cells, curves = tabulate_runs(list(runs.values()), path)
    return ForeignTable(
        program="MLflow",
        place=str(path),
        digest=compute_digest([path], path),
        cells=cells,
        roles={str(column): find_mlflow_role(str(column)) for column in cells},
        curves=curves,
        state="status",
        outcomes=STATES["MLflow"],
        notes=note_deleted(num_deleted),
    )


def _fetch(connection: sqlite3.Connection, query: str, *values: Any) -> list[Any]:
    found = connection.execute(query, values).fetchmany(MAX_ROWS + 1)
    if len(found) > MAX_ROWS:
        raise InputError(f"the database has more than {MAX_ROWS} rows; export a part of it.")
    return found


def _read_runs(connection: sqlite3.Connection, experiment: str) -> tuple[dict[str, Run], int]:
    rows = _fetch(
        connection,
        "SELECT r.run_uuid, r.status, r.lifecycle_stage FROM runs r JOIN experiments e "
        "ON r.experiment_id = e.experiment_id WHERE e.name = ? ORDER BY r.start_time, r.run_uuid",
        experiment,
    )
    kept = {key: Run(cells={"run_id": key, "status": status}) for key, status, stage in rows if stage != "deleted"}
    return kept, len(rows) - len(kept)


def _add_parts(connection: sqlite3.Connection, runs: dict[str, Run]) -> None:
    for part in ("params", "tags"):
        for key, name, value in _fetch(connection, f"SELECT run_uuid, key, value FROM {part}"):  # nosec B608
            if key in runs:
                runs[key].cells[f"{part}.{name}"] = value
    points = _fetch(
        connection,
        "SELECT run_uuid, key, step, value FROM metrics WHERE is_nan = 0 ORDER BY step, timestamp",
    )
    for key, name, step, value in points:
        if key in runs:
            runs[key].series.setdefault(f"metrics.{name}", []).append((float(step), float(value)))
