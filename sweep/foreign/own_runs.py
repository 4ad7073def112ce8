"""The trials of a study as runs of another program, and such runs as trials again: names, units and values are ours."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import METRICS
from sweep.foreign.cell_values import is_missing
from sweep.foreign.foreign_table import ForeignTable
from sweep.records.columns import CONFIG_PREFIX, EVALUATION_KINDS, Kind
from sweep.records.frames.frame_columns import (
    EVALUATION_COLUMNS,
    FRAME_PARTS,
    TRIAL_COLUMNS,
    FrameColumn,
    build_frame,
)
from sweep.records.frames.frame_files import cells_of
from sweep.records.frames.record_source import RecordSource
from sweep.records.frames.study_frames import Frames

OWN = "batch_sweep."  # begins the names of facts that are neither a setting nor a result
FORMAT = f"{OWN}format"
VERSION = "1"
SERIES = "evaluation/"  # begins the names of learning curves
# of names in the sources: which part of a run they are of
_PARTS = ("params.", "metrics.", "tags.", "hparams.")
OTHER_ANSWER = (
    "The trials are those of the study, the answer may be another: without the validation images its intervals are for "
    "other seeds on the same images, and without the study's file its tolerance and objectives are the defaults."
)
# What runs of other programs have no place for.
NOT_CARRIED = "attempts, probes, environments, the study's file, and which validation images were got right"


@dataclass(frozen=True, kw_only=True)
class RunContents:
    """What a run of another program gets of a trial: ``settings`` by key, ``results`` by metric in our units, ``facts``
    by name as texts, and ``curves``: for each evaluation its step and its values by name."""

    number: int
    study: str
    outcome: str
    started_ms: int | None  # since 1970, of the first attempt
    settings: Mapping[str, str | int | float | bool]
    results: Mapping[str, float]
    facts: Mapping[str, str]
    curves: tuple[tuple[int, Mapping[str, float]], ...]


def list_run_contents(frames: Frames) -> Iterator[RunContents]:
    """The contents of a run for each trial of ``frames``, whose evaluations are loaded."""
    assert frames.evaluations is not None
    curves: dict[tuple[str, int], list[tuple[int, Mapping[str, float]]]] = {}
    starts = frames.attempts.groupby(["study", "number"])["started_at"].min()
    for row in _rows(frames.evaluations):
        values = {name: float(row[name]) for name in EVALUATION_KINDS if name != "step" and _is_number(row[name])}
        curves.setdefault((row["study"], row["number"]), []).append((row["step"], values | {"attempt": row["attempt"]}))
    for row in _rows(frames.trials):
        settings = {
            name.removeprefix(CONFIG_PREFIX): value
            for name, value in row.items()
            if name.startswith(CONFIG_PREFIX) and value is not None
        }
        facts = {f"{OWN}{column.name}": str(row[column.name]) for column in _FACTS if row[column.name] is not None}
        yield RunContents(
            number=row["number"],
            study=row["study"],
            outcome=row["outcome"] or "",
            started_ms=_to_milliseconds(starts.get((row["study"], row["number"]))),
            settings=settings,
            results={name: float(row[name]) for name in METRICS if _is_number(row[name])},
            facts=facts | {FORMAT: VERSION},
            curves=tuple(curves.get((row["study"], row["number"]), ())),
        )


def _rows(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    columns = {str(name): cells_of(frame[name]) for name in frame}
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _to_milliseconds(moment: Any) -> int | None:
    return None if moment is None or pd.isna(moment) else int(moment.timestamp() * 1000)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


_FACTS = [each for each in TRIAL_COLUMNS if not each.name.startswith(CONFIG_PREFIX) and each.name not in METRICS]


def find_own_names(table: ForeignTable) -> dict[str, str]:
    """The columns of ``table`` by their names here, where every run was written by this program; otherwise empty."""
    names = {_strip_part(name): name for name in map(str, table.cells.columns)}
    if FORMAT not in names:
        return {}
    formats = set(map(str, table.cells[names[FORMAT]]))
    if len(formats) > 1 and "None" in formats:
        return {}
    if formats != {VERSION}:
        raise InputError(f"{table.place}: {describe_unknown('format', min(formats), [VERSION])}")
    return names


def _strip_part(name: str) -> str:
    return next((name.removeprefix(part) for part in _PARTS if name.startswith(part)), name)


def restore_frames(table: ForeignTable, names: Mapping[str, str]) -> Frames:
    """The trials and evaluations that :func:`list_run_contents` described. Raises ``InputError`` for a damaged cell."""
    cells = {column.name: _read_column(table, names, column) for column in TRIAL_COLUMNS}
    try:
        trials = build_frame(TRIAL_COLUMNS, cells, len(table.cells))
        evaluations = _restore_evaluations(table, trials)
    except (ValueError, TypeError) as error:
        raise InputError(f"{table.place}: its runs are damaged: {error}.") from None
    order = trials.sort_values(["study", "number"], kind="stable").reset_index(drop=True)
    studies = sorted(set(trials["study"]))
    known = {_strip_part(name) for name in names.values()} - {FORMAT}
    source = RecordSource(
        program=f"{table.program}, exported by batch-sweep",
        file=table.place,
        digest=table.digest,
        num_runs=len(trials),
        columns=((f"{len(known):,} columns", "what their names state"),),
        limits=(f"Not carried by this format: {NOT_CARRIED}.", OTHER_ANSWER, *table.notes),
    )
    empty: dict[str, Any] = {part.field: build_frame(part.columns, {}, 0) for part in FRAME_PARTS}
    if len(studies) > 1:
        raise InputError(f"{table.place}: it holds runs of the studies {', '.join(studies)}; export one alone.")
    return Frames(**(empty | {"trials": order, "evaluations": evaluations}), place=table.place, source=source)


def _read_column(table: ForeignTable, names: Mapping[str, str], column: FrameColumn) -> list[Any]:
    own = column.name.removeprefix(CONFIG_PREFIX)
    source = names.get(own) or names.get(f"{OWN}{own}")
    if source is None:
        return [None if column.nullable or column.kind == "float" else _DEFAULTS.get(column.kind)] * len(table.cells)
    is_text = column.kind == "text"
    return [
        _parse(column, cell) if not (cell is None or (not is_text and is_missing(cell))) else _fill(column)
        for cell in table.cells[source].tolist()
    ]


_DEFAULTS: dict[Kind, Any] = {"text": ""}


def _fill(column: FrameColumn) -> Any:
    return None if column.nullable or column.kind != "text" else ""


def _parse(column: FrameColumn, cell: Any) -> Any:
    if column.kind == "text":
        return str(cell)
    if column.kind == "bool":
        return str(cell).lower() in {"true", "1", "1.0"}
    return int(float(cell)) if column.kind == "int" else float(cell)


def _restore_evaluations(table: ForeignTable, trials: pd.DataFrame) -> pd.DataFrame:
    own = table.curves[table.curves["column"].astype(str).map(_strip_part).str.startswith(SERIES)]
    if not len(own):
        return build_frame(EVALUATION_COLUMNS, {}, 0)
    target = own["column"].map(lambda name: _strip_part(str(name)).removeprefix(SERIES))
    wide = own.assign(target=target).pivot_table(
        index=["row", "step"], columns="target", values="value", aggfunc="last"
    )
    rows = [int(row) for row in wide.index.get_level_values("row")]
    cells: dict[str, list[Any]] = {
        column.name: [_parse(column, cell) for cell in wide[column.name]]
        if column.name in wide
        else [math.nan] * len(wide)
        for column in EVALUATION_COLUMNS
    }
    cells["step"] = [int(step) for step in wide.index.get_level_values("step")]
    cells["study"] = [trials["study"].iloc[row] for row in rows]
    cells["number"] = [int(trials["number"].iloc[row]) for row in rows]
    frame = build_frame(EVALUATION_COLUMNS, cells, len(wide))
    return frame.sort_values(["study", "number", "step"], kind="stable").reset_index(drop=True)
