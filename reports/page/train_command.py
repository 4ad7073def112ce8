"""The command that trains a row of the front again."""

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache

import pandas as pd

from reports.describe import cells, plain
from sweep.config.trial_config import Scalar, TrialConfig, flatten
from sweep.records.columns import CONFIG_COLUMNS

# The word beside a number ("auto"), which a frame holds as a missing cell.
_WORDS = {column.path: column.null_value for column in CONFIG_COLUMNS if isinstance(column.null_value, str)}


def train_command(settings: Mapping[str, object], seed: int) -> str:
    """``sweep train --set key=value ... --set seed=N``, quoted for a POSIX shell.

    ``settings`` are keys of a configuration by dotted path. Only what differs from the defaults is named, so the line
    stays short and complete. None is never named: such a key has made way for another, which sets it aside again.
    """
    defaults = _defaults()
    given = {key: settings[key] for key in defaults if key != "seed" and settings.get(key) is not None}
    named = {key: value for key, value in given.items() if value != defaults[key]}
    pairs = [f"{key}={toml_value(value)}" for key, value in named.items()] + [f"seed={seed}"]
    return " ".join(["sweep train", *(f"--set {shlex.quote(pair)}" for pair in pairs)])


def train_commands(frame: pd.DataFrame) -> list[str]:
    """:func:`train_command` for every row of a frame of trials or configurations; of these with their first seed."""
    seeds = frame["seed"] if "seed" in frame.columns else [numbers[0] for numbers in frame["seeds"]]
    # what is the default in every row is named in none
    varied = {key: recorded(frame, key) for key in _defaults() if _is_named(frame, key)}
    rows = zip(*varied.values(), strict=True) if varied else [()] * len(frame)
    return [
        train_command(dict(zip(varied, row, strict=True)), int(seed)) for row, seed in zip(rows, seeds, strict=True)
    ]


def recorded(frame: pd.DataFrame, key: str) -> list[object]:
    """A key's value in every row, with the word that stands for a missing cell."""
    return _worded(key, cells(frame, f"config.{key}"))


def _worded(key: str, values: Iterable[object]) -> list[object]:
    word = _WORDS.get(key)
    return [word if value is None else value for value in map(plain, values)]


def _is_named(frame: pd.DataFrame, key: str) -> bool:
    default = _defaults()[key]
    return any(value is not None and value != default for value in _worded(key, set(cells(frame, f"config.{key}"))))


@cache
def _defaults() -> dict[str, Scalar]:
    return flatten(TrialConfig())


def toml_value(value: object) -> str:
    """``value`` as the command line reads it: TOML, with quotes only around text that TOML would take for another."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return _quoted(text) if _reads_as_toml(text) or text != text.strip() else text


def _reads_as_toml(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else c for c in escaped) + '"'
