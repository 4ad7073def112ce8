"""Which configurations are trained again with fresh seeds, and in what order.

One search trial is one seed, and the best of many noisy trials owes its rank to chance in part, so the answer names
only configurations with fresh seeds. First those that the answer would name get the fewest seeds with which it may, in
turn. Then each further seed goes where it is expected to raise the probabilities of the answer's statements most per
second (:mod:`sweep.search.seed_allocation.seed_worth`). It ends when every statement is settled, when the time for it
is spent, or when no seed is worth anything.

The probabilities are those of the answer itself, so that what stops the confirming is what the user reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.answer import Limits
from sweep.analysis.answer.candidates import Candidates, select_candidates
from sweep.analysis.answer.choice import pick_surest
from sweep.analysis.answer.tuned_batches import draw_batches, list_models
from sweep.analysis.answer.use_cases import BATCH_SIZE, USE_TABLE, find_right
from sweep.analysis.comparable_trials import ACCURACY, select_comparable
from sweep.analysis.statistics.pareto import Values, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.frames.study_frames import Frames
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.seed_worth import Decision, list_decisions, measure_worth

_PRICES = ("total_seconds", "train_seconds")  # seconds of a trial: the first of them that was measured
_USES = (BATCH_SIZE, *USE_TABLE.values())
_FACTORS = (1, 3, 9)  # numbers of seeds that are considered at once, times the fewest
_LEAST_WORTH = 0.005  # of a probability; less is within the error of the draws


def collect_costs(records: Sequence[TrialRecord], objectives: Sequence[str]) -> tuple[list[TrialRecord], Values]:
    """The complete search trials that have every objective, and their values, shape ``[n, m]``, smaller is better."""
    rows = [
        (record, [METRICS[name].sign * record.measurements[name] for name in objectives])
        for record in records
        if record.phase == "search" and _is_measured(record, objectives)
    ]
    values = np.array([row for _, row in rows], dtype=np.float64).reshape(len(rows), len(objectives))
    return [record for record, _ in rows], values


def _is_measured(record: TrialRecord, objectives: Sequence[str]) -> bool:
    return record.outcome == "complete" and all(name in record.measurements for name in objectives)


def find_front(records: Sequence[TrialRecord], objectives: Sequence[str]) -> list[TrialRecord]:
    """The non-dominated complete search trials."""
    complete, costs = collect_costs(records, objectives)
    return [record for record, on_front in zip(complete, non_dominated(costs), strict=True) if on_front]


@dataclass(frozen=True, kw_only=True)
class _State:
    """What the confirming has done and may still do: by place among the candidates the search trial, the offsets of the
    seeds that were begun, and the seconds of a training; and the seconds that are left."""

    candidates: Candidates
    spec: StudySpec
    searched: list[TrialRecord]
    begun: list[set[int]]
    seconds: Values
    seconds_left: float

    def missing(self, place: int) -> int:
        """The seeds that a candidate still requires to be named."""
        return max(FEWEST_SEEDS - len(self.begun[place]), 0)

    def is_allowed(self, place: int) -> bool:
        """Whether a candidate may have another seed by the limits of the study."""
        confirm = self.spec.confirm
        num_begun = sum(bool(offsets) for offsets in self.begun)
        is_one = bool(self.begun[place]) or num_begun < confirm.max_configurations
        return is_one and len(self.begun[place]) < confirm.seeds

    def make_config(self, place: int) -> TrialConfig:
        """The training of a candidate with its next seed."""
        offset = next(number for number in range(1, 10**6) if number not in self.begun[place])
        return self.searched[place].config.model_copy(update={"seed": self.spec.seed + offset})


def list_confirmations(frames: Frames, records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialConfig]:
    """The confirming trainings that may be done next, the best first; empty when nothing is left to do.

    ``records`` are the study's own, with those that have not ended; ``frames`` hold the same trials.
    """
    if not spec.confirm.seeds or not spec.confirm.max_configurations:
        return []
    candidates = select_candidates(select_comparable(frames), Limits())
    if candidates is None:
        return []
    state = _read_state(candidates, records, spec)
    first = _list_first_round(state)
    return [state.make_config(place) for place in first or _rank_by_worth(state)]


def _read_state(candidates: Candidates, records: Sequence[TrialRecord], spec: StudySpec) -> _State:
    by_number = {record.number: record for record in records}
    searched = [by_number[candidates.number(place)] for place in range(len(candidates.rows))]
    places = {_point_of(record, spec): place for place, record in enumerate(searched)}
    begun: list[set[int]] = [set() for _ in searched]
    for record in (record for record in records if record.phase == "confirm"):
        place = places.get(_point_of(record, spec))
        if place is not None:
            begun[place].add(record.config.seed - spec.seed)
    seconds = np.array([_price(record) for record in searched])
    usual = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else 1.0
    return _State(
        candidates=candidates,
        spec=spec,
        searched=searched,
        begun=begun,
        seconds=np.where(np.isfinite(seconds), seconds, usual),
        seconds_left=measure_seconds_left(records, spec),
    )


def measure_seconds_left(records: Sequence[TrialRecord], spec: StudySpec) -> float:
    """The seconds that are left for confirming trials after those of ``records``; a trial that has not ended counts as
    the search trial of its configuration."""
    searched = {_point_of(record, spec): _price(record) for record in records if record.phase == "search"}
    left = spec.confirm.share * float(np.nansum([_price(each) for each in records if each.phase == "search"] or [0.0]))
    for record in records:
        if record.phase == "confirm":
            own = _price(record)
            left -= float(np.nan_to_num(own if np.isfinite(own) else searched.get(_point_of(record, spec), 0.0)))
    return left


def _price(record: TrialRecord) -> float:
    return next((float(record.measurements[name]) for name in _PRICES if name in record.measurements), np.nan)


def _list_first_round(state: _State) -> list[int]:
    """The candidates that the answer would name and that lack seeds for it, those with the fewest seeds first; as many
    as the time suffices for, and one where nothing can be named yet."""
    chosen: list[int] = []
    left = state.seconds_left
    for place in _list_named(state.candidates, state.spec):
        price = state.missing(place) * float(state.seconds[place])
        is_first = not chosen and not state.candidates.nameable.any()
        if state.missing(place) and state.is_allowed(place) and (price <= left or is_first):
            chosen.append(place)
            left -= price
    return sorted(chosen, key=lambda place: len(state.begun[place]))


def _list_named(candidates: Candidates, spec: StudySpec) -> list[int]:
    # what the uses would name if every candidate had enough seeds; of the front at a useful accuracy the extremes and
    # the compromise
    named: list[int | None] = []
    for use in _USES:
        probabilities = find_right(candidates, use, candidates.draws).mean(axis=0)
        named.append(pick_surest(candidates, use, probabilities, np.ones(len(probabilities), dtype=np.bool_)))
    names = [name for name in spec.objectives if name in candidates.names]
    costs = np.stack([METRICS[name].sign * candidates.values(name) for name in names], axis=1)
    front = np.flatnonzero(non_dominated(costs) & (candidates.values(ACCURACY) >= candidates.floor))
    named += [int(front[index]) for index in _spread_out(costs[front], len(names) + 1)]
    return list(dict.fromkeys(place for place in named if place is not None))


def _rank_by_worth(state: _State) -> list[int]:
    """The candidates whose next seeds are worth something and affordable, the most per second first."""
    candidates = state.candidates
    models = list_models(candidates)
    decisions = list_decisions(candidates, _USES, draw_batches(candidates, models[0]))
    if not decisions:
        return []
    places = {int(place) for decision in decisions for place in decision.places if place >= 0}
    rates = {place: _measure_rate(state, decisions, place) for place in sorted(places) if state.is_allowed(place)}
    return sorted((place for place, rate in rates.items() if rate > 0), key=lambda place: -rates[place])


def _measure_rate(state: _State, decisions: Sequence[Decision], place: int) -> float:
    # the largest worth per second of one or more seeds: one alone may change nothing where several do (Frazier and
    # Powell 2010); 0 where none is affordable or worth more than chance in the draws
    least, price = max(state.missing(place), 1), float(state.seconds[place])
    counts = [least * factor for factor in _FACTORS]
    affordable = [count for count in counts if count * price <= state.seconds_left]
    worths = {count: measure_worth(state.candidates, decisions, place, count) for count in affordable}
    return max((worth / (count * price) for count, worth in worths.items() if worth >= _LEAST_WORTH), default=0.0)


def _spread_out(costs: Values, limit: int) -> list[int]:
    """At most ``limit`` rows of ``costs``, shape ``[n, m]``: the extremes, the compromise, then the farthest."""
    limit = min(limit, len(costs))
    if limit == 0:
        return []
    spread = np.ptp(costs, axis=0)
    scaled = (costs - costs.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    order = [*(int(index) for index in costs.argmin(axis=0)), int(np.linalg.norm(scaled, axis=1).argmin())]
    chosen = list(dict.fromkeys(order))[:limit]
    while len(chosen) < limit:
        distance = np.linalg.norm(scaled[:, None] - scaled[chosen][None], axis=2).min(axis=1)
        distance[chosen] = -1.0
        chosen.append(int(distance.argmax()))
    return chosen


def count_confirmations(records: Sequence[TrialRecord]) -> dict[str, int]:
    """The number of confirmed configurations, and of trainings for all of them."""
    ended = [record.config for record in records if record.phase == "confirm" and record.outcome is not None]
    configs = {config.model_copy(update={"seed": 0}).model_dump_json() for config in ended}
    return {"configurations": len(configs), "seeds": len(ended)}


def _point_of(record: TrialRecord, spec: StudySpec) -> str:
    return repr([record.values[path] for path in spec.space])
