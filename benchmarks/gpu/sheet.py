"""What was measured on a GPU as one file, samples and rows by piece, written after each sample; and as Markdown for the
terminal: the plan, and each question with goal, prediction and outcome."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from benchmarks.gpu.plan import PIECES, QUESTIONS, TOTAL_SECONDS, Piece, Question, State
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

    A file of the device in which a piece is left to do is continued, also on a later day, unless ``is_new``. A new
    rehearsal replaces that of the day; a result is never replaced.
    """

    def __init__(
        self, environment: Json, folder: Path = RESULTS, *, is_rehearsal: bool = False, is_new: bool = False
    ) -> None:
        date = dt.datetime.now(dt.UTC).date().isoformat()
        stem = f"{'gpu_rehearsal' if is_rehearsal else 'gpu'}-{slug(environment['device'])}"
        today = folder / f"{stem}-{date}.json"
        known = None if is_new else _find_open(folder, stem) or (today if is_rehearsal and today.exists() else None)
        self.path = known or (today if is_rehearsal else _find_free(folder, today.stem))
        self._digest = environment_digest(environment)
        self.document: Json = {"date": date, "device": environment["device"], "is_rehearsal": is_rehearsal}
        self.document |= {"environments": {}, "pieces": {}}
        if known:
            self.document |= json.loads(known.read_text(encoding="utf-8"))
        else:
            self.path.with_suffix(".log").unlink(missing_ok=True)  # of an earlier rehearsal
        self.document["environments"][self._digest] = environment
        for piece in self.document["pieces"].values():
            if piece["state"] == "running":
                piece |= {"state": "cut short", "why": "the command was killed"}

    def states(self) -> dict[str, State]:
        """How each piece that was begun has ended."""
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
        """One more sample, and the rows of all samples."""
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


def _find_free(folder: Path, stem: str) -> Path:
    # a result is never overwritten
    names = [stem, *(f"{stem}-{number}" for number in range(2, 100))]
    return next(path for name in names if not (path := folder / f"{name}.json").exists())


# ---------------------------------------------------------------------- as Markdown


def format_plan(states: Mapping[str, str]) -> str:
    """The pieces in their order, with what each is estimated to take and what it has come to."""
    rows, total = [], 0.0
    for piece in PIECES.values():
        total += piece.seconds
        times = [f"{seconds:.0f} s" for seconds in (piece.seconds, total, piece.limit_seconds)]
        rows.append((piece.name, *times, str(len(piece.questions)), states.get(piece.name, "") or "to do"))
    left = sum(piece.seconds for piece in PIECES.values() if states.get(piece.name) != "done")
    ends = f"\n{left / 60:.0f} of {total / 60:.0f} minutes are left; at most {TOTAL_SECONDS / 60:.0f} are planned.\n"
    reasons = "".join(f"- {piece.name}: {piece.because}\n" for piece in PIECES.values())
    table = _format_table(("piece", "estimate", "sum", "limit", "questions", "state"), rows)
    return table + ends + "\nEstimates for an H100 or H200:\n\n" + reasons


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


def count_covered(document: Json) -> tuple[list[str], list[str], list[str]]:
    """Questions that have a value, that only a GPU can answer, and that have neither though they could."""
    groups: tuple[list[str], list[str], list[str]] = ([], [], [])
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        has_value = piece.get("rows", {}).get(name, {}).get("measured") is not None
        is_done = piece.get("state") == "done"
        groups[0 if has_value and is_done else 1 if question.needs_gpu and is_done else 2].append(name)
    return groups


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
    measured, only_gpu, missing = count_covered(document)
    total = sum(piece["seconds"] for piece in document["pieces"].values())
    share = 100 * (1 - len(missing) / len(QUESTIONS))
    text = (
        f"\nCovered: {share:.0f} % of {len(QUESTIONS)} questions: {len(measured)} have a value here, {len(only_gpu)} "
        f"can have one on a GPU only, {len(missing)} are missing{''.join(f' `{name}`' for name in missing)}. "
        f"{total:.0f} s in all.\n\nWhat differs from a GPU, besides the device itself:\n\n"
    )
    text += "".join(f"- {piece.name}: {piece.differs}\n" for piece in PIECES.values())
    text += "\nWhat only a GPU can answer:\n\n"
    return text + "".join(f"- {QUESTIONS[name].text}: {QUESTIONS[name].needs_gpu}\n" for name in only_gpu)
