"""The map of a foreign file: which column is the batch size, the accuracy, the time, and in which unit; and a draft of
it from the names of the columns."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from sweep.config.errors import InputError, describe_unknown, explain_refusal
from sweep.config.metrics import METRICS, join_words
from sweep.config.sections import Section
from sweep.config.study_file import read_toml
from sweep.config.trial import config_keys
from sweep.records.messages import OUTCOMES

FACTS = ("seed", "device", "outcome")
# Everything that a column may be.
_TARGETS = tuple(dict.fromkeys((*FACTS, *config_keys(), *METRICS)))
_OPEN = "?"  # stands in a draft for what the user is to fill in
_UNITS = {
    "fraction": {"fraction": 1.0, "percent": 0.01},
    "fraction difference": {"fraction": 1.0, "percent": 0.01},
    "seconds": {"milliseconds": 1e-3, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0},
    "bytes": {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}  # fmt: skip


class MappedColumn(Section):
    """A column of the file."""

    column: str
    unit: str = ""  # required where the quantity has several: a share, a time, an amount of memory


class ColumnMap(Section):
    """What the columns of a file mean."""

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")] = Field(
        "", description="how the answer calls the records; by default after the file"
    )
    study: str = Field("", description="the study of Optuna, where the file holds several")
    columns: dict[str, MappedColumn] = Field(
        default_factory=dict,
        description="the column of each configuration key, metric, `seed`, `device`, `outcome`",
    )
    constants: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="configuration keys and `device` that have one value in all runs"
    )
    outcomes: dict[str, str] = Field(
        default_factory=dict,
        description='the outcome for each word of the column `outcome`; "" for a run that has not ended',
    )
    settings: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="further columns that tell configurations apart; they keep their names"
    )
    ignored: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="hyperparameters of the file that change nothing, such as a path or a name"
    )
    search_seed: int | None = Field(
        None, description="the seed of the runs by which configurations were chosen; by default the most frequent one"
    )
    own_seeds: bool = Field(
        False, description="every run had a seed of its own although none is recorded; instead of a column `seed`"
    )

    @field_validator("columns", mode="before")
    @classmethod
    def _accept_names(cls, columns: Any) -> Any:
        if not isinstance(columns, dict):
            return columns
        return {key: {"column": value} if isinstance(value, str) else value for key, value in columns.items()}

    @field_validator("outcomes")
    @classmethod
    def _check_outcomes(cls, outcomes: dict[str, str]) -> dict[str, str]:
        for outcome in outcomes.values():
            if outcome and outcome not in OUTCOMES:
                raise ValueError(describe_unknown("outcome", outcome, OUTCOMES))
        return outcomes

    @model_validator(mode="after")
    def _check_targets(self) -> "ColumnMap":
        for target, mapped in self.columns.items():
            if target not in _TARGETS:
                raise ValueError(f"columns: {describe_unknown('quantity', target, _TARGETS)}")
            _check_unit(target, mapped)
        for key in self.constants:
            if key not in {*config_keys(), "device"} - {"seed"}:
                raise ValueError(f"constants: {describe_unknown('key', key, {*config_keys(), 'device'})}")
            if key in self.columns:
                raise ValueError(f"{key}: it is a column and a constant; keep one of them")
        if self.own_seeds and "seed" in self.columns:
            raise ValueError("own_seeds: the seeds are in a column; keep one of the two")
        return self


def _check_unit(target: str, mapped: MappedColumn) -> None:
    if _OPEN in (mapped.column, mapped.unit):
        part = "column" if mapped.column == _OPEN else "unit"
        raise ValueError(f"columns: {target}: its {part} is open; write it in place of {_OPEN!r}, or delete the line")
    units = find_units(target)
    if mapped.unit and mapped.unit not in units:
        rule = f"choose one of {', '.join(units)}" if units else "this quantity has no choice of units; delete it"
        raise ValueError(f"columns: {target}: unit {mapped.unit!r}: {rule}")
    if units and not mapped.unit:
        raise ValueError(
            f"columns: {target}: the unit of column {mapped.column!r} is not given: write "
            f'{target} = {{ column = "{mapped.column}", unit = "..." }} with {_join_or(units)}'
        )


def find_units(target: str) -> dict[str, float]:
    """The units that ``target`` may have in a file, with the factor to its own; empty where there is no choice."""
    return _UNITS.get(METRICS[target].unit, {}) if target in METRICS else {}


def load_column_map(given: Path | Mapping[str, Any]) -> ColumnMap:
    """The map in a TOML file, or in a dictionary of the same keys. Raises ``InputError`` naming the file, the key, the
    rule and the remedy."""
    where = str(given) if isinstance(given, Path) else "the map"
    try:
        table = read_toml(given) if isinstance(given, Path) else dict(given)
        for name in ("columns", "constants"):
            if isinstance(table.get(name), dict):
                table[name] = _flatten_keys(table[name])
        return ColumnMap.model_validate(table)
    except ValidationError as error:
        raise InputError(explain_refusal(error, where, ColumnMap.model_fields)) from None
    except RecursionError:
        raise InputError(f"{where}: its tables are nested too deep; a map has three levels.") from None


def _flatten_keys(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    # batch.global = "..." and "batch.global" = "..." mean the same; a table with the key column is a column's
    flat: dict[str, Any] = {}
    for name, value in table.items():
        is_section = isinstance(value, dict) and "column" not in value
        flat.update(_flatten_keys(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value})
    return flat


# ---------------------------------------------------------------------- a draft from the names of the columns

# By quantity: how its columns are usually named, after separators and case are removed.
_USUAL_NAMES = {
    "batch.global": r"(global|total|effective|train)?batchsize|batch|bs",
    "batch.micro": r"(micro|perdevice|perdevicetrain|local)batchsize|micro(batch)?",
    "batch.accumulation": r"(gradient|grad)?accum(ulation)?(steps)?|accumulategradbatches",
    "distributed.world_size": r"worldsize|(num|n)(gpus|devices|processes)",
    "optimizer.lr": r"(optimizer|base|initial|peak|max)?(lr|learningrate)",
    "optimizer.weight_decay": r"(optimizer)?(wd|weightdecay)",
    "optimizer.momentum": r"(optimizer)?momentum",
    "optimizer.name": r"opt(im|imizer)?(name)?",
    "model.name": r"model(name)?|arch(itecture)?|backbone",
    "data.name": r"data(set)?(name)?",
    "budget.epochs": r"(max|num|n)?epochs",
    "budget.steps": r"(max|num|total)?(train)?steps",
    "seed": r"(random|global|manual)?seed",
    "device": r"device(name)?|gpu(name|type)?|hardware|accelerator",
    "val_accuracy": r"(best|final|eval|val|valid|validation)*(acc|accuracy|top1)(top1|val|valid|pct|percent)*|value",
    "val_loss": r"(eval|val|valid|validation)loss",
    "test_accuracy": r"test(acc|accuracy|top1)",
    "train_seconds": r"(train(ing)?)?(time|runtime|seconds|minutes|hours|duration)(s|sec|seconds|min|minutes|h|hours)?",
    "peak_memory_bytes": r"(peak|max)?(gpu|cuda)?(mem|memory|vram)(allocated|peak|used)?(b|bytes|mb|mib|gb|gib)?",
}
_HEAD = (
    '# The map of the columns: what each column of the file is. Replace every "?", delete what does not apply, and\n'
    "# add what is missing; every configuration key and metric may stand on the left.\n"
)
# A name does not tell which of the two a batch size is, so neither line is active.
_BATCH_KEYS = {
    "batch.global": "keep this line if it is the samples of one optimizer step, over all devices",
    "batch.micro": "keep this line if it is the samples of one pass on one device",
}


def find_candidates(names: Sequence[str]) -> dict[str, list[str]]:
    """By quantity the columns whose names are usual for it; cells are not read."""
    candidates = {target: [name for name in names if is_usual_name(target, name)] for target in _USUAL_NAMES}
    return {target: fitting for target, fitting in candidates.items() if fitting}


def is_usual_name(target: str, name: str) -> bool:
    """Whether a column called ``name`` is a candidate for ``target``."""
    # programs put the part of the run before a name
    short = re.sub(r"^(params|metrics|tags|hparams|config|summary|values|user_attrs)[._/]", "", name)
    return bool(re.fullmatch(_USUAL_NAMES[target], re.sub(r"[^a-z0-9]", "", short.rpartition("/")[2].lower())))


def write_draft(names: Sequence[str], study: str = "") -> str:
    """A map in TOML with a line for each candidate among the columns ``names``: active for the first column that fits,
    open where its unit is to be stated."""
    lines = [_HEAD, *([f'study = "{_escape(study)}"', ""] if study else []), "[columns]"]
    candidates = find_candidates(names)
    if "val_accuracy" not in candidates:
        lines.append(f'# required: "val_accuracy" = {{ column = "{_OPEN}", unit = "{_OPEN}" }}')
    for target, fitting in candidates.items():
        lines += _write_batch_lines(fitting) if target == "batch.global" else _write_lines(target, fitting)
    lines += ["", "[constants]  # what is equal in all runs and in no column", '# "model.name" = "resnet18"']
    lines += ['# device = "NVIDIA A100"  # without a device, times and memory are not compared']
    return "\n".join(lines) + "\n"


def _write_batch_lines(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for key, text in _BATCH_KEYS.items():
            yield f'# "{key}" = "{_escape(name)}"  # {text}'


def _write_lines(target: str, names: Sequence[str]) -> Iterator[str]:
    units = find_units(target)
    for position, name in enumerate(names):
        value = f'{{ column = "{_escape(name)}", unit = "{_OPEN}" }}' if units else f'"{_escape(name)}"'
        remarks = [f"unit: {_join_or(units)}"] if units else []
        if len(names) > 1:
            remarks.append(f"{len(names)} columns may be it: keep one")
        line = f'"{target}" = {value}' + (f"  # {'; '.join(remarks)}" if remarks else "")
        yield line if position == 0 else f"# {line}"


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _join_or(words: Iterable[str]) -> str:
    return join_words(tuple(words)).replace(" and ", " or ")
