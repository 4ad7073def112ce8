"""From the neutral table and the map of its columns to frames, as if the runs were trials without a study."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import METRICS
from sweep.config.trial_config import compute_global_batch, config_keys
from sweep.foreign.carried_limits import describe_left_out, list_limits
from sweep.foreign.cell_values import convert_metric, convert_settings, is_missing, simplify_cells
from sweep.foreign.column_map import FACTS, ColumnMap, MappedColumn
from sweep.foreign.foreign_curves import convert_curves, describe_curves, take_value
from sweep.foreign.foreign_table import ForeignTable
from sweep.foreign.map_drafts import looks_like_seed
from sweep.foreign.seed_phases import choose_phases, group_runs, refuse_equal_runs
from sweep.records.columns import CONFIG_COLUMNS, CONFIG_PREFIX
from sweep.records.frames.frame_columns import FRAME_PARTS, FrameColumn, build_frame
from sweep.records.frames.record_source import RecordSource
from sweep.records.frames.study_frames import Frames

ACCURACY = "val_accuracy"
_MODEL, _NO_MODEL = "model.name", "model not on record"
_BATCH_KEYS = ("batch.global", "batch.micro")
_KINDS = {column.path: column for column in CONFIG_COLUMNS}


@dataclass(kw_only=True)
class _Columns:
    """The columns of the trials while they are made, each with a cell per run of the table."""

    settings: dict[str, list[Any]] = field(default_factory=dict)  # by key of ours, or by the file's own name
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seeds: list[int | None] | None = None
    devices: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def make_foreign_frames(table: ForeignTable, mapping: ColumnMap, name: str, map_file: str = "") -> Frames:
    """Frames of the runs in ``table``, whose columns mean what ``mapping`` states; ``trials`` has only those columns
    that are known, and ``number`` is the place of a run in the source, from 1.

    Raises:
        InputError: a column or a required quantity is missing, a cell is no value of its quantity, or two runs cannot
            be told apart.
    """
    _check_columns(table, mapping)
    columns = _convert(table, mapping)
    kept, left_out = _select_runs(table, columns)
    numbers = [place + 1 for place in kept]
    seeds = None if columns.seeds is None else [columns.seeds[place] for place in kept]
    settings = {name: [cells[place] for place in kept] for name, cells in columns.settings.items()}
    groups = group_runs({key: cells for key, cells in settings.items() if key != "seed"}, len(kept))
    refuse_equal_runs(groups, seeds, numbers, table.place)
    phases, rule = choose_phases(groups, seeds, mapping.search_seed)
    trials = _build_trials(columns, settings, kept, name)
    trials.insert(2, "phase", pd.Series(phases, dtype="str"))
    if seeds is not None:
        trials.insert(4, "seed", pd.Series(seeds, dtype="Int64"))
    source = replace(_describe(table, mapping, columns, [rule, *left_out]), map_file=map_file)
    return _make_frames(table, mapping, trials, source, name)


def _check_columns(table: ForeignTable, mapping: ColumnMap) -> None:
    known = list(map(str, table.cells.columns))
    for name in (*(mapped.column for mapped in mapping.columns.values()), *mapping.settings, *mapping.ignored):
        if name not in known:
            raise InputError(f"{table.place}: {describe_unknown('column', name, known)}")
    for target, mapped in mapping.columns.items():
        if mapped.take != "last" and not table.has_series(mapped.column):
            raise InputError(
                f"{table.place}: {target}: take = {mapped.take!r}: column {mapped.column!r} has one value per run; "
                "delete it."
            )
    given = {*mapping.columns, *mapping.constants}
    if ACCURACY not in given:
        raise InputError(f"{table.place}: the map names no column for {ACCURACY}, which every answer rests on.")
    if not given & set(_BATCH_KEYS):
        raise InputError(
            f"{table.place}: the map names no column for the batch size: batch.global where it is the effective batch "
            "size (the samples of one optimizer step), batch.micro where it is that of one pass on one device."
        )


def _convert(table: ForeignTable, mapping: ColumnMap) -> _Columns:
    made = _Columns()
    num_runs = len(table.cells)
    for key, value in mapping.constants.items():
        if key != "device":
            made.settings[key] = convert_settings(key, [value] * num_runs, f"the map: {key}")
    for target, mapped in mapping.columns.items():
        cells = take_value(table, mapped)
        where = f"{table.place}: column {mapped.column!r}"
        if target in config_keys() and target != "seed":
            made.settings[target] = convert_settings(target, cells, where)
        elif target in METRICS:
            made.metrics[target] = convert_metric(target, mapped, cells, where)
    made.settings.setdefault(_MODEL, [_NO_MODEL] * num_runs)
    made.settings |= dict(_list_own_settings(table, mapping))
    made.seeds = _find_seeds(table, mapping)
    made.devices = _find_devices(table, mapping)
    made.outcomes = _find_outcomes(table, mapping)
    _drop_times_of_unknown_devices(made)
    return made


def _list_own_settings(table: ForeignTable, mapping: ColumnMap) -> Iterator[tuple[str, list[Any]]]:
    # a hyperparameter that varies tells configurations apart, whether or not this program has a word for it
    used = {mapped.column for mapped in mapping.columns.values()} | set(mapping.ignored)
    for name in map(str, table.cells.columns):
        cells = table.cells[name].tolist()
        varies = table.roles[name] == "parameter" and len(set(map(str, cells))) > 1
        if name in used or not (varies or name in mapping.settings):
            continue
        if name in config_keys() or name in FACTS:
            raise InputError(
                f"{table.place}: column {name!r} varies and has the name of a key of this program: if it is that, map "
                f'it ("{name}" = "{name}" in [columns]), otherwise name it in ignored.'
            )
        if looks_like_seed(name) and name not in mapping.settings:
            raise InputError(
                f'{table.place}: column {name!r} varies and may be the seed: map it (seed = "{name}" in [columns]), or '
                "name it in settings or ignored."
            )
        yield name, list(simplify_cells(cells))


def _find_seeds(table: ForeignTable, mapping: ColumnMap) -> list[int | None] | None:
    if mapping.own_seeds:
        return list(range(len(table.cells)))
    if "seed" not in mapping.columns:
        return None
    column = mapping.columns["seed"].column
    return convert_settings("seed", table.cells[column].tolist(), f"{table.place}: column {column!r}")


def _find_devices(table: ForeignTable, mapping: ColumnMap) -> list[str]:
    if "device" in mapping.columns:
        cells = table.cells[mapping.columns["device"].column].tolist()
        return ["" if is_missing(cell) else str(cell) for cell in cells]
    return [str(mapping.constants.get("device", ""))] * len(table.cells)


def _find_outcomes(table: ForeignTable, mapping: ColumnMap) -> list[str]:
    column = mapping.columns["outcome"].column if "outcome" in mapping.columns else table.state
    if not column:
        return ["complete"] * len(table.cells)
    words = {word.lower(): outcome for word, outcome in {**table.outcomes, **mapping.outcomes}.items()}
    cells = ["" if is_missing(cell) else str(cell) for cell in table.cells[column]]
    for cell in cells:
        if cell.lower() not in words:
            raise InputError(
                f"{table.place}: column {column!r}: what {cell!r} is is not known; give its outcome in [outcomes]: "
                f'"{cell}" = "complete".'
            )
    return [words[cell.lower()] for cell in cells]


def _drop_times_of_unknown_devices(made: _Columns) -> None:
    of_device = [name for name in made.metrics if METRICS[name].is_of_a_device]
    is_known = np.array([bool(device) for device in made.devices])
    for name in of_device:
        if is_known.any():
            made.metrics[name] = np.where(is_known, made.metrics[name], np.nan).tolist()
        else:
            made.dropped.append(name)
            del made.metrics[name]


def _select_runs(table: ForeignTable, made: _Columns) -> tuple[list[int], list[str]]:
    has_batch = [value is not None for value in _global_batches(made, len(table.cells))]
    has_ended = [bool(outcome) for outcome in made.outcomes]
    has_seed = [made.seeds is None or seed is not None for seed in made.seeds or [0] * len(table.cells)]
    kept = [place for place, each in enumerate(zip(has_batch, has_ended, has_seed, strict=True)) if all(each)]
    counts = {
        "they have not ended": has_ended.count(False),
        "they have no batch size": has_batch.count(False),
        "they have no seed, while others have one": has_seed.count(False),
    }
    if not kept:
        raise InputError(
            f"{table.place}: no run is left: {', '.join(name for name, count in counts.items() if count)}."
        )
    return kept, list(describe_left_out(counts))


def _global_batches(made: _Columns, num_runs: int) -> list[int | None]:
    none = [None] * num_runs
    keys = ("batch.global", "batch.micro", "batch.accumulation", "distributed.world_size")
    rows = zip(*(made.settings.get(key, none) for key in keys), strict=True)
    return [
        None if whole is None and micro is None else compute_global_batch(whole, micro, accumulation, size or 1)
        for whole, micro, accumulation, size in rows
    ]


def _build_trials(made: _Columns, settings: Mapping[str, list[Any]], kept: Sequence[int], name: str) -> pd.DataFrame:
    declared = [FrameColumn("study", "text"), FrameColumn("number", "int"), FrameColumn("outcome", "text")]
    cells: dict[str, Sequence[Any]] = {
        "study": [name] * len(kept),
        "number": [place + 1 for place in kept],
        "outcome": [made.outcomes[place] for place in kept],
    }
    for key, values in settings.items():
        kind = (
            _KINDS[key].kind if key in _KINDS else "text" if any(isinstance(cell, str) for cell in values) else "float"
        )
        declared.append(FrameColumn(CONFIG_PREFIX + key, kind, nullable=True))
        cells[CONFIG_PREFIX + key] = values
    batches = _global_batches(made, len(made.outcomes))
    declared += [FrameColumn("global_batch_size", "int"), *(FrameColumn(each, "float") for each in made.metrics)]
    declared += [FrameColumn(each, "text") for each in ("device", "quality_flags", "error", "reused_from", "trial_key")]
    cells["global_batch_size"] = [batches[place] for place in kept]
    cells |= {each: [values[place] for place in kept] for each, values in made.metrics.items()}
    cells["device"] = [made.devices[place] for place in kept]
    cells |= dict.fromkeys(("quality_flags", "error", "reused_from", "trial_key"), [""] * len(kept))
    return build_frame(declared, cells, len(kept))


def _describe(table: ForeignTable, mapping: ColumnMap, made: _Columns, rules: Sequence[str]) -> RecordSource:
    used = [(mapped.column, _name_meaning(target, mapped)) for target, mapped in mapping.columns.items()]
    own = [name for name in made.settings if name not in config_keys()]
    used += [(name, "a setting of its own") for name in own]
    names = {name for name, _ in used} | ({table.state} if "outcome" not in mapping.columns else set())
    present = {*made.metrics, *(CONFIG_PREFIX + key for key in made.settings)}
    batch_key = "batch.global" if "batch.global" in made.settings else "batch.micro"
    curves = describe_curves(table, mapping)
    if own:
        rules = [
            *rules,
            f"These tell configurations apart under their own names: {', '.join(own)}. Name what changes "
            "nothing in ignored.",
        ]
    limits = list_limits(present, any(made.devices), made.dropped, batch_key)
    return RecordSource(
        program=table.program,
        file=table.place,
        digest=table.digest,
        num_runs=len(table.cells),
        columns=tuple(used),
        constants=tuple((key, str(value)) for key, value in mapping.constants.items()),
        ignored=tuple(name for name in map(str, table.cells.columns) if name not in names),
        limits=tuple(filter(None, (*rules, *table.notes, _describe_states(table, mapping), *limits, curves))),
    )


def _describe_states(table: ForeignTable, mapping: ColumnMap) -> str:
    is_known = table.state or "outcome" in mapping.columns
    return "" if is_known else "How the runs ended is not on record: all count as complete."


def _name_meaning(target: str, mapped: MappedColumn) -> str:
    taken = f", the {mapped.take}imum of its series" if mapped.take != "last" else ""
    return f"{target}{f' in {mapped.unit}' if mapped.unit else ''}{taken}"


def _make_frames(
    table: ForeignTable, mapping: ColumnMap, trials: pd.DataFrame, source: RecordSource, name: str
) -> Frames:
    empty: dict[str, Any] = {part.field: build_frame(part.columns, {}, 0) for part in FRAME_PARTS}
    evaluations = convert_curves(table, mapping, trials, name)
    return Frames(**(empty | {"trials": trials, "evaluations": evaluations}), place=table.place, source=source)
