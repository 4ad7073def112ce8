"""``python -m benchmarks.ask_guide --root DIR --budget 3m``: what `sweep ask` gives on six tasks that nothing else was
tried on. Of each: the time that it took, as a share of the budget, and the accuracy of what it recommends against that
of a batch of 128 at AdamW's default rate, with the same model and as many epochs, of 3 seeds.

A task that is done is kept in DIR/ask_guide.json, so that the same command resumes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import ask_tasks
from benchmarks.harness import warn_if_busy
from sweep.cli.arguments import parse_duration

_SEEDS = (101, 102, 103)
_WITHIN = 0.1  # of the budget
_FOLDER = "folder"
_USUAL = ("batch.micro=128", "optimizer.name=adamw", "optimizer.lr=0.001", "optimizer.lr_rule=none")
_ROOM = Path(__file__).resolve().parent.parent
Row = dict[str, Any]


def main() -> int:
    """Runs what is missing and prints a line for each task; exit code 0 where most tasks kept to the budget."""
    options = _parser().parse_args()
    options.root.mkdir(parents=True, exist_ok=True)
    warn_if_busy(os.getloadavg()[0])
    place = options.root / "ask_guide.json"
    rows: dict[str, Row] = json.loads(place.read_text()) if place.exists() else {}
    for name in options.only or (*ask_tasks.TASKS, _FOLDER):
        if name not in rows:
            row = _try_task(name, options.root, options.budget)
            if row is None:
                print(f"{name}: refused, the machine is too slow or too busy for the budget", flush=True)
                continue
            rows[name] = row
            place.write_text(json.dumps(rows, indent=1) + "\n")
        print(_describe(name, rows[name]), flush=True)
    num_within = sum(abs(row["share"] - 1) <= _WITHIN for row in rows.values())
    print(f"within {_WITHIN:.0%} of the budget: {num_within} of {len(rows)} tasks")
    return 0 if 2 * num_within > len(rows) else 1


def _try_task(name: str, root: Path, budget: str) -> Row | None:
    # None where the budget was refused; it is tried again by the next command
    try:
        return _run_task(name, root, budget)
    except subprocess.CalledProcessError as error:
        if error.returncode != 2:
            raise
        return None


def _run_task(name: str, root: Path, budget: str) -> Row:
    data = name
    if name == _FOLDER:
        data = str(root / "images")
        if not Path(data).exists():
            ask_tasks.write_folder(Path(data))
    file, began = root / f"{name}.toml", time.monotonic()
    file.unlink(missing_ok=True)
    records = root / "runs" / f"{began:.0f}"  # a task that was interrupted begins anew
    shown = _sweep("ask", str(file), "--data", data, "--budget", budget, "--yes", "--root", str(records), "--json")
    seconds = time.monotonic() - began
    named = shown["answer"]["batch_size"]["named"]
    row = {"share": seconds / (parse_duration(budget, "--budget") or 1.0), "stopped": shown["run"]["stopped"]}
    row |= {"left_out": shown["left_out"], "load": os.getloadavg()[0], "usual": median(_train_usual(file))}
    if named["number"] is None:
        return row | {"batch": None, "accuracy": None}
    return row | {"batch": named["global_batch_size"], "accuracy": named["val_accuracy"]}


def _train_usual(file: Path) -> list[float]:
    found = []
    for seed in _SEEDS:
        sets = [word for pair in (*_USUAL, f"seed={seed}") for word in ("--set", pair)]
        found.append(float(_sweep("train", str(file), *sets, "--json")["val_accuracy"]))
    return found


def _sweep(command: str, *arguments: str) -> Mapping[str, Any]:
    plugin = str(Path(ask_tasks.__file__).resolve())
    words = [sys.executable, "-m", "sweep.cli", command, *arguments, "--plugin", plugin]
    environment = os.environ | {"PYTHONPATH": str(_ROOM)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    document: Mapping[str, Any] = json.loads(done.stdout)
    return document


def _describe(name: str, row: Row) -> str:
    head = f"{name}: {row['share']:.2f} of the budget"
    if row["accuracy"] is None:
        return f"{head}; nothing is named; 128 at the default rate {100 * row['usual']:.2f} %"
    accuracy = row["accuracy"]
    return (
        f"{head}; batch {row['batch']}: {100 * accuracy['median']:.2f} % ({100 * accuracy['low']:.2f} to "
        f"{100 * accuracy['high']:.2f} %); 128 at the default rate {100 * row['usual']:.2f} %"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask_guide", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the studies and the results")
    parser.add_argument("--budget", default="3m", help="of each task (3m)")
    parser.add_argument("--only", nargs="*", choices=(*ask_tasks.TASKS, _FOLDER), help="these tasks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
