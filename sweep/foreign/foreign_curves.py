"""Series of a foreign run as learning curves, and the one value of a series that stands for the run."""

from typing import Any

import numpy as np
import pandas as pd

from sweep.foreign.cell_values import convert_metric
from sweep.foreign.column_map import ColumnMap, MappedColumn
from sweep.foreign.foreign_table import Cell, ForeignTable
from sweep.records.columns import EVALUATION_KINDS
from sweep.records.frames.frame_columns import EVALUATION_COLUMNS, build_frame

_GIVEN = {"step", "global_batch_size"}  # of the curve itself, and of its run


def take_value(table: ForeignTable, mapped: MappedColumn) -> list[Cell]:
    """The cells of a column, one per run: the last value of a series, or its largest or smallest."""
    cells: list[Cell] = table.cells[mapped.column].tolist()
    if mapped.take == "last":
        return cells
    points = table.curves[table.curves["column"] == mapped.column]
    chosen = points.groupby("row")["value"].agg(mapped.take)
    return [float(chosen[row]) if row in chosen.index else cell for row, cell in enumerate(cells)]


def convert_curves(table: ForeignTable, mapping: ColumnMap, trials: pd.DataFrame, name: str) -> pd.DataFrame:
    """The ``evaluations`` frame: a row per run and step at which the column of ``val_accuracy`` has a value, with what
    else is mapped and was recorded at that step. Empty without such a series, and where the map does not state what its
    steps count."""
    series = {target: mapped for target, mapped in mapping.columns.items() if _is_series(table, target, mapped)}
    if "val_accuracy" not in series or not mapping.steps:
        return build_frame(EVALUATION_COLUMNS, {}, 0)
    pivot = pd.concat([_read_series(table, target, mapped) for target, mapped in series.items()], axis=1)
    pivot = pivot[pivot["val_accuracy"].notna()].sort_index()
    batches = dict(zip(trials["number"].tolist(), trials["global_batch_size"].tolist(), strict=True))
    kept = [row + 1 in batches for row in pivot.index.get_level_values("row")]
    return _build(pivot[kept], mapping, batches, name)


def _build(pivot: pd.DataFrame, mapping: ColumnMap, batches: dict[int, int], name: str) -> pd.DataFrame:
    numbers = [int(row) + 1 for row in pivot.index.get_level_values("row")]
    cells: dict[str, list[Any]] = {target: pivot[target].tolist() for target in pivot.columns}
    counted = pivot.index.get_level_values("step").tolist()
    is_epochs = mapping.steps == "epochs"
    cells["step"] = [None if is_epochs else int(step) for step in counted]
    if is_epochs:
        cells["epoch"] = counted
    cells |= {"study": [name] * len(pivot), "number": numbers, "attempt": [1] * len(pivot)}
    cells["samples"] = [
        None if np.isnan(value) else int(value) for value in cells.get("samples", [np.nan] * len(pivot))
    ]
    cells["global_batch_size"] = [batches[number] for number in numbers]
    cells |= {each: [np.nan] * len(pivot) for each in EVALUATION_KINDS if each not in cells}
    return build_frame(EVALUATION_COLUMNS, cells, len(pivot))


def describe_curves(table: ForeignTable, mapping: ColumnMap) -> str:
    """What is said of the series; "" where there are none, or where they are drawn."""
    mapped = mapping.columns.get("val_accuracy")
    if mapped is None or not table.has_series(mapped.column):
        return "No learning curves are in the file, or none is of the validation accuracy."
    if not mapping.steps:
        return (
            'What the steps of the series count is not stated (steps = "optimizer_steps" or "epochs" in the map): no '
            "learning curves."
        )
    return ""


def _is_series(table: ForeignTable, target: str, mapped: MappedColumn) -> bool:
    return target in EVALUATION_KINDS and target not in _GIVEN and table.has_series(mapped.column)


def _read_series(table: ForeignTable, target: str, mapped: MappedColumn) -> "pd.Series[float]":
    points = table.curves[table.curves["column"] == mapped.column].drop_duplicates(["row", "step"], keep="last")
    where = f"{table.place}: series {mapped.column!r}"
    values = convert_metric(target, mapped, points["value"].tolist(), where)
    index = pd.MultiIndex.from_frame(points[["row", "step"]])
    return pd.Series(values, index=index, name=target, dtype="float64")
