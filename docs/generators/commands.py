"""The commands with their arguments and options."""

from typing import Any

from generators.markdown import table

from sweep.cli.app import COMMANDS, load_command


def commands() -> str:
    """A section for each command with its arguments and options, as the command line declares them."""
    return "\n\n".join(_describe(name, load_command(name)) for name in COMMANDS)


def _describe(name: str, command: Any) -> str:
    usage = " ".join(["sweep", name, *map(_name_argument, filter(_is_argument, command.params)), "[OPTIONS]"])
    text = " ".join((command.help or "").split())
    rows = [(f"`{_name(item)}`", f"{item.help or ''}{_default(item)}") for item in command.params]
    return f"### sweep {name}\n\n{text}\n\n`{usage}`\n\n{table(('argument or option', 'meaning'), rows)}"


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
    is_named = _is_argument(item) or item.is_flag or item.default in (None, [])
    return "" if is_named else f" Default: `{item.default}`."
