"""MLflow's file store ``mlruns/``: a folder per experiment and run, a file per parameter, metric and tag."""

from pathlib import Path

from sweep.config.errors import InputError
from sweep.foreign.foreign_table import (
    ForeignTable,
    Role,
    Run,
    compute_digest,
    list_files,
    read_small_text,
    tabulate_runs,
)
from sweep.foreign.run_states import STATES

_STATUS = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_MAX_VALUE_BYTES = 1_000_000
_META = "meta.yaml"
_RUN_KEYS = {"run_id", "run_uuid"}  # of a run's file, and of no experiment's
PARTS = ("params", "metrics", "tags")


def is_mlflow_folder(folder: Path) -> bool:
    """Whether ``folder`` is a file store, or one experiment of it."""
    return any(folder.glob(f"*/{_META}")) or any(folder.glob(f"*/*/{_META}"))


def read_mlflow_folder(folder: Path, study: str) -> ForeignTable:
    """The runs of the experiment ``study`` ("" for the only one that has runs); deleted runs are left out.

    Raises:
        InputError: several experiments have runs, there is none of that name, or a file is damaged.
    """
    found = _list_experiments(folder)
    name = choose_experiment(list(found), study, str(folder))
    every = [(path, _read_meta(path / _META)) for path in found[name]]
    kept = [(path, meta) for path, meta in every if meta.get("lifecycle_stage", "active") == "active"]
    kept.sort(key=lambda each: (each[1].get("start_time", "").rjust(20), each[0].name))  # as the database is read
    cells, curves = tabulate_runs([_read_run(path, meta) for path, meta in kept], folder)
    files = [each for path, _ in kept for each in list_files(path, "*") if _is_read(each.relative_to(path))]
    return ForeignTable(
        program="MLflow",
        place=str(folder),
        digest=compute_digest(files, folder),
        cells=cells,
        roles={str(column): find_mlflow_role(str(column)) for column in cells},
        curves=curves,
        state="status",
        outcomes=STATES["MLflow"],
        notes=note_deleted(len(every) - len(kept)),
    )


def note_deleted(num_deleted: int) -> tuple[str, ...]:
    """That deleted runs are left out, where there are some."""
    return (f"{num_deleted} deleted runs left out.",) if num_deleted else ()


def find_mlflow_role(name: str) -> Role:
    """The role of a column, which begins with the part of the run that it is of."""
    return "parameter" if name.startswith("params.") else "metric" if name.startswith("metrics.") else "fact"


def choose_experiment(names: list[str], requested: str, where: str) -> str:
    """The experiment to read. Raises ``InputError`` naming those that have runs."""
    if requested in names:
        return requested
    if requested or len(names) != 1:
        present = ", ".join(map(repr, sorted(names))) or "none"
        raise InputError(f'{where}: experiments with runs: {present}; name one in the map: study = "...".')
    return names[0]


def _list_experiments(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for home in [folder, *sorted(folder.iterdir())]:  # one experiment, or all of them
        runs = [path.parent for path in sorted(home.glob(f"*/{_META}")) if _read_meta(path).keys() & _RUN_KEYS]
        if runs:
            meta = _read_meta(home / _META) if (home / _META).is_file() else {}
            found.setdefault(meta.get("name", home.name), []).extend(runs)
    return found


def _read_meta(path: Path) -> dict[str, str]:
    # flat YAML of one line per key, as MLflow writes it; nothing else of YAML is understood
    lines = read_small_text(path, _MAX_VALUE_BYTES).splitlines()
    pairs = (line.partition(": ") for line in lines if line and not line[0].isspace())
    return {key: value.strip().strip("'\"") for key, _, value in pairs}


def _is_read(path: Path) -> bool:
    return path.name == _META or path.parts[0] in PARTS


def _read_run(path: Path, meta: dict[str, str]) -> Run:
    run = Run(cells={"run_id": meta.get("run_id", path.name), "status": _STATUS.get(meta.get("status", ""), "RUNNING")})
    for part in ("params", "tags"):
        base = path / part
        for file in list_files(base, "*") if base.is_dir() else ():
            run.cells[f"{part}.{file.relative_to(base).as_posix()}"] = read_small_text(file, _MAX_VALUE_BYTES)
    base = path / "metrics"
    for file in list_files(base, "*") if base.is_dir() else ():
        run.series[f"metrics.{file.relative_to(base).as_posix()}"] = _read_points(file)
    return run


def _read_points(path: Path) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for line in read_small_text(path).splitlines():
        parts = line.split()
        try:
            points.append((float(parts[2]) if len(parts) > 2 else float(len(points)), float(parts[1])))
        except (ValueError, IndexError):
            raise InputError(f"{path}: the line {line[:80]!r} is no value of a metric.") from None
    return sorted(points, key=lambda point: point[0])
