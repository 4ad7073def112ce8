"""What a trial costs: which trials cost the same, and what the time of each is.

The records hold the time that the clock measured, with its quality flags, whatever disturbed it.
:func:`estimate_times` alone decides what that time is worth.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from sweep.analysis.statistics import (
    Grouping,
    Mask,
    Numbers,
    Texts,
    Values,
    configuration_groups,
    read_numbers,
    read_text,
)
from sweep.config.metrics import METRICS
from sweep.config.trial import keys_of_cost
from sweep.records.quality import (
    FEW_STEPS,
    LOADS_BESIDE,
    PACKED,
    PROCESSOR_WAIT,
    SLOWED_BY_OTHERS,
    find_time_doubts,
    is_only_slowed,
)
from sweep.records.records import ProbeRecord

# --- equal costs

# What changes no cost; and data.root, because the same data may be elsewhere on another machine.
FREE_KEYS = keys_of_cost("none") | {"data.root"}
SWITCHES = keys_of_cost("switch")
LEARNED_SCHEDULES = frozenset({"noise_scale", "plateau"})  # of the batch, which grows as the training learns


def equal_cost_groups(trials: pd.DataFrame, ignored: Collection[str] = ()) -> Numbers:
    """The same number for trials whose steps cost the same, whatever the values of the keys ``ignored``; shape
    ``[len(trials)]``. Of a switch, such as momentum, only whether it is on counts."""
    return configuration_groups(trials, FREE_KEYS.union(ignored), SWITCHES)


def find_cost_groups(name: str, done: pd.DataFrame) -> Numbers:
    """The same number for trials whose metric ``name`` is to be equal; shape ``[trials]``."""
    # Where time depends on the learning, as time to a target does, only trials of one configuration are equal.
    is_own = METRICS[name].is_speed and _depends_on_learning(done)
    return configuration_groups(done) if is_own else equal_cost_groups(done)


def _depends_on_learning(done: pd.DataFrame) -> bool:
    """Whether how long a training takes depends on how well it learns."""
    by_target = np.isfinite(read_numbers(done, "config.budget.target")).any()
    return bool(by_target or LEARNED_SCHEDULES & set(read_text(done, "config.batch.schedule")))


def average_costs(values: Values, costs: Numbers, own_errors: Values) -> tuple[Values, Values]:
    """The mean of each group of equal cost, and its error, both of shape ``[groups]``. Errors are in standard
    deviations of the spread; ``own_errors`` belong to the single values and come on top of it."""
    finite = np.isfinite(values)
    size = int(costs.max(initial=-1)) + 1
    weights = 1 / (1 + own_errors[finite] ** 2)
    sums = np.bincount(costs[finite], weights, minlength=size)
    known = np.where(sums > 0, sums, np.nan)
    return np.bincount(costs[finite], weights * values[finite], minlength=size) / known, 1 / np.sqrt(known)


# --- the time of a trial

MEASURED, UNDISTURBED, EQUAL, PROBED = "measured", "undisturbed windows", "equal trials", "probe"
WEIGHED = "by its uncertainty"
# What stands for a disturbed time, in words.
SOURCE_NAMES = {
    UNDISTURBED: "the undisturbed steps",
    EQUAL: "other trials of equal cost",
    PROBED: "solo probes, short runs of the same training step with nothing else on the device",
}
_MAX_SLOWDOWN = 0.1  # beside another load, against a solo probe
_MIN_RATIOS = 3  # of trials to probes, with which their median is used
_FEW_SURE = 3  # fewer reliable times tell too little about how much times scatter
# Half the width of the 95 % interval, as a share of the time: where others slowed it by an unknown factor, and where
# it is not on record.
_SLOWED_ERROR, _UNKNOWN_ERROR = 1.0, 0.2
_SLOWING = frozenset({SLOWED_BY_OTHERS, PACKED, PROCESSOR_WAIT})  # doubts that mean so
# Metrics that change with the training time: a time in proportion, a rate inversely.
_FOLLOWING = frozenset({"train_seconds", "seconds_to_target", "images_per_second", "tokens_per_second"})
Number = TypeVar("Number", float, Values)


# Solo probes without a sign of disturbance, by shape and device: seconds of an update, and of each image beside it.
References = Mapping[tuple[str, str], tuple[float, float]]


class ClockedTrials(NamedTuple):
    """What the clock measured of ``n`` complete trials; arrays of shape ``[n]``, NaN or "" where nothing is known.

    ``groups`` are equal where the time is to be equal on one device; ``slowdown`` is by how much waiting for processors
    lengthened the training, as a share of its undisturbed windows; ``is_fixed`` where the time was the budget.
    ``varies``: the time depends on how well a training learns, so that trials of one group take different times.
    """

    seconds: Values
    slowdown: Values
    errors: Values  # half the width of the 95 % interval, as a share
    num_steps: Values
    num_images: Values
    groups: Numbers
    devices: Texts
    shapes: Texts
    flags: Texts  # with commas between them
    is_fixed: Mask
    varies: bool = False


class _TrialTimes(NamedTuple):
    """The training time to use of each trial, shape ``[n]``; :func:`estimate_times` has the rules. ``errors`` is the
    standard error of the logarithm of an uncertain time, 0 of all others; ``counts``: the time is an observation."""

    seconds: Values
    errors: Values
    sources: Texts
    counts: Mask


def estimate_times(trials: ClockedTrials, references: References) -> _TrialTimes:
    """What the measured time of each trial is worth; nothing else decides that. The first rule that fits gives it:

    1. ``MEASURED``: the time of the clock, if no quality flag casts a doubt on it. Beside another load it must also be
       at most 10 % above the time by the trial's solo probe, where there is one and the trial has enough steps.
    2. ``UNDISTURBED``: the trial's undisturbed windows, ``seconds / (1 + slowdown)``, if the only doubt is that other
       processes slowed it, and by how much is on record.
    3. ``EQUAL``: the geometric mean of what rules 1 and 2 give for trials of equal cost on the same device. Where
       fewer than three have one, it is ``WEIGHED``, the time of the clock by its uncertainty, if nothing ran beside the
       trial: one lucky time must not outweigh all others. So it is where none has one, nor a probe, but three trials
       would be weighed.
    4. ``PROBED``: the time by the solo probe of its shape (:func:`predict_alone`). Short probes are often faster than
       trainings: where three undisturbed trials or more of the device have one, it is multiplied by their median
       ratio to it.
    5. "": the time of the clock, which is uncertain. Half of its 95 % interval is what was recorded, 20 % where nothing
       was, and 100 % where other programs or other trials on the device slowed it.

    A time that is the budget itself is never replaced. What is passed on is not an observation: times by rule 3 do not
    count, and those by rule 4 count once for all trials of equal cost. A time by rule 5 counts only where no trial of
    equal cost has another; of those that others slowed only the shortest, because others make no training faster.
    """
    is_sure, is_slowed, is_beside, is_short, is_crowded = _judge_flags(trials.flags)[:5]
    trials = trials._replace(seconds=np.where(trials.seconds > 0, trials.seconds, np.nan))
    is_known = np.isfinite(trials.seconds)
    devices = pd.factorize(trials.devices)[0]
    alone = np.full(len(trials.seconds), np.nan)
    if not is_sure.all() or is_beside.any():
        alone = predict_alone(trials, references)
        ratios = pd.Series(np.where(is_sure & ~is_beside, trials.seconds / alone, np.nan)).groupby(devices)
        factors = ratios.transform("median").where(ratios.transform("count") >= _MIN_RATIOS, 1.0)
        alone = predict_alone(trials, references, factors.to_numpy())

    # rules 1 and 2
    is_sure = is_sure & ~(is_beside & ~is_short & (trials.seconds > (1 + _MAX_SLOWDOWN) * alone))
    is_slowed = is_slowed & is_known & np.isfinite(trials.slowdown) & ~trials.is_fixed
    is_own = is_sure | is_slowed
    seconds = np.where(is_slowed, trials.seconds / (1 + trials.slowdown), trials.seconds)

    # rules 3 and 4, for each group of equal cost on one device
    groups = np.asarray(pd.factorize(trials.groups * (int(devices.max(initial=0)) + 1) + devices)[0], dtype=np.int64)
    means, _ = average_costs(np.where(is_own, np.log(seconds), np.nan), groups, np.zeros(len(seconds)))
    equal = np.exp(means)[groups]
    is_few = np.bincount(groups[is_own & is_known], minlength=len(means))[groups] < _FEW_SURE
    is_open = is_known & ~is_own & ~trials.is_fixed
    is_vague = is_open & is_few & ~is_crowded & ~is_beside
    is_many = (np.bincount(groups, is_vague)[groups] >= _FEW_SURE) & ~np.isfinite(alone)
    is_weighed = is_vague & (np.isfinite(equal) | is_many)
    is_equal = is_open & np.isfinite(equal) & ~is_weighed
    is_probed = is_open & ~is_equal & ~is_weighed & np.isfinite(alone)
    is_uncertain = ~(is_own | is_equal | is_probed | is_weighed)
    sources = np.select(
        [is_sure, is_slowed, is_equal, is_probed, is_weighed], [MEASURED, UNDISTURBED, EQUAL, PROBED, WEIGHED], ""
    )

    is_repeated = is_probed & pd.Series(groups).where(is_probed).duplicated().to_numpy(np.bool_)
    has_other = np.isin(groups, groups[(is_own & is_known) | is_probed])
    crowded = pd.Series(np.where(is_crowded & is_uncertain, seconds, np.nan))
    is_longer = np.asarray((crowded > crowded.groupby(groups).transform("min")) & (not trials.varies))
    halves = np.where(np.isfinite(trials.errors), trials.errors, _UNKNOWN_ERROR)
    return _TrialTimes(
        seconds=np.select([is_equal, is_probed], [equal, alone], seconds),
        errors=np.where(is_uncertain | is_weighed, np.where(is_crowded, _SLOWED_ERROR, halves) / 2, 0.0),
        sources=sources.astype(object),
        counts=is_own
        | is_weighed
        | (is_probed & (~is_repeated | trials.varies))
        | (is_uncertain & ~has_other & ~is_longer),
    )


def predict_alone(trials: ClockedTrials, references: References, factors: Values | float = 1.0) -> Values:
    """The training time of each trial by the solo probe of its shape, ``factors`` times as long, shape ``[n]``; NaN
    where there is none. A probe by which any trial took less time than alone was itself disturbed, and is not used:
    less by over a tenth, or less at all where others slowed the trial."""
    is_slowed = _judge_flags(trials.flags)[5]
    keys = list(zip(trials.shapes, trials.devices, strict=True))
    known = np.array([references.get(key, (np.nan, np.nan)) for key in keys], dtype=np.float64).reshape(-1, 2)
    alone = trials.num_steps * known[:, 0] + trials.num_images * known[:, 1]
    is_too_long = np.where(is_slowed, factors, 1 / (1 + _MAX_SLOWDOWN)) * alone > trials.seconds
    refuted = {keys[row] for row in np.flatnonzero(is_too_long)}
    return np.where([key in refuted for key in keys], np.nan, factors * alone)


def _judge_flags(flags: Texts) -> Mask:
    # shape [6, n]: without a doubt; with the slowdown as the only doubt; beside another load; of too few steps to have
    # a mean; slowed by other programs or trials; by other programs
    codes, texts = pd.factorize(flags)
    verdicts = []
    for names in (set(str(text).split(",")) for text in texts):
        doubts = find_time_doubts(names)
        is_beside, is_crowded = not LOADS_BESIDE.isdisjoint(names), not doubts.isdisjoint(_SLOWING)
        facts = (not doubts, is_only_slowed(names), is_beside, FEW_STEPS in names)
        verdicts.append((*facts, is_crowded, SLOWED_BY_OTHERS in names))
    return np.array(verdicts, dtype=np.bool_).reshape(-1, 6)[codes].T


# --- times in frames


def clock_trials(done: pd.DataFrame) -> ClockedTrials:
    """What the clock measured of the complete trials ``done``."""
    seconds, num_steps = read_numbers(done, "train_seconds"), read_numbers(done, "num_steps")
    images = read_numbers(done, "images_per_second") * seconds
    return ClockedTrials(
        seconds=seconds,
        slowdown=read_numbers(done, "slowdown_by_others"),
        errors=read_numbers(done, "step_time_error"),
        num_steps=num_steps,
        num_images=np.where(np.isfinite(images), images, num_steps * read_numbers(done, "global_batch_size")),
        groups=find_cost_groups("train_seconds", done),
        devices=read_text(done, "device"),
        shapes=read_text(done, "shape_digest"),
        flags=read_text(done, "quality_flags"),
        is_fixed=np.isfinite(read_numbers(done, "config.budget.seconds")),
        varies=_depends_on_learning(done),
    )


def list_references(probes: pd.DataFrame | Iterable[ProbeRecord]) -> References:
    """The probes with no quality flag but few steps: whatever else was seen also lengthens what a probe measures."""
    if not isinstance(probes, pd.DataFrame):
        rows = [(each, {"shape_digest": each.shape_digest}) for each in probes]
        probes = pd.DataFrame(
            [vars(each) | more | {"quality_flags": ",".join(each.quality_flags)} for each, more in rows]
        )
    means, updates = read_numbers(probes, "step_seconds_mean"), read_numbers(probes, "update_seconds")
    nums, texts = read_numbers(probes, "num_train"), read_text(probes, "shape")
    digests, devices = read_text(probes, "shape_digest"), read_text(probes, "device")
    is_usable = (read_text(probes, "outcome") == "complete") & (digests != "") & np.isfinite(means)
    flags = [text.split(",") for text in read_text(probes, "quality_flags")]
    return {
        (digests[row], devices[row]): _split_step(texts[row], means[row], updates[row], nums[row])
        for row in np.flatnonzero(is_usable)
        if {"", FEW_STEPS}.issuperset(flags[row])
    }


def _split_step(shape: str, mean: float, update: float, num_train: float) -> tuple[float, float]:
    # a probe's step into its update and each of its images
    facts = json.loads(shape or "{}")
    images = facts.get("batch.micro", np.nan) * facts.get("batch.accumulation", 1)
    update = min(float(np.nan_to_num(update)), mean)
    return update, float((mean - update) / np.fmin(images, num_train))


def apply_times(trials: pd.DataFrame, probes: pd.DataFrame) -> pd.DataFrame:
    """``trials`` with the training time to use of each complete one, what changes with it, and four columns more:
    ``time_source``, ``time_error`` and ``time_counts``, the fields of :class:`_TrialTimes`, and ``clock_seconds``, the
    time that was measured."""
    is_complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    clocked = clock_trials(trials if is_complete.all() else trials[is_complete])
    times = estimate_times(clocked, list_references(probes))
    factors = np.ones(len(trials))
    is_known = np.isfinite(times.seconds)
    factors[is_complete] = np.divide(times.seconds, clocked.seconds, out=np.ones(len(is_known)), where=is_known)
    columns: dict[str, Values] = {}
    if not (factors == 1.0).all():
        columns = scale_with_time({name: read_numbers(trials, name) for name in _FOLLOWING if name in trials}, factors)
    sources, errors, counts = np.full(len(trials), "", dtype=object), np.zeros(len(trials)), is_complete.copy()
    sources[is_complete], errors[is_complete], counts[is_complete] = times.sources, times.errors, times.counts
    clock = read_numbers(trials, "train_seconds")
    added = {"clock_seconds": clock, "time_source": sources, "time_error": errors, "time_counts": counts}
    return pd.concat([trials.assign(**columns), pd.DataFrame(added, index=trials.index)], axis=1)


def scale_with_time(measured: Mapping[str, Number], factor: Number) -> dict[str, Number]:
    """``measured`` by name of the metric table where the training time is to be ``factor`` times as long."""
    scaled = dict(measured)
    for name in scaled.keys() & _FOLLOWING:
        is_rate = METRICS[name].unit_facts.measures == "rate"
        scaled[name] = scaled[name] / factor if is_rate else scaled[name] * factor
    return scaled


def read_counts(done: pd.DataFrame) -> Mask:
    """Of which trials the time is an observation by :func:`apply_times`; all without it. Shape ``[trials]``."""
    return np.asarray(done["time_counts"], dtype=np.bool_) if "time_counts" in done else np.ones(len(done), np.bool_)


def read_observed(name: str, done: pd.DataFrame) -> Values:
    """The metric ``name`` of each trial, shape ``[trials]``; NaN for speeds where the time is no observation."""
    return np.where(read_counts(done) | (not METRICS[name].is_speed), read_numbers(done, name), np.nan)


def read_own(name: str, done: pd.DataFrame, grouping: Grouping) -> Values:
    """As :func:`read_observed`, but where no trial of a configuration counts, the value of its first one does."""
    values, counts = read_numbers(done, name), read_counts(done)
    if not METRICS[name].is_speed or counts.all():
        return values
    parts = 2 * grouping.members + grouping.is_basis
    has_any = np.bincount(parts[counts], minlength=int(parts.max(initial=-1)) + 1)[parts] > 0
    is_first = ~pd.Series(parts).duplicated().to_numpy(np.bool_)
    return np.where(counts | (~has_any & is_first), values, np.nan)


# --- micro batches of a trial


def ran_micro_batches(trials: pd.DataFrame) -> Values:
    """Samples of the micro batch that ran: as measured, otherwise as configured, and no more than a step of constant
    size has on each rank, because records may state more; NaN where neither is known. Shape ``[trials]``."""
    ran = read_numbers(trials, "micro_batch_size")
    sizes = np.where(np.isfinite(ran), ran, read_numbers(trials, "config.batch.micro"))
    is_constant = np.isin(read_text(trials, "config.batch.schedule"), ["", "constant"])
    most = np.where(is_constant, np.ceil(read_numbers(trials, "global_batch_size") / _count_ranks(trials)), np.inf)
    return np.where(most < sizes, most, sizes)


def num_accumulation(trials: pd.DataFrame, micro: Values | None = None) -> Values:
    """Micro batches per optimizer step on each rank, with micro batches of ``micro`` samples, by default those that
    ran; both of shape ``[trials]``."""
    samples = (ran_micro_batches(trials) if micro is None else micro) * _count_ranks(trials)
    return np.ceil(read_numbers(trials, "global_batch_size") / samples)


def _count_ranks(trials: pd.DataFrame) -> Values:
    return np.maximum(np.nan_to_num(read_numbers(trials, "config.distributed.world_size"), nan=1.0), 1.0)


def parse_shapes(probes: pd.DataFrame) -> list[dict[str, Any]]:
    """The facts of each probe's shape, by configuration key."""
    return [json.loads(shape or "{}") for shape in read_text(probes, "shape")]


# --- throughput by micro batch

_KNEE_SHARE = 0.95  # of the best throughput
# Throughputs that differ in one of these have nothing in common: the knee of all together would belong to none.
_APART = ("model.name", "model.norm", "precision.dtype", "optimizer.name")


def group_medians(x: Values, y: Values) -> tuple[Values, Values]:
    """The distinct ``x`` in order and the median of ``y`` at each; values where either is not finite are left out."""
    known = np.isfinite(x) & np.isfinite(y)
    levels = np.unique(x[known])
    return levels, np.array([np.median(y[known & (x == level)]) for level in levels])


def find_throughput_knee(sizes: Values, rates: Values) -> int:
    """The row of the throughput knee: the smallest of ``sizes`` whose rate is within 5 % of the best.

    ``sizes`` are distinct micro batches, ``rates`` their images per second; both are finite and of shape ``[n]`` with
    ``n >= 1``.
    """
    rows = np.flatnonzero(rates >= _KNEE_SHARE * rates.max())
    return int(rows[np.argmin(sizes[rows])])


class _ThroughputCurve(NamedTuple):
    """The median ``rates`` (images per second) at the distinct micro batches ``sizes``, both of shape ``[k]``, of the
    trials of one model, normalization, precision and optimizer, which ``name`` gives; ``num_trials`` is their number,
    ``num_others`` the number of other combinations."""

    name: str
    sizes: Values
    rates: Values
    num_trials: int
    num_others: int

    @property
    def knee(self) -> int:
        return find_throughput_knee(self.sizes, self.rates)


def find_longest_curve(trials: pd.DataFrame, sizes: Values, rates: Values) -> _ThroughputCurve | None:
    """The throughput of the combination of model, normalization, precision and optimizer with the most micro batches,
    and of these the one with the most trials; None without a measurement. All of shape ``[trials]``."""
    columns = [read_text(trials, f"config.{key}").tolist() for key in _APART]
    parts = [(model, f"{norm} norm" if norm else "", *others) for model, norm, *others in zip(*columns, strict=True)]
    names = np.array([", ".join(filter(None, words)) for words in parts], dtype=object)
    known = np.isfinite(sizes) & np.isfinite(rates)
    combinations = sorted(set(names[known]))
    curves = []
    for name in combinations:
        chosen = known & (names == name)
        levels, medians = group_medians(sizes[chosen], rates[chosen])
        curves.append(_ThroughputCurve(name, levels, medians, int(chosen.sum()), len(combinations) - 1))
    return max(curves, key=lambda curve: (len(curve.sizes), curve.num_trials), default=None)
