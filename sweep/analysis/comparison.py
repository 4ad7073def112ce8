"""Two studies side by side: equal configurations, fronts, and what changed in the environment."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.comparable_trials import USUAL_OBJECTIVES, find_common_data
from sweep.analysis.statistics.column_reading import plain_value, read_numbers, read_text
from sweep.analysis.statistics.estimates import Estimate, confidence_interval, mean_estimate
from sweep.analysis.statistics.grouping import (
    Grouping,
    Numbers,
    configuration_groups,
    group_configurations,
    varying_keys,
)
from sweep.analysis.statistics.intervals import CONFIDENCE, Interval, Spread, median_errors, pooled_spread, t_quantile
from sweep.analysis.statistics.pareto import Values, hypervolume, non_dominated, reference_point
from sweep.analysis.statistics.scales import LOG, Scale, difference_unit, scale_of
from sweep.config.data_sections import BudgetSection
from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar, config_keys
from sweep.records.data_summary import DataSummary
from sweep.records.frames.study_frames import Frames

METRIC_NAMES = ("val_accuracy", "train_seconds", "images_per_second", "peak_memory_bytes", "test_accuracy")
# Keys that do not change what is trained.
_NOT_TRAINED = frozenset({"data.root", "seed"})
# Keys that no recipe may differ in: trials of other lengths or on other images are trials of other configurations.
_NO_RECIPE = frozenset({"data.name", *(f"budget.{name}" for name in BudgetSection.model_fields)})
_VARIES = "varies"  # of a setting with several values among the trials of one study
_NO_FACT = "not recorded"
_MIN_PAIRS = 3  # fewer say too little of how pairs scatter


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """One configuration that both studies trained. ``differences`` by metric, with 95 % intervals: B over A for
    seconds, bytes and rates, B - A for accuracies. Several seeds that both have, ``num_paired``, are compared one by
    one."""

    number_a: int
    number_b: int
    config: dict[str, Scalar]
    num_paired: int
    differences: dict[str, Interval]


@dataclass(frozen=True)
class Front:
    """The front of one study: the numbers of its configurations, and the volume behind it over that of both together,
    both from the same reference point; None where the studies read different data."""

    numbers: tuple[int, ...]
    volume: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``overall`` by metric: the mean difference over the aligned configurations; ``changed`` facts of the environment
    and the study by name, as (in A, in B). ``data_a`` and ``data_b`` are the images where they are on record; where
    they are known to differ, or where the data sets have different names, nothing is aligned."""

    study_a: str
    study_b: str
    data_a: DataSummary | None
    data_b: DataSummary | None
    data_differ: bool
    aligned: tuple[Aligned, ...]
    overall: dict[str, Interval]
    units: dict[str, str]
    front_a: Front
    front_b: Front
    changed: dict[str, tuple[str, str]]
    settings: tuple[str, ...]


@dataclass(frozen=True)
class _Side:
    done: pd.DataFrame
    grouping: Grouping


def compare_studies(a: Frames, b: Frames) -> Comparison:
    """B against A. Configurations are equal when every key is, except the seed, the data's path, and keys that have one
    value throughout one study and another throughout the other: those are what is compared, and are in ``changed``.
    Configurations of other budgets or on other data are never equal.

    Raises:
        InputError: one of the two holds trials of several studies that read different data.
    """
    data_a, data_b = find_common_data(a), find_common_data(b)
    data_differ = _is_other_data(a, b, data_a, data_b)
    sides, pairs = _align(a.trials, b.trials)
    names = [name for name in METRIC_NAMES if _is_measured(sides, name)]
    spreads = {name: _spread(sides, name) for name in names}
    settings = _settings(sides)
    aligned = tuple(_compare(sides, pair, spreads, settings) for pair in pairs if not data_differ)
    front_a, front_b = _apart(sides) if data_differ else _fronts(sides)
    return Comparison(
        study_a=_name(a),
        study_b=_name(b),
        data_a=data_a,
        data_b=data_b,
        data_differ=data_differ,
        aligned=aligned,
        overall={name: found for name in names if (found := _overall(aligned, name)).n},
        units={name: difference_unit(name) for name in names},
        front_a=front_a,
        front_b=front_b,
        changed=_find_changes(a, b, with_root=data_differ),
        settings=settings,
    )


def _is_other_data(a: Frames, b: Frames, data_a: DataSummary | None, data_b: DataSummary | None) -> bool:
    if data_a and data_b and data_a.digest and data_b.digest:
        return data_a.is_other_than(data_b)
    names = [{str(name) for name in read_text(frames.trials, "config.data.name") if name} for frames in (a, b)]
    return all(names) and names[0].isdisjoint(names[1])


def _name(frames: Frames) -> str:
    names = sorted(set(frames.studies["study"]))
    return str(names[0]) if len(names) == 1 else f"{len(names)} studies"


def _align(a: pd.DataFrame, b: pd.DataFrame) -> tuple[tuple[_Side, _Side], list[tuple[int, int]]]:
    both = pd.concat([a.assign(side="a"), b.assign(side="b")], ignore_index=True)
    complete = both[np.asarray(read_text(both, "outcome") == "complete", dtype=np.bool_)]
    in_a = np.asarray(complete["side"] == "a", dtype=np.bool_)
    groups = configuration_groups(complete, _NOT_TRAINED | _recipe_keys(complete[in_a], complete[~in_a]))
    names, sides = [], []
    for chosen in (in_a, ~in_a):
        done = complete[chosen]
        grouping = group_configurations(done, groups[chosen])
        sides.append(_Side(done, grouping))
        names.append({int(name): place for place, name in enumerate(groups[chosen][grouping.first])})
    pairs = [(place, names[1][name]) for name, place in names[0].items() if name in names[1]]
    return (sides[0], sides[1]), pairs


def _is_measured(sides: tuple[_Side, _Side], name: str) -> bool:
    return all(np.isfinite(read_numbers(side.done, name)).any() for side in sides)


def _recipe_keys(a: pd.DataFrame, b: pd.DataFrame) -> set[str]:
    # settings that each study keeps and in which they differ: what is compared, so that it aligns nothing
    found = set()
    for name in (name for name in a.columns if name.startswith("config.")):
        values = [{plain_value(value) for value in side[name].unique()} for side in (a, b)]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            found.add(name.removeprefix("config."))
    return found - _NO_RECIPE


def _spread(sides: tuple[_Side, _Side], name: str) -> Spread:
    # between the seeds of one configuration of one study, over all that have several
    scale, values, groups, offset = scale_of(name), [], [], 0
    for side in sides:
        values.append(scale.forward(read_numbers(side.done, name)))
        groups.append(side.grouping.members + offset)
        offset += side.grouping.size
    return pooled_spread(np.concatenate(values), np.concatenate(groups))


def _compare(
    sides: tuple[_Side, _Side], pair: tuple[int, int], spreads: dict[str, Spread], keys: tuple[str, ...]
) -> Aligned:
    rows = [np.flatnonzero(side.grouping.members == place) for side, place in zip(sides, pair, strict=True)]
    seeds = [read_numbers(side.done, "seed")[some] for side, some in zip(sides, rows, strict=True)]
    shared = sorted(set(seeds[0].tolist()) & set(seeds[1].tolist()))
    differences = {name: _difference(sides, rows, seeds, shared, name, spread) for name, spread in spreads.items()}
    first = sides[0].done.iloc[int(rows[0][0])]
    return Aligned(
        number_a=int(first["number"]),
        number_b=int(sides[1].done["number"].iloc[int(rows[1][0])]),
        config={key: plain_value(first[f"config.{key}"]) for key in keys},
        num_paired=len(shared),
        differences={name: found for name, found in differences.items() if found.n},
    )


def _difference(
    sides: tuple[_Side, _Side], rows: list[Numbers], seeds: list[Values], shared: list[float], name: str, spread: Spread
) -> Interval:
    scale = scale_of(name)
    values = [scale.forward(read_numbers(side.done, name)[some]) for side, some in zip(sides, rows, strict=True)]
    # equal seeds saw equal data: the differences of pairs scatter less
    pairs = [[some[own == seed][0] for some, own in zip(values, seeds, strict=True)] for seed in shared]
    gaps = np.array([second - first for first, second in pairs])
    if np.isfinite(gaps).sum() >= _MIN_PAIRS:
        return _interval(scale, values[0], mean_estimate(gaps))
    known = [some[np.isfinite(some)] for some in values]
    if not (len(known[0]) and len(known[1])):
        return Interval(np.nan, np.nan, np.nan, 0)
    counts = np.array([len(some) for some in known])
    error = spread.sd * float(np.hypot(*median_errors(counts)))
    gap = float(np.median(known[1]) - np.median(known[0]))
    return _interval(scale, known[0], Estimate(gap, error, spread.degrees, int(counts.min())))


def _interval(scale: Scale, base: Values, estimate: Estimate) -> Interval:
    # ``estimate`` of a difference on the scale, in the metric's unit where that is no ratio
    bounds = np.array(confidence_interval(estimate._replace(is_ratio=scale.is_ratio)))
    if not scale.is_ratio:
        start = np.array([np.nanmedian(base)])
        bounds = scale.backward(start + bounds) - scale.backward(start)
    return _as_interval(bounds, estimate.n)


def _as_interval(bounds: Values, n: int) -> Interval:
    middle, low, high = bounds.tolist()
    return Interval(middle, low, high, n)


def _overall(aligned: tuple[Aligned, ...], name: str) -> Interval:
    found = np.array([item.differences[name].median for item in aligned if name in item.differences])
    is_ratio = scale_of(name).is_ratio
    values = np.log(found) if is_ratio else found
    if len(values) < 2:
        return Interval(float(found[0]) if len(found) else np.nan, np.nan, np.nan, len(values))
    half = t_quantile(CONFIDENCE, len(values) - 1) * float(values.std(ddof=1)) / np.sqrt(len(values))
    bounds = values.mean() + np.array([0.0, -half, half])
    return _as_interval(LOG.backward(bounds) if is_ratio else bounds, len(values))


def _fronts(sides: tuple[_Side, _Side]) -> tuple[Front, Front]:
    names = [name for name in USUAL_OBJECTIVES if _is_measured(sides, name)]
    if not names:
        return Front((), 0.0), Front((), 0.0)
    signs = [METRICS[name].sign for name in names]
    tables = [
        np.stack([side.grouping.medians(read_numbers(side.done, name))[0] for name in names], axis=1) for side in sides
    ]
    together = np.concatenate(tables)
    if not np.isfinite(together).all(axis=1).any():
        return Front((), 0.0), Front((), 0.0)
    reference = reference_point(together, signs)
    whole = hypervolume(together, reference, signs)
    fronts = []
    for side, table in zip(sides, tables, strict=True):
        mask = non_dominated(table, signs)
        numbers = read_numbers(side.done, "number")[side.grouping.first[mask]].astype(int)
        fronts.append(Front(tuple(numbers.tolist()), hypervolume(table, reference, signs) / whole if whole else 0.0))
    return fronts[0], fronts[1]


def _apart(sides: tuple[_Side, _Side]) -> tuple[Front, Front]:
    # each with itself: the volumes of results on different data are not comparable
    front_a, front_b = (Front(_fronts((side, side))[0].numbers, None) for side in sides)
    return front_a, front_b


def _settings(sides: tuple[_Side, _Side]) -> tuple[str, ...]:
    # the keys that vary in either study
    varying = {key for side in sides for key in varying_keys(side.done)} - _NOT_TRAINED
    return tuple(key for key in config_keys() if key in varying)


def _find_changes(a: Frames, b: Frames, *, with_root: bool) -> dict[str, tuple[str, str]]:
    # facts that differ, as (in A, in B)
    facts = [_collect_facts(frames, with_root=with_root) for frames in (a, b)]
    names = dict.fromkeys((*facts[0], *facts[1]))
    values = {name: (facts[0].get(name, _NO_FACT), facts[1].get(name, _NO_FACT)) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _collect_facts(frames: Frames, *, with_root: bool) -> dict[str, str]:
    # every fact of the environments, several values joined, and every setting: its value where all trials share it
    trials, table = frames.trials, frames.environments.drop(columns=["study", "environment_digest"], errors="ignore")
    devices = ", ".join(sorted({str(device) for device in read_text(trials, "device") if device}))
    found = {"device": devices} if devices else {}
    found |= {str(name): ", ".join(sorted({str(value) for value in table[name].dropna()})) for name in table.columns}
    for key in config_keys():
        name = f"config.{key}"
        is_shown = key not in _NOT_TRAINED or (with_root and key == "data.root")
        if is_shown and len(trials) and name in trials.columns:
            is_shared = trials[name].nunique(dropna=False) == 1
            found[key] = str(plain_value(trials[name].iloc[0])) if is_shared else _VARIES
    return found
