"""What was committed, written down from outside: by a reader that knows the tables and none of the program's code."""

import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, final

# key; the column that is empty until the row is closed (an evaluation is from the start); what is fixed before that
_TABLES: dict[str, tuple[tuple[str, ...], str | None, tuple[str, ...]]] = {
    "sweep_trials": (("number",), "outcome", ("phase", "trial_key", "reused_from")),
    "sweep_attempts": (("number", "attempt"), "cause", ("started_at",)),
    "sweep_evaluations": (("number", "attempt", "step"), None, ()),
}
_LOOK_SECONDS = 0.2
Row = dict[str, Any]


@final
class Ledger:
    """Reads all rows again and again; a row that was once there must stay, and one that was closed must stay as it was.

    Used as a context manager it reads along in a thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[tuple[Any, ...], Row] = {}
        self._lost: list[str] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._read_along, daemon=True)
        self.rows: dict[str, list[Row]] = {}

    def __enter__(self) -> "Ledger":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        address = f"file:{self._path}?mode=ro"
        with self._lock, closing(sqlite3.connect(address, uri=True, timeout=30.0, isolation_level=None)) as connection:
            connection.execute("BEGIN")  # one picture of all tables
            for table in _TABLES:
                cursor = connection.execute(f"SELECT * FROM {table}")
                names = [column[0] for column in cursor.description]
                self.rows[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            connection.rollback()
            for table, rows in self.rows.items():
                self._compare(table, rows)

    def num_attempts(self) -> int:
        """How many attempts are on record now; 0 while there is no store."""
        try:
            self.look()
        except sqlite3.OperationalError:
            return 0
        return len(self.rows["sweep_attempts"])

    def num_ended(self) -> int:
        """How many trials have ended by now."""
        return sum(outcome is not None for outcome in self.outcomes().values()) if self.num_attempts() else 0

    def lost(self, num_trials: int) -> list[str]:
        """What is no more, or has changed, of what was committed; and the trials of the plan that never ended."""
        ended = {row["number"] for row in self.rows["sweep_trials"] if row["outcome"] is not None}
        open_rows = [row for row in self.rows["sweep_attempts"] if row["cause"] is None]
        unended = [f"trial {number} never ended" for number in range(num_trials) if number not in ended]
        return [*self._lost, *unended, *(f"attempt never ended: {row}" for row in open_rows)]

    def duplicates(self) -> list[str]:
        keys = Counter((table, *_key(row, names)) for table, (names, *_) in _TABLES.items() for row in self.rows[table])
        found = [str(key) for key, count in keys.items() if count > 1]
        searched = Counter(row["trial_key"] for row in self.rows["sweep_trials"] if row["phase"] == "search")
        return [*found, *(f"trial key {key}" for key, count in searched.items() if count > 1)]

    def causes(self) -> dict[int, list[str]]:
        """What ended each attempt, by trial, in their order; empty where it ended by itself."""
        causes: dict[int, list[str]] = {}
        for row in sorted(self.rows["sweep_attempts"], key=lambda row: (row["number"], row["attempt"])):
            causes.setdefault(row["number"], []).append(row["cause"])
        return causes

    def outcomes(self) -> dict[int, str]:
        return {row["number"]: row["outcome"] for row in self.rows["sweep_trials"]}

    def _read_along(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self.look()
            except sqlite3.OperationalError:  # no store yet
                continue

    def _compare(self, table: str, rows: list[Row]) -> None:
        names, closed_by, fixed = _TABLES[table]
        present = {(table, *_key(row, names)): row for row in rows}
        for key in [key for key in self._seen if key[0] == table]:
            before, now = self._seen.pop(key), present.get(key)
            if now is None:
                self._lost.append(f"{key} is gone")
                continue
            is_closed = closed_by is None or before[closed_by] is not None
            changed = [name for name in (before if is_closed else fixed) if before[name] != now[name]]
            self._lost += [f"{key}: {name} was {before[name]} and is {now[name]}" for name in changed]
        self._seen |= present


def _key(row: Row, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)
