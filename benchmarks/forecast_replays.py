"""``python -m benchmarks.forecast_replays``: what of a study is chance, on recorded trainings and a simulated clock.

How far an adaptive sampler prefers fast configurations, how much time pruning saves, and how much of its time the
confirming uses: the constants of :mod:`sweep.search.study_forecast` and ``confirm_total``.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.forecast_studies import OBJECTIVES, PRUNERS, SAMPLERS, pick
from benchmarks.replay import RecordedTable, make_replay_study, replay_search
from benchmarks.search_arms import shipped_tables
from sweep.config.study import StudySpec
from sweep.config.study_sections import Confirm
from sweep.config.trial_config import TrialConfig
from sweep.records.trial_record import ReusableTrial, TrialRecord
from sweep.search.pruner import NUM_NEAREST

# Configurations and seeds. A table has fewer seeds, which are repeated: that says what is settled too early, so the use
# of the time is rather underestimated.
_CONFIRM = ((16, 20), (4, 5), (3, 3))
_TRIALS = (6, 40)
_MOST_LEAN, _PRECISION = 15.0, 1e-3
_LEAST_JUDGED = 0.2  # of the trials that a pruner can judge, below which nothing is learned of what it saves


@dataclass(frozen=True)
class ReplayedStudy:
    """One replayed study. ``whole_seconds`` are those of each search trial if it had not been pruned."""

    spec: StudySpec
    sample_seconds: list[float]  # of every configuration of the table
    search_seconds: float = 0.0
    confirm_seconds: float = 0.0
    whole_seconds: list[float] = field(default_factory=list)


def replay_studies(count: int, seed: int = 1) -> Iterator[ReplayedStudy]:
    """Studies of many shapes on the tables that constants are chosen on."""
    tables = shipped_tables(looked_at=True)
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        table = pick(rng, tables)
        configurations, seeds = pick(rng, _CONFIRM)
        changes: dict[str, Any] = {
            "seed": number,
            "trials": int(rng.integers(*_TRIALS)),
            "sampler": pick(rng, SAMPLERS),
            "pruner": pick(rng, PRUNERS),
            "objectives": list(pick(rng, OBJECTIVES)),
        }
        spec = make_replay_study(table, "replay", **changes)
        confirm = Confirm(max_configurations=configurations, seeds=seeds)
        yield _replay(table, spec.model_copy(update={"confirm": confirm}))


def _replay(table: RecordedTable, spec: StudySpec) -> ReplayedStudy:
    def seconds_of(config: TrialConfig) -> float:
        return float(table.training(config).ending.measurements["total_seconds"])

    whole: list[float] = []

    def note(record: TrialRecord) -> None:
        if record.phase == "search":
            whole.append(seconds_of(record.config))

    search = replay_search(table, spec, on_end=note)
    sample = [float(np.mean([_total(each) for each in table.curves[point].values()])) for point in table.points]
    return ReplayedStudy(spec, sample, search.search_seconds, search.confirm_seconds, whole)


def _total(trial: ReusableTrial) -> float:
    return float(trial.ending.measurements["total_seconds"])


# ---------------------------------------------------------------------- the constants


def find_lean(sample: Sequence[float], mean: float) -> float:
    """The degree t at which :func:`sweep.search.study_forecast.draw_sums` expects this mean; at most 15 either
    way."""
    ordered = np.sort(sample)
    ranks, low, high = np.linspace(0.0, 1.0, len(ordered)), -_MOST_LEAN, _MOST_LEAN
    while high - low > _PRECISION:
        middle = (low + high) / 2
        weights = np.exp(middle * ranks)
        low, high = (middle, high) if weights @ ordered / weights.sum() < mean else (low, middle)
    return (low + high) / 2


def find_constants(studies: Sequence[ReplayedStudy]) -> Iterator[str]:
    """The constants, a line each: mean, deviation and number of studies."""
    leans, used, saved = defaultdict(list), [], []
    for study in studies:
        speed = "train_seconds" in study.spec.objectives
        leans[study.spec.sampler, speed].append(find_lean(study.sample_seconds, float(np.mean(study.whole_seconds))))
        used.append(study.confirm_seconds / (study.spec.confirm.share * study.search_seconds))
        judged = 1 - NUM_NEAREST / len(study.whole_seconds)
        if study.spec.pruner != "none" and judged > _LEAST_JUDGED:
            saved.append((1 - study.search_seconds / sum(study.whole_seconds)) / judged)
    yield from _describe("lean of (sampler, with speed)", leans)
    yield from _describe("saved by pruning", {"all": saved})
    yield from _describe("share of the time for confirming that was used", {"all": used})


def _describe(title: str, groups: Mapping[Any, Sequence[float]]) -> Iterator[str]:
    for name, values in sorted(groups.items()):
        yield f"{title} {name}: {np.mean(values):.2f}, {np.std(values):.2f}, n = {len(values)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast_replays", description=__doc__)
    parser.add_argument("--studies", type=int, default=80, help="how many (80)")
    for line in find_constants(list(replay_studies(parser.parse_args(arguments).studies))):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
