"""A view: titles, tables and lists of plain texts, and the one function that writes them as HTML."""

from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined

Cell = tuple[str, str]  # a value, and a note that is set smaller


@dataclass(frozen=True, kw_only=True)
class ViewPart:
    """A table with its ``heads``, or a list of ``items``, each a text with what is set behind it; ``command`` is to be
    copied, ``command_for`` what it does. Empty parts are left out."""

    head: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    items: tuple[Cell, ...] = ()
    command: str = ""
    command_for: str = ""


@dataclass(frozen=True)
class View:
    """What a cell of a notebook shows."""

    title: str
    subtitle: str
    parts: tuple[ViewPart, ...]


def write_html(view: View) -> str:
    """``view`` as HTML, every text escaped. It has no color and no style sheet, so that it is readable in a light and
    in a dark theme."""
    template = (resources.files("reports") / "notebook" / "views.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(view=view)
