"""How much a table from elsewhere may hold: more than any study records, less than what fills a machine."""

from pathlib import Path

from sweep.config.errors import InputError

MAX_ROWS = 10_000_000
MAX_CELLS = 150_000_000  # a million trials, or the curves of as many
MAX_CELL_CHARACTERS = 1_000_000
MAX_FILE_BYTES = 2**30  # unpacked; 100,000 trials with their curves are a fifth of it


def refuse_oversized(path: Path) -> None:
    """Raises ``InputError`` for what is no file, or too large a one to be a table of trials."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: it is no file.")
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, at most {MAX_FILE_BYTES} are taken.")


def refuse_too_many(path: Path, num_rows: int, num_columns: int) -> None:
    """Raises ``InputError`` for more rows or cells than are taken."""
    if num_rows > MAX_ROWS or num_rows * num_columns > MAX_CELLS:
        raise InputError(f"{path}: more than {MAX_ROWS} rows, or more than {MAX_CELLS} cells.")
