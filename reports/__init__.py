"""Reports of studies: figures from frames, as one HTML page and PNG files, and in notebooks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.figure import Paper
    from reports.notebook import FigureSet, collect_figures
    from reports.writing import write_report

__all__ = ["FigureSet", "Paper", "collect_figures", "write_report"]

# Loaded at first use: pandas and scipy are slow to import, and most commands do not need them.
_HOMES = {
    "FigureSet": "reports.notebook",
    "Paper": "reports.figure",
    "collect_figures": "reports.notebook",
    "write_report": "reports.writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
