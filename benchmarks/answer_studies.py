"""Whole studies on recorded tables against the truth of the table: ``python -m benchmarks answer_studies``.

A study searches half of the grid by the product's sampler and pruner and confirms by its rule, with the usual share of
time, all with recorded trainings. Its truth is that of all recorded trainings of the whole grid
(:mod:`benchmarks.answer_table`): their means, which have an error themselves, so that a statement about a close race
can be called wrong although it is right.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.answer_table import AnswerTable, read_answer_table
from benchmarks.harness import TABLES, save, share_of
from benchmarks.search import OUR_ARM, list_arms
from sweep.analysis.comparable import ACCURACY
from sweep.analysis.recommendation import recommend
from sweep.config.study import FEWEST_SEEDS
from sweep.search.seeds import list_confirmations

_SHARE = 0.5  # of the search's time for confirming, the default


@dataclass(frozen=True, kw_only=True)
class JudgedStudy:
    """One study. What is about a statement that is not settled is False; ``is_covered`` is whether the interval of the
    named accuracy contains the mean of the recorded seeds, ``tuned_covered`` the share of the curve's that do."""

    table: str
    seed: int
    is_named: bool
    is_settled: bool
    is_right: bool
    largest_settled: bool
    largest_right: bool
    is_covered: bool
    tuned_covered: float
    num_seeds: int
    num_trainings: int
    seconds: float


def run_study(folder: str, seed: int) -> JudgedStudy:
    table = read_answer_table(folder)
    half = len(table.recorded.points) // 2
    confirm = {"max_configurations": 16, "seeds": table.num_seeds - 1, "share": _SHARE}
    study = table.make_study(seed, trials=half, confirm=confirm)
    searched = list(islice(list_arms()[OUR_ARM](table, seed), half))
    records = [each.record for each in searched]
    while due := list_confirmations(table.make_frames(records, study), records, study):
        records.append(table.train(due[0], len(records), "confirm"))
    confirming = sum(record.measurements["total_seconds"] for record in records[half:])
    seconds = searched[-1].seconds + confirming
    answer = recommend(table.make_frames(records, study)).batch_size
    assert answer is not None
    named, tuned = answer.named, _find_tuned(table)
    row = None if named.number is None else table.find_point(records[named.number])
    interval = named.values.get(ACCURACY)
    largest = next((each for each in answer.statements if each.name == "largest_without_loss"), None)
    least = max(mean for (model, _), mean in tuned.items() if model == answer.model) - study.answer.tolerance.accuracy
    is_within = bool(largest and largest.batches and tuned[answer.model, largest.batches[0]] >= least)
    covered = [point.accuracy.low <= tuned[point.model, point.batch] <= point.accuracy.high for point in answer.curve]
    return JudgedStudy(
        table=table.name, seed=study.seed, is_named=row is not None, is_settled=named.is_settled,
        is_right=named.is_settled and row in table.right, largest_settled=bool(largest and largest.is_settled),
        largest_right=bool(largest and largest.is_settled) and is_within,
        is_covered=bool(row is not None and interval and interval.low <= table.mean(ACCURACY)[row] <= interval.high),
        tuned_covered=float(np.mean(covered)), num_seeds=interval.n if interval else 0, num_trainings=len(records),
        seconds=seconds,
    )  # fmt: skip


def _find_tuned(table: AnswerTable) -> dict[tuple[str, int], float]:
    # the best mean of each model and effective batch size
    tuned: dict[tuple[str, int], float] = {}
    for row, mean in enumerate(table.mean(ACCURACY).tolist()):
        config = table.config_of(row)
        if np.isfinite(mean):
            place = (config.model.name, config.global_batch_size)
            tuned[place] = max(mean, tuned.get(place, 0.0))
    return tuned


def summarize(found: Sequence[JudgedStudy]) -> dict[str, Any]:
    named = [each for each in found if each.is_named]
    return {
        "num_studies": len(found),
        "named": share_of([each.is_named for each in found]),
        "settled": share_of([each.is_settled for each in found]),
        "settled_right": share_of([each.is_right for each in found if each.is_settled]),
        "largest_settled": share_of([each.largest_settled for each in found]),
        "largest_right": share_of([each.largest_right for each in found if each.largest_settled]),
        "named_covered": share_of([each.is_covered for each in named]),
        "named_with_enough_seeds": share_of([each.num_seeds >= FEWEST_SEEDS for each in named]),
        "curve_covered": float(np.mean([each.tuned_covered for each in found])) if found else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answer_studies", description=__doc__)
    parser.add_argument("--tables", nargs="+", default=[str(TABLES / "digits_crops"), str(TABLES / "digits_vit")])
    parser.add_argument("--seeds", type=int, default=20, help="studies on each table (20)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    tasks = [(folder, seed) for folder in options.tables for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(run_study, *zip(*tasks, strict=True)))
    tables = {name: summarize([each for each in found if each.table == name]) for name in {e.table for e in found}}
    result: dict[str, Any] = {"all": summarize(found), "tables": tables}
    print(json.dumps(result, indent=1))
    if options.save:
        save("answer_studies", {**result, "studies": [asdict(each) for each in found]})
    return 0
