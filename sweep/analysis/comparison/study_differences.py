"""Differences between equal configurations of two studies, and which of them are more than chance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sweep.analysis.comparison.machine_pace import PaceDifference
from sweep.analysis.comparison.study_alignment import Sides
from sweep.analysis.statistics import (
    NOTHING,
    SIGNIFICANT,
    Estimate,
    Interval,
    Spread,
    Values,
    confidence_interval,
    correct_holm,
    mean_estimate,
    median_errors,
    read_numbers,
    scale_of,
    t_upper_tail,
)
from sweep.config.metrics import METRICS

Verdict = Literal["higher", "lower", "undecided", "not_known"]
_MIN_PAIRS = 3  # fewer say too little of how pairs scatter


@dataclass(frozen=True, kw_only=True)
class Difference:
    """B over A for seconds, bytes and rates, B - A for accuracies, with the 95 % interval of this difference alone. Its
    bounds are NaN where the error is not known. ``verdict`` is of B and corrected for the number of differences that
    are tested together; ``not_known`` without an error."""

    interval: Interval
    p_value: float  # of no difference, before the correction; NaN without an error
    verdict: Verdict = "not_known"


def find_difference(sides: Sides, pair: tuple[int, int], name: str, spread: Spread, pace: PaceDifference) -> Difference:
    """The difference in the metric ``name`` between the configurations ``pair`` of the two ``sides``; without a value
    in one of them its interval has n = 0. The error of a time contains that of the machine's ``pace``."""
    rows = [side.basis_of(place) for side, place in zip(sides, pair, strict=True)]
    seeds = [read_numbers(side.done, "seed")[some] for side, some in zip(sides, rows, strict=True)]
    scale = scale_of(name)
    values = [scale.forward(side.evidence_of(name)[some]) for side, some in zip(sides, rows, strict=True)]
    estimate = _estimate(values, seeds, spread)
    if METRICS[name].is_speed:
        estimate = pace.widen(estimate)
    bounds = np.array(confidence_interval(estimate._replace(is_ratio=scale.is_ratio)))
    if not scale.is_ratio and estimate.n:
        start = np.array([np.nanmedian(values[0])])
        bounds = scale.backward(start + bounds) - scale.backward(start)
    return Difference(interval=_as_interval(bounds, estimate.n), p_value=_p_value(estimate))


def count_shared_seeds(sides: Sides, pair: tuple[int, int]) -> int:
    """How many seeds the bases of both configurations share."""
    seeds = [read_numbers(side.done, "seed")[side.basis_of(place)] for side, place in zip(sides, pair, strict=True)]
    return len(np.intersect1d(seeds[0], seeds[1]))


def find_overall(found: Sequence[Difference], name: str, pace: PaceDifference) -> Difference:
    """The mean difference over configurations. Its error is from their scatter and, of times, from the pace, which all
    configurations of a run share. Of one configuration it is that one's difference."""
    if len(found) == 1:
        return found[0]
    is_ratio = scale_of(name).is_ratio
    middles = np.array([item.interval.median for item in found])
    estimate = mean_estimate(np.log(middles) if is_ratio else middles, is_ratio)
    if METRICS[name].is_speed:
        estimate = pace.widen(estimate)
    return Difference(
        interval=_as_interval(np.array(confidence_interval(estimate)), estimate.n), p_value=_p_value(estimate)
    )


def give_verdicts(found: Sequence[Difference], names: Sequence[str]) -> list[Difference]:
    """``found``, each of the metric in ``names``, with verdicts that hold together (Holm 1979)."""
    p_values = np.array([item.p_value for item in found])
    corrected = np.full(len(found), np.nan)
    known = np.isfinite(p_values)
    corrected[known] = correct_holm(p_values[known])
    return [
        replace(item, verdict=_verdict(item, name, p)) for item, name, p in zip(found, names, corrected, strict=True)
    ]


def _verdict(item: Difference, name: str, p_value: float) -> Verdict:
    if not np.isfinite(p_value):
        return "not_known"
    if p_value >= SIGNIFICANT:
        return "undecided"
    return "higher" if item.interval.median > (1.0 if scale_of(name).is_ratio else 0.0) else "lower"


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


def _p_value(estimate: Estimate) -> float:
    # two-sided, of no difference
    if not (estimate.degrees > 0 and np.isfinite(estimate.error)):
        return np.nan
    if estimate.error == 0:
        return 0.0 if estimate.value else 1.0
    return min(1.0, 2 * float(t_upper_tail(abs(estimate.value) / estimate.error, estimate.degrees)))


def _as_interval(bounds: Values, n: int) -> Interval:
    middle, low, high = bounds.tolist()
    return Interval(middle, low, high, n)
