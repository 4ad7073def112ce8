"""The questions that are asked of a GPU, with what the committed results have of them, and nothing else."""

import json
import sys
from pathlib import Path
from typing import Any

from generators.markdown import table

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are no part of what is installed

from benchmarks.gpu.sheet import PIECES, list_rows  # noqa: E402

RESULTS = ROOT / "benchmarks/results"


def gpu(folder: Path = RESULTS) -> str:
    """A row for every question, by the file of each device in ``folder``; rehearsals are no results."""
    documents = _read_devices(folder) or [{"pieces": {}, "device": "", "date": "", "is_rehearsal": False}]
    rows = []
    for document in documents:
        where = ", ".join(filter(None, (document["device"], document["date"])))
        for question, cells in list_rows(document):
            is_measured = cells[0] != "not measured"
            cells = tuple(cell.replace("|", "/") for cell in cells)
            rows.append((question.text, *cells, where if is_measured else ""))
    return table(("question", "measured", "goal", "met", "predicted", "outcome", "note", "device, date"), rows)


def gpu_state(folder: Path = RESULTS) -> str:
    """One sentence on where times were measured."""
    devices = [f"{document['device']} ({document['date']})" for document in _read_devices(folder)]
    if not devices:
        return "**Measured where:** on CPUs only. No GPU path has been timed yet."
    return f"**Measured where:** on CPUs, and on {', '.join(devices)}."


def gpu_pieces() -> str:
    """The pieces in the order of their importance, with their estimates."""
    rows = [(f"`{piece.name}`", f"{piece.seconds:.0f} s", piece.because, piece.differs) for piece in PIECES.values()]
    return table(("piece", "estimate", "because", "in a rehearsal on a CPU"), rows)


def _read_devices(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("gpu-*.json"))]
