"""What the commands print: one JSON document, or lines of text that a terminal cannot misread."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer

# Control characters except line ends and tabs, and those that reverse the direction of writing.
_OBEYED = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {0x09, 0x0A}
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _OBEYED}


def escape_controls(text: str) -> str:
    """``text`` with the control characters that a terminal would execute (colors, cursor movement) as escapes. For
    text from records, errors and files of others."""
    return text.translate(_ESCAPES)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    for line in lines:
        typer.echo(escape_controls(line), err=err)


def print_table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> None:
    """Prints rows of cells on standard output, aligned and folded at the width of the terminal."""
    from rich.console import Console  # 0.1 s that no help text needs
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_controls(cell)) for cell in row))
    Console(highlight=False).print(table)


def print_answer(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Prints ``document`` as JSON on standard output, or ``lines`` for people."""
    if as_json:
        typer.echo(json.dumps(document))
    else:
        print_lines(lines)
