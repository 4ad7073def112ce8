"""The batch-size curve as Shallue et al. 2019 define it: what is reached at each effective batch size when everything
else is chosen anew for it."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from sweep.analysis.answer.answer import TunedBatch
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.intervals import Interval
from sweep.analysis.statistics.pareto import Mask, Values

RATE = "optimizer.lr"
_FEWEST_CONFIGURATIONS = 3  # with which a batch size counts as tuned
_EDGE = 0.05  # share of a range that is its edge
_QUANTILES = (0.025, 0.5, 0.975)


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
    within = draws.find_within(candidates.rules.tolerance.accuracy).mean(axis=0)
    return [_describe_batch(candidates, draws, index, float(within[index])) for index in range(len(draws.batches))]


def _choose_representative(candidates: Candidates, chosen: Mask) -> int:
    # the fastest of those within the tolerance, by the estimates; of configurations with enough seeds where there are
    accuracies, seconds = candidates.values(ACCURACY), candidates.values(SECONDS)
    among = chosen & candidates.nameable if (chosen & candidates.nameable).any() else chosen
    best = accuracies[among].max()
    close = np.flatnonzero(among & (accuracies >= best - candidates.rules.tolerance.accuracy))
    order = np.lexsort((-accuracies[close], np.nan_to_num(seconds[close], nan=np.inf)))
    return int(close[order[0]])


def _describe_batch(candidates: Candidates, draws: BatchDraws, index: int, p_without_loss: float) -> TunedBatch:
    place, batch = int(draws.places[index]), int(draws.batches[index])
    frame = candidates.records.frame
    is_here = (read_numbers(frame, "global_batch_size") == batch) & (
        read_text(frame, "config.model.name") == draws.model
    )
    num_seeds, num_configurations = int(candidates.num_seeds[place]), int(is_here.sum())
    rate = float(read_numbers(frame, f"config.{RATE}")[candidates.rows[place]])
    return TunedBatch(
        model=draws.model,
        batch=batch,
        number=candidates.number(place),
        learning_rate=rate,
        num_configurations=num_configurations,
        num_seeds=num_seeds,
        accuracy=_interval(draws.tuned[:, index], num_seeds),
        seconds=_interval(candidates.values(SECONDS, candidates.draws)[:, place], num_seeds),
        memory_bytes=_interval(candidates.values(MEMORY, candidates.draws)[:, place], num_seeds),
        p_without_loss=p_without_loss,
        remarks=tuple(_list_remarks(candidates, rate, num_configurations)),
    )


def _interval(drawn: Values, num_seeds: int) -> Interval:
    if not np.isfinite(drawn).all():
        return Interval(np.nan, np.nan, np.nan, 0)
    low, middle, high = np.quantile(drawn, _QUANTILES).tolist()
    return Interval(middle, low, high, num_seeds)


def _list_remarks(candidates: Candidates, rate: float, num_configurations: int) -> list[str]:
    remarks = []
    if num_configurations < _FEWEST_CONFIGURATIONS:
        few = "one configuration was" if num_configurations == 1 else f"{num_configurations} configurations were"
        remarks.append(f"tuned too little to tell: {few} tried")
    spec = candidates.records.spec
    parameter = spec.space.get(RATE) if spec else None
    if parameter is not None and np.isfinite(rate):
        values = [cast(float, value) for value in parameter.grid_values or ()]
        share = parameter.share(rate)
        at_low = rate <= min(values) if values else share <= _EDGE
        at_high = rate >= max(values) if values else share >= 1 - _EDGE
        if at_low != at_high:
            side, way = ("lower", "downward") if at_low else ("upper", "upward")
            remarks.append(f"its learning rate is at the {side} edge of the range: widen {RATE} {way}")
    return remarks
