"""Cells of a foreign file as the values of a configuration key, a metric or a seed."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from sweep.config.errors import InputError, shorten_text
from sweep.config.metrics import METRICS
from sweep.foreign.column_map import MappedColumn, find_units
from sweep.foreign.foreign_table import Cell
from sweep.records.columns import CONFIG_COLUMNS, Kind

_KINDS: dict[str, Kind] = {column.path: column.kind for column in CONFIG_COLUMNS}
_MISSING = {"", "nan", "none", "null", "n/a", "na", "-"}
_MAX_WHOLE = 2.0**53  # beyond it a float is no exact whole number


def convert_settings(target: str, cells: Sequence[Cell], where: str) -> list[Any]:
    """``cells`` as values of the configuration key ``target`` or as seeds; None where a cell is missing. Raises
    ``InputError`` with the number of the run."""
    parse = _PARSERS["int" if target == "seed" else _KINDS.get(target, "text")]
    return [_apply(parse, cell, f"{where}, run {number}") for number, cell in enumerate(cells, start=1)]


def convert_metric(target: str, mapped: MappedColumn, cells: Sequence[Cell], where: str) -> list[float]:
    """``cells`` as values of ``target`` in its own unit; NaN where a cell is missing or no finite number. Raises
    ``InputError`` for what is no number, and for a share outside of 0 and 1."""
    factor = find_units(target).get(mapped.unit, 1.0)
    values = []
    for number, cell in enumerate(cells, start=1):
        given = _apply(_parse_number, cell, f"{where}, run {number}")
        # a division, because 97.3 * 0.01 is another number than 0.973
        value = math.nan if given is None else given / 100 if mapped.unit == "percent" else given * factor
        _check_range(target, mapped, value, given, f"{where}, run {number}")
        values.append(value if math.isfinite(value) else math.nan)
    return values


def _check_range(target: str, mapped: MappedColumn, value: float, given: Any, where: str) -> None:
    unit = METRICS[target].unit if target in METRICS else ""
    if not math.isfinite(value):
        return
    if unit == "fraction" and not 0.0 <= value <= 1.0 and target.endswith("accuracy"):
        remedy = 'unit = "percent"' if mapped.unit == "fraction" and value <= 100 else "another column"
        raise InputError(f"{where}: {target}: {given} {mapped.unit} is no share between 0 and 1; is it {remedy}?")
    if unit in {"seconds", "bytes", "count"} and value < 0:
        raise InputError(f"{where}: {target}: {given} is below 0; map another column.")


def _apply(parse: Callable[[Any], Any], cell: Cell, where: str) -> Any:
    if is_missing(cell):
        return None
    try:
        return parse(cell)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {shorten_text(repr(cell))} is no {_NAMES[parse]}.") from None


def _parse_number(cell: Any) -> float:
    if isinstance(cell, bool):
        raise ValueError
    return float(cell)


def _parse_whole(cell: Any) -> int:
    if isinstance(cell, str) and cell.strip().lstrip("+-").isdecimal() and len(cell) < 20:
        return int(cell)
    number = _parse_number(cell)
    if not number.is_integer() or abs(number) > _MAX_WHOLE:
        raise ValueError
    return int(number)


def _parse_truth(cell: Any) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "yes": True, "no": False}
    if (word := str(cell).strip().lower()) not in words:
        raise ValueError
    return words[word]


_PARSERS: dict[Kind, Callable[[Any], Any]] = {
    "int": _parse_whole,
    "float": _parse_number,
    "bool": _parse_truth,
    "text": str,
}
_NAMES: dict[Callable[[Any], Any], str] = {
    _parse_number: "number",
    _parse_whole: "whole number",
    _parse_truth: "truth value",
    str: "text",
}


def simplify_cells(cells: Sequence[Cell]) -> list[float | None] | list[str | None]:
    """``cells`` of a setting that is no key of ours: numbers where every one is a number, otherwise texts."""
    try:
        numbers = [None if is_missing(cell) else _parse_number(cell) for cell in cells]
    except (ValueError, OverflowError):
        return [None if is_missing(cell) else str(cell) for cell in cells]
    return numbers


def is_missing(cell: Cell) -> bool:
    """Whether nothing is recorded in a cell: programs write that in several ways."""
    if isinstance(cell, str):
        return cell.strip().lower() in _MISSING
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
