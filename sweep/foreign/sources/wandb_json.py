"""Runs that W&B's public API gave, as JSON: a list of runs, or the DataFrame of its documentation by ``to_json``."""

import json
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.config.units import format_count
from sweep.foreign.foreign_table import Cell, ForeignTable, Role, Run, compute_digest, read_small_text, tabulate_runs
from sweep.foreign.run_states import STATES
from sweep.foreign.sources.delimited_text import flatten_cells

_PARTS = {"config": "config.", "summary": "summary.", "summary_metrics": "summary.", "summaryMetrics": "summary."}
_HISTORY, _STEP = "history", "_step"


def read_wandb_json(path: Path) -> ForeignTable:
    """The runs in ``path``. Raises ``InputError`` where it is no JSON of runs with config and summary."""
    contents = _list_runs(path)
    runs = [_read_run(each, path, number) for number, each in enumerate(contents, start=1)]
    num_left_out = sum(_count_left_out(each.get(_HISTORY)) for each in contents)
    cells, curves = tabulate_runs(runs, path)
    return ForeignTable(
        program="W&B (API)",
        place=str(path),
        digest=compute_digest([path], path),
        cells=cells,
        roles={str(name): _find_role(str(name)) for name in cells},
        curves=curves,
        state="state" if "state" in cells else "",
        outcomes=STATES["W&B (API)"],
        notes=(_describe_left_out(num_left_out),) if num_left_out else (),
    )


def _list_runs(path: Path) -> list[Any]:
    try:
        content = json.loads(read_small_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON: {error}.") from None
    if isinstance(content, dict) and content and all(isinstance(column, dict) for column in content.values()):
        places = list(next(iter(content.values())))  # pandas' to_json: columns of rows
        return [{name: column.get(place) for name, column in content.items()} for place in places]
    if not isinstance(content, list):
        raise InputError(f"{path}: it is no list of runs and no DataFrame as JSON.")
    return content


def _read_run(content: Any, path: Path, number: int) -> Run:
    if not isinstance(content, dict) or not any(name in content for name in _PARTS):
        raise InputError(f"{path}: run {number} has neither config nor summary, as runs of W&B have.")
    cells: dict[str, Cell] = {}
    for name, value in content.items():
        if name in _PARTS:
            part = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
            cells |= flatten_cells(part if isinstance(part, dict) else {}, _PARTS[name])
        elif name != _HISTORY:
            cells |= flatten_cells({name: value}, "")
    return Run(cells=cells, series=_read_history(content.get(_HISTORY)))


def _read_history(history: Any) -> dict[str, list[tuple[float, float]]]:
    # rows of ``run.history()`` or ``scan_history()``, of which each names its step
    series: dict[str, list[tuple[float, float]]] = {}
    for row in history if isinstance(history, list) else ():
        if not _names_step(row):
            continue
        for name, value in row.items():
            if not name.startswith("_") and isinstance(value, int | float) and not isinstance(value, bool):
                series.setdefault(f"summary.{name}", []).append((float(row[_STEP]), float(value)))
    return series


def _names_step(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get(_STEP), int | float)


def _count_left_out(history: Any) -> int:
    rows = history if isinstance(history, list) else [] if history is None else [history]
    return sum(not _names_step(row) for row in rows)


def _describe_left_out(num_rows: int) -> str:
    return f"{format_count(num_rows, 'row')} of `{_HISTORY}` left out: no list of rows that each name their `{_STEP}`."


def _find_role(name: str) -> Role:
    return "parameter" if name.startswith("config.") else "metric" if name.startswith("summary.") else "fact"
