"""Replays a search with several seeds and summarizes time to the target, hypervolume and wrongly pruned trials."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sweep.analysis.statistics.intervals import CONFIDENCE, NUM_RESAMPLES, Interval
from sweep.config.errors import InputError
from sweep.search.replay.recorded_table import RecordedTable, make_replay_study
from sweep.search.replay.replay import ReplayedSearch, replay_search

_POINTS = 50  # of the curve of hypervolume over cost


def replay_seeds(
    table: RecordedTable, num_seeds: int, changes: dict[str, Any], until: float | None = None
) -> Iterator[ReplayedSearch]:
    """One search for each seed from 0; ``changes`` are plain keys of the study (sampler, pruner, trials ...).

    Raises:
        InputError: no seed, or a value that a study refuses.
    """
    if num_seeds < 1:
        raise InputError(f"--seeds {num_seeds}: give 1 or more.")
    plans = [make_replay_study(table, "replay", seed=seed, **changes) for seed in range(num_seeds)]
    return (replay_search(table, spec, until) for spec in plans)


def find_median_interval(values: Sequence[float], seed: int = 0) -> Interval:
    """Median and its percentile bootstrap interval (Efron, 1979) of values of which some may be infinite: a search that
    never reached the target is later than every other and must not be left out."""
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, len(array), size=(NUM_RESAMPLES, len(array)))
    medians = np.median(array[draws], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(np.quantile(medians, share, method="nearest")) for share in (tail, 1 - tail))
    return Interval(float(np.median(array)), low, high, len(array))


def summarize_searches(table: RecordedTable, searches: Sequence[ReplayedSearch], target: float) -> dict[str, Any]:
    """The searches as a JSON document: an infinite number of seconds is null."""
    seconds = [search.seconds_to(target) for search in searches]
    with_confirm = [search.seconds_to(target) + search.confirm_seconds for search in searches]
    pruned = [len(search.pruned_front) for search in searches]
    return {
        "study": table.spec.name,
        "objectives": list(table.spec.objectives),
        "num_configurations": len(table.points),
        "num_front": int(table.on_front.sum()),
        "reference_point": [float(value) for value in table.reference],
        "target": target,
        "seconds_to_target": _interval(seconds),
        "seconds_to_target_and_confirm": _interval(with_confirm),
        "num_missed": sum(not np.isfinite(value) for value in seconds),
        "front_pruned": {"median": float(np.median(pruned)), "share_of_seeds_without": pruned.count(0) / len(pruned)},
        "hypervolume_over_cost": _over_cost(searches),
        "simulated_seconds": sum(search.search_seconds + search.confirm_seconds for search in searches),
        "searches": [_row(search, value) for search, value in zip(searches, seconds, strict=True)],
    }


def _row(search: ReplayedSearch, seconds: float) -> dict[str, Any]:
    return {
        "seed": search.seed,
        "seconds_to_target": _finite(seconds),
        "search_seconds": search.search_seconds,
        "confirm_seconds": search.confirm_seconds,
        "outcomes": search.outcomes,
        "num_confirmed": search.num_confirmed,
        "final_share": search.share,
        "front_pruned": [list(point) for point in search.pruned_front],
    }


def _over_cost(searches: Sequence[ReplayedSearch]) -> list[dict[str, float]]:
    """The median share of the hypervolume at even steps of the cost, with its quartiles over the seeds."""
    last = max(search.search_seconds for search in searches)
    rows = []
    for seconds in np.linspace(0.0, last, _POINTS + 1)[1:]:
        shares = [_share_at(search, float(seconds)) for search in searches]
        low, median, high = (float(value) for value in np.quantile(shares, (0.25, 0.5, 0.75)))
        rows.append({"seconds": float(seconds), "share": median, "quartile_low": low, "quartile_high": high})
    return rows


def _share_at(search: ReplayedSearch, seconds: float) -> float:
    return max((share for when, share in search.progress if when <= seconds), default=0.0)


def _interval(values: Sequence[float]) -> dict[str, float | int | None]:
    interval = find_median_interval(values)
    bounds = {"median": interval.median, "low": interval.low, "high": interval.high}
    return {**{name: _finite(value) for name, value in bounds.items()}, "n": interval.n}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
