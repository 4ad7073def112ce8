"""Tables as text: any CSV with a header, the runs table of W&B, ``mlflow.search_runs`` and ``trials_dataframe`` of
Optuna."""

import ast
import csv
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.foreign.foreign_table import Cell, ForeignTable, Role, Run, compute_digest, read_small_text, tabulate_runs
from sweep.foreign.run_states import STATES
from sweep.records.frames.validation import MAX_CELL_CHARACTERS, refuse_too_many

_MAX_LITERAL = 1_000_000  # characters of one dictionary that W&B's example script writes into a cell
_WANDB_CELLS = {"summary": "summary.", "config": "config."}


def read_delimited(path: Path) -> ForeignTable:
    """The rows of a file with commas, semicolons or tabs. Raises ``InputError`` where it is no such table."""
    rows = _read_rows(path)
    program = _name_program(set(rows[0]) if rows else set())
    if program == "W&B (API)":
        rows = [_unpack(row, path, number) for number, row in enumerate(rows, start=1)]
    cells, curves = tabulate_runs([Run(cells=row) for row in rows], path)
    state = next((name for name in ("status", "state", "State") if name in cells and program != "CSV"), "")
    return ForeignTable(
        program=program,
        place=str(path),
        digest=compute_digest([path], path),
        cells=cells,
        roles={str(name): find_role(str(name), program) for name in cells},
        curves=curves,
        state=state,
        outcomes=STATES[program] if state else {},
    )


def _read_rows(path: Path) -> list[dict[str, Cell]]:
    lines = read_small_text(path).splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        raise InputError(f"{path}: the file is torn, its last line has no end; export it again, or end that line.")
    before = csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        return _parse(lines, path)
    except csv.Error as error:
        raise InputError(f"{path}: no table: {error}.") from None
    finally:
        csv.field_size_limit(before)


def _parse(lines: list[str], path: Path) -> list[dict[str, Cell]]:
    reader = csv.reader(lines, delimiter=_find_delimiter(lines[0] if lines else "", path), strict=True)
    header = [name.strip() for name in next(reader, [])]
    names = [
        name or f"column {place}" for place, name in enumerate(header, start=1)
    ]  # of an index, which pandas writes
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: column {min(twice)!r} occurs twice; rename one of them.")
    rows: list[dict[str, Cell]] = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(names):
            raise InputError(f"{path}:{reader.line_num}: {len(row)} cells, the header has {len(names)}.")
        rows.append(dict(zip(names, row, strict=True)))
        refuse_too_many(path, len(rows), len(names))
    return rows


def _find_delimiter(header: str, path: Path) -> str:
    found = max(",;\t", key=header.count)
    if not header.count(found):
        raise InputError(f"{path}: its first line has no comma, semicolon or tab; a table of runs has a header.")
    return found


def _name_program(names: set[str]) -> str:
    if names.issuperset(_WANDB_CELLS):
        return "W&B (API)"
    if {"run_id", "status"} <= names and any(name.startswith(("params.", "metrics.")) for name in names):
        return "MLflow (search_runs)"
    if {"number", "state"} <= names and any(name.startswith("params_") for name in names):
        return "Optuna (trials_dataframe)"
    if {"Name", "State"} <= names:
        return "W&B (runs table)"
    return "CSV"


def find_role(name: str, program: str) -> Role:
    """What the program's way to name columns tells of one."""
    if name.startswith(("params.", "params_", "config.")):
        return "parameter"
    if name.startswith(("metrics.", "value", "summary.")):
        return "metric"
    return "" if program in {"CSV", "W&B (runs table)"} else "fact"


def _unpack(row: dict[str, Cell], path: Path, number: int) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for name, cell in row.items():
        if name not in _WANDB_CELLS:
            found[name] = cell
            continue
        found |= flatten_cells(_parse_literal(str(cell), f"{path}: row {number}, {name}"), _WANDB_CELLS[name])
    return found


def _parse_literal(text: str, where: str) -> dict[Any, Any]:
    # a Python literal as the example in W&B's documentation writes it: numbers and texts, and nothing is run
    if len(text) > _MAX_LITERAL:
        raise InputError(f"{where}: more than {_MAX_LITERAL} characters.")
    for word in ("nan", "inf"):
        text = text.replace(f": {word}", ": None").replace(f": -{word}", ": None")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise InputError(f"{where}: it is no dictionary of plain values; export the runs as JSON.") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: it is no dictionary; export the runs as JSON.")
    return value


def flatten_cells(content: Any, prefix: str, depth: int = 5) -> dict[str, Cell]:
    """Nested dictionaries as cells by dotted name below ``prefix``; of W&B's ``{"value": ...}`` the value; lists as
    text."""
    found: dict[str, Cell] = {}
    for name, value in content.items():
        if isinstance(value, dict) and value.keys() <= {"value", "desc"} and "value" in value:
            value = value["value"]
        if isinstance(value, dict) and depth:
            found |= flatten_cells(value, f"{prefix}{name}.", depth - 1)
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str | int | float | bool | None) else str(value)
    return found
