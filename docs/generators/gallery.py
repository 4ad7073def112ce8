"""The studies of the gallery: what `sweep recommend` makes of committed records.

The answers are stored as JSON beside the page, because their last digits differ between processors;
``write_answers`` computes them again from the records.
"""

import json
from pathlib import Path
from typing import Any

from generators.markdown import table

from reports.texts import CURVE_HEADS, describe_batch_answer
from sweep.analysis.recommendation import recommend
from sweep.config.metrics import format_count
from sweep.records.loading import load_frames

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/gallery"
# Where the records of each study are.
RECORDS = {
    "quickstart": "docs/gallery/quickstart",
    "digits": "benchmarks/tables/digits",
    "digits_vit": "benchmarks/tables/digits_vit",
    "digits_crops": "benchmarks/tables/digits_crops",
    "digits_blended": "benchmarks/tables/digits_blended",
}


def answer(name: str) -> Json:
    """The question of a study, what was trained, and its answer about the batch size in texts and numbers."""
    frames = load_frames(ROOT / RECORDS[name], evaluations=True)
    found = recommend(frames)
    assert frames.spec is not None
    assert found.batch_size is not None
    texts = describe_batch_answer(found.batch_size)
    return {
        "question": frames.spec.question,
        "trainings": len(frames.trials),
        "seeds": frames.trials["seed"].nunique(),
        "device": frames.trials["device"].mode()[0],
        "date": f"{frames.studies['created_at'].iloc[0]:%Y-%m-%d}",
        "statements": texts.statements,
        "rows": [[f"{value} ({note})" if note else value for value, note in row] for row in texts.rows],
        "remarks": texts.remarks,
        "curve": [
            [point.model, point.batch, point.accuracy.median, point.seconds.median] for point in found.batch_size.curve
        ],
    }


def write_answers() -> None:
    """Computes every answer again from the records."""
    for name in RECORDS:
        text = json.dumps(answer(name), indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def read_answer(name: str) -> Json:
    """The stored answer."""
    found: Json = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def demo() -> str:
    """The answer of the demo: its statements and its tuned batch sizes."""
    found = read_answer("quickstart")
    statements = [f"- {text}" + (f" *({certain})*" if certain else "") for text, certain in found["statements"]]
    return "\n".join([_describe(found), "", *statements, "", _tuned(found, "Accuracy")])


def first_statement() -> str:
    """The first statement of the demo's answer, as a quotation."""
    text, certain = read_answer("quickstart")["statements"][0]
    return f"> {text} ({certain})"


_PARTS = {
    "train_seconds": "training",
    "data_wait_seconds": "in it, waiting for data",
    "eval_seconds": "evaluation",
    "diagnostics_seconds": "diagnostic measurements",
    "setup_seconds": "set-up: data and model",
    "memory_seconds": "the memory pass",
    "warmup_seconds": "warm-up",
    "total_seconds": "in all",
}


def demo_times() -> str:
    """The wall-clock time of a trial of the demo, by part."""
    trial = load_frames(ROOT / RECORDS["quickstart"]).trials.set_index("number").loc[3]
    rows = [[text, f"`{name}`", f"{trial[name]:.2f}"] for name, text in _PARTS.items()]
    return table(("part", "column", "seconds"), rows)


def recorded() -> str:
    """A section for each recorded table."""
    parts = []
    for name in RECORDS:
        if name != "quickstart":
            found = read_answer(name)
            parts += [f"### {name}", _describe(found), _tuned(found), f"    sweep recommend {RECORDS[name]}"]
    return "\n\n".join(parts)


def _describe(found: Json) -> str:
    counts = f"{format_count(found['trainings'], 'training')} with {found['seeds']} seeds"
    return f"*{found['question']}* {counts}, {found['device']}, {found['date']}."


_SHOWN = ("Model", "Effective batch size", "Accuracy", "Training time", "Without loss")


def _tuned(found: Json, detailed: str = "") -> str:
    # of the column ``detailed`` with the notes in parentheses
    indices = {name: CURVE_HEADS.index(name) for name in _SHOWN}
    if len({row[0] for row in found["rows"]}) == 1:
        del indices["Model"]
    rows = [
        [row[index] if name == detailed else row[index].partition(" (")[0] for name, index in indices.items()]
        for row in found["rows"]
    ]
    return table(tuple(indices), rows)
