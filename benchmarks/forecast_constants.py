"""The constants of the forecast: ``python -m benchmarks forecast_constants``.

From development studies the factor and the width with which :mod:`sweep.search.study_forecast` adjusts what it
draws; this requires an idle machine, for about ten minutes. With ``--replays`` what of a study is chance, on recorded
trainings and a simulated clock: how far an adaptive sampler prefers fast configurations, how much time pruning saves,
and how much of its time the confirming uses.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.forecast import (
    NUM_DEVELOPMENT,
    OBJECTIVES,
    PRUNERS,
    ROOT,
    SAMPLERS,
    StudyFigures,
    list_measurable,
    measure_study,
    pick,
    replay_forecast,
)
from benchmarks.replay import RecordedTable, make_replay_study, replay_search
from benchmarks.search import shipped_tables
from sweep.config.study import Confirm, StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.records import TrialRecord
from sweep.search import study_forecast
from sweep.search.pruner import NUM_NEAREST

_COVERAGE = 0.9
# Configurations and seeds. A table has fewer seeds, which are repeated: that says what is settled too early, so the use
# of the time is rather underestimated.
_CONFIRM = ((16, 20), (4, 5), (3, 3))
_MOST_LEAN, _PRECISION = 15.0, 1e-3
_LEAST_JUDGED = 0.2  # of the trials that a pruner can judge, below which nothing is learned of what it saves


def calibrate(found: Sequence[StudyFigures]) -> tuple[float, float]:
    """The factor on the median and the width in logarithms, so that half of the totals are above the median and the
    interval is expected to hold the total of the next study in 90 % of cases (split conformal prediction, Lei et al.
    2018, with a rank that is interpolated)."""
    low, middle, high = np.log([np.quantile(replay_forecast(one), (0.05, 0.5, 0.95)) for one in found]).T
    gaps = np.log([one.total_seconds for one in found]) - middle
    factor = float(np.median(gaps))
    away = gaps - factor
    scores = np.where(away > 0, away / (high - middle), -away / (middle - low))
    rank = _COVERAGE * (len(found) + 1) - 1  # from 0
    width = float(np.interp(rank, np.arange(len(found)), np.sort(scores)))
    return study_forecast.FACTOR * float(np.exp(factor)), study_forecast.WIDTH * width


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
        changes: dict[str, Any] = {"seed": number, "trials": int(rng.integers(6, 40))}
        changes |= {"sampler": pick(rng, SAMPLERS), "pruner": pick(rng, PRUNERS)}
        spec = make_replay_study(table, "replay", objectives=list(pick(rng, OBJECTIVES)), **changes)
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
    curves = (table.curves[point].values() for point in table.points)
    sample = [float(np.mean([each.ending.measurements["total_seconds"] for each in seeds])) for seeds in curves]
    return ReplayedStudy(spec, sample, search.search_seconds, search.confirm_seconds, whole)


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
    found: dict[str, list[float]] = defaultdict(list)
    for study in studies:
        name = (
            f"lean of {study.spec.sampler}, {'with' if 'train_seconds' in study.spec.objectives else 'without'} speed"
        )
        found[name].append(find_lean(study.sample_seconds, float(np.mean(study.whole_seconds))))
        share = study.confirm_seconds / (study.spec.confirm.share * study.search_seconds)
        found["share of the time for confirming that was used"].append(share)
        judged = 1 - NUM_NEAREST / len(study.whole_seconds)
        if study.spec.pruner != "none" and judged > _LEAST_JUDGED:
            found["saved by pruning"].append((1 - study.search_seconds / sum(study.whole_seconds)) / judged)
    for name, values in sorted(found.items()):
        yield f"{name}: {np.mean(values):.2f}, {np.std(values):.2f}, n = {len(values)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks forecast_constants", description=__doc__)
    parser.add_argument("--replays", action="store_true", help="the constants that recorded trainings give")
    parser.add_argument("--studies", type=int, help=f"how many ({NUM_DEVELOPMENT}; replays: 80)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    options = parser.parse_args(arguments)
    if options.replays:
        for line in find_constants(list(replay_studies(options.studies or 80))):
            print(line)
        return 0
    found = []
    for planned in list_measurable("development", options.studies or NUM_DEVELOPMENT, ROOT):
        found.append(measure_study(planned, options.device, ROOT))
        found[-1].tell()
    factor, width = calibrate(found)
    print(f"FACTOR = {factor:.3g}, WIDTH = {width:.3g}, from {len(found)} studies")
    return 0
