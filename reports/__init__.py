"""Reports of studies: figures from frames, as one HTML page and PNG files."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.writing import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    # matplotlib is slow to import, and most commands do not need it
    if name == "write_report":
        from reports.writing import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
