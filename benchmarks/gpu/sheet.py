"""What was measured on a GPU as one file, samples and rows by piece, written after each sample; and as Markdown for the
terminal: the plan, and each question with goal, prediction and outcome."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks.gpu.plan import PIECES, QUESTIONS, Piece, Question, State
from benchmarks.harness import RESULTS, Json, slug, write_whole
from sweep.records.inputs import environment_digest

Sample = dict[str, Any]  # ready for JSON


@dataclass(frozen=True, kw_only=True)
class Found:
    """An answer. What could not be measured has no ``measured``, and a ``note`` with the reason."""

    measured: float | None = None
    interval: tuple[float, float] | None = None  # of 95 %
    n: int = 1
    note: str = ""
    facts: Json = field(default_factory=dict)


@final
class Sheet:
    """``gpu-<device>-<date>.json``, of a rehearsal ``gpu_rehearsal-...``.

    A file of the device in which a piece is left to do is continued, also on a later day. A new rehearsal replaces that
    of the day; a result is never replaced.
    """

    def __init__(self, environment: Json, folder: Path = RESULTS, *, is_rehearsal: bool = False) -> None:
        date = dt.datetime.now(dt.UTC).date().isoformat()
        stem = f"{'gpu_rehearsal' if is_rehearsal else 'gpu'}-{slug(environment['device'])}"
        self._digest = environment_digest(environment)
        self.document: Json = {"date": date, "device": environment["device"], "is_rehearsal": is_rehearsal}
        self.document |= {"environments": {}, "pieces": {}}
        names = [f"{stem}-{date}", *(f"{stem}-{date}-{number}" for number in range(2, 100))]
        paths = [folder / f"{name}.json" for name in names]
        self.path = next(path for path in paths if is_rehearsal or not path.exists())
        if known := None if is_rehearsal else _find_open(folder, stem):
            self.path, self.document = known, json.loads(known.read_text(encoding="utf-8"))
        else:
            self.path.with_suffix(".log").unlink(missing_ok=True)  # of an earlier rehearsal
        self.document["environments"][self._digest] = environment
        for piece in self.document["pieces"].values():
            if piece["state"] == "running":
                piece |= {"state": "cut short", "why": "the command was killed"}

    def states(self) -> dict[str, State]:
        return {name: piece["state"] for name, piece in self.document["pieces"].items()}

    def begin(self, name: str, *, is_again: bool = False) -> list[Sample]:
        """The samples that an earlier run of the piece kept, from which it continues; none of one that failed, that is
        done, or that is to be measured again."""
        known = self.document["pieces"].get(name)
        if known is None or is_again or known["state"] != "cut short":
            known = {"seconds": 0.0, "environment_digests": [], "samples": [], "rows": {}}
        self.document["pieces"][name] = known | {"state": "running", "why": ""}
        if self._digest not in known["environment_digests"]:
            known["environment_digests"].append(self._digest)
        self._save()
        return list(known["samples"])

    def add(self, name: str, sample: Sample, rows: Mapping[str, Found]) -> None:
        piece = self.document["pieces"][name]
        piece["samples"].append(sample)
        piece["rows"] = {question: asdict(found) for question, found in rows.items()}
        self._save()

    def end(self, name: str, state: State, why: str, seconds: float) -> None:
        """``why`` is empty when all is well; ``seconds`` add up over the runs of a piece."""
        piece = self.document["pieces"][name]
        piece |= {"state": state, "why": why, "seconds": round(piece["seconds"] + seconds, 1)}
        self._save()

    def _save(self) -> None:
        write_whole(self.path, json.dumps(self.document, indent=1) + "\n")


def _find_open(folder: Path, stem: str) -> Path | None:
    for path in sorted(folder.glob(f"{stem}-*.json"), reverse=True):
        pieces = json.loads(path.read_text(encoding="utf-8"))["pieces"]
        if any(pieces.get(name, {}).get("state") != "done" for name in PIECES):
            return path
    return None


def format_plan(states: Mapping[str, str]) -> str:
    """The pieces in their order, with what each is estimated to take on an H100 or H200 and what it has come to."""
    rows = [
        (
            each.name,
            f"{each.seconds:.0f} s",
            f"{each.limit_seconds:.0f} s",
            states.get(each.name) or "to do",
            each.because,
        )
        for each in PIECES.values()
    ]
    left = sum(piece.seconds for piece in PIECES.values() if states.get(piece.name) != "done")
    table = _format_table(("piece", "estimate", "limit", "state", "because"), rows)
    return f"{table}\n{left / 60:.0f} of {sum(each.seconds for each in PIECES.values()) / 60:.0f} minutes are left.\n"


def format_sheet(document: Json) -> str:
    """The device, the date, a row for every question whether answered or not, and what each piece took."""
    is_rehearsal = document["is_rehearsal"]
    text = f"{document['device']}, {document['date']}; `python -m benchmarks.gpu{' --rehearse' * is_rehearsal}`\n\n"
    if is_rehearsal:
        text += "A rehearsal with the smallest sizes: it shows that every piece runs. **Its figures mean nothing.**\n\n"
    heads = ("piece", "question", "measured", "goal", "met", "predicted", "outcome", "note")
    text += _format_table(heads, [(question.piece, question.text, *cells) for question, cells in list_rows(document)])
    unknown = {"state": "not run", "seconds": 0.0, "why": ""}
    pieces = [(piece, document["pieces"].get(piece.name, unknown)) for piece in PIECES.values()]
    rows = [(p.name, k["state"], f"{k['seconds']:.0f}", f"{p.seconds:.0f}", k["why"]) for p, k in pieces]
    text += "\n" + _format_table(("piece", "state", "seconds", "estimate on a GPU", "why"), rows)
    return text + (_describe_rehearsal(document) if is_rehearsal else "")


def list_rows(document: Json) -> Iterator[tuple[Question, tuple[str, ...]]]:
    """For each question measured, goal, met, predicted, outcome and note; nothing is met or foreseen by a rehearsal."""
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        found = piece.get("rows", {}).get(name, {})
        measured, n = found.get("measured"), found.get("n", 0)
        is_met = False if piece.get("state") == "failed" else question.is_met(measured, n)
        verdict = "" if is_met is None or measured is None else "yes" if is_met else "no"
        if verdict == "no" and n < question.least_n:
            verdict += f" ({question.least_n} measurements are required)"
        note = "; ".join(filter(None, [found.get("note", ""), piece.get("why", "")]))
        outcome = question.judge(measured)
        if document["is_rehearsal"]:
            verdict = outcome = ""
        yield question, (_format_measured(found), question.goal, verdict, question.predicted, outcome, note)


def _format_measured(found: Json) -> str:
    if found.get("measured") is None:
        return "not measured"
    interval = "" if not found["interval"] else " [{:.4g}, {:.4g}]".format(*found["interval"])
    return f"{found['measured']:.4g}{interval}" + (f" n={found['n']}" if found["n"] > 1 else "")


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    # line breaks and bars within a cell are replaced
    cells = [[" ".join(cell.split()).replace("|", "/")[:300] for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, ["---"] * len(heads), *cells])


def list_missing(document: Json) -> list[str]:
    """The questions without a value that a CPU could answer, or whose piece is not done."""
    missing = []
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        has_value = piece.get("rows", {}).get(name, {}).get("measured") is not None
        if piece.get("state") != "done" or not (has_value or question.needs_gpu):
            missing.append(name)
    return missing


def is_met(document: Json, pieces: list[Piece]) -> bool:
    """Whether every one of ``pieces`` is done and none of its questions misses its goal."""
    for piece in pieces:
        known = document["pieces"].get(piece.name, {})
        if known.get("state") != "done":
            return False
        for name, question in piece.questions.items():
            found = known["rows"].get(name, {})
            if question.is_met(found.get("measured"), found.get("n", 0)) is False:
                return False
    return True


def _describe_rehearsal(document: Json) -> str:
    missing = "".join(f" `{name}`" for name in list_missing(document)) or " none"
    text = f"\nQuestions that are missing:{missing}. What differs from a GPU, besides the device itself:\n\n"
    text += "".join(f"- {piece.name}: {piece.differs}\n" for piece in PIECES.values())
    only_gpu = [each for each in QUESTIONS.values() if each.needs_gpu]
    return (
        text + "\nWhat only a GPU can answer:\n\n" + "".join(f"- {each.text}: {each.needs_gpu}\n" for each in only_gpu)
    )
