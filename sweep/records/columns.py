"""The columns of a configuration, of the metrics and of an evaluation, derived from their declarations."""

import types
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar, config_fields
from sweep.records.messages import Evaluation

Kind = Literal["int", "float", "bool", "text", "time"]
CONFIG_PREFIX = "config."


@dataclass(frozen=True, kw_only=True)
class ConfigColumn:
    """The column of one configuration key. ``null_value`` is the meaning of NULL: None, or the one literal that a
    field of another scalar type accepts too ("auto"). A column of text that ``has_numbers`` holds them as text."""

    path: str
    kind: Kind
    null_value: Scalar
    always_set: bool  # the field is never NULL
    has_numbers: bool = False

    @property
    def name(self) -> str:
        """The column's name in the store and in the frame."""
        return CONFIG_PREFIX + self.path

    def to_cell(self, value: Scalar) -> Scalar:
        """The cell for ``value``."""
        if self.has_numbers:
            return str(value)
        return None if not self.always_set and value == self.null_value else value

    def from_cell(self, cell: Any) -> Scalar:
        """The inverse of :meth:`to_cell`; SQLite returns booleans as 0 and 1."""
        if cell is None:
            return self.null_value
        if self.has_numbers:
            return _to_number(cell)
        return bool(cell) if self.kind == "bool" else cell


def _to_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}


def config_column(path: str, annotation: Any) -> ConfigColumn:
    """The column for a field of that annotation.

    Raises:
        TypeError: the annotation is not one scalar type, alone or in a union with None or one literal, nor several
            literals with floats.
    """
    kinds, literals = _parts(annotation)
    if set(kinds) == {"text", "float"} and not literals:
        return ConfigColumn(path=path, kind="text", null_value=None, always_set=True, has_numbers=True)
    if len(literals) == 1 and not kinds and literals != [None]:
        kinds, literals = [_KINDS[type(literals[0])]], []
    if len(set(kinds)) != 1 or len(literals) > 1:
        raise TypeError(f"{path}: {annotation} is not one scalar type, alone or with None or one literal")
    return ConfigColumn(path=path, kind=kinds[0], null_value=(literals or [None])[0], always_set=not literals)


def _parts(annotation: Any) -> tuple[list[Kind], list[Scalar]]:
    # the scalar kinds of an annotation, and the single values in a union with them
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_parts(part) for part in get_args(annotation)]
        return [kind for kinds, _ in parts for kind in kinds], [value for _, values in parts for value in values]
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return ([], list(values)) if len(values) == 1 else (list({_KINDS[type(value)] for value in values}), [])
    if annotation is type(None):
        return [], [None]
    return [_KINDS[annotation]] if annotation in _KINDS else [], []


CONFIG_COLUMNS = tuple(config_column(path, field.annotation) for path, field in config_fields().items())

METRIC_KINDS: dict[str, Kind] = {name: "int" if item.unit_facts.is_whole else "float" for name, item in METRICS.items()}

# Cells of those with a default may be missing.
OPTIONAL_OF_EVALUATION = frozenset(item.name for item in fields(Evaluation) if item.default is None)
EVALUATION_KINDS: dict[str, Kind] = {item.name: "int" if item.type is int else "float" for item in fields(Evaluation)}
