"""The batch-size curve as Shallue et al. 2019 define it: what is reached at each effective batch size when everything
else is chosen anew for it."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from sweep.analysis.answer.answer import TunedBatch, TunedModel
from sweep.analysis.answer.batch_costs import (
    UNKNOWN,
    BatchCosts,
    combine_ratio,
    find_common_target,
    measure_batch_costs,
)
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.estimated_values import describe_draws, estimate_value
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.rate_powers import measure_rate_power, scaled_learning_rates
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import confidence_interval
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.intervals import Interval
from sweep.analysis.statistics.pareto import Mask, Values

RATE = "optimizer.lr"
FEWEST_CONFIGURATIONS = 3  # with which a batch size counts as tuned
_EDGE = 0.05  # share of a range that is its edge


@dataclass(frozen=True, kw_only=True)
class BatchDraws:
    """Plausible true values of one model's tuned batches: ``batches`` in ascending order, shape ``[b]``; ``tuned``
    accuracies, shape ``[draws, b]``; ``places`` of the candidates that stand for them, shape ``[b]``."""

    model: str
    batches: Numbers
    tuned: Values
    places: Numbers

    def find_within(self, loss: float) -> Mask:
        """At which batches tuned training loses at most ``loss`` against the best one; shape ``[draws, b]``."""
        return np.asarray(self.tuned >= self.tuned.max(axis=1, keepdims=True) - loss)


def draw_batches(candidates: Candidates, model: str) -> BatchDraws:
    """The tuned batches of ``model``; those without a candidate are left out."""
    frame, drawn = candidates.records.frame, candidates.values(ACCURACY, candidates.draws)
    is_of_model = read_text(frame, "config.model.name")[candidates.rows] == model
    sizes = read_numbers(frame, "global_batch_size")[candidates.rows]
    usable = is_of_model & np.isfinite(sizes) & np.isfinite(drawn).all(axis=0)
    batches = np.unique(sizes[usable]).astype(np.int64)
    members = [usable & (sizes == batch) for batch in batches]
    tuned = [drawn[:, chosen].max(axis=1) for chosen in members]
    places = [_choose_representative(candidates, chosen) for chosen in members]
    return BatchDraws(
        model=model,
        batches=batches,
        tuned=np.stack(tuned, axis=1) if tuned else np.empty((len(drawn), 0)),
        places=np.array(places, dtype=np.int64),
    )


def list_models(candidates: Candidates) -> list[str]:
    """The models of the candidates, that of the most accurate one first."""
    names = read_text(candidates.records.frame, "config.model.name")[candidates.rows]
    order = np.argsort(-candidates.values(ACCURACY), kind="stable")
    return list(dict.fromkeys(str(name) for name in names[order]))


def describe_tuned(candidates: Candidates, draws: BatchDraws) -> list[TunedBatch]:
    """The curve of one model, a point for each of its batches."""
    costs = measure_batch_costs(candidates, draws.places, _find_target(candidates, draws))
    return [_describe_batch(candidates, draws, index, costs[index]) for index in range(len(draws.batches))]


def describe_model(candidates: Candidates, draws: BatchDraws) -> TunedModel:
    """What the batches of one model have in common."""
    is_of_model = np.asarray(read_text(candidates.records.frame, "config.model.name") == draws.model)
    found = measure_rate_power(candidates.records, is_of_model)
    return TunedModel(
        model=draws.model,
        target_accuracy=_find_target(candidates, draws),
        rate_power=Interval(*confidence_interval(found.estimate), found.estimate.n),
        rate_detail=found.detail,
        rate_lack=found.reason,
    )


def _find_target(candidates: Candidates, draws: BatchDraws) -> float:
    return find_common_target(np.median(draws.tuned, axis=0), candidates.rules.tolerance.accuracy)


def _choose_representative(candidates: Candidates, chosen: Mask) -> int:
    # the fastest of those within the tolerance, by the estimates; of configurations with enough seeds where there are
    accuracies, seconds = candidates.values(ACCURACY), candidates.values(SECONDS)
    among = chosen & candidates.nameable if (chosen & candidates.nameable).any() else chosen
    best = accuracies[among].max()
    close = np.flatnonzero(among & (accuracies >= best - candidates.rules.tolerance.accuracy))
    order = np.lexsort((-accuracies[close], np.nan_to_num(seconds[close], nan=np.inf)))
    return int(close[order[0]])


def _describe_batch(candidates: Candidates, draws: BatchDraws, index: int, costs: BatchCosts) -> TunedBatch:
    place, batch = int(draws.places[index]), int(draws.batches[index])
    frame = candidates.records.frame
    num_seeds = int(candidates.num_seeds[place])
    num_configurations, num_learned = count_configurations(candidates, draws.model, batch)
    seconds = estimate_value(candidates, place, SECONDS)
    within = draws.find_within(candidates.rules.tolerance.accuracy)[:, index]
    remarks = [*_list_remarks(candidates, place, num_configurations, num_learned), *filter(None, [costs.remark])]
    return TunedBatch(
        model=draws.model,
        batch=batch,
        number=candidates.number(place),
        learning_rate=float(scaled_learning_rates(frame.iloc[[candidates.rows[place]]])[0]),
        num_configurations=num_configurations,
        num_seeds=num_seeds,
        accuracy=describe_draws(draws.tuned[:, index], num_seeds),
        seconds=seconds,
        memory_bytes=estimate_value(candidates, place, MEMORY),
        images_per_second=_find_pace(costs.num_samples, seconds),
        num_steps=costs.num_steps,
        num_samples=costs.num_samples,
        steps_to_target=costs.steps_to_target,
        samples_to_target=costs.samples_to_target,
        seconds_to_target=combine_ratio(seconds, costs.share_to_target),
        p_without_loss=float(within.mean()),
        remarks=tuple(remarks),
    )


def count_configurations(candidates: Candidates, model: str, batch: int) -> tuple[int, int]:
    """How many configurations of ``model`` with that effective batch size have a complete training, and how many of
    them have learned something: their accuracy exceeds chance by more than the tolerance, where chance is known."""
    records = candidates.records
    is_there = read_text(records.frame, "config.model.name") == model
    is_there &= read_numbers(records.frame, "global_batch_size") == batch
    chance = records.images.chance
    if chance is None:
        return int(is_there.sum()), int(is_there.sum())
    accuracies, _ = records.grouping.medians(read_numbers(records.done, ACCURACY))
    has_learned = accuracies > chance + candidates.rules.tolerance.accuracy
    return int(is_there.sum()), int((is_there & has_learned).sum())


def _find_pace(samples: Interval, seconds: Interval) -> Interval:
    values = (samples.median / seconds.median, samples.median / seconds.high, samples.median / seconds.low)
    return Interval(*values, seconds.n) if np.isfinite(values[0]) else UNKNOWN


def _list_remarks(candidates: Candidates, place: int, num_configurations: int, num_learned: int) -> list[str]:
    remarks = []
    rate = float(read_numbers(candidates.records.frame, f"config.{RATE}")[candidates.rows[place]])
    if num_configurations < FEWEST_CONFIGURATIONS:
        few = "one configuration was" if num_configurations == 1 else f"{num_configurations} configurations were"
        remarks.append(f"too few configurations to count as tuned: only {few} tried")
    elif num_learned < FEWEST_CONFIGURATIONS:
        remarks.append(
            f"too few configurations to count as tuned: of {num_configurations} that were tried, "
            f"{num_configurations - num_learned} were no better than chance"
        )
    if candidates.is_time_doubtful(place):
        remarks.append("its training time is doubtful: no trial of equal cost has a reliable one")
    spec = candidates.records.spec
    parameter = spec.space.get(RATE) if spec else None
    if parameter is not None and np.isfinite(rate):
        values = [cast(float, value) for value in parameter.grid_values or ()]
        share = parameter.share(rate)
        at_low = rate <= min(values) if values else share <= _EDGE
        at_high = rate >= max(values) if values else share >= 1 - _EDGE
        if at_low != at_high:
            side, way = ("lower", "downward") if at_low else ("upper", "upward")
            remarks.append(
                f"its learning rate is at the {side} edge of the searched range: widen it {way} ({RATE} in the study)"
            )
    return remarks
