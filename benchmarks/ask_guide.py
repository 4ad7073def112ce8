"""``python -m benchmarks.ask_guide --root DIR --budget 3m``: what `sweep ask` gives on six tasks that nothing else was
tried on. Of each: the time that it took, as a share of the budget, and how accurate its choice is on test images, with
seeds that no search used, beside the choice of an oracle, which is the same study with ten times the time, and a batch
of 128 at AdamW's default rate. All three have the guide's number of epochs; a budget that is short for the machine
leaves few of them, so that the first and the last are also trained with all. The load before and after each study is
kept.

A stage that is done is kept in DIR/TASK/result.json, so that the same command resumes, and several commands share DIR
where each has tasks of its own. ``--save`` keeps the figures under benchmarks/results.
"""

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.ask_regret import WITHIN, compare_arms, summarize, train_missing
from benchmarks.ask_runs import MORE_TIME, NAMES, Row, find_configs, run_guide, run_oracle
from benchmarks.harness import warn_if_busy
from benchmarks.results import FOLDER, slug
from sweep.cli.arguments import parse_duration
from sweep.config.errors import InputError
from sweep.measurement.environment import describe_environment


def main() -> int:
    """Runs what is missing and prints a line for each task; exit code 0 where most tasks kept to the budget."""
    options = _parser().parse_args()
    warn_if_busy(os.getloadavg()[0])
    rows = {}
    for name in options.only or NAMES:
        row = _run_task(name, options)
        if row is None:
            print(f"{name}: refused, the machine is too slow or too busy for the budget", flush=True)
            continue
        rows[name] = row
        print(_describe(name, row), flush=True)
    summary = summarize(rows)
    print(json.dumps(summary, indent=1))
    if options.save:
        print(f"saved {_save(rows, summary, options)}", file=sys.stderr)
    within = summary["within_budget"]["share"]
    return 0 if within is not None and within > 1 / 2 else 1


def _run_task(name: str, options: argparse.Namespace) -> Row | None:
    # None where the budget was refused; it is tried again by the next command
    place = options.root / name
    place.mkdir(parents=True, exist_ok=True)
    file = place / "result.json"
    row: Row = json.loads(file.read_text()) if file.exists() else {"budget": options.budget}
    if row["budget"] != options.budget:
        raise InputError(f"{place}: its budget was {row['budget']}, not {options.budget}; choose another --root.")

    def keep() -> None:
        file.write_text(json.dumps(row, indent=1) + "\n")

    if "guide" not in row:
        guide = run_guide(name, place, options.budget)
        if guide is None:
            return None
        row |= {"guide": guide, "share": guide["seconds"] / (parse_duration(options.budget, "--budget") or 1.0)}
        keep()
    if options.oracle and "oracle" not in row:
        row["oracle"] = run_oracle(name, place)
        keep()
    train_missing(find_configs(name, place, row), row.setdefault("accuracies", {"test": {}, "val": {}}), keep)
    return row


def _describe(name: str, row: Row) -> str:
    before, after = row["guide"]["load"]
    parts = [f"{name}: {row['share']:.2f} of the budget, load {before:.1f} before and {after:.1f} after"]
    values = row["accuracies"]["test"]
    if not values:
        return f"{parts[0]}; nothing is named"
    pairs = {
        "regret": ("oracle_named", "guide"),
        "to the most accurate": ("oracle_most_accurate", "guide"),
        "gain on 128 at the default rate": ("guide", "usual"),
        "the same with all epochs": ("guide_all_epochs", "usual_all_epochs"),
        "gain of all epochs": ("guide_all_epochs", "guide"),
    }
    for text, (one, other) in pairs.items():
        if found := compare_arms(values, one, other):
            parts.append(f"{text} {100 * found.mean:.2f} ({100 * found.low:.2f} to {100 * found.high:.2f}) points")
    return "; ".join(parts)


def _save(rows: dict[str, Row], summary: dict[str, Any], options: argparse.Namespace) -> Path:
    environment = describe_environment(torch.device("cpu"))
    kind = "" if options.oracle else "_without_oracle"
    date = datetime.now(UTC).date()
    path = FOLDER / f"ask_guide{kind}_{options.budget}-{slug(environment['device'])}-{date}.json"
    facts = {"budget": options.budget, "oracle_times": MORE_TIME if options.oracle else None, "within": WITHIN}
    result = {**facts, "summary": summary, "tasks": rows, "environment": environment}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask_guide", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the studies and the results")
    parser.add_argument("--budget", default="3m", help="of each task (3m)")
    parser.add_argument("--only", nargs="*", choices=NAMES, help="these tasks")
    parser.add_argument("--no-oracle", dest="oracle", action="store_false", help="the guide alone")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
