"""The packages of the project."""

import ast
from pathlib import Path

from generators.markdown import table

ROOT = Path(__file__).resolve().parents[2]


def packages() -> str:
    """Every package of the project with what belongs in it, as its ``__init__`` states it."""
    rows = []
    for package in ("sweep", "reports"):
        for path in sorted((ROOT / package).rglob("__init__.py")):
            text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
            if path.parent != ROOT / package and "Here belongs" in text:
                rows.append((f"`{path.parent.relative_to(ROOT).as_posix()}`", text))
    return table(("package", "what belongs in it, and what does not"), rows)
