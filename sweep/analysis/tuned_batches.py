"""The batch-size curve as Shallue et al. 2019 define it: what is reached at each effective batch size when everything
else is chosen anew for it.

The answer draws the curve of a model's candidates (:func:`draw_batches`), claims fit the curve of any configurations
(:func:`fit_batch_curve`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from sweep.analysis.answer import TunedBatch, TunedModel
from sweep.analysis.candidates import Candidates, estimate_value
from sweep.analysis.comparable import MEMORY, SECONDS, ComparableTrials
from sweep.analysis.rate_powers import measure_rate_power, scaled_learning_rates
from sweep.analysis.response import list_batches
from sweep.analysis.statistics import (
    Interval,
    Mask,
    Numbers,
    Values,
    confidence_interval,
    pooled_spread,
    read_numbers,
    read_text,
    seed_interval,
)
from sweep.config.metrics import Quality
from sweep.config.study import FEWEST_CONFIGURATIONS

_UNKNOWN = Interval(np.nan, np.nan, np.nan, 0)
_SHARE_REACHED = 0.75  # of a model's batches reach the common target by their tuned accuracy
RATE = "optimizer.lr"
_EDGE = 0.05  # share of a range that is its edge


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """For each effective batch size in ascending order (all of shape ``[b]``): ``rows``, its best configuration, and
    ``accuracies``, what is expected of it on new images, as a fraction."""

    batches: Values
    rows: Numbers
    accuracies: Values
    num_configurations: int


def _group_by_batch(sizes: Values, usable: Mask) -> dict[int, Numbers]:
    # the rows of those that are usable, by effective batch size in ascending order
    return {int(batch): np.flatnonzero(usable & (sizes == batch)) for batch in np.unique(sizes[usable])}


def fit_batch_curve(records: ComparableTrials, chosen: Mask) -> BatchCurve:
    """The curve over the configurations ``chosen``, shape ``[configurations]``.

    The expected accuracy is corrected for the luck of single seeds, so that a batch is not ahead for having been tried
    more often.
    """
    posterior = records.posterior(records.quality.column)
    sizes = read_numbers(records.frame, "global_batch_size")
    usable = chosen & np.isfinite(posterior.expected) & np.isfinite(sizes)
    groups = _group_by_batch(sizes, usable)
    best = np.array([rows[np.argmax(posterior.expected[rows])] for rows in groups.values()], dtype=np.int64)
    return BatchCurve(
        batches=np.array(list(groups), dtype=np.float64),
        rows=best,
        accuracies=posterior.estimates[best],
        num_configurations=sum(map(len, groups.values())),
    )


def cross_target(steps: Values, accuracies: Values, target: float) -> float:
    """The step at which accuracy reached ``target``, linear between the evaluation before and the one after; NaN where
    the first evaluation had reached it or none did. Both of shape ``[evaluations]``, in the order of steps."""
    reached = np.flatnonzero(accuracies >= target)
    if not len(reached) or reached[0] == 0:
        return np.nan
    before, after = reached[0] - 1, reached[0]
    share = (target - accuracies[before]) / (accuracies[after] - accuracies[before])
    return float(steps[before] + share * (steps[after] - steps[before]))


class _BatchCosts(NamedTuple):
    """Of the trainings that stand for one batch. ``remark`` is why the last three are not known, "" where they are."""

    num_steps: Interval
    num_samples: Interval
    steps_to_target: Interval
    samples_to_target: Interval
    share_to_target: Interval  # of the steps
    remark: str


def find_common_target(tuned: Values, tolerance: float, step: float = 0.001) -> float:
    """The accuracy to compare the batches by: ``tolerance`` below what three quarters of the tuned accuracies (shape
    ``[b]``) reach, rounded down to a tenth of a point, or another ``step``; NaN without a batch."""
    if not len(tuned):
        return math.nan
    reached = float(np.sort(tuned)[::-1][math.ceil(_SHARE_REACHED * len(tuned)) - 1])
    return math.floor(1 / step * (reached - tolerance)) / (1 / step)


def _measure_batch_costs(candidates: Candidates, chosen: Numbers, target: float) -> list[_BatchCosts]:
    """The costs of the candidates ``chosen`` (shape ``[b]``), each by its own trainings. Intervals are by the spread
    between trainings, pooled over the batches; a batch with one training has none."""
    done, evaluations = candidates.records.done, candidates.records.frames.evaluations
    tables, remarks = [], []
    for candidate in chosen:
        rows = candidates.basis_of(int(candidate))
        curves = [_read_curve(evaluations, done.iloc[row], candidates.records.quality) for row in rows]
        ends = read_numbers(done, "num_steps")[rows]
        batch = read_numbers(done, "global_batch_size")[rows]
        samples = np.array([curve[-1, 1] if len(curve) else np.nan for curve in curves])
        whole = np.where(np.isfinite(samples), samples, ends * batch)
        if candidates.records.until_target:  # each ended there
            to_target = np.column_stack([ends, whole])
            remarks.append("")
        else:
            crossed = [cross_target(curve[:, i], curve[:, 2], target) for curve in curves for i in (0, 1)]
            to_target = np.array(crossed).reshape(-1, 2)  # in steps and in samples
            remarks.append(_explain(curves, target, candidates.records))
        tables.append(np.column_stack([ends, whole, to_target, to_target[:, 0] / ends]))
        if remarks[-1]:
            tables[-1][:, 2:] = np.nan
    columns = [_describe([table[:, column] for table in tables]) for column in range(5)]
    return [_BatchCosts(*values) for values in zip(*columns, remarks, strict=True)]


def combine_ratio(value: Interval, share: Interval) -> Interval:
    """``value`` times ``share``, whose errors are independent and even in their logarithms."""
    middle = value.median * share.median
    if not math.isfinite(middle):
        return _UNKNOWN
    halves = [np.log(each.high / each.low) / 2 for each in (value, share)]
    half = float(np.hypot(*halves))
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half), share.n)


def _read_curve(evaluations: pd.DataFrame | None, trial: pd.Series, quality: Quality) -> Values:
    # steps, samples and accuracies (of another quality gains) of one training in order, shape [evaluations, 3]
    if evaluations is None or not len(evaluations):
        return np.empty((0, 3))
    own = evaluations[(evaluations["number"] == trial["number"]) & (evaluations["study"] == trial["study"])]
    table = np.column_stack([read_numbers(own, name) for name in ("step", "samples", quality.column)])
    table[:, 2] *= quality.sign
    return np.asarray(table[np.argsort(table[:, 0], kind="stable")])


def _explain(curves: Sequence[Values], target: float, records: ComparableTrials) -> str:
    # why it is not known when all trainings reached the target
    quality, lack = records.quality, records.lack_of_evaluations
    shown = f"{100 * target:.1f} %" if quality.unit == "fraction" else quality.format_value(quality.sign * target)
    if not all(len(curve) for curve in curves):
        num_lacking = sum(not len(curve) for curve in curves)
        which = "" if num_lacking == len(curves) else f" of {num_lacking} of {len(curves)} trainings"
        return f"{lack}{which}, so the steps and time to {shown} are unknown"
    missed = sum(not (curve[:, 2] >= target).any() for curve in curves)
    if missed:
        return f"{missed} of {len(curves)} trainings did not reach {shown}, so the steps and time to it are unknown"
    if early := [curve for curve in curves if curve[0, 2] >= target]:
        which = "first" if any(len(curve) > 1 for curve in early) else "only"
        of = f"the {which} evaluation of {len(early)} of {len(curves)} trainings"
        side = "more" if quality.sign > 0 else "less"
        return f"{of} was at {shown} or {side}, so the steps and time to it are unknown"
    return ""


def _describe(values: Sequence[Values]) -> list[Interval]:
    # of each batch, by the spread of the logarithms within batches
    logarithms = [np.log(np.where(each > 0, each, np.nan)) for each in values]
    groups = np.repeat(np.arange(len(values)), [len(each) for each in values])
    spread = pooled_spread(np.concatenate([np.empty(0), *logarithms]), groups)
    intervals = []
    for each in logarithms:
        middle, low, high, n = seed_interval(each, spread if spread.degrees else None)
        bounds = (low, high) if n > 1 else (np.nan, np.nan)
        value, low, high = np.exp([middle, *bounds]).tolist()
        intervals.append(Interval(value, low, high, n))
    return intervals


@dataclass(frozen=True, kw_only=True)
class BatchDraws:
    """Plausible true values of one model's tuned batches: ``batches`` in ascending order, shape ``[b]``; ``tuned``
    accuracies, shape ``[draws, b]``; ``places`` of the candidates that stand for them, and ``best`` of those with the
    best estimate, both of shape ``[b]``."""

    model: str
    batches: Numbers
    tuned: Values
    places: Numbers
    best: Numbers

    def find_within(self, loss: float) -> Mask:
        """At which batches tuned training loses at most ``loss`` against the best one; shape ``[draws, b]``."""
        return np.asarray(self.tuned >= self.tuned.max(axis=1, keepdims=True) - loss)


def draw_batches(candidates: Candidates, model: str) -> BatchDraws:
    """The tuned batches of ``model``; those without a candidate are left out."""
    frame, drawn = candidates.records.frame, candidates.values(candidates.quality, candidates.draws)
    is_of_model = read_text(frame, "config.model.name")[candidates.rows] == model
    sizes = read_numbers(frame, "global_batch_size")[candidates.rows]
    usable = is_of_model & np.isfinite(sizes) & np.isfinite(drawn).all(axis=0)
    groups, untried = _group_by_batch(sizes, usable), candidates.untried
    estimates = candidates.values(candidates.quality)
    of_untried = {
        int(batch): untried.accuracies[:, place]
        for place, (name, batch) in enumerate(zip(untried.models, untried.batches, strict=True))
        if name == model
    }
    tuned = [np.maximum(drawn[:, rows].max(axis=1), of_untried.get(batch, -np.inf)) for batch, rows in groups.items()]
    return BatchDraws(
        model=model,
        batches=np.array(list(groups), dtype=np.int64),
        tuned=np.stack(tuned, axis=1) if tuned else np.empty((len(drawn), 0)),
        places=np.array([_choose_representative(candidates, rows) for rows in groups.values()], dtype=np.int64),
        best=np.array([rows[np.argmax(estimates[rows])] for rows in groups.values()], dtype=np.int64),
    )


def list_models(candidates: Candidates) -> list[str]:
    """The models of the candidates, the model of the most accurate one first."""
    names = read_text(candidates.records.frame, "config.model.name")[candidates.rows]
    order = np.argsort(-candidates.values(candidates.quality), kind="stable")
    return list(dict.fromkeys(str(name) for name in names[order]))


def describe_tuned(candidates: Candidates, draws: BatchDraws) -> list[TunedBatch]:
    """The curve of one model, a point for each of its batches."""
    costs = _measure_batch_costs(candidates, draws.places, _find_target(candidates, draws))
    return [_describe_batch(candidates, draws, index, costs[index]) for index in range(len(draws.batches))]


def describe_model(candidates: Candidates, draws: BatchDraws) -> TunedModel:
    """What the batches of one model have in common."""
    is_of_model = np.asarray(read_text(candidates.records.frame, "config.model.name") == draws.model)
    power = measure_rate_power(candidates.records, is_of_model)
    return TunedModel(
        model=draws.model,
        target_accuracy=candidates.records.quality.sign * _find_target(candidates, draws),
        rate_power=Interval(*confidence_interval(power.estimate), power.estimate.n),
        rate_detail=power.detail,
        rate_lack=power.reason,
    )


def _find_target(candidates: Candidates, draws: BatchDraws) -> float:
    if candidates.records.until_target:
        return float(np.min(draws.tuned, initial=np.inf))
    step = 0.001 if candidates.records.quality.unit == "fraction" else candidates.tolerance / 5
    reached = np.median(candidates.values(candidates.quality, candidates.draws)[:, draws.places], axis=0)
    return find_common_target(reached, candidates.tolerance, step)


def _choose_representative(candidates: Candidates, of_batch: Numbers) -> int:
    # the fastest of those within the tolerance, by the estimates; of configurations with enough seeds where there are
    accuracies, seconds = candidates.values(candidates.quality), candidates.values(SECONDS)
    nameable = of_batch[candidates.nameable[of_batch]]
    among = nameable if len(nameable) else of_batch
    close = among[accuracies[among] >= accuracies[among].max() - candidates.tolerance]
    order = np.lexsort((-accuracies[close], np.nan_to_num(seconds[close], nan=np.inf)))
    return int(close[order[0]])


def _describe_batch(candidates: Candidates, draws: BatchDraws, index: int, costs: _BatchCosts) -> TunedBatch:
    candidate, batch = int(draws.places[index]), int(draws.batches[index])
    frame, done = candidates.records.frame, candidates.records.done
    is_own = (read_text(done, "config.model.name") == draws.model) & (read_numbers(done, "global_batch_size") == batch)
    num_seeds = int(candidates.num_seeds[candidate])
    num_configurations, num_learned = _count_configurations(candidates, draws.model, batch)
    seconds = estimate_value(candidates, candidate, SECONDS)
    num_samples = costs.num_samples.median
    pace = (num_samples / seconds.median, num_samples / seconds.high, num_samples / seconds.low)
    within = draws.find_within(candidates.tolerance)[:, index]
    remarks = _list_remarks(candidates, candidate, num_configurations, num_learned)
    remarks += filter(None, [_describe_edge(candidates, int(draws.best[index])), costs.remark])
    own = done.iloc[candidates.basis_of(candidate)]
    tokens = read_numbers(own, "tokens_per_second") / read_numbers(own, "images_per_second")
    return TunedBatch(
        model=draws.model,
        batch=batch,
        number=candidates.number(candidate),
        learning_rate=float(scaled_learning_rates(frame.iloc[[candidates.rows[candidate]]])[0]),
        num_configurations=num_configurations,
        num_seeds=num_seeds,
        accuracy=estimate_value(candidates, candidate, candidates.quality),
        best_measured=candidates.records.quality.sign * float(done.loc[is_own, candidates.quality].max()),
        is_time_doubtful=candidates.is_time_doubtful(candidate),
        seconds=seconds,
        memory_bytes=estimate_value(candidates, candidate, MEMORY),
        images_per_second=Interval(*pace, seconds.n) if np.isfinite(pace[0]) else _UNKNOWN,
        num_steps=costs.num_steps,
        num_samples=costs.num_samples,
        steps_to_target=costs.steps_to_target,
        samples_to_target=costs.samples_to_target,
        seconds_to_target=combine_ratio(seconds, costs.share_to_target),
        tokens_per_sample=float(np.median(tokens)),
        p_without_loss=float(within.mean()),
        remarks=tuple(remarks),
    )


def _count_configurations(candidates: Candidates, model: str, batch: int) -> tuple[int, int]:
    """How many configurations of ``model`` with that effective batch size have a complete training, and how many of
    them have learned something: their accuracy exceeds chance by more than the tolerance, where chance is known."""
    records = candidates.records
    is_there = read_text(records.frame, "config.model.name") == model
    is_there &= read_numbers(records.frame, "global_batch_size") == batch
    chance = records.images.chance
    if chance is None:
        return int(is_there.sum()), int(is_there.sum())
    accuracies, _ = records.grouping.medians(read_numbers(records.done, records.quality.column))
    has_learned = accuracies > chance + candidates.tolerance
    return int(is_there.sum()), int((is_there & has_learned).sum())


def _list_remarks(candidates: Candidates, candidate: int, num_configurations: int, num_learned: int) -> list[str]:
    remarks = []
    if num_configurations < FEWEST_CONFIGURATIONS:
        few = "one configuration was" if num_configurations == 1 else f"{num_configurations} configurations were"
        remarks.append(f"too few configurations to count as tuned: only {few} tried")
    elif num_learned < FEWEST_CONFIGURATIONS:
        remarks.append(
            f"too few configurations to count as tuned: of {num_configurations} that were tried, "
            f"{num_configurations - num_learned} were no better than chance"
        )
    if candidates.is_time_doubtful(candidate):
        remarks.append("its training time is doubtful: no trial of equal cost has a reliable one")
    return remarks


def _describe_edge(candidates: Candidates, best: int) -> str:
    """That the learning rate of the candidate ``best`` is at an edge of the searched range; "" where it is not."""
    rate = float(read_numbers(candidates.records.frame, f"config.{RATE}")[candidates.rows[best]])
    parameter = candidates.records.spec.space.get(RATE) if candidates.records.spec else None
    if parameter is None or not np.isfinite(rate):
        return ""
    values = [cast(float, value) for value in parameter.grid_values or ()]
    at_low = rate <= min(values) if values else parameter.share(rate) <= _EDGE
    at_high = rate >= max(values) if values else parameter.share(rate) >= 1 - _EDGE
    if at_low == at_high:
        return ""
    side, way = ("lower", "downward") if at_low else ("upper", "upward")
    return f"its best learning rate is at the {side} edge of the searched range: widen it {way} ({RATE} in the study)"


def find_thin_batches(candidates: Candidates, draws: BatchDraws) -> dict[int, int]:
    """The batch sizes of the space at which ``draws.model`` was not tried, or was with too few configurations to call
    the batch size tuned, each with the number of those that have learned something; in ascending order."""
    counts = {int(batch): _count_configurations(candidates, draws.model, int(batch))[1] for batch in draws.batches}
    spec = candidates.records.spec
    planned = list_batches(spec, draws.model) if spec else []
    counts = dict.fromkeys(planned, 0) | counts
    return {batch: counts[batch] for batch in sorted(counts) if counts[batch] < FEWEST_CONFIGURATIONS}


def describe_thin_batches(thin: Mapping[int, int]) -> str:
    """A sentence that names ``thin`` batch sizes; empty where there is none."""
    by_count = {
        count: ", ".join(str(batch) for batch, learned in thin.items() if learned == count)
        for count in sorted(set(thin.values()))
    }
    absent = by_count.pop(0, "")
    parts = [
        f"{batches} with {count} of at least {FEWEST_CONFIGURATIONS} configurations"
        for count, batches in by_count.items()
    ]
    parts += [f"{absent} with no complete training"] * bool(absent)
    return f"Not tuned enough to tell: {'; '.join(parts)}." if parts else ""


def fix_batch(candidates: Candidates, given: int) -> dict[str, object]:
    """The keys with which the study has the effective batch size ``given`` alone, whichever of them it varies."""
    frame, spec = candidates.records.frame, candidates.records.spec
    is_swept = spec is not None and "batch.micro" in spec.space
    if np.isfinite(read_numbers(frame, "config.batch.global")).any():
        too_large = bool((read_numbers(frame, "config.batch.micro") > given).any())
        return dict.fromkeys(("batch.global", "batch.micro") if is_swept or too_large else ("batch.global",), given)
    accumulates = bool((read_numbers(frame, "config.batch.accumulation") > 1).any())
    ranks = np.nan_to_num(read_numbers(frame, "config.distributed.world_size"), nan=1.0)
    micro, rest = divmod(given, int(ranks[0]))
    if rest or (ranks != ranks[0]).any():
        return {"batch.global": given, "batch.micro": math.ceil(given / ranks.max())}
    return {"batch.micro": micro, "batch.accumulation": 1} if accumulates else {"batch.micro": micro}
