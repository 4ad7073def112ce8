"""Trials and configurations in a few lines of text: what a mark says when it is pointed at."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from reports.labels import OUTCOME_NAMES, format_metric, format_setting, key_label, metric_label
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.trial_shapes import probed_step_seconds

MAX_ERROR = 200


def plain(value: object) -> object:
    """A cell of a frame as a plain Python value, None where it is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def measured(row: pd.Series, name: str) -> float:
    """A metric of one row, NaN where it is missing."""
    value = plain(row.get(name))
    return float(value) if isinstance(value, int | float) else math.nan


def describe(row: pd.Series, swept: Sequence[str]) -> str:
    """The swept settings of a trial or configuration in one line."""
    parts = [f"{key_label(key)} {format_setting(plain(row.get(f'config.{key}')))}" for key in swept]
    return ", ".join(parts) or f"trial {int(row['number'])}"


def settings(frame: pd.DataFrame, key: str) -> list[str]:
    """A key's value of every row as a reader sees it."""
    return [format_setting(plain(value)) for value in cells(frame, f"config.{key}")]


def cells(frame: pd.DataFrame, name: str) -> list[object]:
    """A column as plain Python values; None where there is no such column."""
    return frame[name].tolist() if name in frame.columns else [None] * len(frame)


def trial_texts(
    frame: pd.DataFrame, swept: Sequence[str], objectives: Sequence[str], probes: pd.DataFrame
) -> dict[int, str]:
    """What a mark of one trial says, by the trial's number; column by column, because rows of a frame are slow."""
    lines = [
        [f"Trial {number:.0f}, seed {seed:.0f}" for number, seed in zip(frame["number"], frame["seed"], strict=True)]
    ]
    named = [[f"{key_label(key)} {value}" for value in settings(frame, key)] for key in swept]
    if named:
        lines.append([", ".join(parts) for parts in zip(*named, strict=True)])
    for name in objectives:
        lines.append([f"{metric_label(name)}: {format_metric(name, value)}" for value in read_numbers(frame, name)])
    lines.append([f"Held up by: {cause}" if cause else "" for cause in read_text(frame, "bottleneck")])
    lines.append(_doubts(frame, probes))
    endings = [_ending(*pair) for pair in zip(frame["outcome"], read_text(frame, "error"), strict=True)]
    whole = zip(*lines, endings, strict=True)
    return {
        int(number): "\n".join(part for part in parts if part)
        for number, parts in zip(frame["number"], whole, strict=True)
    }


def _doubts(frame: pd.DataFrame, probes: pd.DataFrame) -> list[str]:
    """What casts doubt on each trial's measurements, and the step time of a probe of its shape, which ran alone."""
    flags = [str(each) for each in read_text(frame, "quality_flags")]
    if not any(flags):
        return flags
    steps = probed_step_seconds(frame, probes)
    return [_doubt(*parts) for parts in zip(flags, read_numbers(frame, "step_seconds_median"), steps, strict=True)]


def _doubt(flags: str, step_seconds: float, probed_seconds: float) -> str:
    if not flags:
        return ""
    said = f"Doubts about the measurement: {flags}"
    if not math.isfinite(probed_seconds):
        return said
    took, probed = (format_metric("step_seconds_median", value) for value in (step_seconds, probed_seconds))
    return f"{said}\nA step took {took}; that of a probe, alone on the device, {probed}"


def _ending(outcome: str, error: object) -> str:
    if outcome == "complete":
        return ""
    return "\n".join([OUTCOME_NAMES.get(outcome, outcome), *([str(error)[:MAX_ERROR]] if error else [])])


def configuration_text(row: pd.Series, swept: Sequence[str], objectives: Sequence[str]) -> str:
    """What the mark of a confirmed configuration says."""
    values = []
    for name in objectives:
        low, high = (format_metric(name, measured(row, f"{name}{end}")) for end in ("_low", "_high"))
        values.append(f"{metric_label(name)}: {format_metric(name, measured(row, name))} ({low} to {high})")
    head = f"Median of {row['num_seeds']} seeds, configuration of trial {row['number']}"
    return "\n".join([head, describe(row, swept), *values])
