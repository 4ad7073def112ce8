"""A day with a GPU as Markdown: the plan, and each question with goal, prediction and outcome. Imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.plan import PIECES, TOTAL_SECONDS, Piece
from benchmarks.gpu.predictions import Prediction, judge_prediction, load_predictions
from benchmarks.gpu.questions import QUESTIONS, Question

Json = dict[str, Any]
HEADS = ("piece", "question", "measured", "goal", "met", "predicted", "outcome", "note")


def format_plan(states: Mapping[str, str]) -> str:
    """The pieces in their order, with what each is estimated to take and what it has come to."""
    heads = ("piece", "estimate", "sum", "limit", "questions", "state")
    lines, total = [], 0.0
    for piece in PIECES.values():
        total += piece.seconds
        times = [f"{seconds:.0f} s" for seconds in (piece.seconds, total, piece.limit_seconds)]
        state = states.get(piece.name, "") or "to do"
        lines.append((piece.name, *times, str(len(piece.questions)), state))
    left = sum(piece.seconds for piece in PIECES.values() if states.get(piece.name) != "done")
    ends = f"\n{left / 60:.0f} of {total / 60:.0f} minutes are left; at most {TOTAL_SECONDS / 60:.0f} are planned.\n"
    reasons = "".join(f"- {piece.name}: {piece.because}\n" for piece in PIECES.values())
    return format_table(heads, lines) + ends + "\nEstimates for an H100 or H200:\n\n" + reasons


def format_sheet(document: Json) -> str:
    """The device, the date, a row for every question whether answered or not, and what each piece took."""
    command = "python -m benchmarks.gpu" + (" --rehearse" if document["is_rehearsal"] else "")
    heading = f"{document['device']}, {document['date']}; `{command}`\n\n"
    if document["is_rehearsal"]:
        heading += (
            "A rehearsal with the smallest sizes: it shows that every piece runs. **Its figures mean nothing.**\n\n"
        )
    text = heading + format_table(HEADS, list(list_rows(document)))
    text += "\n" + format_table(("piece", "state", "seconds", "estimate on a GPU", "why"), list(_list_pieces(document)))
    return text + (_describe_rehearsal(document) if document["is_rehearsal"] else "")


def list_rows(document: Json) -> Iterator[tuple[str, ...]]:
    """One for each question, by :data:`HEADS`."""
    predictions = load_predictions()
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        cells = format_answer(question, piece, name, predictions[name])
        if document["is_rehearsal"]:  # nothing is met or foreseen by it
            cells = (cells[0], cells[1], "", cells[3], "", cells[5])
        yield (question.piece, question.text, *cells)


def format_answer(question: Question, piece: Json, name: str, prediction: Prediction) -> tuple[str, ...]:
    """Measured, goal, met, predicted, outcome and note. ``piece`` is empty where nothing was run."""
    found = piece.get("rows", {}).get(name, {})
    measured, n = found.get("measured"), found.get("n", 0)
    is_met = False if piece.get("state") == "failed" else question.is_met(measured, n)
    verdict = "" if is_met is None or measured is None else "yes" if is_met else "no"
    if verdict == "no" and n < question.least_n:
        verdict += f" ({question.least_n} measurements are required)"
    notes = [found.get("note", ""), piece.get("why", "")]
    return (
        _format_measured(found),
        question.goal,
        verdict,
        prediction.range,
        judge_prediction(prediction, measured),
        "; ".join(filter(None, notes)),
    )


def count_covered(document: Json) -> tuple[list[str], list[str], list[str]]:
    """Questions that have a value, that only a GPU can answer, and that have neither though they could."""
    measured: list[str] = []
    only_gpu: list[str] = []
    missing: list[str] = []
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        has_value = piece.get("rows", {}).get(name, {}).get("measured") is not None
        is_done = piece.get("state") == "done"
        group = measured if has_value and is_done else only_gpu if question.needs_gpu and is_done else missing
        group.append(name)
    return measured, only_gpu, missing


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


def format_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown; line breaks and bars within a cell are replaced."""
    cells = [[" ".join(cell.split()).replace("|", "/")[:300] for cell in row] for row in rows]
    lines = [heads, tuple("---" for _ in heads), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _format_measured(found: Json) -> str:
    if found.get("measured") is None:
        return "not measured"
    interval = "" if not found["interval"] else " [{:.4g}, {:.4g}]".format(*found["interval"])
    return f"{found['measured']:.4g}{interval}" + (f" n={found['n']}" if found["n"] > 1 else "")


def _list_pieces(document: Json) -> Iterator[tuple[str, ...]]:
    for piece in PIECES.values():
        known = document["pieces"].get(piece.name, {"state": "not run", "seconds": 0.0, "why": ""})
        yield piece.name, known["state"], f"{known['seconds']:.0f}", f"{piece.seconds:.0f}", known["why"]


def _describe_rehearsal(document: Json) -> str:
    measured, only_gpu, missing = count_covered(document)
    total = sum(piece["seconds"] for piece in document["pieces"].values())
    share = 100 * (1 - len(missing) / len(QUESTIONS))
    text = f"\nCovered: {share:.0f} % of {len(QUESTIONS)} questions: {len(measured)} have a value here, "
    text += (
        f"{len(only_gpu)} can have one on a GPU only, {len(missing)} are missing{''.join(f' `{n}`' for n in missing)}. "
    )
    text += f"{total:.0f} s in all.\n\nWhat differs from a GPU, besides the device itself:\n\n"
    text += "".join(f"- {piece.name}: {piece.differs}\n" for piece in PIECES.values())
    text += "\nWhat only a GPU can answer:\n\n"
    return text + "".join(f"- {QUESTIONS[name].text}: {QUESTIONS[name].needs_gpu}\n" for name in only_gpu)
