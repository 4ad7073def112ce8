"""Data of each trial that the page shows individually: table, filters, curves, time by phase, command.

Column by column, because that is smaller and faster than row by row.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from reports.describe import format_column, read_cells, train_commands
from reports.evidence import Evidence, keep_finite
from reports.figures.curves import select_evenly
from reports.figures.ledger import PARTS, parts_of
from reports.figures.marks import SEARCH_NAMES
from reports.labels import OUTCOME_NAMES, format_metric, format_setting, key_label, metric_label
from reports.page.constant_columns import LEADING, list_common_settings, split_columns
from reports.page.study_text import write_study
from reports.palette import HEAT_COLORS, look_of
from sweep.analysis.comparable import USUAL_METRICS
from sweep.analysis.statistics import Values, read_numbers, read_text
from sweep.records.quality_flags import name_flags

Json = dict[str, Any]
MAX_CHOICES = 12
MAX_MOMENTS = 32  # of one curve
MAX_NOTE = 600
_MORE_METRICS = (
    "images_per_second", "total_seconds", "num_steps", "seconds_to_target", "noise_scale", "sharpness_eigenvalue",
    "gpu_utilization", "energy_joules",
)  # fmt: skip
_FIRST = ("number", "global_batch_size", "config.batch.global", *LEADING)  # columns of the table
_CURVES = ("train_seconds", "step", "epoch", "val_accuracy", "val_loss")


def describe_details(evidence: Evidence) -> Json:
    """``{"number", "family", "columns", "shown", "constant", "filters", "notes", "parts", "ledger", "curves",
    "commands", "study"}``.

    Lists are in the order of ``number``; a column has ``label``, ``name`` (that of the frame), ``group``, ``texts``
    and, where it is sorted by other values than the texts, ``keys`` with null where nothing is known. ``shown`` are the
    places of the columns that the table of trials has, ``constant`` names what is the same in all of them. Curves have
    the columns seconds, steps, epochs, accuracy in %, loss.
    """
    frame = evidence.detailed
    columns = _arrange([*_identity(evidence), *_settings(evidence), *_measurements(evidence)])
    kept = sum(column["name"] in _FIRST for column in columns)
    split = split_columns([each["label"] for each in columns], [each["texts"] for each in columns], kept)
    spent = parts_of(frame)
    return {
        "number": [int(number) for number in frame["number"]],
        "family": [int(family) for family in frame["family"]],
        "columns": columns,
        "complete": OUTCOME_NAMES.get("complete", "complete"),
        "scale": HEAT_COLORS,
        "colored": SEARCH_NAMES,
        "shown": list(split.shown),
        "constant": ", ".join((*list_common_settings(evidence), *split.constant)),
        "filters": [item for index, each in enumerate(columns) if (item := _filter(index, each))],
        "notes": _notes(evidence),
        "parts": [{"name": name, "color": look_of(part).color} for part, name in PARTS],
        "ledger": [_rounded(row) for row in np.stack([spent[part] for part, _ in PARTS], axis=1)],
        "curves": _curves(evidence),
        "commands": train_commands(frame, evidence.frames),
        "study": write_study(evidence.frames.spec) if evidence.frames.spec else "",
    }


def _arrange(columns: list[Json]) -> list[Json]:
    return sorted(columns, key=lambda each: _FIRST.index(each["name"]) if each["name"] in _FIRST else len(_FIRST))


def _identity(evidence: Evidence) -> list[Json]:
    frame = evidence.detailed
    outcomes = [OUTCOME_NAMES.get(name, name) for name in frame["outcome"]]
    return [
        _numbers(
            "Trial", "number", "trial", [str(int(number)) for number in frame["number"]], read_numbers(frame, "number")
        ),
        {"label": "Outcome", "name": "outcome", "group": "trial", "texts": outcomes},
        {"label": "Phase", "name": "phase", "group": "trial", "texts": [str(phase) for phase in frame["phase"]]},
        _whole("Seed", "seed", frame),
    ]


def _whole(label: str, name: str, frame: pd.DataFrame) -> Json:
    return _numbers(label, name, "trial", [str(int(number)) for number in frame[name]], read_numbers(frame, name))


def _settings(evidence: Evidence) -> list[Json]:
    frame = evidence.detailed
    made = [_setting(evidence, key) for key in evidence.swept]
    if any(key.startswith("batch.") for key in evidence.swept) and "batch.global" not in evidence.swept:
        sizes = read_numbers(frame, "global_batch_size")
        made.append(
            _numbers(
                "Effective batch size",
                "global_batch_size",
                "setting",
                [format_setting(size) for size in sizes.tolist()],
                sizes,
            )
        )
    return made


def _setting(evidence: Evidence, key: str) -> Json:
    frame, label = evidence.detailed, key_label(key).capitalize()
    texts, numbers = format_column(frame, key), read_numbers(frame, f"config.{key}")
    if not len(keep_finite(numbers)) or frame[f"config.{key}"].dtype == bool:
        return {"label": label, "name": f"config.{key}", "group": "setting", "texts": texts}
    return _numbers(label, f"config.{key}", "setting", texts, numbers)


def _measurements(evidence: Evidence) -> list[Json]:
    frame = evidence.detailed
    names = dict.fromkeys((*evidence.objectives, *USUAL_METRICS, *_MORE_METRICS))
    made: list[Json] = []
    for name in names:
        values = read_numbers(frame, name)
        if len(keep_finite(values)):
            texts = [format_metric(name, value) for value in values]
            made.append(_numbers(metric_label(name), name, "measured", texts, values))
    bottlenecks = [str(cause) for cause in read_text(frame, "bottleneck")]
    return (
        [*made, {"label": "Bottleneck", "name": "bottleneck", "group": "measured", "texts": bottlenecks}]
        if any(bottlenecks)
        else made
    )


def _numbers(label: str, name: str, group: str, texts: list[str], values: Values) -> Json:
    return {"label": label, "name": name, "group": group, "texts": texts, "keys": _rounded(values)}


def _rounded(values: Values, digits: int = 7) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]


def _filter(index: int, given: Json) -> Json | None:
    """Checkboxes where a column has few values, bounds where it has many numbers; none where it has one value."""
    if given["group"] == "measured" or given["label"] in {"Trial", "Seed"}:
        return None
    values = sorted(set(given["texts"]), key=lambda value: (_first_key(given, value), value))
    if len(values) < 2:
        return None
    if len(values) <= MAX_CHOICES:
        return {"column": index, "kind": "choice", "values": values}
    keys = [key for key in given.get("keys", ()) if key is not None]
    return {"column": index, "kind": "range", "low": min(keys), "high": max(keys)} if keys else {
        "column": index, "kind": "text"
    }  # fmt: skip


def _first_key(given: Json, value: str) -> float:
    if "keys" not in given:
        return 0.0
    key = given["keys"][given["texts"].index(value)]
    return -np.inf if key is None else float(key)


def _notes(evidence: Evidence) -> list[str]:
    """Remarks about a trial: its error, quality warnings, origin."""
    frame = evidence.detailed
    names = ("error", "quality_flags", "reused_from")
    whole = zip(*(read_text(frame, name) for name in names), read_cells(frame, "is_enqueued"), strict=True)
    return ["\n".join(_note(list(map(str, parts)), bool(by_hand)))[:MAX_NOTE] for *parts, by_hand in whole]


def _note(texts: Sequence[str], is_enqueued: bool) -> Sequence[str]:
    error, flags, origin = texts
    remarks = [
        ("by hand" if is_enqueued else "", "Enqueued by hand"),
        (error, error),
        (flags, f"Quality warnings: {name_flags(flags)}"),
        (origin, f"Reused from {origin}"),
    ]
    return [sentence for cause, sentence in remarks if cause]


def _curves(evidence: Evidence) -> Json:
    """The curve of each detailed trial that has one, by its number."""
    frame = evidence.detailed_evaluations
    table = np.stack([read_numbers(frame, name) for name in _CURVES], axis=1)
    table[:, _CURVES.index("val_accuracy")] *= 100.0
    owners, begins = np.unique(read_numbers(frame, "number"), return_index=True)
    made: Json = {}
    for owner, part in zip(owners, np.split(table, begins[1:]), strict=False):
        rows = part[select_evenly(len(part), MAX_MOMENTS)]
        made[str(int(owner))] = [_rounded(values, 5) for values in rows.T]
    return made
