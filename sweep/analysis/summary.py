"""One row per configuration: the values of its search trial and of its confirming trials, and whether it is on the
Pareto front."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sweep.analysis.costs import apply_times
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.grouping import Grouping, Numbers, configuration_groups, group_configurations
from sweep.analysis.statistics.intervals import half_width, median_errors
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.analysis.statistics.scales import scale_of
from sweep.config.metrics import METRICS

# Shown beside the objectives wherever they were measured.
USUAL_METRICS = ("val_accuracy", "train_seconds", "peak_memory_bytes", "test_accuracy", "generalization_gap")


def summarize_configurations(
    trials: pd.DataFrame, objectives: Sequence[str], probes: pd.DataFrame | None = None
) -> pd.DataFrame:
    """A row for every configuration with a complete trial, in the order of its first trial.

    Times are those to use, by ``probes`` where a trial was disturbed (:func:`sweep.analysis.costs.apply_times`). Trials
    are of one configuration when all ``config.*`` columns but the seed are equal. Columns:

    ``number`` of the search trial (of the first confirming one where there is none), ``numbers`` and ``seeds`` (tuples)
    of the trials that the values rest on, ``confirmed`` (has a complete confirming trial), ``num_seeds``,
    ``num_failed_seeds`` (confirming trials with another outcome), every ``config.*`` column and ``global_batch_size``;
    for every metric ``<metric>`` (median of the confirming trials, otherwise the value of the search trial),
    ``<metric>_low``, ``<metric>_high`` (95 % confidence interval of that median by the spread between seeds, pooled
    over all confirmed configurations; NaN for what is not confirmed and where no configuration has two seeds) and
    ``<metric>_search``; ``on_search_front`` (among the search values of all) and ``on_front`` (among the confirmed
    medians, or among the search values while nothing is confirmed). The search seed takes no part in a confirmed
    median: it was picked for being good.
    """
    every_group = configuration_groups(trials)
    complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    done = apply_times(trials[complete], pd.DataFrame() if probes is None else probes)
    grouping = group_configurations(done, every_group[complete])
    constants = [name for name in done.columns if name.startswith("config.") and name != "config.seed"]
    frame = done.iloc[grouping.first][[*constants, "global_batch_size"]].reset_index(drop=True)
    numbers, seeds = (_whole(read_numbers(done, name)) for name in ("number", "seed"))
    basis = grouping.basis_values(numbers)
    new: dict[str, object] = {
        "number": _search_numbers(read_numbers(done, "number"), grouping),
        "numbers": basis,
        "seeds": grouping.basis_values(seeds),
        "confirmed": grouping.confirmed,
        "num_seeds": np.bincount(grouping.members[grouping.is_basis], minlength=grouping.size),
        "num_failed_seeds": _failed_seeds(trials, every_group, every_group[complete][grouping.first]),
    }
    for name in dict.fromkeys((*objectives, *USUAL_METRICS)):
        new |= _measured(name, read_numbers(done, name), grouping)
    frame = pd.concat([pd.DataFrame(new, index=frame.index), frame], axis=1)
    return _with_fronts(frame, objectives, grouping.confirmed)


def objective_table(frame: pd.DataFrame, objectives: Sequence[str], suffix: str = "") -> Values:
    """The objectives' columns side by side, shape ``[len(frame), len(objectives)]``."""
    return np.stack([read_numbers(frame, name + suffix) for name in objectives], axis=1)


def objective_signs(objectives: Sequence[str]) -> list[float]:
    """-1 for each objective where larger is better."""
    return [METRICS[name].sign for name in objectives]


def _search_numbers(numbers: Values, grouping: Grouping) -> Numbers:
    searched = _first_search(numbers, grouping)
    return np.where(np.isfinite(searched), searched, numbers[grouping.first]).astype(np.int64)


def _first_search(values: Values, grouping: Grouping) -> Values:
    # the value of each configuration's first search trial; NaN where there is none
    found = np.full(grouping.size, np.nan)
    rows = np.flatnonzero(~grouping.is_confirm)[::-1]  # the first is written last and stays
    found[grouping.members[rows]] = values[rows]
    return found


def _whole(values: Values) -> Numbers:
    return np.where(np.isfinite(values), values, 0).astype(np.int64)


def _failed_seeds(trials: pd.DataFrame, every_group: Numbers, kept: Numbers) -> Numbers:
    failed = (read_text(trials, "phase") == "confirm") & ~np.isin(
        read_text(trials, "outcome"), ["", "complete", "cancelled"]
    )
    counts = np.bincount(every_group[failed], minlength=int(kept.max(initial=0)) + 1)
    return np.asarray(counts[kept], dtype=np.int64)


def _measured(name: str, values: Values, grouping: Grouping) -> dict[str, Values]:
    scale = scale_of(name)
    even = scale.forward(values)
    centers, counts = grouping.medians(even)
    halves = np.where(grouping.confirmed, half_width(grouping.seed_spread(even), 1.0) * median_errors(counts), np.nan)
    return {
        name: grouping.medians(values)[0],
        f"{name}_low": scale.backward(centers - halves),
        f"{name}_high": scale.backward(centers + halves),
        f"{name}_search": _first_search(values, grouping),
    }


def _with_fronts(frame: pd.DataFrame, objectives: Sequence[str], confirmed: Mask) -> pd.DataFrame:
    direction = objective_signs(objectives)
    on_front = on_search_front = non_dominated(objective_table(frame, objectives, "_search"), direction)
    if confirmed.any():
        on_front = non_dominated(np.where(confirmed[:, None], objective_table(frame, objectives), np.nan), direction)
    return frame.assign(on_search_front=on_search_front, on_front=on_front)
