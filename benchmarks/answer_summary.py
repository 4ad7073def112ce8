"""What runs of several arms mean: seconds until the answer, who arrived, and ratios with bootstrap intervals.

Intervals are percentile bootstrap intervals (Efron 1979). A search that never arrived is later than every other one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.answer_orders import OUR_ARM
from benchmarks.answer_references import price_naive, price_oracle
from benchmarks.answer_runs import RunFigures
from benchmarks.answer_table import AnswerTable
from sweep.analysis.statistics import CONFIDENCE, NUM_RESAMPLES, Values

_SEED = 0


def summarize_table(table: AnswerTable, runs: Sequence[RunFigures]) -> dict[str, Any]:
    """The arms on one table; a value that is infinite or no number is None."""
    by_arm = {arm: [run for run in runs if run.arm == arm] for arm in dict.fromkeys(run.arm for run in runs)}
    ours = by_arm[OUR_ARM]
    median = float(np.median([_whole_seconds(run) for run in ours]))
    search = float(np.median([_search_seconds(run) for run in ours]))
    oracle, oracle_search = price_oracle(table)
    naive = price_naive(table)
    return {
        "table": table.name,
        "num_points": len(table.recorded.points),
        "num_seeds": table.num_seeds,
        "num_right": len(table.right),
        "grid_seconds": table.grid_seconds,
        "oracle_seconds": oracle,
        "oracle_search_seconds": oracle_search,
        "naive_seconds": naive,
        "ours_share_of_oracle_speed": _finite(oracle / median),
        "ours_share_of_oracle_search_speed": _finite(oracle_search / search),
        "ours_share_of_naive_cost": _finite(median / naive),
        "arms": {arm: _summarize_arm(own, ours) for arm, own in by_arm.items()},
    }


def _whole_seconds(run: RunFigures) -> float:
    return run.arrival.search_seconds + run.arrival.confirm_seconds if run.arrival else np.inf


def _search_seconds(run: RunFigures) -> float:
    return run.arrival.search_seconds if run.arrival else np.inf


def _summarize_arm(own: Sequence[RunFigures], ours: Sequence[RunFigures]) -> dict[str, Any]:
    whole, search = [_whole_seconds(run) for run in own], [_search_seconds(run) for run in own]
    return {
        "num_runs": len(own),
        "median_seconds": _finite(float(np.median(whole))),
        "median_search_seconds": _finite(float(np.median(search))),
        "share_arrived": sum(run.arrival is not None for run in own) / len(own),
        "ratio": find_ratio(whole, [_whole_seconds(run) for run in ours]),
        "ratio_of_search": find_ratio(search, [_search_seconds(run) for run in ours]),
        "ratio_at_least": find_ratio([run.spent_seconds for run in own], [_whole_seconds(run) for run in ours]),
        "median_shares": np.median([run.shares for run in own], axis=0).tolist(),
        "seconds": [_finite(value) for value in whole],
    }


def find_ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float | None]:
    """The ratio of the medians over seeds, of which both have the same, with its interval over seeds that are drawn in
    pairs. A bound that is infinite, or not known because both medians are infinite, is None."""
    pairs = np.array([theirs, ours], dtype=np.float64)
    drawn = np.random.default_rng(_SEED).integers(0, pairs.shape[1], (NUM_RESAMPLES, pairs.shape[1]))
    ratios = _divide(*np.median(pairs[:, drawn], axis=2))
    return {"ratio": _finite(float(_divide(*np.median(pairs, axis=1)))), **_find_bounds(ratios)}


def _divide(one: Values, other: Values) -> Values:
    with np.errstate(invalid="ignore"):  # of two infinite ones
        return np.asarray(one / other)


def _find_bounds(draws: Values) -> dict[str, float | None]:
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(np.quantile(draws, share, method="nearest")) for share in (tail, 1 - tail))
    return {"low": _finite(low), "high": _finite(high)}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def summarize_tables(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over tables, each arm's geometric mean of the ratios with an interval over resampled tables; None where one of
    them is infinite or unknown. Those of ``ratio_at_least`` count what a search that never arrived had spent."""
    arms = dict.fromkeys(arm for table in tables for arm in table["arms"])
    return {arm: _summarize_over([table["arms"][arm] for table in tables if arm in table["arms"]]) for arm in arms}


def _summarize_over(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kinds = ("ratio", "ratio_of_search", "ratio_at_least")
    return {
        "num_tables": len(found),
        "share_arrived": float(np.mean([each["share_arrived"] for each in found])),
        **{kind: find_geometric_mean([each[kind]["ratio"] for each in found]) for kind in kinds},
    }


def find_geometric_mean(ratios: Sequence[float | None]) -> dict[str, float | int | None]:
    """The geometric mean over tables and its interval; None where a ratio is infinite, unknown or 0 because only ours
    never arrived; there are ``num_without`` of these."""
    known = [ratio for ratio in ratios if ratio]
    num_without = len(ratios) - len(known)
    if num_without or not known:
        return {"ratio": None, "low": None, "high": None, "num_without": num_without}
    logs = np.log(known)
    draws = logs[np.random.default_rng(_SEED).integers(0, len(logs), (NUM_RESAMPLES, len(logs)))].mean(axis=1)
    bounds = _find_bounds(np.exp(draws))
    return {"ratio": float(np.exp(logs.mean())), **bounds, "num_without": 0}


# ---------------------------------------------------------------------- as text


def write_markdown(tables: Sequence[dict[str, Any]], over: dict[str, Any]) -> str:
    """A table of all arms on all tables, and one of the ratios over tables."""
    lines = [
        "| table | arm | median s | of it search s | arrived | times ours | of the search alone |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for table in tables:
        for arm, figures in table["arms"].items():
            cells = [table["table"], arm, _show(figures["median_seconds"]), _show(figures["median_search_seconds"])]
            cells += [f"{figures['share_arrived']:.0%}", _show_ratio(figures["ratio"])]
            lines.append(_row([*cells, _show_ratio(figures["ratio_of_search"])]))
        for arm in ("oracle", "naive"):
            seconds = _show(table[f"{arm}_seconds"])
            lines.append(_row([table["table"], arm, seconds, _show(table.get(f"{arm}_search_seconds")), "", "", ""]))
    lines += [
        "",
        "| arm | tables | arrived | times ours | of the search alone | at least |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm, figures in over.items():
        ratios = [_show_ratio(figures[kind]) for kind in ("ratio", "ratio_of_search", "ratio_at_least")]
        lines.append(_row([arm, str(figures["num_tables"]), f"{figures['share_arrived']:.0%}", *ratios]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _show_ratio(ratio: dict[str, Any]) -> str:
    return f"{_show(ratio['ratio'])} ({_show(ratio['low'])} to {_show(ratio['high'])})"
