"""How the keys of a configuration are declared: bounds, meaning, unit, and whether a key changes the cost of a step."""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

T = TypeVar("T")
Cost = Literal["step", "switch", "derived", "trial", "none"]

PositiveInt = Annotated[int, Field(ge=1, le=2**40)]  # a bound that no training reaches and every database holds
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A group of fields; frozen, so that what was recorded is what ran."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


def key(default: T, meaning: str, *, cost: Cost, unit: str = "") -> T:
    """A field of a section with everything that the documentation, the forecast and the analysis need to know of it.

    ``cost`` is what of the value changes the time and memory of an optimizer step or an evaluation: ``step``: the
    value; ``switch``: only whether it is on (neither absent nor 0 nor false); ``derived``: the value in combination
    with other keys, see ``sweep/probing/shape.py``; ``trial``: nothing of a step, but how many there are, or what else
    a trial spends; ``none``: nothing at all.
    """
    return Field(default, description=meaning, json_schema_extra={"unit": unit, "cost": cost})


def list_fields(section: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """The declaration of every key of ``section`` and of the sections in it, by dotted path."""
    declared: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        path, kind = f"{prefix}{field.alias or name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            declared |= list_fields(kind, f"{path}.")
        else:
            declared[path] = field
    return declared
