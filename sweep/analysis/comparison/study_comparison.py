"""Two studies side by side: equal configurations, fronts, and what changed in the environment."""

from dataclasses import dataclass

import numpy as np

from sweep.analysis.comparable import USUAL_OBJECTIVES, find_common_data
from sweep.analysis.comparison.machine_pace import PaceDifference, measure_pace_difference
from sweep.analysis.comparison.study_alignment import Sides, align_studies, list_settings, pool_spread
from sweep.analysis.comparison.study_changes import find_changes
from sweep.analysis.comparison.study_differences import (
    Difference,
    count_shared_seeds,
    find_difference,
    find_overall,
    give_verdicts,
)
from sweep.analysis.statistics import (
    difference_unit,
    hypervolume,
    non_dominated,
    plain_value,
    read_numbers,
    read_text,
    reference_point,
)
from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar
from sweep.records.data_summary import DataSummary
from sweep.records.frames.study_frames import Frames

METRIC_NAMES = ("val_accuracy", "train_seconds", "images_per_second", "peak_memory_bytes", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """One configuration that both studies trained, by its first trial in each, and its ``differences`` by metric.
    Several seeds that both have, ``num_paired``, are compared one by one."""

    number_a: int
    number_b: int
    config: dict[str, Scalar]
    num_paired: int
    differences: dict[str, Difference]


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
    they are known to differ, or where the data sets have different names, nothing is aligned. ``pace`` is how much the
    machine itself may differ between the two; ``num_without_time`` aligned configurations have no time that is
    evidence of its own run. ``commands`` would run both again, one after the other."""

    study_a: str
    study_b: str
    data_a: DataSummary | None
    data_b: DataSummary | None
    data_differ: bool
    aligned: tuple[Aligned, ...]
    overall: dict[str, Difference]
    pace: PaceDifference
    num_without_time: int
    units: dict[str, str]
    front_a: Front
    front_b: Front
    changed: dict[str, tuple[str, str]]
    settings: tuple[str, ...]
    commands: tuple[str, ...]


def compare_studies(a: Frames, b: Frames) -> Comparison:
    """B against A. Configurations are equal when every key is, except the seed, the data's path, and keys that have one
    value throughout one study and another throughout the other: those are what is compared, and are in ``changed``.
    Configurations of other budgets or on other data are never equal. What a configuration measured are the trials that
    its answer rests on: the fresh seeds, otherwise the first search trial.

    Raises:
        InputError: one of the two holds trials of several studies that read different data.
    """
    data_a, data_b = find_common_data(a), find_common_data(b)
    data_differ = _is_other_data(a, b, data_a, data_b)
    sides, pairs = align_studies(a.trials, b.trials)
    names, pace = [name for name in METRIC_NAMES if _is_measured(sides, name)], measure_pace_difference(a, b)
    differences = {name: _find_differences(sides, pairs, name, pace) for name in names if pairs and not data_differ}
    settings = list_settings(sides)
    front_a, front_b = _apart(sides) if data_differ else _fronts(sides)
    return Comparison(
        study_a=_name(a),
        study_b=_name(b),
        data_a=data_a,
        data_b=data_b,
        data_differ=data_differ,
        aligned=() if data_differ else _list_aligned(sides, pairs, differences, settings),
        overall=_find_overall(differences, pace),
        pace=pace,
        num_without_time=_count_without_time(differences),
        units={name: difference_unit(name) for name in names},
        front_a=front_a,
        front_b=front_b,
        changed=find_changes(a, b, with_root=data_differ),
        settings=settings,
        commands=tuple(_run_again(frames) for frames in (a, b)),
    )


def _find_differences(sides: Sides, pairs: list[tuple[int, int]], name: str, pace: PaceDifference) -> list[Difference]:
    # one for each pair, with verdicts that hold together for all configurations
    spread = pool_spread(sides, name)
    found = [find_difference(sides, pair, name, spread, pace) for pair in pairs]
    return give_verdicts(found, [name] * len(found))


def _find_overall(differences: dict[str, list[Difference]], pace: PaceDifference) -> dict[str, Difference]:
    known = {name: [item for item in found if item.interval.n] for name, found in differences.items()}
    overall = {name: find_overall(found, name, pace) for name, found in known.items() if found}
    return dict(zip(overall, give_verdicts(list(overall.values()), list(overall)), strict=True))


def _list_aligned(
    sides: Sides, pairs: list[tuple[int, int]], differences: dict[str, list[Difference]], keys: tuple[str, ...]
) -> tuple[Aligned, ...]:
    aligned = []
    for index, pair in enumerate(pairs):
        first, second = (side.done.iloc[side.grouping.first[place]] for side, place in zip(sides, pair, strict=True))
        found = {name: every[index] for name, every in differences.items()}
        aligned.append(
            Aligned(
                number_a=int(first["number"]),
                number_b=int(second["number"]),
                config={key: plain_value(first[f"config.{key}"]) for key in keys},
                num_paired=count_shared_seeds(sides, pair),
                differences={name: item for name, item in found.items() if item.interval.n},
            )
        )
    return tuple(aligned)


def _count_without_time(differences: dict[str, list[Difference]]) -> int:
    # where both studies measured times
    return sum(not item.interval.n for item in differences.get("train_seconds", ()))


def _is_measured(sides: Sides, name: str) -> bool:
    return all(side.is_measured(name) for side in sides)


def _is_other_data(a: Frames, b: Frames, data_a: DataSummary | None, data_b: DataSummary | None) -> bool:
    if data_a and data_b and data_a.digest and data_b.digest:
        return data_a.is_other_than(data_b)
    names = [{str(name) for name in read_text(frames.trials, "config.data.name") if name} for frames in (a, b)]
    return all(names) and names[0].isdisjoint(names[1])


def _run_again(frames: Frames) -> str:
    return frames.find_commands(_name(frames)).run_again()


def _name(frames: Frames) -> str:
    # records of another program have no study
    names = sorted(set(frames.studies["study"]) or set(read_text(frames.trials, "study").tolist()))
    return str(names[0]) if len(names) == 1 else f"{len(names)} studies"


def _fronts(sides: Sides) -> tuple[Front, Front]:
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


def _apart(sides: Sides) -> tuple[Front, Front]:
    # each with itself: the volumes of results on different data are not comparable
    front_a, front_b = (Front(_fronts((side, side))[0].numbers, None) for side in sides)
    return front_a, front_b
