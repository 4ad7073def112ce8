"""The commands with their arguments and options."""

from collections import Counter
from typing import Any

from generators.markdown import table

from sweep.cli.app import COMMANDS, load_command

_MIN_COMMON = 3  # commands that have the same option, from which on it is described once for all of them


def commands() -> str:
    """The options that several commands share, then a section for each command with its own."""
    found = {name: load_command(name) for name in COMMANDS}
    rows = Counter(_row(item) for command in found.values() for item in command.params if not _is_argument(item))
    common = [row for row, count in rows.items() if count >= _MIN_COMMON]
    heads = ("option of several commands", "meaning")
    return "\n\n".join([table(heads, common), *(_describe(name, found[name], common) for name in found)])


def _describe(name: str, command: Any, common: list[tuple[str, str]]) -> str:
    usage = " ".join(["sweep", name, *map(_name_argument, filter(_is_argument, command.params)), "[OPTIONS]"])
    rows = [_row(item) for item in command.params]
    shared = ", ".join(row[0].partition(" ")[0].strip("`").join("``") for row in rows if row in common)
    own = [row for row in rows if row not in common]
    parts = [
        f"### sweep {name}",
        " ".join((command.help or "").split()),
        f"`{usage}`" + (f" Also: {shared}." if shared else ""),
        table(("argument or option", "meaning"), own) if own else "",
    ]
    return "\n\n".join(filter(None, parts))


def _row(item: Any) -> tuple[str, str]:
    return f"`{_name(item)}`", f"{item.help or ''}{_default(item)}"


def _is_argument(item: Any) -> bool:
    return bool(item.param_type_name == "argument")


def _name(item: Any) -> str:
    return _name_argument(item) if _is_argument(item) else _name_option(item)


def _name_argument(item: Any) -> str:
    name = (item.metavar or item.name.upper()).strip("[]")
    return name if item.required else f"[{name}]"


def _name_option(item: Any) -> str:
    names = " / ".join([*item.opts, *item.secondary_opts])
    return names if item.is_flag else f"{names} {item.metavar or item.name.upper()}"


def _default(item: Any) -> str:
    # of an option with a value; otherwise the help text names it
    is_named = _is_argument(item) or item.is_flag or item.default in (None, [], "")
    return "" if is_named else f" Default: `{item.default}`."
