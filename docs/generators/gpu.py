"""The questions that are asked of a GPU, with what the committed results have of them, and nothing else."""

import json
import sys
from pathlib import Path
from typing import Any

from generators.markdown import table

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are no part of what is installed

from benchmarks.gpu.plan import PIECES  # noqa: E402
from benchmarks.gpu.predictions import load_predictions  # noqa: E402
from benchmarks.gpu.questions import QUESTIONS  # noqa: E402
from benchmarks.gpu.tables import format_answer  # noqa: E402

RESULTS = ROOT / "benchmarks/results"


def gpu(folder: Path = RESULTS) -> str:
    """A row for every question, by the newest file of each device in ``folder``; rehearsals are no results."""
    documents = _newest_by_device(folder) or [{"pieces": {}, "device": "", "date": ""}]
    rows = [row for document in documents for row in _list_rows(document)]
    return table(("question", "measured", "goal", "met", "predicted", "outcome", "note", "device, date"), rows)


def gpu_state(folder: Path = RESULTS) -> str:
    """One sentence on where times were measured."""
    devices = [f"{document['device']} ({document['date']})" for document in _newest_by_device(folder)]
    if not devices:
        return "**Measured where:** on CPUs only. No GPU path has been timed yet."
    return f"**Measured where:** on CPUs, and on {', '.join(devices)}."


def gpu_pieces() -> str:
    """The pieces in the order of their importance, with their estimates."""
    rows = [(f"`{piece.name}`", f"{piece.seconds:.0f} s", piece.because, piece.differs) for piece in PIECES.values()]
    return table(("piece", "estimate", "because", "in a rehearsal on a CPU"), rows)


def _list_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    predictions = load_predictions()
    where = ", ".join(filter(None, (document["device"], document["date"])))
    rows = []
    for name, question in QUESTIONS.items():
        piece = document["pieces"].get(question.piece, {})
        cells = format_answer(question, piece, name, predictions[name])
        is_measured = piece.get("rows", {}).get(name, {}).get("measured") is not None
        rows.append((question.text, *(cell.replace("|", "/") for cell in cells), where if is_measured else ""))
    return rows


def _newest_by_device(folder: Path) -> list[dict[str, Any]]:
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("gpu-*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["date"] >= newest.get(document["device"], document)["date"]:
            newest[document["device"]] = document
    return list(newest.values())
