"""What a user did wrong, in one message: the value, the rule and the remedy."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this module before it knows whether it needs pydantic
    from pydantic import ValidationError

RUN_AGAIN = "run the same command again"
_MAX_COMPLAINTS = 20
_MOST_LISTED = 24  # known names; a command lists more
_MOST_NEAR = 3
_LISTING_COMMANDS = {"key": "sweep list --keys", "claim": "sweep claims"}
_MAX_QUOTED = 200  # characters of what was given, in a message that should stay readable


class InputError(ValueError):
    """The user's input was refused before anything ran; the command line ends with exit code 2."""


class StoppedError(RuntimeError):
    """The work failed for a reason outside of the trials, and a repetition may succeed; the command line ends with exit
    code 1."""


class StoreError(StoppedError):
    """The store refused a read or a write: disk full, locked, unreachable, or a rule of the records broken."""


class DeviceFullError(RuntimeError):
    """Other programs hold the memory of a GPU, so that not even an empty process can use it."""


# What the last part of a key is called elsewhere.
_OTHER_NAMES = {"learning_rate": "lr", "wd": "weight_decay", "batch_size": "micro", "num_epochs": "epochs"}


def describe_unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Says that ``name`` is not a known ``kind``, with the nearest known name and the whole list, or with the command
    that prints a long list."""
    names = sorted(known)
    command = _LISTING_COMMANDS.get(kind) if len(names) > _MOST_LISTED else None
    near = _find_nearest(str(name), names)[: _MOST_NEAR if command else 1]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = f"`{command}` lists all of them" if command else f"Known: {', '.join(names)}"
    return f"unknown {kind} {name!r}.{hint} {listed}."


def _find_nearest(name: str, names: Sequence[str]) -> list[str]:
    # the nearest first; letters may differ in case, and a dotted key may be given without its section
    same = [each for each in names if each.lower() == name.lower()]
    section, _, end = name.rpartition(".")
    same += [each for each in names if each == f"rules.{end.rpartition('_')[0]}"]  # `rules.lr` elsewhere
    if other := _OTHER_NAMES.get(end.lower()):
        same += [each for each in names if each.rpartition(".")[2] == other and each.startswith(section)]
    ends = {each.rpartition(".")[2]: each for each in reversed(names)}
    near = get_close_matches(name, names) + [ends[end] for end in get_close_matches(name, ends)]
    return list(dict.fromkeys([*same, *(each for each in names if each.endswith(f".{name}")), *near]))


def hide_credentials(place: str | Path) -> str:
    """``place`` as messages and pages may show it: a URL, or what is meant as one, without password and options."""
    text = str(place)
    scheme, mark, rest = text.partition("://")
    if not mark and not re.search(":.*@", text):
        return text  # a path
    start = scheme + mark if mark else ""
    credentials, at, address = (rest if mark else text).rpartition("@")
    if "?" in credentials:  # which of both the options belong to cannot be known
        return f"{start}***"
    user, colon, _ = credentials.partition(":")
    return f"{start}{user}{':***' if colon else ''}{at}{address.partition('?')[0]}"


# pydantic's own words for these speak of Python's types
_RULES = {
    "tuple_type": "give a list: [a, b]",
    "dict_type": "give a table",
    "model_type": "give a table: { key = value }",
    "model_attributes_type": "give a table: { key = value }",
    "string_pattern_mismatch": "use letters, digits, _ and -, at most 64, the first a letter or digit",
}


def explain_refusal(error: "ValidationError", where: str, known: Iterable[str] = ()) -> str:
    """Every complaint of a pydantic ``error`` on one line each: place, key, value, rule.

    ``known`` are the dotted keys that exist, for the nearest one to a misspelt key.
    """
    lines = []
    items = error.errors(include_url=False, include_context=False)
    for item in items[:_MAX_COMPLAINTS]:
        key = ".".join(str(part) for part in item["loc"] if not _is_union_tag(part))
        if item["type"] == "extra_forbidden":
            name = shorten_text(key)
            lines.append(
                f"{where}: {describe_unknown('key', name, known)}" if known else f"{where}: unknown key {name!r}."
            )
            continue
        message = _RULES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
        value = item["input"]
        given = f" (given: {shorten_text(repr(value))})" if isinstance(value, str | int | float | bool) else ""
        lines.append(f"{where}: {shorten_text(key)}: {message}{given}" if key else f"{where}: {message}")
    if len(items) > _MAX_COMPLAINTS:
        lines.append(f"{where}: and {len(items) - _MAX_COMPLAINTS} more")
    return "\n".join(dict.fromkeys(lines))


def show_name(name: str, *, shorten: bool = True) -> str:
    """``name`` on one line: names of files are of others and may hold line ends, bytes that are no text, or characters
    that turn the direction of writing, which are shown as escapes."""
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in name)
    return f"{shown[: _MAX_QUOTED - 4]} ..." if shorten and len(shown) > _MAX_QUOTED else shown


def shorten_text(text: str) -> str:
    """``text``, or its beginning where it is longer than a message should quote."""
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]} ..."


def _is_union_tag(part: int | str) -> bool:
    # pydantic adds the name of the tried alternative ("int", "constrained-float", "literal['auto']") to the path
    return isinstance(part, str) and (
        part.removeprefix("constrained-") in {"int", "float", "str", "bool"} or "[" in part
    )
