"""Frames from the records of another program, as if its runs were trials without a study."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from sweep.config.errors import InputError, describe_unknown, shorten_text
from sweep.config.metrics import METRICS, format_count, join_words
from sweep.config.study import choose_study_name
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import config_fields, config_keys
from sweep.foreign.column_map import (
    FACTS,
    ColumnMap,
    MappedColumn,
    find_candidates,
    find_units,
    is_usual_name,
    load_column_map,
)
from sweep.foreign.imported import is_imported, read_imported
from sweep.foreign.sources import STATES, Cell, ForeignTable, is_setting, read_foreign_table
from sweep.records.frames import (
    EVALUATION_COLUMNS,
    FRAME_PARTS,
    FrameColumn,
    Frames,
    RecordSource,
    build_frame,
    check_frames,
)
from sweep.records.messages import OUTCOMES
from sweep.records.records import CONFIG_COLUMNS, CONFIG_PREFIX, EVALUATION_KINDS, Kind

_ACCURACY = "val_accuracy"
_KINDS: dict[str, Kind] = {column.path: column.kind for column in CONFIG_COLUMNS} | {"seed": "int"}
_MAX_BATCH = 2.0**40  # as in a configuration
_GROUP = "group"  # runs of equal settings have the same


def load_foreign_frames(
    place: str | Path | pd.DataFrame, columns: str | Path | Mapping[str, Any] | None = None
) -> Frames:
    """The runs in a file or folder of another program, or in a DataFrame with a row per run, as frames with ``source``
    set. ``columns`` is the map of the columns: its TOML file, or a dictionary of the same keys. ``trials`` has only
    the columns that are known, and ``number`` is the position of a run in the source, from 1. A folder that
    ``sweep import`` made of such records is read as it is.

    Raises:
        InputError: the file cannot be read, there is no map, or the map does not fit; the message names the candidates
            and the remedy.
    """
    if columns is None and isinstance(place, str | Path) and is_imported(Path(place)):
        return read_imported(Path(place))
    mapping = load_column_map(Path(columns) if isinstance(columns, str | Path) else columns or {})
    series = {mapped.column for mapped in mapping.columns.values()}
    table = read_foreign_table(place if isinstance(place, pd.DataFrame) else Path(place), mapping.study, series)
    if columns is None:
        raise InputError(_ask_for_map(table))
    _check_columns(table, mapping)
    name = mapping.name or choose_study_name(Path(table.place).resolve())
    every, dropped = _drop_times_of_unknown_devices(_convert_runs(table, mapping))
    runs, left_out = _select_runs(every, table.place)
    phases, rule = _choose_phases(runs, mapping)
    trials = _arrange_columns(runs.assign(study=name, phase=phases))
    limits = [rule, *left_out, *_list_limits(table, mapping, trials, dropped)]
    map_file = "" if isinstance(columns, Mapping) else str(columns)
    parts: dict[str, Any] = {part.field: build_frame(part.columns, {}, 0) for part in FRAME_PARTS}
    parts |= {"trials": trials, "evaluations": _convert_curves(table, mapping, trials, name)}
    frames = Frames(**parts, place=table.place, source=_describe(table, mapping, trials, map_file, limits))
    check_frames(frames, table.place)
    return frames


def _ask_for_map(table: ForeignTable) -> str:
    parts = [f"{target}: {' or '.join(map(repr, names))}" for target, names in find_candidates(table.names).items()]
    remedy = (
        "Give the map as columns."
        if table.program == "pandas"
        else f"Write the map with `sweep import {table.place} --draft map.toml`, complete it, and make a study of the "
        f"records with `sweep import {table.place} --columns map.toml`."
    )
    return (
        f"{table.place}: {format_count(len(table.cells), 'run')} of {table.program}; what its columns mean, and in "
        f"which units, is not guessed. Candidates: {'; '.join(parts) or 'no column has a usual name'}. {remedy}"
    )


def _check_columns(table: ForeignTable, mapping: ColumnMap) -> None:
    for name in (*(mapped.column for mapped in mapping.columns.values()), *mapping.settings, *mapping.ignored):
        if name not in table.names:
            raise InputError(f"{table.place}: {describe_unknown('column', name, table.names)}")
    for target, mapped in mapping.columns.items():
        if mapped.take != "last" and not table.has_series(mapped.column):
            raise InputError(
                f"{table.place}: {target}: take = {mapped.take!r}: column {mapped.column!r} has one value per run; "
                "delete it."
            )
    given = {*mapping.columns, *mapping.constants}
    if _ACCURACY not in given:
        raise InputError(f"{table.place}: the map names no column for {_ACCURACY}, which every answer rests on.")
    if not given & {"batch.global", "batch.micro"}:
        raise InputError(
            f"{table.place}: the map names no column for the batch size: batch.global where it is the effective batch "
            "size (the samples of one optimizer step), batch.micro where it is the samples of one pass on one device."
        )


# ---------------------------------------------------------------------- from cells to columns


def _convert_runs(table: ForeignTable, mapping: ColumnMap) -> pd.DataFrame:
    # a row per run of the table, with all that is mapped; the outcome "" for a run that has not ended
    num_runs = len(table.cells)
    runs: dict[str, Any] = {"number": np.arange(1, num_runs + 1), "outcome": _find_outcomes(table, mapping)}
    for key, value in mapping.constants.items():
        if key != "device":
            runs[CONFIG_PREFIX + key] = _make_setting(key, [_parse(key, value, f"the map: {key}")] * num_runs)
    for target, mapped in mapping.columns.items():
        cells, where = _take_cells(table, mapped), f"{table.place}: column {mapped.column!r}"
        if target in _KINDS:
            parsed = [_parse(target, cell, f"{where}, run {number}") for number, cell in enumerate(cells, start=1)]
            runs[target if target == "seed" else CONFIG_PREFIX + target] = _make_setting(target, parsed)
        elif target in METRICS:
            runs[target] = _convert_metric(target, mapped, cells, range(1, num_runs + 1), where)
    runs |= {CONFIG_PREFIX + name: cells for name, cells in _list_own_settings(table, mapping)}
    runs.setdefault(f"{CONFIG_PREFIX}model.name", ["model not on record"] * num_runs)
    if mapping.own_seeds:
        runs["seed"] = pd.array(range(num_runs), dtype="Int64")
    device = mapping.columns.get("device")
    devices = [mapping.constants.get("device")] * num_runs if device is None else table.cells[device.column]
    runs["device"] = pd.array(["" if cell is None else str(cell) for cell in devices], dtype="str")
    frame = pd.DataFrame(runs)
    frame["global_batch_size"] = _compute_batches(frame, table.place)
    return _add_micro_batches(frame)


def _take_cells(table: ForeignTable, mapped: MappedColumn) -> list[Cell]:
    # one per run: the last value of a series, or its largest or smallest
    cells: list[Cell] = table.cells[mapped.column].tolist()
    if mapped.take != "last":
        points = table.curves[table.curves["column"] == mapped.column]
        taken = points.groupby("row")["value"].agg(mapped.take)
        cells = [taken.get(row, cell) for row, cell in enumerate(cells)]
    return cells


@cache
def _find_parser(target: str) -> TypeAdapter[Any]:
    # by the rule of the key, which refuses a batch size of 0 and an infinite rate
    declared: Any = int if target == "seed" else float
    if target in config_keys() and target != "seed":
        field = config_fields()[target]
        declared = Annotated[field.annotation, *field.metadata, target]
    return TypeAdapter(declared)


def _parse(target: str, cell: Cell, where: str) -> Any:
    if cell is None or _KINDS.get(target) == "text":
        known = str(cell).rpartition(".")[2].lower()  # others write AdamW, or torch.optim.AdamW
        is_known = target == "optimizer.name" and known in OPTIMIZERS
        return None if cell is None else known if is_known else str(cell)
    try:
        value = _find_parser(target).validate_python(cell)
    except ValidationError as error:
        rule = error.errors(include_url=False)[0]["msg"]
        raise InputError(
            f"{where}: {shorten_text(repr(cell))} is no {target}: {rule}. Correct it, or map another column."
        ) from None
    if isinstance(value, str):  # "auto"
        raise InputError(f"{where}: {value!r} is no {target} that was trained with: map the column of the numbers.")
    return value


def _make_setting(key: str, values: Sequence[Any]) -> Any:
    dtype: Any = FrameColumn(key, _KINDS[key], nullable=True).dtype
    return pd.array(values, dtype=dtype)


def _convert_metric(
    target: str, mapped: MappedColumn, cells: Sequence[Cell], numbers: Sequence[int], where: str
) -> "np.ndarray[Any, Any]":
    # in our unit; NaN where nothing is recorded, or no finite number
    given = np.array(
        [_parse(target, cell, f"{where}, run {number}") for number, cell in zip(numbers, cells, strict=True)],
        dtype=np.float64,
    )
    # a division, because 97.3 * 0.01 is another number than 0.973
    values = given / 100 if mapped.unit == "percent" else given * find_units(target).get(mapped.unit, 1.0)
    values[~np.isfinite(values)] = np.nan
    unit = METRICS[target].unit if target in METRICS else ""
    if unit == "fraction" and target.endswith("accuracy"):
        is_bad = (values < 0.0) | (values > 1.0)
    else:
        is_bad = (values < 0.0) & (unit in {"seconds", "bytes", "count"})
    for index in np.flatnonzero(is_bad)[:1]:
        refused = f"{where}, run {numbers[index]}: {target}: {given[index]}"
        if unit != "fraction":
            raise InputError(f"{refused} is below 0; map another column.")
        remedy = 'unit = "percent"' if mapped.unit == "fraction" and 1 < given[index] <= 100 else "another column"
        raise InputError(f"{refused} {mapped.unit} is no share between 0 and 1; is it {remedy}?")
    return values


def _find_outcomes(table: ForeignTable, mapping: ColumnMap) -> list[str]:
    column = mapping.columns["outcome"].column if "outcome" in mapping.columns else table.state
    if not column:
        return ["complete"] * len(table.cells)
    outcomes = dict(zip(OUTCOMES, OUTCOMES, strict=True)) | STATES | mapping.outcomes
    words = {word.lower(): outcome for word, outcome in outcomes.items()}
    cells = ["" if cell is None else str(cell) for cell in table.cells[column]]
    for cell in cells:
        if cell.lower() not in words:
            raise InputError(
                f"{table.place}: column {column!r}: what {cell!r} is is not known; give its outcome in [outcomes]: "
                f'"{cell}" = "complete".'
            )
    return [words[cell.lower()] for cell in cells]


def _list_own_settings(table: ForeignTable, mapping: ColumnMap) -> Iterator[tuple[str, Any]]:
    # a hyperparameter that varies tells configurations apart, whether or not this program has a word for it
    used = {mapped.column for mapped in mapping.columns.values()} | set(mapping.ignored)
    for name in table.names:
        varies = is_setting(name) and table.cells[name].map(str).nunique() > 1
        if name in used or not (varies or name in mapping.settings):
            continue
        if name in config_keys() or name in FACTS:
            raise InputError(
                f"{table.place}: column {name!r} varies and has the name of a key of this program: if it is that, map "
                f'it ("{name}" = "{name}" in [columns]), otherwise name it in ignored.'
            )
        for target, what in (("seed", "seed"), ("batch.accumulation", "accumulation")):
            if is_usual_name(target, name) and name not in mapping.settings:
                raise InputError(
                    f'{table.place}: column {name!r} varies and may be the {what}: map it ("{target}" = "{name}" in '
                    "[columns]), or name it in settings or ignored."
                )
        cells = table.cells[name]
        numbers = pd.to_numeric(cells, errors="coerce").astype("float64")
        is_text = (numbers.isna() & cells.notna()).any()
        yield name, pd.array([None if cell is None else str(cell) for cell in cells], "str") if is_text else numbers


def _compute_batches(runs: pd.DataFrame, where: str) -> "pd.Series[Any]":
    # missing where neither the effective nor the micro batch is recorded
    unknown = pd.Series(pd.NA, index=runs.index, dtype="Int64")
    product = runs.get(f"{CONFIG_PREFIX}batch.micro", unknown).astype("Float64")
    for key in ("batch.accumulation", "distributed.world_size"):
        product *= runs.get(CONFIG_PREFIX + key, unknown).fillna(1).astype("Float64")
    batches = runs.get(f"{CONFIG_PREFIX}batch.global", unknown).astype("Float64").fillna(product)
    if (batches > _MAX_BATCH).any():
        raise InputError(f"{where}: a run has a batch size above 2**40.")
    return batches.astype("Int64")


def _add_micro_batches(runs: pd.DataFrame) -> pd.DataFrame:
    # where they are not recorded and follow from accumulation
    micro, accumulation = (f"{CONFIG_PREFIX}batch.{key}" for key in ("micro", "accumulation"))
    if micro in runs or accumulation not in runs:
        return runs
    ranks = runs.get(f"{CONFIG_PREFIX}distributed.world_size", pd.Series(1, index=runs.index)).fillna(1)
    return runs.assign(**{micro: -(-runs["global_batch_size"] // (runs[accumulation] * ranks))})


def _drop_times_of_unknown_devices(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    # and the dropped metrics, where no run has a device
    of_device = [name for name in map(str, runs) if name in METRICS and METRICS[name].is_of_a_device]
    is_known = runs["device"] != ""
    if not is_known.any():
        return runs.drop(columns=of_device), of_device
    return runs.assign(**{name: runs[name].where(is_known) for name in of_device}), []


# ---------------------------------------------------------------------- from runs to trials


def _select_runs(runs: pd.DataFrame, where: str) -> tuple[pd.DataFrame, list[str]]:
    """The runs that count, with the number of their settings as ``_GROUP``, and a sentence for each reason for which
    others do not. Raises ``InputError`` where none is left, or two cannot be told apart."""
    reasons = {
        "they have not ended": runs["outcome"] == "",
        "they have no batch size": runs["global_batch_size"].isna(),
    }
    if "seed" in runs:
        reasons["they have no seed, while others have one"] = runs["seed"].isna()
    is_kept = ~np.logical_or.reduce(list(reasons.values()))
    kept = runs[is_kept]
    if kept.empty:
        raise InputError(f"{where}: no run is left: {', '.join(name for name, mask in reasons.items() if mask.any())}.")
    settings = [name for name in map(str, kept) if name.startswith(CONFIG_PREFIX)]
    varying = [name for name in settings if kept[name].nunique(dropna=False) > 1]
    groups = kept.groupby(varying, dropna=False, sort=False).ngroup() if varying else 0
    kept = kept.assign(**{_GROUP: groups})
    same = [_GROUP, *({"seed"} & {*kept})]
    is_repeated = (kept["outcome"] == "complete").groupby([kept[name] for name in same]).transform("any")
    is_repeated &= kept["outcome"].isin(["crashed", "cancelled"])
    reasons["they failed, and were repeated with equal settings and seed"] = is_repeated
    kept = kept[~is_repeated]
    if kept.duplicated(same).any():
        first, second = kept.loc[kept.duplicated(same, keep=False), ["number", *same]].sort_values(same)["number"][:2]
        what = "settings and seed" if "seed" in kept else "settings, and no column is mapped as the seed"
        map_it = "map the column of the seed, or write own_seeds = true if each run had a seed of its own; or "
        raise InputError(
            f"{where}: runs {first} and {second} have equal {what}: {'' if 'seed' in kept else map_it}name a further "
            "column that tells them apart in settings, or remove one of the two runs."
        )
    counts = {reason: int(mask.sum()) for reason, mask in reasons.items()}
    return kept, [f"{format_count(count, 'run')} left out: {reason}." for reason, count in counts.items() if count]


def _choose_phases(runs: pd.DataFrame, mapping: ColumnMap) -> tuple[Any, str]:
    """The phase of each run, and the rule as a sentence.

    Where all configurations were trained with the same seeds, none was chosen by its result, and every seed is a fresh
    one. Otherwise each configuration was chosen by one run, with the seed of the search or else its first; the others
    are fresh seeds.
    """
    if "seed" not in runs:
        return "search", "No seeds are on record: no interval between seeds, and no fresh seeds."
    search_seed = mapping.search_seed
    sets = runs.groupby(_GROUP)["seed"].apply(lambda seeds: tuple(sorted(seeds)))
    if sets.nunique() == 1 and len(sets.iloc[0]) > 1 and search_seed is None:
        text = format_count(len(sets.iloc[0]), "seed")
        return "confirm", f"All configurations have the same {text}, which count as fresh ones."
    usual = runs["seed"].mode().iloc[0] if search_seed is None else search_seed
    chosen_by = (runs["seed"] == usual).astype(int).groupby(runs[_GROUP]).idxmax()
    phases = np.where(runs.index.isin(chosen_by), "search", "confirm")
    if mapping.own_seeds:
        return (
            phases,
            "Of each configuration the first run counts as the search, by which it was chosen, the others not.",
        )
    return phases, (
        f"Of each configuration the run with seed {usual}, otherwise its first run, counts as the search, by which it "
        "was chosen; runs with other seeds count as fresh ones. Write search_seed in the map where it was another seed."
    )


def _arrange_columns(runs: pd.DataFrame) -> pd.DataFrame:
    texts = dict.fromkeys(("quality_flags", "error", "reused_from", "trial_key"), "")
    settings = [name for name in map(str, runs) if name.startswith(CONFIG_PREFIX)]
    metrics = [name for name in map(str, runs) if name in METRICS]
    head = ["study", "number", "phase", "outcome", *(["seed"] if "seed" in runs else [])]
    order = [*head, *settings, "global_batch_size", *metrics, "device", *texts]
    trials = runs.assign(**texts)[order].reset_index(drop=True)
    as_text = dict.fromkeys(("study", "phase", "outcome", "device", *texts), "str")
    return trials.astype({"number": "int64", "global_batch_size": "int64", **as_text})


def _convert_curves(table: ForeignTable, mapping: ColumnMap, trials: pd.DataFrame, name: str) -> pd.DataFrame:
    """The ``evaluations`` frame: a row per run and step with a ``val_accuracy``, and the other mapped values of that
    step. Empty without such a series, and where the map does not state what its steps count."""
    targets = EVALUATION_KINDS.keys() - {"step", "global_batch_size"}  # of the curve itself, and of its run
    series = {target: mapped for target, mapped in mapping.columns.items()
              if target in targets and table.has_series(mapped.column)}  # fmt: skip
    if _ACCURACY not in series or not mapping.steps:
        return build_frame(EVALUATION_COLUMNS, {}, 0)
    batches = trials.set_index("number")["global_batch_size"]
    points = table.curves.assign(number=table.curves["row"] + 1).drop_duplicates(
        ["number", "column", "step"], keep="last"
    )
    points = points[points["number"].isin(batches.index)]
    wide = points.pivot(index=["number", "step"], columns="column", values="value").sort_index()
    wide = wide[wide[series[_ACCURACY].column].notna()]
    numbers, steps = (wide.index.get_level_values(level).tolist() for level in ("number", "step"))
    cells: dict[str, Any] = {each: [np.nan] * len(wide) for each in EVALUATION_KINDS}
    for target, mapped in series.items():
        where = f"{table.place}: series {mapped.column!r}"
        cells[target] = _convert_metric(target, mapped, wide[mapped.column].tolist(), numbers, where)
    cells["samples"] = [None if np.isnan(value) else int(value) for value in cells["samples"]]
    is_epochs = mapping.steps == "epochs"
    cells["step"] = [None if is_epochs else int(step) for step in steps]
    cells |= {"epoch": steps} if is_epochs else {}
    cells |= {"study": [name] * len(wide), "number": numbers, "attempt": [1] * len(wide)}
    cells["global_batch_size"] = batches[numbers].tolist()
    return build_frame(EVALUATION_COLUMNS, cells, len(wide))


# ---------------------------------------------------------------------- the origin of the records


def _describe(
    table: ForeignTable, mapping: ColumnMap, trials: pd.DataFrame, map_file: str, limits: Sequence[str]
) -> RecordSource:
    used = []
    for target, mapped in mapping.columns.items():
        taken = f", the {mapped.take}imum of its series" if mapped.take != "last" else ""
        used.append((mapped.column, f"{target}{f' in {mapped.unit}' if mapped.unit else ''}{taken}"))
    used += [(name, "a setting of its own") for name in _list_unknown_settings(trials)]
    state = table.state if "outcome" not in mapping.columns else ""
    return RecordSource(
        program=table.program,
        file=table.place,
        digest=table.digest,
        num_runs=len(table.cells),
        columns=tuple(used),
        constants=tuple((key, str(value)) for key, value in mapping.constants.items()),
        ignored=tuple(name for name in table.names if name not in {*dict(used), state}),
        map_file=map_file,
        limits=tuple(limits),
    )


def _list_unknown_settings(trials: pd.DataFrame) -> list[str]:
    settings = [name.removeprefix(CONFIG_PREFIX) for name in map(str, trials) if name.startswith(CONFIG_PREFIX)]
    return [name for name in settings if name not in config_keys()]


def _list_limits(
    table: ForeignTable, mapping: ColumnMap, trials: pd.DataFrame, dropped: Sequence[str]
) -> Iterator[str]:
    # a sentence for each thing that an answer from these columns lacks
    if own := _list_unknown_settings(trials):
        yield (
            f"These tell configurations apart under their own names: {', '.join(own)}. Name what changes nothing in "
            "ignored."
        )
    yield from table.notes
    if not table.state and "outcome" not in mapping.columns:
        yield "How the runs ended is not on record: all count as complete."
    if dropped:
        yield (
            f"The device is not on record: {join_words(sorted(dropped))} are of machines unknown and are not compared. "
            "Map a column as device, or state it in [constants]."
        )
    costs = {"train_seconds": "No training time is mapped: nothing is answered about time or speed.",
             "peak_memory_bytes": "No memory is mapped: nothing is answered about memory."}  # fmt: skip
    yield from (text for name, text in costs.items() if name not in trials and name not in dropped)
    words = {"train_seconds": "Times", "peak_memory_bytes": "memory"}
    if measured := [word for name, word in words.items() if name in trials]:
        what = join_words(measured)
        yield (
            f"{what[:1].upper()}{what[1:]} of another program: whether other work disturbed what it measured, and what "
            "that includes, is not known."
        )
    if f"{CONFIG_PREFIX}batch.global" not in trials:
        yield "The batch size is the micro batch times accumulation times ranks, each 1 where it is not mapped."
    if f"{CONFIG_PREFIX}optimizer.lr" not in trials:
        yield "No learning rate is mapped: whether it was tuned for each batch size is not known."
    if not any(str(name).startswith(f"{CONFIG_PREFIX}budget.") for name in trials):
        yield "The length of the trainings is not mapped: that it is equal in all runs is assumed."
    yield "Which validation images were got right is not on record."
    accuracy = mapping.columns.get(_ACCURACY)
    if accuracy is None or not table.has_series(accuracy.column):
        yield "No learning curves are in the file, or none is of the validation accuracy."
    elif not mapping.steps:
        yield (
            'What the steps of the series count is not stated (steps = "optimizer_steps" or "epochs" in the map): no '
            "learning curves."
        )
