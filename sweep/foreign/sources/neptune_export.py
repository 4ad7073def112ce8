"""Runs that neptune-exporter wrote: Parquet files in long form, a row per attribute, and per step of a series."""

from pathlib import Path
from typing import Any

from sweep.foreign.foreign_table import ForeignTable, Role, Run, compute_digest, list_files, tabulate_runs
from sweep.foreign.run_states import STATES
from sweep.foreign.sources.parquet_rows import read_parquet_rows
from sweep.records.frames.validation import refuse_oversized

_NEEDED = ("run_id", "attribute_path", "attribute_type", "step")
_VALUES = {"float": "float_value", "int": "int_value", "string": "string_value", "bool": "bool_value"}
_OPTIONAL = ("project_id", "datetime_value", *_VALUES.values())
_FAILED = "sys/failed"
_SYSTEM = "sys/"
_MONITORING = "monitoring/"


def is_neptune_file(path: Path) -> bool:
    """Whether the Parquet file ``path`` has the columns of an export."""
    import pyarrow as pa  # 0.2 s, and only these files need it
    from pyarrow import parquet

    refuse_oversized(path)
    try:
        return set(_NEEDED) <= set(parquet.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError):
        return False


def read_neptune_export(place: Path) -> ForeignTable:
    """The runs in a Parquet file or below a folder of them. Raises ``InputError`` for damaged or oversized files."""
    files = [place] if place.is_file() else [each for each in list_files(place, "*.parquet") if is_neptune_file(each)]
    runs: dict[tuple[str, str], Run] = {}
    others: set[str] = set()
    for path in files:
        for row in read_parquet_rows(path, (*_NEEDED, *_OPTIONAL))[0]:
            key = (str(row.get("project_id") or ""), str(row["run_id"]))
            if not _add(runs.setdefault(key, Run(cells={"run_id": row["run_id"]})), row):
                others.add(str(row["attribute_type"]))
    cells, curves = tabulate_runs(list(runs.values()), place)
    notes = [f"Not read: attributes of the types {', '.join(sorted(others))}."] if others else []
    return ForeignTable(
        program="Neptune",
        place=str(place),
        digest=compute_digest(files, place),
        cells=cells,
        roles={str(name): _find_role(str(name), curves["column"].unique()) for name in cells},
        curves=curves,
        state=_FAILED if _FAILED in cells else "",
        outcomes=STATES["Neptune"],
        notes=tuple(notes),
    )


def _add(run: Run, row: dict[str, Any]) -> bool:
    # whether the attribute is of a type that is read
    path, kind = str(row["attribute_path"]), str(row["attribute_type"])
    if kind == "float_series":
        if row.get("float_value") is not None:
            step = float(row["step"]) if row["step"] is not None else float(len(run.series.get(path, ())))
            run.series.setdefault(path, []).append((step, float(row["float_value"])))
        return True
    if kind == "datetime":
        run.cells[path] = str(row.get("datetime_value"))
        return True
    if kind not in _VALUES:
        return False
    run.cells[path] = row.get(_VALUES[kind])
    return True


def _find_role(name: str, series: Any) -> Role:
    if name.startswith((_SYSTEM, _MONITORING)) or name == "run_id":
        return "fact"
    # a single value may be a hyperparameter or a result: Neptune does not tell
    return "metric" if name in series else ""
