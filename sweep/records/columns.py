"""Which columns a configuration, the metrics and an evaluation have, derived from their declarations."""

import types
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar, TrialConfig, flatten
from sweep.records.messages import Evaluation

Kind = Literal["int", "float", "bool", "text", "time"]
CONFIG_PREFIX = "config."


@dataclass(frozen=True)
class ConfigColumn:
    """The column of one configuration key. ``null_value`` is what NULL stands for: None, the one literal beside a
    scalar type ("auto"), or, where the field always has a value, its default: the row is older than the field."""

    path: str
    kind: Kind
    null_value: Scalar
    always_set: bool  # the field is never NULL in a row that knows it
    default: Scalar

    @property
    def name(self) -> str:
        """The column's name in the store and in the frame."""
        return CONFIG_PREFIX + self.path

    def to_cell(self, value: Scalar) -> Scalar:
        """What is stored for ``value``."""
        return None if not self.always_set and value == self.null_value else value

    def from_cell(self, cell: Any) -> Scalar:
        """The inverse of :meth:`to_cell`; SQLite hands booleans out as 0 and 1."""
        if cell is None:
            return self.null_value
        return bool(cell) if self.kind == "bool" else cell


_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}


def config_column(path: str, annotation: Any, default: Scalar) -> ConfigColumn:
    """The column for a field of that annotation.

    Raises:
        TypeError: for a field that is not one scalar type, alone or beside None or beside one literal.
    """
    kinds, stand_ins = _parts(annotation)
    if len(stand_ins) == 1 and not kinds and stand_ins != [None]:
        kinds, stand_ins = [_KINDS[type(stand_ins[0])]], []
    if len(set(kinds)) != 1 or len(stand_ins) > 1:
        raise TypeError(f"{path}: {annotation} is no single scalar type beside None or one literal")
    always_set = not stand_ins
    return ConfigColumn(path, kinds[0], default if always_set else stand_ins[0], always_set, default)


def _parts(annotation: Any) -> tuple[list[Kind], list[Scalar]]:
    # the scalar kinds of an annotation, and the values that stand beside them
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds: list[Kind] = []
        stand_ins: list[Scalar] = []
        for part in get_args(annotation):
            more_kinds, more_stand_ins = _parts(part)
            kinds += more_kinds
            stand_ins += more_stand_ins
        return kinds, stand_ins
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return ([], list(values)) if len(values) == 1 else (list({_KINDS[type(value)] for value in values}), [])
    if annotation is type(None):
        return [], [None]
    return [_KINDS[annotation]] if annotation in _KINDS else [], []


def _config_columns() -> tuple[ConfigColumn, ...]:
    defaults = flatten(TrialConfig())
    return tuple(config_column(path, item, defaults[path]) for path, item in _annotations(TrialConfig, ""))


def _annotations(model: type[BaseModel], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, item in model.model_fields.items():
        path = f"{prefix}{item.alias or name}"
        if isinstance(item.annotation, type) and issubclass(item.annotation, BaseModel):
            found += _annotations(item.annotation, f"{path}.")
        else:
            found.append((path, item.annotation))
    return found


CONFIG_COLUMNS = _config_columns()

METRIC_KINDS: dict[str, Kind] = {name: "int" if item.is_whole else "float" for name, item in METRICS.items()}

# Those with a default may be missing, in an older record also the whole column.
OPTIONAL_OF_EVALUATION = frozenset(item.name for item in fields(Evaluation) if item.default is None)
EVALUATION_KINDS: dict[str, Kind] = {item.name: "int" if item.type is int else "float" for item in fields(Evaluation)}

# What the memory of a step is for, as an estimate tells it.
MEMORY_PARTS = ("parameter", "gradient", "optimizer", "activation", "temporary", "scratch")
FORECAST_KINDS: dict[str, Kind] = {f"forecast_{part}_bytes": "int" for part in MEMORY_PARTS}

# What a probe tells beside its key; every cell may be missing.
PROBE_KINDS: dict[str, Kind] = {
    "micro_batch": "int",
    "step_seconds_median": "float",
    "step_seconds_p90": "float",
    "step_seconds_mean": "float",
    "update_seconds": "float",
    "images_per_second": "float",
    "data_images_per_second": "float",
    "eval_images_per_second": "float",
    "setup_seconds": "float",
    "warmup_seconds": "float",
    "memory_seconds": "float",
    "launch_seconds": "float",
    "peak_memory_bytes": "int",
    "num_parameters": "int",
    "num_train": "int",
    "num_validation": "int",
    "num_windows": "int",
    "num_steps": "int",
    "probed_at": "time",
    "environment_digest": "text",
    "error": "text",
    **FORECAST_KINDS,
}
