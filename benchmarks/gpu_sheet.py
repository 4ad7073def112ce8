"""What was measured on a GPU as one file: rows by part and measure, written after each, so that none is lost."""

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from benchmarks.results import FOLDER, slug
from sweep.records.content_key import environment_digest


@dataclass(frozen=True)
class Row:
    """One line of the table. What could not be measured has no ``measured``, and a ``note`` that says why."""

    question: str
    measured: float | None = None
    target: float | None = None
    better: Literal["higher", "lower"] = "lower"
    interval: tuple[float, float] | None = None  # of 95 %
    n: int = 1
    least_n: int = 1  # fewer do not meet a target
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is; None where there is none."""
        if self.target is None:
            return None
        if self.measured is None or self.n < self.least_n:
            return False
        return self.measured >= self.target if self.better == "higher" else self.measured <= self.target


@final
class Sheet:
    """``gpu-<device>-<date>.json`` and the same as a table beside it; rows of an earlier run that day stay."""

    def __init__(self, environment: dict[str, Any], folder: Path = FOLDER) -> None:
        date = dt.datetime.now(dt.UTC).date().isoformat()
        self.path = folder / f"gpu-{slug(environment['device'])}-{date}.json"
        self._digest = environment_digest(environment)
        known = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.document: dict[str, Any] = {"date": date, "device": environment["device"], "environments": {}, "parts": {}}
        self.document |= known
        self.document["environments"][self._digest] = environment

    def plan(self, part: str, measures: Sequence[str]) -> None:
        """These are to come; what they found earlier stays until they begin."""
        known = self.document["parts"].setdefault(part, {})
        for measure in measures:
            known.setdefault(measure, self._blank("waiting"))

    def begin(self, part: str, measure: str) -> None:
        """A measure starts; what it found earlier goes."""
        self.document["parts"].setdefault(part, {})[measure] = self._blank("running")
        self.save()

    def add(self, part: str, measure: str, row: Row) -> None:
        """What it found."""
        self.document["parts"][part][measure]["rows"].append(asdict(row))
        self.save()

    def end(self, part: str, measure: str, why: str = "", seconds: float | None = None) -> None:
        """It ended; ``why`` is empty when all is well."""
        state = "failed" if why else "done"
        self.document["parts"][part][measure] |= {"state": state, "why": why, "seconds": seconds}
        self.save()

    def end_open(self, part: str, why: str) -> None:
        """The process of ``part`` is gone: what it was at has ended so, and what was to come is not reached."""
        for measure, found in self.document["parts"].get(part, {}).items():
            if found["state"] in ("running", "waiting"):
                self.end(part, measure, why)

    def _blank(self, state: str) -> dict[str, Any]:
        return {"state": state, "why": "", "seconds": None, "environment_digest": self._digest, "rows": []}

    def save(self) -> None:
        """Whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        texts = {".json": json.dumps(self.document, indent=1) + "\n", ".md": as_text(self.document)}
        for suffix, content in texts.items():
            beside = self.path.with_suffix(f"{suffix}.tmp")
            beside.write_text(content, encoding="utf-8")
            beside.replace(self.path.with_suffix(suffix))


def is_met(document: dict[str, Any], parts: tuple[str, ...]) -> bool:
    """Whether every measure of ``parts`` ended well and no row misses its target."""
    chosen = [found for part in parts for found in document["parts"].get(part, {}).values()]
    is_done = len(chosen) > 0 and all(found["state"] == "done" for found in chosen)
    return is_done and all(Row(**row).is_met is not False for found in chosen for row in found["rows"])


def as_text(document: dict[str, Any]) -> str:
    """The device, the date and the table, in Markdown."""
    heading = f"{document['device']}, {document['date']}; `python -m benchmarks.gpu`\n\n"
    columns = "| part | what | measured | target | met |\n| --- | --- | --: | --: | --- |\n"
    return heading + columns + "".join(f"| {line} |\n" for line in _lines(document))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    for part, measures in document["parts"].items():
        for measure, found in measures.items():
            for row in found["rows"]:
                yield _line(part, Row(**row))
            if found["state"] != "done":
                why = _cell(f"{found['state']}: {found['why']}".removesuffix(": "))
                yield f"{part} | {measure} | - | - | {why}"


def _line(part: str, row: Row) -> str:
    measured = "-" if row.measured is None else f"{row.measured:.4g}"
    if row.interval:
        measured += " [{:.4g}, {:.4g}]".format(*row.interval)
    if row.n > 1 or row.least_n > 1:
        measured += f" n={row.n}"
    target = "" if row.target is None else f"{'>=' if row.better == 'higher' else '<='} {row.target:g}"
    verdict = {True: "yes", False: "no", None: ""}[row.is_met]
    if row.n < row.least_n:
        verdict += f" ({row.least_n} wanted)"
    return " | ".join((part, _cell(row.question), measured, target, _cell(f"{verdict} {row.note}".strip())))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]
