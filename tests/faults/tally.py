"""How much of the storm there is, and what one test of it counts."""

import os
from dataclasses import dataclass, field
from typing import final

IS_WHOLE = bool(os.environ.get("SWEEP_STORM"))
PROPERTY = "storm"  # under which it travels with the test's report, from another process as well


def rounds(whole: int) -> int:
    return whole if IS_WHOLE else max(1, whole // 10)


@final
@dataclass
class Tally:
    """Faults that really happened, by kind; what was lost, doubled or left behind, each in words; slowest figures."""

    faults: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    zombies: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def count(self, kind: str, number: int = 1) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + number

    def note(self, what: str, value: float) -> None:
        self.notes[what] = max(value, self.notes.get(what, value))

    def check(self) -> None:
        assert (self.lost, self.duplicates, self.zombies) == ([], [], [])
