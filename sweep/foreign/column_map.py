"""The map of a foreign file: which column is the batch size, the accuracy, the time, and in which unit."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from sweep.config.errors import InputError, describe_unknown, explain_refusal
from sweep.config.fields import Section
from sweep.config.metrics import METRICS
from sweep.config.study_file import read_toml
from sweep.config.trial_config import config_keys
from sweep.config.units import join_words
from sweep.records.columns import EVALUATION_KINDS
from sweep.records.messages import OUTCOMES

# What a column may be besides a configuration key, a metric or a value of an evaluation.
FACTS = ("seed", "device", "outcome")
OPEN = "?"  # stands in a draft for what the user is to fill in
UNITS_OF = {
    "fraction": {"fraction": 1.0, "percent": 0.01},
    "fraction difference": {"fraction": 1.0, "percent": 0.01},
    "seconds": {"milliseconds": 1e-3, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0},
    "bytes": {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}  # fmt: skip


class MappedColumn(Section):
    """A column of the file. ``unit`` is required where the quantity has several: a share, a time, an amount of memory.
    ``take`` chooses the value of a series."""

    column: str
    unit: str = ""
    take: Literal["last", "max", "min"] = "last"


class ColumnMap(Section):
    """What the columns of a file mean."""

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")] = Field(
        "", description="how the answer calls the records; by default after the file"
    )
    study: str = Field("", description="the study of Optuna or experiment of MLflow, where the file holds several")
    columns: dict[str, MappedColumn] = Field(
        default_factory=dict,
        description="the column of each configuration key, metric, value of an evaluation, `seed`, `device`, `outcome`",
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
    steps: Literal["", "optimizer_steps", "epochs"] = Field(
        "", description="what the steps of the file's series count; without it no learning curves are read"
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
            if target not in known_targets():
                raise ValueError(f"columns: {describe_unknown('quantity', target, known_targets())}")
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
    if OPEN in (mapped.column, mapped.unit):
        part = "column" if mapped.column == OPEN else "unit"
        raise ValueError(f"columns: {target}: its {part} is open; write it in place of {OPEN!r}, or delete the line")
    units = find_units(target)
    if mapped.unit and mapped.unit not in units:
        rule = f"choose one of {', '.join(units)}" if units else "this quantity has no choice of units; delete it"
        raise ValueError(f"columns: {target}: unit {mapped.unit!r}: {rule}")
    if units and not mapped.unit:
        raise ValueError(
            f"columns: {target}: the unit of column {mapped.column!r} is not given: write "
            f'{target} = {{ column = "{mapped.column}", unit = "..." }} with {join_or(tuple(units))}'
        )


def join_or(words: tuple[str, ...]) -> str:
    """ "fraction or percent"."""
    return join_words(words).replace(" and ", " or ")


def find_units(target: str) -> dict[str, float]:
    """The units that ``target`` may have in a file, with the factor to its own; empty where there is no choice."""
    unit = METRICS[target].unit if target in METRICS else ""
    return UNITS_OF.get(unit, {})


def known_targets() -> tuple[str, ...]:
    """Everything that a column may be."""
    return tuple(dict.fromkeys((*FACTS, *config_keys(), *METRICS, *EVALUATION_KINDS)))


def load_column_map(path: Path) -> ColumnMap:
    """The map in the TOML file ``path``. Raises ``InputError`` naming the file, the key, the rule and the remedy."""
    try:
        table = read_toml(path)
        for name in ("columns", "constants"):
            if isinstance(table.get(name), dict):
                table[name] = _flatten_keys(table[name])
        return ColumnMap.model_validate(table)
    except ValidationError as error:
        raise InputError(explain_refusal(error, str(path), ColumnMap.model_fields)) from None
    except RecursionError:
        raise InputError(f"{path}: its tables are nested too deep; a map has three levels.") from None


def _flatten_keys(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    # batch.global = "..." and "batch.global" = "..." mean the same; a table with a column is one of the map
    flat: dict[str, Any] = {}
    for name, value in table.items():
        is_section = isinstance(value, dict) and "column" not in value
        flat.update(_flatten_keys(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value})
    return flat
