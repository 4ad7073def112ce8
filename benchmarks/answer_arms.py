"""Seconds of training until the answer is right and settled: our search against peers with the same confirming rule.

``python -m benchmarks.answer_arms``: each run (a table, an arm, a seed) is written when it ends, under
``runs/answer_arms``, so that an interrupted measurement continues; it is computed again when the code or the table has
changed. What is counted is stated in :mod:`benchmarks.answer_runs`, what is right in
:mod:`benchmarks.answer_table`. In every arm the confirming may take four times as long as the search
(``confirm.share``), so that the recorded seeds end it, and seldom the time.
"""

import argparse
import hashlib
import itertools
import json
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.answer_orders import OUR_ARM, list_arms
from benchmarks.answer_runs import FRACTIONS, Checkpoint, RunFigures, run_arm
from benchmarks.answer_summary import summarize_table, summarize_tables, write_markdown
from benchmarks.answer_table import CONFIRM_SHARE, AnswerTable, read_answer_table
from benchmarks.results import FOLDER, slug
from benchmarks.search_arms import TABLES
from benchmarks.table_design import LOOKED_AT
from sweep.config.errors import InputError
from sweep.measurement.environment import describe_environment
from sweep.records.content_key import environment_digest

ROOT = Path("runs/answer_arms")
_CODE = ("sweep/analysis", "sweep/search")
_REPOSITORY = Path(__file__).parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for a table that does not suffice."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options = _parse(arguments)
    try:
        tables = _read_tables(options.tables)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    arms = list(dict.fromkeys([OUR_ARM, *options.arms]))
    tasks = [
        (folder, arm, seed, _folder_of(options.to, folder))
        for seed, folder, arm in itertools.product(range(options.seeds), tables, arms)
    ]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(_measure, tasks))
    found = [
        summarize_table(table, [run for task, run in zip(tasks, runs, strict=True) if task[0] == folder])
        for folder, table in tables.items()
    ]
    over = summarize_tables(found)
    print(write_markdown(found, over))
    if options.save:
        print(f"saved {_save(found, over, options.seeds, runs)}", file=sys.stderr)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answer_arms", description=__doc__)
    parser.add_argument(
        "--tables", nargs="+", help="folders of tables (the shipped ones that were not looked at before)"
    )
    parser.add_argument("--seeds", type=int, default=10, help="of each arm on each table (10)")
    parser.add_argument("--arms", nargs="+", default=list(list_arms()), choices=list(list_arms()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--to", type=Path, default=ROOT, help="where the runs are written (runs/answer_arms)")
    return parser.parse_args(arguments)


def _read_tables(folders: Sequence[str] | None) -> dict[str, AnswerTable]:
    if folders:
        return {folder: _read(folder) for folder in folders}
    found = {}
    for path in sorted(path.parent for path in TABLES.glob("*/export.json")):
        folder = str(path)
        if path.name in LOOKED_AT:
            continue
        try:
            found[folder] = _read(folder)
        except InputError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not found:
        raise InputError(f"{TABLES}: no table has enough seeds; name others with --tables.")
    return found


@cache
def _read(folder: str) -> AnswerTable:
    return read_answer_table(folder)


def _folder_of(root: Path, table: str) -> str:
    paths = list(itertools.chain.from_iterable(sorted((_REPOSITORY / each).rglob("*.py")) for each in _CODE))
    paths += [*sorted(Path(__file__).parent.glob("answer_*.py")), Path(__file__).parent / "search_arms.py"]
    paths += sorted(path for path in Path(table).iterdir() if path.is_file())
    return str(root / hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12])


def _measure(task: tuple[str, str, int, str]) -> RunFigures:
    table, arm, seed, folder = task
    path = Path(folder) / f"{arm}_{seed}.json"
    if path.is_file():
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samplers of Optuna are experimental
        figures = run_arm(_read(table), arm, list_arms()[arm], seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".part")
    written.write_text(json.dumps(asdict(figures)), encoding="utf-8")
    written.replace(path)
    return figures


def _from_json(content: dict[str, Any]) -> RunFigures:
    arrival = content["arrival"]
    return RunFigures(
        **{
            **content,
            "arrival": Checkpoint(**arrival) if arrival else None,
            "checkpoints": tuple(Checkpoint(**each) for each in content["checkpoints"]),
            "shares": tuple(content["shares"]),
        }
    )


def _save(tables: list[dict[str, Any]], over: dict[str, Any], num_seeds: int, runs: Sequence[RunFigures]) -> Path:
    environment = describe_environment(torch.device("cpu"))
    date = datetime.now(UTC).date().isoformat()
    document = {
        "date": date,
        "num_seeds": num_seeds,
        "confirm_share": CONFIRM_SHARE,
        "fractions_of_grid_seconds": FRACTIONS,
        "tables": tables,
        "over_tables": over,
        "runs": [asdict(run) for run in runs],
        "environment": environment,
        "environment_digest": environment_digest(environment),
    }
    path = FOLDER / f"answer_arms-{slug(environment['device'])}-{date}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
