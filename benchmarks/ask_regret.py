"""What the guide's choice loses to the oracle's and gains on the usual one: trainings with seeds that no search used,
judged on test images, by which nothing was chosen."""

from collections.abc import Callable, Iterator, Mapping
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from benchmarks.results import share_of
from sweep.analysis.statistics import CONFIDENCE, t_quantile
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import Ending, TrialTask
from sweep.training.ranks.launcher import launch_trial

SEEDS = tuple(range(201, 209))
WITHIN = 0.1  # of the budget
MOST_REGRET = 0.005
Accuracies = dict[str, dict[str, list[float]]]  # by split, then by arm, a value for each of the first seeds


class Difference(NamedTuple):
    """The mean of differences that are paired by seed, with its interval of Student's t; the test images are given, so
    that their choice is not in it."""

    mean: float
    low: float
    high: float
    n: int


def train_missing(configs: Mapping[str, TrialConfig], found: Accuracies, keep: Callable[[], None]) -> None:
    """Trains each of ``configs`` with each of the seeds, as far as ``found`` does not have it; ``keep`` is called when
    it has one seed more. Equal configurations are trained once."""
    for turn, seed in enumerate(SEEDS):
        known: dict[TrialConfig, tuple[float, float]] = {}
        for arm, config in configs.items():
            values = found["test"].setdefault(arm, []), found["val"].setdefault(arm, [])
            if len(values[0]) > turn:
                continue
            own = config.model_copy(update={"seed": seed})
            if own not in known:
                known[own] = train_once(own)
            for kept, accuracy in zip(values, known[own], strict=True):
                kept.append(accuracy)
        keep()


def train_once(config: TrialConfig) -> tuple[float, float]:
    """The accuracies on test and validation images of one training on a CPU.

    Raises:
        RuntimeError: it did not complete.
    """
    task = TrialTask(number=0, config=config, device="cpu", read_test=True)
    ending = next(each for each in list(launch_trial(task)) if isinstance(each, Ending))
    if ending.outcome != "complete":
        raise RuntimeError(f"{config.model.name} with seed {config.seed}: {ending.outcome}: {ending.error}")
    return float(ending.measurements["test_accuracy"]), float(ending.measurements["val_accuracy"])


def compare_arms(values: Mapping[str, list[float]], one: str, other: str) -> Difference | None:
    """Accuracy of ``one`` less that of ``other``; None where one of them was not trained."""
    if not values.get(one) or not values.get(other):
        return None
    differences = [first - second for first, second in zip(values[one], values[other], strict=True)]
    center, n = mean(differences), len(differences)
    half = t_quantile(CONFIDENCE, n - 1) * stdev(differences) / n**0.5
    return Difference(center, center - half, center + half, n)


def summarize(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The figures over all tasks; the regret is the oracle's accuracy less the guide's."""
    gains, long_gains = (list(_compare_all(rows, f"guide{epochs}", f"usual{epochs}")) for epochs in ("", "_all_epochs"))
    return {
        "within_budget": share_of([abs(row["share"] - 1) <= WITHIN for row in rows.values()]),
        "median_regret": {arm: _find_median(rows, arm) for arm in ("oracle_named", "oracle_most_accurate")},
        "median_gain_of_all_epochs": _find_median(rows, "guide_all_epochs"),
        "better_than_usual": share_of([each.mean > 0 for each in gains]),
        "better_for_certain": share_of([each.low > 0 for each in gains]),
        "better_with_all_epochs": share_of([each.mean > 0 for each in long_gains]),
    }


def _find_median(rows: Mapping[str, Mapping[str, Any]], arm: str) -> float | None:
    found = [each.mean for each in _compare_all(rows, arm, "guide")]
    return median(found) if found else None


def _compare_all(rows: Mapping[str, Mapping[str, Any]], one: str, other: str) -> Iterator[Difference]:
    found = (compare_arms(row["accuracies"]["test"], one, other) for row in rows.values())
    return (each for each in found if each is not None)
