"""Trials and configurations as text: the hover texts of marks, and the commands that train them again."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from reports.labels import OUTCOME_NAMES, format_estimate, format_metric, format_setting, key_label, metric_label
from sweep.analysis.answer import Recommendation
from sweep.analysis.answer.choice_texts import describe_learning_rate
from sweep.analysis.costs import MEASURED, SOURCE_NAMES
from sweep.analysis.statistics import plain_value, read_numbers, read_text
from sweep.config.commands import train_command
from sweep.config.trial_config import default_settings
from sweep.config.units import format_count
from sweep.records.columns import CONFIG_COLUMNS
from sweep.records.frames.study_frames import Frames
from sweep.records.quality_flags import name_flags

MAX_ERROR = 200
# The word beside a number ("auto"), which a frame holds as a missing cell.
_WORDS = {column.path: column.null_value for column in CONFIG_COLUMNS if isinstance(column.null_value, str)}


def read_measurement(row: pd.Series, name: str) -> float:
    """A metric of one row, NaN where it is missing."""
    value = plain_value(row.get(name))
    return float(value) if isinstance(value, int | float) else math.nan


def describe_use_setting(item: Recommendation, key: str) -> str:
    """A setting of a recommended configuration; the learning rate is that of the training."""
    rate = describe_learning_rate(item) if key == "optimizer.lr" else ""
    return rate or f"{key_label(key)} {format_setting(item.config.get(key))}"


def describe_settings(row: pd.Series, swept: Sequence[str]) -> str:
    """The swept settings of a trial or configuration in one line."""
    parts = [f"{key_label(key)} {format_setting(plain_value(row.get(f'config.{key}')))}" for key in swept]
    return ", ".join(parts) or f"trial {int(row['number'])}"


def format_column(frame: pd.DataFrame, key: str) -> list[str]:
    """A key's value of every row as a reader sees it."""
    return [format_setting(plain_value(value)) for value in read_cells(frame, f"config.{key}")]


def read_cells(frame: pd.DataFrame, name: str) -> list[object]:
    """A column as plain Python values; None where there is no such column."""
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)


def describe_trials(frame: pd.DataFrame, swept: Sequence[str], objectives: Sequence[str]) -> dict[int, str]:
    """The hover text of each trial, by its number; column by column, because rows of a frame are slow."""
    lines = [
        [
            f"C{family:.0f}, trial {number:.0f}, seed {seed:.0f}"
            for family, number, seed in zip(frame["family"], frame["number"], frame["seed"], strict=True)
        ]
    ]
    named = [[f"{key_label(key)} {value}" for value in format_column(frame, key)] for key in swept]
    if named:
        lines.append([", ".join(parts) for parts in zip(*named, strict=True)])
    for name in objectives:
        lines.append([f"{metric_label(name)}: {format_metric(name, value)}" for value in read_numbers(frame, name)])
    lines.append([f"Bottleneck: {cause}" if cause else "" for cause in read_text(frame, "bottleneck")])
    times = (read_text(frame, "quality_flags"), read_text(frame, "time_source"), read_numbers(frame, "clock_seconds"))
    lines.append([_quality_warning(*row) for row in zip(*times, strict=True)])
    endings = [_ending(*pair) for pair in zip(frame["outcome"], read_text(frame, "error"), strict=True)]
    whole = zip(*lines, endings, strict=True)
    return {
        int(number): "\n".join(part for part in parts if part)
        for number, parts in zip(frame["number"], whole, strict=True)
    }


def _quality_warning(flags: str, source: str, clock_seconds: float) -> str:
    if not flags:
        return ""
    warning = f"Quality warnings: {name_flags(flags)}"
    if source in ("", MEASURED):
        return warning
    measured = format_metric("train_seconds", clock_seconds)
    return f"{warning}\nThe time shown is by {SOURCE_NAMES[source]}; the measured one was {measured}"


def _ending(outcome: str, error: object) -> str:
    if outcome == "complete":
        return ""
    return "\n".join([OUTCOME_NAMES.get(outcome, outcome), *([str(error)[:MAX_ERROR]] if error else [])])


def describe_configuration(row: pd.Series, swept: Sequence[str], objectives: Sequence[str]) -> str:
    """The hover text of a confirmed configuration."""
    values = [
        f"{metric_label(name)}: {value}{f' ({note})' if note else ''}"
        for name in objectives
        for value, note in [describe_value(row, name)]
    ]
    head = f"C{row['number']}, {format_count(row['num_seeds'], 'fresh seed')}"
    return "\n".join([head, describe_settings(row, swept), *values])


def describe_value(row: pd.Series, name: str) -> tuple[str, str]:
    """A metric of a configuration, and its interval or that it is no estimate; ("–", "") where it is missing."""
    value, low, high, n = (read_measurement(row, f"{name}{end}") for end in ("", "_low", "_high", "_n"))
    if not math.isfinite(value):
        return format_metric(name, value), ""
    if math.isfinite(n):
        return format_estimate(name, value, low, high, int(n))
    num_seeds = int(row["num_seeds"])
    shown, interval = format_estimate(name, value, low, high, num_seeds if row["confirmed"] else 0)
    median = "median of " if num_seeds > 1 else ""
    seeds = f"{median}{format_count(num_seeds, 'fresh seed')}" if row["confirmed"] else "one seed"
    return shown, ", ".join(filter(None, (interval, f"{seeds}, as measured")))


def train_commands(frame: pd.DataFrame, frames: Frames) -> list[str]:
    """:func:`train_command` for every row of a frame of trials or configurations; of these with their first seed. Of
    records of another program the run that the row is of, because no command repeats it."""
    if frames.source is not None:
        file, word = frames.source.file, "run" if frames.source.map_file else "trial"
        return [f"# {word} {int(number)} of {file}" for number in _first_numbers(frame)]
    seeds = frame["seed"] if "seed" in frame.columns else [numbers[0] for numbers in frame["seeds"]]
    # what is the default in every row is named in none
    varied = {key: read_settings(frame, key) for key in default_settings() if _is_named(frame, key)}
    rows = zip(*varied.values(), strict=True) if varied else [()] * len(frame)
    return [
        train_command(dict(zip(varied, row, strict=True)), int(seed), frames.plugin)
        for row, seed in zip(rows, seeds, strict=True)
    ]


def _first_numbers(frame: pd.DataFrame) -> Iterable[int]:
    return (numbers[0] for numbers in frame["numbers"]) if "numbers" in frame.columns else frame["number"].tolist()


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
