"""The pieces of a day with a GPU and the questions that each of them answers, from ``plan.toml``; and what was found,
as one JSON file for each device and as Markdown for the terminal."""

import datetime as dt
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import final

from benchmarks.harness import RESULTS, Json, slug, write_whole
from sweep.config.errors import InputError, describe_unknown
from sweep.records.inputs import environment_digest

PIECE_SECONDS = 480.0  # of one piece, at most
TOTAL_SECONDS = 2_400.0  # of all pieces by their estimates


@dataclass(frozen=True, kw_only=True)
class Question:
    """``at_least`` or ``at_most`` is its goal, if it has one. The outcome was predicted to be from ``low`` to ``high``,
    ``because`` of what it was computed from."""

    piece: str
    text: str
    low: float
    high: float
    because: str
    at_least: float | None = None
    at_most: float | None = None
    least_n: int = 1
    needs_gpu: str = ""

    def is_met(self, found: Json) -> bool | None:
        """Whether the goal is met by the ``measured`` value of ``n`` measurements; None where there is no goal."""
        if self.at_least is None and self.at_most is None:
            return None
        measured = found.get("measured")
        if measured is None or found["n"] < self.least_n:
            return False
        return bool(measured >= self.at_least if self.at_least is not None else measured <= (self.at_most or 0.0))

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def predicted(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One process."""

    name: str
    seconds: float
    because: str
    differs: str

    @property
    def limit_seconds(self) -> float:
        return min(PIECE_SECONDS, 60.0 + 1.5 * self.seconds)

    @property
    def questions(self) -> dict[str, Question]:
        return {name: question for name, question in QUESTIONS.items() if question.piece == self.name}


_PLAN = tomllib.loads(Path(__file__).with_name("plan.toml").read_text(encoding="utf-8"))
PIECES = {name: Piece(name=name, **about) for name, about in _PLAN["pieces"].items()}
QUESTIONS = {name: Question(**about) for name, about in _PLAN["questions"].items()}


def choose_pieces(only: str | None) -> list[Piece]:
    """The pieces of ``only``, names with commas between them, in the order of the plan; all without it."""
    names = [name.strip() for name in only.split(",")] if only else list(PIECES)
    for name in names:
        if name not in PIECES:
            raise InputError(describe_unknown("piece", name, PIECES))
    return [piece for piece in PIECES.values() if piece.name in names]


@dataclass(frozen=True, kw_only=True)
class Found:
    """An answer. What could not be measured has no ``measured``, and a ``note`` with the reason."""

    measured: float | None = None
    interval: tuple[float, float] | None = None  # of 95 %
    n: int = 1
    note: str = ""
    facts: Json = field(default_factory=dict)


Rows = Mapping[str, Found]  # by the names of their questions


@final
class Sheet:
    """``gpu-<device>.json``, to which every run on the device adds, or ``gpu_rehearsal-<device>.json``, anew each time.
    It is written by the process of a piece while this piece runs, and read again by the command when that has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document: Json = json.loads(path.read_text(encoding="utf-8"))

    @classmethod
    def begin(cls, environment: Json, folder: Path = RESULTS, *, is_rehearsal: bool = False) -> "Sheet":
        """The sheet of the device that ``environment`` describes."""
        path = folder / f"{'gpu_rehearsal' if is_rehearsal else 'gpu'}-{slug(environment['device'])}.json"
        document: Json = {"device": environment["device"], "is_rehearsal": is_rehearsal}
        document |= {"environments": {}, "pieces": {}}
        if path.exists() and not is_rehearsal:
            document = json.loads(path.read_text(encoding="utf-8"))
        document["date"] = dt.datetime.now(dt.UTC).date().isoformat()
        document["environments"][environment_digest(environment)] = environment
        write_whole(path, json.dumps(document, indent=1) + "\n")
        return cls(path)

    def state(self, name: str) -> str:
        """``done``, ``cut short``, ``failed``, ``running`` or ``not run``."""
        return str(self.document["pieces"].get(name, {}).get("state", "not run"))

    def add(self, name: str, rows: Rows | None = None, **changes: object) -> None:
        """``changes`` to the piece ``name``; ``rows`` replace those before."""
        piece = self.document["pieces"].setdefault(name, {})
        piece |= changes
        if rows is not None:
            piece["rows"] = {question: asdict(found) for question, found in rows.items()}
        write_whole(self.path, json.dumps(self.document, indent=1) + "\n")


def format_sheet(document: Json) -> str:
    """The device, the date, a row for every question whether answered or not, and what each piece took."""
    text = f"{document['device']}, {document['date']}\n\n"
    if document["is_rehearsal"]:
        text += "A rehearsal with the smallest sizes: it shows that every piece runs. **Its figures mean nothing.**\n\n"
    heads = ("piece", "question", "measured", "goal", "met", "predicted", "outcome", "note")
    text += _format_table(heads, [(question.piece, question.text, *cells) for question, cells in list_rows(document)])
    rows = []
    for piece in PIECES.values():
        known = {"state": "not run", "seconds": 0.0, "why": ""} | document["pieces"].get(piece.name, {})
        rows.append((piece.name, known["state"], f"{known['seconds']:.0f}", f"{piece.seconds:.0f}", known["why"]))
    return text + "\n" + _format_table(("piece", "state", "seconds", "estimate on a GPU", "why"), rows)


def list_rows(document: Json) -> Iterator[tuple[Question, tuple[str, ...]]]:
    """For each question measured, goal, met, predicted, outcome and note; nothing is met or foreseen by a rehearsal."""
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        found = piece.get("rows", {}).get(name, {})
        measured = found.get("measured")
        verdict = outcome = ""
        if measured is not None and not document["is_rehearsal"]:
            verdict = {None: "", True: "yes", False: "no"}[question.is_met(found)]
            outcome = "as predicted"
            if not question.low <= measured <= question.high:
                outcome = "below" if measured < question.low else "above"
        note = [found.get("note"), piece.get("why"), question.needs_gpu if document["is_rehearsal"] else ""]
        cells = (_format_measured(found), question.goal, verdict, question.predicted, outcome)
        yield question, (*cells, "; ".join(filter(None, note)))


def _format_measured(found: Json) -> str:
    if found.get("measured") is None:
        return "not measured"
    interval = "" if not found["interval"] else " [{:.4g}, {:.4g}]".format(*found["interval"])
    return f"{found['measured']:.4g}{interval}" + (f" n={found['n']}" if found["n"] > 1 else "")


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # line breaks and bars within a cell are replaced
    cells = [[" ".join(cell.split()).replace("|", "/")[:300] for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, ["---"] * len(heads), *cells])


def is_complete(document: Json, pieces: Sequence[Piece]) -> bool:
    """Whether every one of ``pieces`` is done and none of its questions misses its goal; of a rehearsal, whether each
    that a CPU can answer has an answer."""
    for piece in pieces:
        known = document["pieces"].get(piece.name, {})
        if known.get("state") != "done":
            return False
        for name, question in piece.questions.items():
            found = known["rows"].get(name, {})
            is_unanswered = found.get("measured") is None and not question.needs_gpu
            if is_unanswered if document["is_rehearsal"] else question.is_met(found) is False:
                return False
    return True
