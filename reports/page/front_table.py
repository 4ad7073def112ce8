"""The table of the Pareto front: batch size, accuracy, time and memory first, what all rows share stated once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from reports.describe import describe_value, read_measurement, train_commands
from reports.evidence import Evidence
from reports.labels import format_probability, format_setting, key_label, metric_label
from reports.page.constant_columns import LEADING, split_columns
from sweep.analysis.comparable import USUAL_METRICS
from sweep.analysis.statistics import plain_value, read_numbers

MAX_ROWS = 200
_BATCH = "batch.global"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of the table: what it shows, what it sorts by, a smaller second line."""

    text: str
    key: float | str
    note: str = ""
    is_number: bool = True


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration of the table; ``trial`` is the first that its values rest on."""

    cells: tuple[Cell, ...]
    command: str
    confirmed: bool
    trial: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """The sortable table of the front; ``num_left_out`` rows were too many; ``common`` is what all rows share."""

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    num_left_out: int
    common: str


def make_front_table(evidence: Evidence) -> Table:
    """Confirmed configurations and the search front; those of the answer's front first."""
    frame = evidence.configurations
    confirmed, search_front = (frame[name].to_numpy(dtype=bool) for name in ("confirmed", "on_search_front"))
    shown = frame[confirmed | search_front].sort_values(
        ["confirmed", "on_front", "number"], ascending=[False, False, True], kind="stable"
    )
    first = shown.head(MAX_ROWS)
    leading, others = _list_metrics(evidence, shown)
    found = [list(_list_cells(evidence, row, leading, others)) for _, row in first.iterrows()]
    labels = [label for label, _ in found[0]] if found else []
    columns = [[f"{cell.text} {cell.note}".strip() for _, cell in column] for column in zip(*found, strict=True)]
    split = split_columns(labels, columns, 2 + len(leading))
    commands = train_commands(first, evidence.frames)
    rows = tuple(
        Row(
            cells=tuple(cells[place][1] for place in split.shown),
            command=command,
            confirmed=bool(row["confirmed"]),
            trial=row["numbers"][0],
        )
        for cells, command, (_, row) in zip(found, commands, first.iterrows(), strict=True)
    )
    return Table(
        heads=tuple(labels[place] for place in split.shown),
        rows=rows,
        num_left_out=max(0, len(shown) - MAX_ROWS),
        common=", ".join(split.constant),
    )


def _list_metrics(evidence: Evidence, frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    measured = (name for name in USUAL_METRICS if np.isfinite(read_numbers(frame, name)).any())
    names = dict.fromkeys((*evidence.objectives, *measured))
    return [name for name in LEADING if name in names], [name for name in names if name not in LEADING]


def _list_cells(
    evidence: Evidence, row: pd.Series, leading: list[str], others: list[str]
) -> Iterator[tuple[str, Cell]]:
    yield "Trial", Cell(text=str(row["number"]), key=float(row["number"]))
    yield "Effective batch size", _make_setting(plain_value(row["global_batch_size"]))
    for name in leading:
        yield metric_label(name), _make_measured(row, name)
    yield "On the Pareto front", _make_certainty(row)
    yield "Seeds", _make_seeds(row)
    for key in evidence.swept:
        if key != _BATCH:
            yield key_label(key).capitalize(), _make_setting(plain_value(row[f"config.{key}"]))
    for name in others:
        yield metric_label(name), _make_measured(row, name)


def _make_seeds(row: pd.Series) -> Cell:
    failed = f"{row['num_failed_seeds']} failed" if row["num_failed_seeds"] else ""
    if row["confirmed"]:
        return Cell(text=f"{row['num_seeds']} fresh", key=float(row["num_seeds"]), note=failed)
    return Cell(text="1 (search)", key=0.0, note=failed)


def _make_measured(row: pd.Series, name: str) -> Cell:
    value = read_measurement(row, name)
    shown, note = describe_value(row, name)
    return Cell(text=shown, key=value if math.isfinite(value) else "", note=note)


def _make_setting(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(text=format_setting(value), key=float(value))
    return Cell(text=format_setting(value), key=str(value), is_number=False)


def _make_certainty(row: pd.Series) -> Cell:
    share = read_measurement(row, "p_front")
    words = "yes" if row["on_front"] else "search only" if row["on_search_front"] else "no"
    if math.isnan(share):
        return Cell(text=words, key=-1.0, is_number=False)
    return Cell(text=words, key=share, note=f"{format_probability(share)} probability", is_number=False)
