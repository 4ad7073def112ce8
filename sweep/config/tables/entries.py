"""What the tables of models, data sets, optimizers and schedules have in common."""

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import AfterValidator

from sweep.config.errors import InputError, describe_unknown

E = TypeVar("E")
# "package.module:function", so that a table is read without importing torch; a plug-in gives the function itself.
Reference = str | Callable[..., Any]


def resolve(reference: Reference) -> Callable[..., Any]:
    """The function that ``reference`` names."""
    return pkgutil.resolve_name(reference) if isinstance(reference, str) else reference


def find_entry(kind: str, name: str, table: Mapping[str, E]) -> E:
    """The entry of ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in table:
        raise InputError(_describe_unknown_entry(kind, name, table))
    return table[name]


def known_name(kind: str, table: Mapping[str, Any]) -> AfterValidator:
    """Refuses a name that ``table`` does not have at the time of validation; a plug-in may have added to it."""

    def check(name: str) -> str:
        if name not in table:
            raise ValueError(_describe_unknown_entry(kind, name, table))
        return name

    return AfterValidator(check)


def _describe_unknown_entry(kind: str, name: str, table: Mapping[str, Any]) -> str:
    return f"{describe_unknown(kind, name, table)} A plug-in adds more: --plugin FILE."
