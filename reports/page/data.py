"""The data of the page: figures for Plotly, details of each trial, answers within limits, the study as TOML. Column by
column, because that is smaller and faster than row by row."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from reports.evidence import Evidence, format_column, keep_finite, read_cells, train_commands
from reports.figure import Bars, Density, Figure, Heat, Intervals, Lines, Points
from reports.figures.costs import PARTS, parts_of
from reports.figures.trials import select_evenly
from reports.labels import OUTCOME_NAMES, choose_unit, format_estimate, format_metric, format_setting, metric_label
from reports.layout import HEAT_COLORS, Json, escape_text, look_of, make_layout, show_panel
from reports.page.tables import split_columns
from reports.texts import list_leading, name_use
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import (
    BATCH_SIZE,
    USE_TABLE,
    Candidates,
    config_of,
    estimate_value,
    pick_for,
    select_shown,
)
from sweep.analysis.comparable import ACCURACY, MEMORY, SECONDS, USUAL_METRICS
from sweep.analysis.statistics import Values, read_numbers, read_text
from sweep.config.commands import toml_literal
from sweep.config.metrics import Quality, format_probability
from sweep.config.study import StudySpec
from sweep.config.trial import key_label
from sweep.records.quality import name_flags

_MAX_CHOICES = 12
MAX_MOMENTS = 32  # of one curve
_MAX_NOTE = 600
_MORE_METRICS = (
    "images_per_second", "total_seconds", "num_steps", "seconds_to_target", "noise_scale", "sharpness_eigenvalue",
    "gpu_utilization", "energy_joules",
)  # fmt: skip
_FIRST = ("number", "global_batch_size", "config.batch.global")  # columns of the table, and those that lead
_CURVES = ("train_seconds", "step", "epoch", "val_accuracy", "val_loss")
_OF_ACCURACY = {ACCURACY: "min_accuracy"}
_TABLES = ("base", "space")  # of a study file
_STEPS = ((60, 5), (150, 4), (1_000, 3))  # up to how many candidates how many positions a slider has: a second at most


def figures_json(figures: Iterable[Figure]) -> Json:
    """``{"figures": [{"name", "panels": [{"traces", "layout", "members"}]}], "texts"}``.

    Every text is escaped, because Plotly reads markup in texts. A trace's ``hovertext`` holds positions in ``texts``: a
    trial has the same text in every panel. Its ``customdata`` holds the numbers of the trials that its marks stand for.
    """
    positions: dict[str, int] = {}

    def pool(texts: list[Any]) -> list[Any]:
        return [pool(text) if isinstance(text, list) else positions.setdefault(text, len(positions)) for text in texts]

    made = []
    for figure in figures:
        panels: list[Json] = []
        for panel in figure.panels:
            shown = show_panel(panel)
            traces = [_TRACES[type(layer)](layer) for layer in shown.layers if type(layer) in _TRACES]
            for trace in traces:
                trace["hovertext"] = pool(trace.get("hovertext", []))
            members = [member for layer in panel.layers if isinstance(layer, Heat) for member in layer.members]
            panels.append({"traces": traces, "members": members, "layout": make_layout(shown)})
        made.append({"name": figure.name, "panels": panels})
    return {"figures": made, "texts": list(positions)}


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.8g}") for value in values]


def _base(name: str, texts: Iterable[str], trials: Iterable[int] = ()) -> Json:
    # "text" and not a template: a template would read %{...} inside a text
    shown, numbers = [escape_text(text) for text in texts], list(trials)
    made: Json = {"meta": name, "name": escape_text(name), "hoverinfo": "text" if shown else "skip"}
    made |= {"hovertext": shown} if shown else {}
    return made | ({"customdata": numbers} if numbers else {})


def _marks(layer: Points | Intervals) -> Json:
    look = look_of(layer.role)
    outline = {"width": 1.6 if "open" in look.plotly or "thin" in look.plotly else 0, "color": look.color}
    marker = {"color": look.color, "symbol": look.plotly, "size": look.size, "opacity": look.opacity, "line": outline}
    made = _base(layer.name, layer.texts, layer.trials) | {"type": "scatter", "mode": "markers", "marker": marker}
    made |= {"x": _short(layer.x), "y": _short(layer.y)}
    if isinstance(layer, Intervals):
        for name, middle, low, high in (
            ("error_x", layer.x, layer.x_low, layer.x_high),
            ("error_y", layer.y, layer.y_low, layer.y_high),
        ):
            up = [bound - value for bound, value in zip(high, middle, strict=True)]
            down = [value - bound for bound, value in zip(low, middle, strict=True)]
            made[name] = {
                "array": _short(up), "arrayminus": _short(down), "type": "data", "symmetric": False,
                "color": look.color, "thickness": 1.4, "width": 3, "visible": any(up) or any(down),
            }  # fmt: skip
    return made


def _lines(layer: Lines) -> Json:
    style = look_of(layer.role)
    x: list[float | None] = []
    y: list[float | None] = []
    owners: list[int] = []
    for index, (line_x, line_y) in enumerate(layer.segments):
        x += [*_short(line_x), None]
        y += [*_short(line_y), None]
        owners += [index] * (len(line_x) + 1)
    owners = owners[:-1]  # a gap parts two lines; after the last one there is none
    texts = [layer.texts[index] for index in owners] if layer.texts else []
    trials = [layer.trials[index] for index in owners] if layer.trials else []
    line = {"color": style.color, "width": 1.0 if layer.role == "faint" else 1.8}
    line |= {"dash": "dot"} if layer.dashed else {}
    made = _base(layer.name, texts, trials) | {"type": "scatter", "mode": "lines", "line": line}
    if any(len(line_x) == 1 for line_x, _ in layer.segments):  # a line through one point is not visible
        made |= {"mode": "lines+markers", "marker": {"color": style.color, "size": 5}}
    made |= {"front": {"of": layer.front_of, "signs": layer.signs}} if layer.front_of else {}
    return made | {"x": x[:-1], "y": y[:-1], "opacity": style.opacity, "connectgaps": False}


def _bars(layer: Bars) -> Json:
    marker = {"color": look_of(layer.role).color}
    made = _base(layer.name, layer.texts) | {"type": "bar", "orientation": "h", "marker": marker, "width": 0.6}
    return made | {"x": _short(layer.lengths), "y": list(layer.y), "base": _short(layer.starts)}


def _density(layer: Density) -> Json:
    color = look_of(layer.role).color
    made = {"type": "heatmap", "x": _short(layer.x_edges), "y": _short(layer.y_edges)}
    # an empty cell is a gap, so that the page shines through in the dark too
    cells = [[count or None for count in row] for row in layer.counts]
    scale = [[0.0, f"{color}22"], [1.0, f"{color}cc"]]
    return made | _base(layer.name, ()) | {"z": cells, "colorscale": scale, "showscale": False}


def _heat(layer: Heat) -> Json:
    shown = choose_unit(layer.unit, layer.span)
    low, high = (bound * shown.factor for bound in layer.span)
    cells = [[None if value is None else float(f"{value * shown.factor:.8g}") for value in row] for row in layer.values]
    scale = [[index / (len(HEAT_COLORS) - 1), color] for index, color in enumerate(HEAT_COLORS)]
    bar = {"thickness": 10, "outlinewidth": 0, "title": {"text": escape_text(shown.suffix), "side": "right"}}
    made = _base(layer.name, ()) | {"type": "heatmap", "z": cells, "colorscale": scale, "colorbar": bar}
    made |= {"xgap": 1, "ygap": 1}
    texts = [[escape_text(text) for text in row] for row in layer.texts]
    made |= {"zmin": low, "zmax": high, "hoverinfo": "text", "hovertext": texts, "hoverongaps": False}
    return made | {"customdata": [list(row) for row in layer.trials]}


# A rule has no trace: it is a shape of the layout.
_TRACES: dict[type, Callable[[Any], Json]] = {
    Density: _density, Heat: _heat, Bars: _bars, Lines: _lines, Points: _marks, Intervals: _marks,
}  # fmt: skip


def describe_details(evidence: Evidence) -> Json:
    """``{"number", "family", "columns", "shown", "constant", "filters", "notes", "parts", "ledger", "curves",
    "curve_label", "commands"}``.

    Lists are in the order of ``number``; a column has ``label``, ``name`` (its name in the frame), ``group``, ``texts``
    and, where it is sorted by other values than the texts, ``keys`` with null where nothing is known. ``shown`` are the
    positions of the columns that the table of trials has, ``constant`` names what is the same in all of them. Curves
    have the columns seconds, steps, epochs, accuracy in % (or what a script reports), loss.
    """
    frame = evidence.detailed
    columns = list(_list_columns(evidence))
    first = (*_FIRST, *list_leading(evidence.answer.quality))
    columns.sort(key=lambda column: first.index(column["name"]) if column["name"] in first else len(first))
    num_kept = sum(column["name"] in first for column in columns)
    shown, constant = split_columns(
        [column["label"] for column in columns], [column["texts"] for column in columns], num_kept
    )
    spent = parts_of(frame)
    return {
        "number": [int(number) for number in frame["number"]],
        "family": [int(family) for family in frame["family"]],
        "columns": columns,
        "shown": shown,
        "constant": ", ".join(constant),
        "filters": [item for index, column in enumerate(columns) if (item := _make_filter(index, column))],
        "notes": _notes(evidence),
        "parts": [{"name": name, "color": look_of(part).color} for part, name in PARTS],
        "ledger": [_rounded(row) for row in np.stack([spent[part] for part, _ in PARTS], axis=1)],
        "curves": _curves(evidence),
        "curve_label": _label_curve(evidence.answer.quality),
        "commands": train_commands(frame, evidence.frames),
    }


def _list_columns(evidence: Evidence) -> Iterator[Json]:
    frame, swept = evidence.detailed, evidence.swept

    def column(label: str, name: str, group: str, texts: Iterable[object], values: Values | None = None) -> Json:
        keys = {} if values is None else {"keys": _rounded(values)}
        return {"label": label, "name": name, "group": group, "texts": list(map(str, texts))} | keys

    yield column("Trial", "number", "trial", map(int, frame["number"]), read_numbers(frame, "number"))
    yield column("Outcome", "outcome", "trial", (OUTCOME_NAMES.get(name, name) for name in frame["outcome"]))
    yield column("Phase", "phase", "trial", frame["phase"])
    yield column("Seed", "seed", "trial", map(int, frame["seed"]), read_numbers(frame, "seed"))
    for key in swept:
        name = f"config.{key}"
        numbers = read_numbers(frame, name)
        is_number = len(keep_finite(numbers)) > 0 and frame[name].dtype != bool
        texts = format_column(frame, key)
        yield column(key_label(key).capitalize(), name, "setting", texts, numbers if is_number else None)
    if any(key.startswith("batch.") for key in swept) and "batch.global" not in swept:
        sizes = read_numbers(frame, "global_batch_size")
        shown = map(format_setting, sizes.tolist())
        yield column("Effective batch size", "global_batch_size", "setting", shown, sizes)
    for name in dict.fromkeys((*evidence.objectives, *USUAL_METRICS, *_MORE_METRICS)):
        values = read_numbers(frame, name)
        if len(keep_finite(values)):
            cells = [format_metric(name, value, evidence.answer.quality) for value in values]
            yield column(evidence.metric(name).label, name, "measured", cells, values)
    bottlenecks = read_text(frame, "bottleneck")
    if (bottlenecks != "").any():
        yield column("Bottleneck", "bottleneck", "measured", bottlenecks)


def _rounded(values: Values, digits: int = 7) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]


def _make_filter(index: int, column: Json) -> Json | None:
    """Checkboxes where a column has few values, bounds where it has many numbers; none where it has one value."""
    if column["group"] == "measured" or column["label"] in {"Trial", "Seed"}:
        return None
    keys = column.get("keys", [0.0] * len(column["texts"]))
    key_of = {text: -math.inf if key is None else key for text, key in zip(column["texts"], keys, strict=True)}
    values = sorted(key_of, key=lambda text: (key_of[text], text))
    if len(values) < 2:
        return None
    if len(values) <= _MAX_CHOICES:
        return {"column": index, "kind": "choice", "values": values}
    numbers = [key for key in column.get("keys", ()) if key is not None]
    return {"column": index, "kind": "range", "low": min(numbers), "high": max(numbers)} if numbers else None


def _notes(evidence: Evidence) -> list[str]:
    """Remarks about each trial: its error, quality warnings, origin."""
    frame = evidence.detailed
    texts = (read_text(frame, name) for name in ("error", "quality_flags", "reused_from"))
    notes = []
    for error, flags, origin, is_enqueued in zip(*texts, read_cells(frame, "is_enqueued"), strict=True):
        remarks = ["Enqueued by hand"] if is_enqueued else []
        remarks += [str(error)] if error else []
        remarks += [f"Quality warnings: {name_flags(str(flags))}"] if flags else []
        remarks += [f"Reused from {origin}"] if origin else []
        notes.append("\n".join(remarks)[:_MAX_NOTE])
    return notes


def _curves(evidence: Evidence) -> Json:
    """The curve of each detailed trial that has one, by its number."""
    frame, quality = evidence.detailed_evaluations, evidence.answer.quality
    names = [quality.column if name == "val_accuracy" else name for name in _CURVES]
    table = np.stack([read_numbers(frame, name) for name in names], axis=1)
    table[:, _CURVES.index("val_accuracy")] *= 100.0 if quality.unit == "fraction" else 1.0
    owners, begins = np.unique(read_numbers(frame, "number"), return_index=True)
    made: Json = {}
    for owner, part in zip(owners, np.split(table, begins[1:]), strict=False):
        rows = part[select_evenly(len(part), MAX_MOMENTS)]
        made[str(int(owner))] = [_rounded(values, 5) for values in rows.T]
    return made


def _label_curve(quality: Quality) -> str:
    return quality.noun + {"fraction": " (%)", "nats": " (nats)"}.get(quality.unit, "")


def write_study(spec: StudySpec) -> str:
    """The TOML text of ``spec``, which :func:`sweep.config.study_file.load_study` reads as the same study."""
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    lines = [f"{name} = {toml_literal(value)}" for name, value in table.items() if name not in _TABLES]
    for name in _TABLES:
        lines += ["", f"[{name}]"]
        lines += [f"{toml_literal(key)} = {toml_literal(value)}" for key, value in table.get(name, {}).items()]
    return "\n".join(lines) + "\n"


def format_keys(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Every key that ``spec`` sets or leaves at its default, except name and question, and its value as TOML; those of
    base and space by dotted path."""
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name", "question"})
    for name, value in table.items():
        if name in _TABLES:
            yield from ((f"{name}.{key}", toml_literal(setting)) for key, setting in value.items())
        else:
            yield name, toml_literal(value)


def describe_limits(candidates: Candidates | None) -> Json | None:
    """What each use recommends within every combination of limits that the sliders have, computed as ``sweep
    recommend`` does with these limits. None where fewer than two configurations can be compared.

    ``limits`` are the sliders: metric, label and, for each position, the text and the option of the command.
    ``answers`` has for every combination (positions of the last slider next to each other) and each of the ``uses`` an
    index of ``named``, whose items are an index of ``shown`` and how sure the use is; -1 where the records do not
    suffice, -2 where no configuration keeps to the limits.
    """
    if candidates is None or len(candidates.rows) < 2:
        return None
    # the draws of each metric next to each other, which halves the time
    draws = np.moveaxis(np.ascontiguousarray(np.moveaxis(candidates.draws, -1, 0)), 0, -1)
    candidates = replace(candidates, draws=draws)
    quality = candidates.records.quality
    names = [name for name in (quality.column, SECONDS, MEMORY) if name in candidates.names]
    num_steps = next(count for most, count in _STEPS if len(candidates.rows) <= most)
    keys = {SECONDS: "max_seconds", MEMORY: "max_memory_bytes", quality.column: "limit_quality"} | _OF_ACCURACY
    steps = [_list_steps(name, candidates.values(name), num_steps, quality) for name in names]
    uses = {"batch_size": ("Batch size", BATCH_SIZE)} | {
        name: (name_use(name, quality), use) for name, use in USE_TABLE.items() if use.takes_part(candidates).any()
    }
    rows = np.flatnonzero(candidates.nameable).tolist()
    named: dict[tuple[int, str], int] = {}
    answers = []
    for limits in product(*steps):
        given = dict(zip(names, (step.value for step in limits), strict=True))
        limited = replace(candidates, limits=replace(Limits(), **{keys[name]: each for name, each in given.items()}))
        is_possible = bool(limited.within_limits().any())
        for _, use in uses.values():
            pick, probabilities = pick_for(limited, use, limited.nameable)
            if pick is None:
                answers.append(-1 if is_possible else -2)
                continue
            shown = format_probability(float(probabilities[pick]))
            answers.append(named.setdefault((rows.index(pick), shown), len(named)))
    return {
        "command": candidates.records.commands.recommend(),
        "limits": [
            {
                "name": name,
                "label": _label_limit(name, quality),
                "texts": [step.text for step in part],
                "options": [step.option for step in part],
                "free": [step.value for step in part].index(None),
            }
            for name, part in zip(names, steps, strict=True)
        ],
        "metrics": names,
        "uses": [title for title, _ in uses.values()],
        "answers": answers,
        "named": list(map(list, named)),
        "shown": _describe_candidates(candidates, names, rows),
    }


def _label_limit(name: str, quality: Quality) -> str:
    is_least = name == quality.column and quality.sign > 0
    return f"{'Minimum' if is_least else 'Maximum'} {metric_label(name, quality).lower()}"


class _Step(NamedTuple):
    """A position of a slider: a number that the command line accepts as it is printed."""

    value: float | None
    text: str
    option: str


def _list_steps(name: str, values: Values, count: int, quality: Quality) -> list[_Step]:
    # even between the least and the largest estimate, of time and memory by their logarithm
    known = keep_finite(values)
    low, high = float(known.min()), float(known.max())
    free = _Step(None, "no limit", "")
    if name == quality.column and name != ACCURACY:
        gains = [float(f"{low + (high - low) * step / (count - 1):.4g}") for step in range(1, count)]
        asked = [quality.sign * gain for gain in gains]
        return [free, *(_Step(each, quality.format_value(each), f" --limit-quality {each:g}") for each in asked)]
    if name == ACCURACY:
        shares = [round(low + (high - low) * step / (count - 1), 4) for step in range(1, count)]
        return [free, *(_Step(share, format_metric(name, share), f" --min-accuracy {share:g}") for share in shares)]
    unit = 2.0**20 if name == MEMORY else 1.0
    shown = [float(f"{low * (high / low) ** (step / (count - 1)) / unit:.3g}") for step in range(count - 1)]
    option = "--max-memory {:g}MiB" if name == MEMORY else "--max-seconds {:g}"
    return [*(_Step(part * unit, format_metric(name, part * unit), f" {option.format(part)}") for part in shown), free]


def _describe_candidates(candidates: Candidates, names: list[str], rows: list[int]) -> list[Json]:
    """The candidates that may be named, with the settings that differ between them."""
    frame = candidates.records.frame.iloc[candidates.rows[rows]]
    configs = [config_of(row) for _, row in frame.iterrows()]
    quality = candidates.records.quality
    keys = dict.fromkeys(key for config in configs for key in select_shown(candidates, config))
    varied = [key for key in keys if key != "batch.global" and len({str(config[key]) for config in configs}) > 1]
    return [
        {
            "number": candidates.number(row),
            "batch": int(batch),
            "settings": ", ".join(f"{key_label(key)} {format_setting(config[key])}" for key in varied),
            "cells": [format_estimate(name, *estimate_value(candidates, row, name), quality) for name in names],
        }
        for row, config, batch in zip(rows, configs, frame["global_batch_size"], strict=True)
    ]
