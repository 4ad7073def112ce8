"""Where records are from that another program wrote, and what its columns can carry."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RecordSource:
    """``program`` that wrote ``file``, whose content has the SHA-256 ``digest``. ``columns`` are (name of the column,
    what it was taken for), ``constants`` (key, value) that the map ``map_file`` states for all runs; ``ignored`` the
    names of columns that nothing was read from. ``limits`` are sentences on what these columns cannot show."""

    program: str
    file: str
    digest: str
    num_runs: int
    columns: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    map_file: str = ""
    limits: tuple[str, ...] = ()

    @property
    def statement(self) -> str:
        """The origin in one sentence."""
        runs = "1 run" if self.num_runs == 1 else f"{self.num_runs:,} runs"
        return f"These records are from elsewhere: {self.program}, {self.file}, {runs}, SHA-256 {self.digest}."

    def describe(self) -> list[str]:
        """The origin, the columns that were used and ignored, and the limits, a sentence each."""
        used = ", ".join(f"{name} as {meaning}" for name, meaning in self.columns)
        lines = [self.statement, f"Columns used: {used}."]
        if self.constants:
            lines.append(f"Stated for all runs by the map: {', '.join(f'{k} = {v}' for k, v in self.constants)}.")
        ignored = ", ".join(self.ignored[:_MAX_NAMED]) + _count_more(len(self.ignored))
        return [*lines, f"Columns ignored: {ignored or 'none'}.", *self.limits]

    def to_document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "program": self.program,
            "file": self.file,
            "sha256": self.digest,
            "num_runs": self.num_runs,
            "map": self.map_file or None,
            "columns": dict(self.columns),
            "constants": dict(self.constants),
            "ignored": list(self.ignored),
            "limits": list(self.limits),
        }


_MAX_NAMED = 40


def _count_more(num_names: int) -> str:
    return f" and {num_names - _MAX_NAMED} more" if num_names > _MAX_NAMED else ""
