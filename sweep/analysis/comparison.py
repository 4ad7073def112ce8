"""Two studies side by side: equal configurations, the machine's pace in both runs, fronts, and what changed.

The times of two runs differ also where the code is equal, because the machine had another clock or another load, and
the spread between the seeds of a run shows nothing of that. The variance between runs is taken from the reference work
before each trial, over stretches of each run. Without it, or on two devices, there is no verdict on times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from sweep.analysis.comparable import MEMORY, SECONDS, find_common_data, find_study_name
from sweep.analysis.costs import MEASURED, UNDISTURBED, apply_times
from sweep.analysis.statistics import (
    CONFIDENCE,
    NOTHING,
    SCALES,
    SIGNIFICANT,
    Estimate,
    Grouping,
    Interval,
    Mask,
    Spread,
    Values,
    confidence_interval,
    configuration_groups,
    correct_holm,
    group_configurations,
    hypervolume,
    mean_estimate,
    median_errors,
    non_dominated,
    plain_value,
    pooled_spread,
    read_numbers,
    read_text,
    reference_point,
    t_quantile,
    t_upper_tail,
    varying_keys,
)
from sweep.config.errors import InputError
from sweep.config.metrics import IMAGES, METRICS, Metric, Quality
from sweep.config.sections import BudgetSection
from sweep.config.trial import Scalar, config_keys
from sweep.records.frames import Frames

Verdict = Literal["higher", "lower", "undecided", "not_known"]
_METRIC_NAMES = ("train_seconds", "images_per_second", "peak_memory_bytes", "test_accuracy")  # beside the quality
_NOT_TRAINED = frozenset({"data.root", "seed"})  # keys that do not change what is trained
# Keys that no recipe may differ in: trials of other lengths or on other images are trials of other configurations.
_NO_RECIPE = frozenset({"data.name", *(f"budget.{name}" for name in BudgetSection.model_fields)})
_MIN_PAIRS = 3  # fewer say too little of how pairs scatter
_NUM_STRETCHES = 3  # of a run, in the order of its trials: a machine's pace drifts within a run as well
# Facts of an environment that make times those of another device.
_DEVICE_FACTS = ("device", "driver", "cuda", "power_limit_watts")
_NOT_TIMED = "the two runs were made at different times, and no work that is equal in both was timed"


@dataclass(frozen=True, kw_only=True)
class PaceDifference:
    """``error`` is the standard error, with ``degrees`` of freedom, of the logarithm of the ratio of times of equal
    code in the two runs; NaN where nothing is known of it, for the ``reason``. ``ratio``: the reference work in B over
    that in A."""

    error: float = np.nan
    degrees: float = 0
    ratio: float = np.nan
    num_references: tuple[int, int] = (0, 0)
    reason: str = ""

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of a ratio of times of equal code, as a share of it."""
        return float(np.expm1(t_quantile(CONFIDENCE, self.degrees) * self.error))

    def widen(self, estimate: Estimate) -> Estimate:
        """``estimate`` of a logarithm of a ratio of times with both errors (Welch 1947, Satterthwaite 1946)."""
        within, between = estimate.error**2, self.error**2
        if not (estimate.degrees > 0 and self.degrees > 0):
            return estimate._replace(error=np.nan, degrees=0)
        total = within + between
        parts = within**2 / estimate.degrees + between**2 / self.degrees
        degrees = total**2 / parts if parts > 0 else min(estimate.degrees, self.degrees)
        return estimate._replace(error=float(np.sqrt(total)), degrees=float(degrees))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """B over A for seconds, bytes and rates, B - A for accuracies, with the 95 % interval of this difference alone. Its
    bounds are NaN where the error is not known. ``verdict`` is of B and corrected for the number of differences that
    are tested together; ``not_known`` without an error."""

    interval: Interval
    p_value: float  # of no difference, before the correction; NaN without an error
    verdict: Verdict = "not_known"


@dataclass(frozen=True, kw_only=True)
class _Aligned:
    """One configuration that both studies trained, by its first trial in each, and its ``differences`` by metric.
    Several seeds that both have, ``num_paired``, are compared one by one."""

    number_a: int
    number_b: int
    config: dict[str, Scalar]
    num_paired: int
    differences: dict[str, Difference]


@dataclass(frozen=True)
class Front:
    """The front of one study: the numbers of its configurations, and its share of the volume behind both fronts, from
    one reference point."""

    numbers: tuple[int, ...]
    volume: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``overall`` by metric: the mean difference over the aligned configurations; ``changed`` facts of the environment
    and the study by name, as (in A, in B). ``pace`` is how much the machine itself may differ between the two. The
    ``commands`` would run both again, one after the other."""

    study_a: str
    study_b: str
    quality: Quality
    aligned: tuple[_Aligned, ...]
    overall: dict[str, Difference]
    pace: PaceDifference
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
    its answer rests on: the fresh seeds, otherwise the first search trial. Raises ``InputError``: the two, or several
    studies in one of them, read different data, or their scripts report different things."""
    _require_equal_data(a, b)
    sides, pairs = _align(a.trials, b.trials)
    quality = _find_quality(a, b)
    metrics = [quality.metric, *(METRICS[name] for name in _METRIC_NAMES)]
    metrics = [each for each in metrics if _is_measured(sides, each.name)]
    pace = measure_pace_difference(a, b)
    differences: dict[str, list[Difference]] = {}
    for metric in metrics if pairs else ():
        # between the seeds of one configuration of one study, over all that have several, on the metric's scale
        values = [SCALES[metric.scale].forward(side.read(metric)) for side in sides]
        groups = [sides[0].grouping.members, sides[1].grouping.members + sides[0].grouping.size]
        spread = pooled_spread(np.concatenate(values), np.concatenate(groups))
        of_metric = [_find_difference(sides, pair, metric, spread, pace) for pair in pairs]
        differences[metric.name] = give_verdicts(of_metric, [metric] * len(of_metric))
    known = {name: [item for item in of_metric if item.interval.n] for name, of_metric in differences.items()}
    compared = [metric for metric in metrics if known.get(metric.name)]
    overall = [_find_overall(known[metric.name], metric, pace) for metric in compared]
    keys = {key for side in sides for key in varying_keys(side.done)} - _NOT_TRAINED
    settings = tuple(key for key in config_keys() if key in keys)
    front_a, front_b = _find_fronts(sides, metrics, quality)
    return Comparison(
        study_a=find_study_name(a),
        study_b=find_study_name(b),
        quality=quality,
        aligned=tuple(_list_aligned(sides, pairs, differences, settings)),
        overall=dict(zip((each.name for each in compared), give_verdicts(overall, compared), strict=True)),
        pace=pace,
        units={each.name: "ratio" if SCALES[each.scale].is_ratio else each.unit for each in metrics},
        front_a=front_a,
        front_b=front_b,
        changed=_find_changes(a, b),
        settings=settings,
        commands=tuple(frames.find_commands(find_study_name(frames)).run_again() for frames in (a, b)),
    )


def _find_quality(a: Frames, b: Frames) -> Quality:
    first, second = (frames.spec.quality if frames.spec else IMAGES for frames in (a, b))
    if first.metric != second.metric:
        raise InputError(f"{first.name} and {second.name}: the scripts of the two studies report different things.")
    return first


def _require_equal_data(a: Frames, b: Frames) -> None:
    data = [find_common_data(frames) for frames in (a, b)]
    names = [{str(name) for name in read_text(frames.trials, "config.data.name") if name} for frames in (a, b)]
    if data[0] and data[1] and data[0].digest and data[1].digest:
        is_other = data[0].is_other_than(data[1])
    else:
        is_other = all(names) and names[0].isdisjoint(names[1])
    if is_other:
        read = (
            f"{find_study_name(frames)} read {', '.join([*sorted(own), *([each.describe()] if each else [])])}"
            for frames, own, each in zip((a, b), names, data, strict=True)
        )
        raise InputError(f"Results on different data are never compared: {'; '.join(read)}.")


# --- equal configurations


@dataclass(frozen=True)
class _Side:
    """The complete trials of one study by configuration."""

    done: pd.DataFrame
    grouping: Grouping

    def read(self, metric: Metric) -> Values:
        """The metric of the trials that a configuration's value rests on, shape ``[len(done)]``; NaN for all others. A
        time counts only where this run measured it and nothing disturbed it: both runs may share a probe, and a reused
        trial is another run's."""
        is_used = self.grouping.is_basis
        if metric.is_speed:
            is_measured = np.isin(read_text(self.done, "time_source"), [MEASURED, UNDISTURBED])
            is_used = is_used & is_measured & _is_own(self.done)
        return np.where(is_used, read_numbers(self.done, metric.name), np.nan)

    def seeds_of(self, configuration: int) -> Values:
        return read_numbers(self.done, "seed")[self.grouping.basis_of(configuration)]


_Sides = tuple[_Side, _Side]


def _is_own(trials: pd.DataFrame) -> Mask:
    return np.asarray(read_text(trials, "reused_from") == "", dtype=np.bool_)


def _is_measured(sides: _Sides, name: str) -> bool:
    return all(np.isfinite(read_numbers(side.done, name)).any() for side in sides)


def _align(a: pd.DataFrame, b: pd.DataFrame) -> tuple[_Sides, list[tuple[int, int]]]:
    # both sides, and the pairs of equal configurations by their number on each side; the frames are copied, because
    # pandas warns where a column is added to over 100 separate ones
    both = pd.concat([a.copy().assign(side="a"), b.copy().assign(side="b")], ignore_index=True)
    complete = both[np.asarray(read_text(both, "outcome") == "complete", dtype=np.bool_)]
    in_a = np.asarray(complete["side"] == "a", dtype=np.bool_)
    groups = configuration_groups(complete, _NOT_TRAINED | _find_recipe_keys(complete[in_a], complete[~in_a]))
    first, second = (
        _Side(apply_times(complete[chosen], pd.DataFrame()), group_configurations(complete[chosen], groups[chosen]))
        for chosen in (in_a, ~in_a)
    )
    in_b = {int(name): index for index, name in enumerate(groups[~in_a][second.grouping.first])}
    names = enumerate(groups[in_a][first.grouping.first])
    return (first, second), [(index, in_b[int(name)]) for index, name in names if int(name) in in_b]


def _find_recipe_keys(a: pd.DataFrame, b: pd.DataFrame) -> set[str]:
    # settings that each study keeps and in which they differ: what is compared, so that it aligns nothing
    keys = set()
    for name in (name for name in a.columns if name.startswith("config.")):
        values = [{plain_value(value) for value in side[name].unique()} for side in (a, b)]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            keys.add(name.removeprefix("config."))
    return keys - _NO_RECIPE


def _list_aligned(
    sides: _Sides, pairs: list[tuple[int, int]], differences: dict[str, list[Difference]], keys: tuple[str, ...]
) -> list[_Aligned]:
    aligned = []
    for index, pair in enumerate(pairs):
        both = list(zip(sides, pair, strict=True))
        first, second = (side.done.iloc[side.grouping.first[configuration]] for side, configuration in both)
        seeds = [side.seeds_of(configuration) for side, configuration in both]
        own = {name: of_all[index] for name, of_all in differences.items()}
        aligned.append(
            _Aligned(
                number_a=int(first["number"]),
                number_b=int(second["number"]),
                config={key: plain_value(first[f"config.{key}"]) for key in keys},
                num_paired=len(np.intersect1d(seeds[0], seeds[1])),
                differences={name: item for name, item in own.items() if item.interval.n},
            )
        )
    return aligned


# --- differences and verdicts


def _find_difference(
    sides: _Sides, pair: tuple[int, int], metric: Metric, spread: Spread, pace: PaceDifference
) -> Difference:
    # without a value in one of both its interval has n = 0
    scale, both = SCALES[metric.scale], list(zip(sides, pair, strict=True))
    values = [scale.forward(side.read(metric)[side.grouping.basis_of(configuration)]) for side, configuration in both]
    estimate = _estimate(values, [side.seeds_of(configuration) for side, configuration in both], spread)
    if metric.is_speed:
        estimate = pace.widen(estimate)
    bounds = np.array(confidence_interval(estimate._replace(is_ratio=scale.is_ratio)))
    if not scale.is_ratio and estimate.n:
        start = np.array([np.nanmedian(values[0])])
        bounds = scale.backward(start + bounds) - scale.backward(start)
    middle, low, high = bounds.tolist()
    return Difference(interval=Interval(middle, low, high, estimate.n), p_value=_p_value(estimate))


def _estimate(values: list[Values], seeds: list[Values], spread: Spread) -> Estimate:
    # on the metric's scale; equal seeds saw equal data, so the differences of pairs scatter less
    shared = np.intersect1d(seeds[0], seeds[1])
    pairs = [[some[own == seed][0] for some, own in zip(values, seeds, strict=True)] for seed in shared]
    gaps = np.array([second - first for first, second in pairs])
    if np.isfinite(gaps).sum() >= _MIN_PAIRS:
        return mean_estimate(gaps)
    known = [some[np.isfinite(some)] for some in values]
    if not (len(known[0]) and len(known[1])):
        return NOTHING
    counts = np.array([len(some) for some in known])
    error = spread.sd * float(np.hypot(*median_errors(counts)))
    gap = float(np.median(known[1]) - np.median(known[0]))
    return Estimate(gap, error, spread.degrees, int(counts.min()))


def _find_overall(differences: Sequence[Difference], metric: Metric, pace: PaceDifference) -> Difference:
    # The error of the mean is from the scatter of configurations and, of times, from the pace, which all configurations
    # of a run share. Of one configuration it is that one's difference.
    if len(differences) == 1:
        return differences[0]
    is_ratio = SCALES[metric.scale].is_ratio
    middles = np.array([item.interval.median for item in differences])
    estimate = mean_estimate(np.log(middles) if is_ratio else middles, is_ratio)
    if metric.is_speed:
        estimate = pace.widen(estimate)
    return Difference(interval=Interval(*confidence_interval(estimate), estimate.n), p_value=_p_value(estimate))


def _p_value(estimate: Estimate) -> float:
    # two-sided, of no difference
    if not (estimate.degrees > 0 and np.isfinite(estimate.error)):
        return np.nan
    if estimate.error == 0:
        return 0.0 if estimate.value else 1.0
    return min(1.0, 2 * float(t_upper_tail(abs(estimate.value) / estimate.error, estimate.degrees)))


def give_verdicts(differences: Sequence[Difference], metrics: Sequence[Metric]) -> list[Difference]:
    """``differences``, each of one of the ``metrics``, with verdicts that hold together (Holm 1979)."""
    p_values = np.array([item.p_value for item in differences], dtype=np.float64)
    known = np.isfinite(p_values)
    p_values[known] = correct_holm(p_values[known])
    rows = zip(differences, metrics, p_values.tolist(), strict=True)
    return [replace(item, verdict=_judge(item, metric, p)) for item, metric, p in rows]


def _judge(item: Difference, metric: Metric, p_value: float) -> Verdict:
    if not np.isfinite(p_value):
        return "not_known"
    if p_value >= SIGNIFICANT:
        return "undecided"
    return "higher" if item.interval.median > (1.0 if SCALES[metric.scale].is_ratio else 0.0) else "lower"


# --- the machine's pace


def measure_pace_difference(a: Frames, b: Frames) -> PaceDifference:
    """The difference of pace between the runs of ``a`` and ``b``; a reused trial says nothing of either run."""
    facts = [_collect_device_facts(frames) for frames in (a, b)]
    for name in _DEVICE_FACTS:
        values = [run[name] for run in facts]
        if any(len(each) > 1 for each in values):
            return PaceDifference(reason=f"trials of a study ran with several values of {name}")
        if all(values) and values[0] != values[1]:
            reason = f"the two runs differ in {name}, so that a ratio of times is of that and of the code together"
            return PaceDifference(reason=reason)
    return estimate_pace_difference(_read_references(a), _read_references(b))


def estimate_pace_difference(a: Values, b: Values) -> PaceDifference:
    """From the logarithms of the times of the reference work in each run, in the order of its trials. Each stretch of a
    run is a draw of the pace."""
    if not (len(a) and len(b)):
        return PaceDifference(reason=_NOT_TIMED)
    parts = [np.array_split(logs, min(_NUM_STRETCHES, len(logs))) for logs in (a, b)]
    stretches = np.array([part.mean() for run in parts for part in run])
    degrees = len(stretches) - 1
    return PaceDifference(
        error=float(np.sqrt(2 * np.sum((stretches - stretches.mean()) ** 2) / degrees)),
        degrees=degrees,
        ratio=float(np.exp(b.mean() - a.mean())),
        num_references=(len(a), len(b)),
    )


def _collect_device_facts(frames: Frames) -> dict[str, set[str]]:
    # of the run's own trials: a reused one may be of another device, but nothing rests on its time
    own, table = frames.trials[_is_own(frames.trials)], frames.environments
    table = table[table["environment_digest"].isin(set(read_text(own, "environment_digest").tolist()))]
    facts = {name: set(read_text(table, name).tolist()) - {""} for name in _DEVICE_FACTS}
    return facts | {"device": set(read_text(own, "device").tolist()) - {""}}


def _read_references(frames: Frames) -> Values:
    # logarithms, in the order of the trials
    trials = frames.trials[_is_own(frames.trials)].sort_values("number", kind="stable")
    seconds = read_numbers(trials, "reference_seconds")
    return np.log(seconds[seconds > 0])


# --- fronts and changes


def _find_fronts(sides: _Sides, metrics: Sequence[Metric], quality: Quality) -> tuple[Front, Front]:
    objectives = [each for each in metrics if each.name in (quality.column, SECONDS, MEMORY)]
    if not objectives:
        return Front((), 0.0), Front((), 0.0)
    signs = [each.sign for each in objectives]
    tables = [
        np.stack([side.grouping.medians(read_numbers(side.done, each.name))[0] for each in objectives], axis=1)
        for side in sides
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


def _find_changes(a: Frames, b: Frames) -> dict[str, tuple[str, str]]:
    # the facts that differ by name, as (in A, in B)
    facts = [_collect_facts(frames) for frames in (a, b)]
    names = dict.fromkeys((*facts[0], *facts[1]))
    values = {name: tuple(run.get(name, "not recorded") for run in facts) for name in names}
    return {name: (first, second) for name, (first, second) in values.items() if first != second}


def _collect_facts(frames: Frames) -> dict[str, str]:
    # every fact of the environments, several values joined, and every setting: its value where all trials share it
    trials, table = frames.trials, frames.environments.drop(columns=["study", "environment_digest"], errors="ignore")
    devices = ", ".join(sorted({str(device) for device in read_text(trials, "device") if device}))
    facts = {"device": devices} if devices else {}
    facts |= {str(name): ", ".join(sorted({str(value) for value in table[name].dropna()})) for name in table.columns}
    for key in config_keys():
        name = f"config.{key}"
        if key not in _NOT_TRAINED and len(trials) and name in trials.columns:
            is_shared = trials[name].nunique(dropna=False) == 1
            facts[key] = str(plain_value(trials[name].iloc[0])) if is_shared else "varies"
    return facts
