"""Seconds of training until the answer is right and settled: our search against peers with the same confirming rule.

After 8, 11, 16, 22, 32 ... trials, and after the last one, the search is confirmed by the product's rule
(:func:`sweep.search.seeds.rank_confirmations`) until the headline of the answer is settled or
the rule has nothing more to train. The first of these checkpoints at which the headline is settled, and right by the
table's means (:mod:`benchmarks.answer_table`), is the arrival: its seconds are those of the search until then and of
that confirming. The confirming of earlier checkpoints is not counted, because a study would continue it. A checkpoint
at which no right configuration was trained to its end cannot be right and is not confirmed. A search that tries the
whole grid without arriving has taken infinitely long; what it spent is a lower bound. In every arm the confirming may
take four times as long as the search (``confirm.share``), so that the recorded seeds end it, and seldom the time.

``python -m benchmarks answer_arms``: each run (a table, an arm, a seed) is written when it ends, under
``runs/answer_arms``, so that an interrupted measurement continues; it is computed again when the code or the table has
changed.
"""

import argparse
import itertools
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.answer_table import CONFIRM_SHARE, RecordedTable, price_naive, price_oracle, read_table
from benchmarks.harness import NUM_RESAMPLES, TABLES, digest_files, keep, save
from benchmarks.replay import OUR_ARM, Order, Searched, list_arms
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import BATCH_SIZE, pick_for, select_candidates
from sweep.analysis.comparable import select_comparable
from sweep.analysis.statistics import CONFIDENCE, Values
from sweep.config.study import StudySpec
from sweep.records.records import TrialRecord
from sweep.search.seeds import rank_confirmations

# The tables that no constant of the search or the answer was chosen on.
_FRESH = (
    "cifar10_animals",
    "digits_blended",
    "digits_wide",
    "dots",
    "dots_models",
    "gratings",
    "gratings_dead_center",
    "mixtures",
)
_FIRST_CHECKPOINT = 8


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A confirmed one. ``search_seconds`` are those until it."""

    num_trials: int
    search_seconds: float
    confirm_seconds: float
    num_confirmed: int
    is_settled: bool
    is_right: bool


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One run. The arrival is None where there was none, and ``spent_seconds`` are those until it or, without it,
    all."""

    table: str
    arm: str
    seed: int
    arrival: Checkpoint | None
    checkpoints: tuple[Checkpoint, ...]
    spent_seconds: float

    @property
    def whole_seconds(self) -> float:
        return self.arrival.search_seconds + self.arrival.confirm_seconds if self.arrival else np.inf


def run_arm(table: RecordedTable, arm: str, order: Order, seed: int) -> RunFigures:
    study = table.make_study(seed)
    searched: list[Searched] = []
    checkpoints: list[Checkpoint] = []
    arrival: Checkpoint | None = None
    trials = itertools.chain(order(table, seed), [None])  # the last trial is a checkpoint too
    following = next(trials)
    while following and not arrival:
        searched.append(following)
        following = next(trials)
        complete = (each.record for each in searched if each.record.outcome == "complete")
        is_possible = any(table.find_point(record) in table.right for record in complete)
        if (following is None or is_checkpoint(len(searched))) and is_possible:
            confirmed = confirm_search(table, [each.record for each in searched], study)
            checkpoints.append(
                Checkpoint(
                    num_trials=len(searched), search_seconds=searched[-1].seconds, confirm_seconds=confirmed.seconds,
                    num_confirmed=confirmed.num_trainings, is_settled=confirmed.is_settled,
                    is_right=confirmed.row in table.right,
                )
            )  # fmt: skip
            arrival = checkpoints[-1] if checkpoints[-1].is_settled and checkpoints[-1].is_right else None
    return RunFigures(
        table=table.name, arm=arm, seed=seed, arrival=arrival, checkpoints=tuple(checkpoints),
        spent_seconds=searched[-1].seconds + (checkpoints[-1].confirm_seconds if checkpoints else 0.0),
    )  # fmt: skip


def is_checkpoint(num_trials: int) -> bool:
    """Whether it is 8 times a power of the root of 2, rounded down."""
    power = 2 * np.log2(max(num_trials, 1) / _FIRST_CHECKPOINT)
    halves = (half for half in (np.floor(power), np.ceil(power)) if half >= 0)
    return any(num_trials == int(_FIRST_CHECKPOINT * 2 ** (half / 2)) for half in halves)


class Confirmed(NamedTuple):
    """``row`` is that of the named point, None where none is named; ``seconds`` and ``num_trainings`` of confirming."""

    is_settled: bool
    row: int | None
    seconds: float
    num_trainings: int


def confirm_search(table: RecordedTable, searched: Sequence[TrialRecord], study: StudySpec) -> Confirmed:
    records, seconds = list(searched), 0.0
    while True:
        num_trainings = len(records) - len(searched)
        candidates = select_candidates(select_comparable(table.make_frames(records, study)), Limits())
        if candidates is None:
            return Confirmed(False, None, seconds, num_trainings)
        # the headline is about the batch size, whatever the rest of the configuration
        named, probabilities = pick_for(candidates, BATCH_SIZE, candidates.nameable)
        is_settled = named is not None and bool(probabilities[named] >= candidates.rules.confidence)
        due = [] if is_settled else rank_confirmations(candidates, records, study)
        if not due:
            row = None if named is None else table.find_point(records[candidates.number(named)])
            return Confirmed(is_settled, row, seconds, num_trainings)
        records.append(table.train(due[0], len(records), "confirm"))
        seconds += records[-1].measurements["total_seconds"]


# Intervals are percentile bootstrap intervals (Efron 1979). A search that never arrived is later than every other one.


def summarize_table(table: RecordedTable, runs: Sequence[RunFigures]) -> dict[str, Any]:
    """The arms on one table; a value that is infinite or no number is None."""
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in dict.fromkeys(run.arm for run in runs)}
    median = float(np.median([run.whole_seconds for run in by_arm[OUR_ARM]]))
    oracle, naive = price_oracle(table), price_naive(table)
    return {
        "table": table.name, "num_points": len(table.points), "num_seeds": table.num_seeds,
        "num_right": len(table.right), "grid_seconds": table.grid_seconds, "oracle_seconds": oracle,
        "naive_seconds": naive, "ours_share_of_oracle_speed": _finite(oracle / median),
        "ours_share_of_naive_cost": _finite(median / naive),
        "arms": {arm: _summarize_arm(own, by_arm[OUR_ARM]) for arm, own in by_arm.items()},
    }  # fmt: skip


def _summarize_arm(own: Sequence[RunFigures], ours: Sequence[RunFigures]) -> dict[str, Any]:
    whole = [run.whole_seconds for run in own]
    return {
        "num_runs": len(own), "median_seconds": _finite(float(np.median(whole))),
        "share_arrived": sum(run.arrival is not None for run in own) / len(own),
        "ratio_at_least": find_ratio([run.spent_seconds for run in own], [run.whole_seconds for run in ours]),
        "seconds": [_finite(value) for value in whole],
    }  # fmt: skip


def find_ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float | None]:
    """The ratio of the medians over seeds, of which both have the same, with its interval over seeds that are drawn in
    pairs. A bound that is infinite, or not known because both medians are infinite, is None."""
    pairs = np.array([theirs, ours], dtype=np.float64)
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (NUM_RESAMPLES, pairs.shape[1]))
    with np.errstate(invalid="ignore"):  # of two infinite ones
        ratios = np.divide(*np.median(pairs[:, drawn], axis=2))
        ratio = float(np.divide(*np.median(pairs, axis=1)))
    return {"ratio": _finite(ratio), **_find_bounds(ratios)}


def _find_bounds(draws: Values) -> dict[str, float | None]:
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(np.quantile(draws, share, method="nearest")) for share in (tail, 1 - tail))
    return {"low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def summarize_tables(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over tables, each arm's geometric mean of the ratios with an interval over resampled tables, which count what a
    search that never arrived had spent."""
    found: dict[str, Any] = {}
    for arm in dict.fromkeys(arm for table in tables for arm in table["arms"]):
        own = [table["arms"][arm] for table in tables if arm in table["arms"]]
        arrived = float(np.mean([each["share_arrived"] for each in own]))
        mean = find_geometric_mean([each["ratio_at_least"]["ratio"] for each in own])
        found[arm] = {"num_tables": len(own), "share_arrived": arrived, "ratio_at_least": mean}
    return found


def find_geometric_mean(ratios: Sequence[float | None]) -> dict[str, float | int | None]:
    """The geometric mean over tables and its interval; None where a ratio is infinite, unknown or 0 because only ours
    never arrived; there are ``num_without`` of these."""
    known = [ratio for ratio in ratios if ratio]
    if len(known) < len(ratios) or not known:
        return {"ratio": None, "low": None, "high": None, "num_without": len(ratios) - len(known)}
    logs = np.log(known)
    draws = logs[np.random.default_rng(0).integers(0, len(logs), (NUM_RESAMPLES, len(logs)))].mean(axis=1)
    return {"ratio": float(np.exp(logs.mean())), **_find_bounds(np.exp(draws)), "num_without": 0}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answer_arms", description=__doc__)
    parser.add_argument("--tables", nargs="+", help="folders of tables (the shipped ones not looked at before)")
    parser.add_argument("--seeds", type=int, default=10, help="of each arm on each table (10)")
    parser.add_argument("--arms", nargs="+", default=list(list_arms()), choices=list(list_arms()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--to", type=Path, default=Path("runs/answer_arms"), help="where the runs are written")
    options = parser.parse_args(arguments)
    tables = {folder: _read(folder) for folder in options.tables or [str(TABLES / name) for name in _FRESH]}
    tasks = list(itertools.product(range(options.seeds), tables, dict.fromkeys([OUR_ARM, *options.arms])))
    rows = [(folder, arm, seed, options.to / _digest(folder)) for seed, folder, arm in tasks]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(_measure, *zip(*rows, strict=True)))
    by_table = {folder: [run for row, run in zip(rows, runs, strict=True) if row[0] == folder] for folder in tables}
    found = [summarize_table(table, by_table[folder]) for folder, table in tables.items()]
    over = summarize_tables(found)
    print(json.dumps({"tables": found, "over_tables": over}, indent=1))
    if options.save:
        facts = {"num_seeds": options.seeds, "confirm_share": CONFIRM_SHARE}
        measured = {"tables": found, "over_tables": over, "runs": [asdict(run) for run in runs]}
        save("answer_arms", {**facts, **measured})
    return 0


@cache
def _read(folder: str) -> RecordedTable:
    return read_table(folder)


def _digest(table: str) -> str:
    code = [f"benchmarks/{name}.py" for name in ("answer_arms", "answer_table", "replay")]
    files = sorted(path.resolve() for path in Path(table).iterdir() if path.is_file())
    return digest_files("sweep/analysis", "sweep/search", *code, *files)


def _measure(table: str, arm: str, seed: int, folder: Path) -> RunFigures:
    def run() -> dict[str, Any]:
        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # samplers of Optuna are experimental
            return asdict(run_arm(_read(table), arm, list_arms()[arm], seed))

    kept = keep(folder / f"{arm}_{seed}.json", run)
    arrival = Checkpoint(**kept["arrival"]) if kept["arrival"] else None
    checkpoints = tuple(Checkpoint(**each) for each in kept["checkpoints"])
    return RunFigures(**kept | {"arrival": arrival, "checkpoints": checkpoints})
