"""The commands that train rows of a frame again."""

from collections.abc import Iterable

import pandas as pd

from reports.describe import read_cells
from sweep.analysis.statistics.column_reading import plain_value
from sweep.config.command_lines import train_command
from sweep.config.trial_config import default_settings
from sweep.records.columns import CONFIG_COLUMNS

# The word beside a number ("auto"), which a frame holds as a missing cell.
_WORDS = {column.path: column.null_value for column in CONFIG_COLUMNS if isinstance(column.null_value, str)}


def train_commands(frame: pd.DataFrame) -> list[str]:
    """:func:`train_command` for every row of a frame of trials or configurations; of these with their first seed."""
    seeds = frame["seed"] if "seed" in frame.columns else [numbers[0] for numbers in frame["seeds"]]
    # what is the default in every row is named in none
    varied = {key: read_settings(frame, key) for key in default_settings() if _is_named(frame, key)}
    rows = zip(*varied.values(), strict=True) if varied else [()] * len(frame)
    return [
        train_command(dict(zip(varied, row, strict=True)), int(seed)) for row, seed in zip(rows, seeds, strict=True)
    ]


def read_settings(frame: pd.DataFrame, key: str) -> list[object]:
    """A key's value in every row, with the word that stands for a missing cell."""
    return _worded(key, read_cells(frame, f"config.{key}"))


def _worded(key: str, values: Iterable[object]) -> list[object]:
    word = _WORDS.get(key)
    return [word if value is None else value for value in map(plain_value, values)]


def _is_named(frame: pd.DataFrame, key: str) -> bool:
    default = default_settings()[key]
    return any(
        value is not None and value != default for value in _worded(key, set(read_cells(frame, f"config.{key}")))
    )
