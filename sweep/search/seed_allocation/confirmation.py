"""Which configurations are trained again with fresh seeds, and in what order.

One search trial is one seed, and the best of many noisy trials owes its rank to chance in part, so the answer names
only configurations with fresh seeds. First those that the answer would name get the fewest seeds with which it may.
Then each further seed goes where it is expected to make the answer's statements most certain per second
(:mod:`sweep.search.seed_allocation.seed_worth`). The first half of the time belongs to the question of the batch size
until that is settled. It ends when every statement is settled, when the time is spent, or when no seed is worth
anything.

The probabilities are those of the answer itself, so that what stops the confirming is what the user reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.answer import Limits
from sweep.analysis.answer.candidates import Candidates, select_candidates
from sweep.analysis.answer.choice import pick_surest
from sweep.analysis.answer.tuned_batches import BatchDraws, draw_batches, list_models
from sweep.analysis.answer.use_cases import BATCH_SIZE, USE_TABLE, find_right
from sweep.analysis.comparable_trials import select_comparable
from sweep.analysis.statistics.pareto import Values, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.frames.study_frames import Frames
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.seed_worth import Decision, list_decisions, measure_worth

_PRICES = ("total_seconds", "train_seconds")  # seconds of a trial: the first of them that was measured
_USES = (BATCH_SIZE, *USE_TABLE.values())
_HEADLINE_SHARE = 0.5  # of the time for confirming, which the batch size has alone until it is settled
_LITTLE = 0.1  # of the time for confirming: the first seeds of another use that take no more do not wait
_ALIKE = 0.02  # probabilities that differ by less are equal for the choice of the first seeds
_FACTORS = (1, 3, 9)  # numbers of seeds that are considered at once, times the fewest
_LEAST_WORTH = 0.001  # of a squared probability


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
    seeds that were begun, and the seconds of a training; the seconds that are left, and those that there are in all.
    """

    candidates: Candidates
    spec: StudySpec
    searched: list[TrialRecord]
    begun: list[set[int]]
    seconds: Values
    seconds_left: float
    seconds_in_all: float

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
    return [] if candidates is None else rank_confirmations(candidates, records, spec)


def rank_confirmations(candidates: Candidates, records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialConfig]:
    """The same as :func:`list_confirmations` where the ``candidates`` of these records are known."""
    state = _read_state(candidates, records, spec)
    batches = draw_batches(candidates, list_models(candidates)[0])
    headline = list_decisions(candidates, (BATCH_SIZE,), None)
    is_alone = bool(headline) and state.seconds_left > (1.0 - _HEADLINE_SHARE) * state.seconds_in_all
    first = _list_first_round(state, is_alone=is_alone)
    if not first and is_alone:
        first = _rank_by_worth(state, headline, batches)
    if not first:
        first = _rank_by_worth(state, list_decisions(candidates, _USES, batches), batches)
    return [state.make_config(place) for place in first]


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
        seconds_in_all=measure_seconds_left([each for each in records if each.phase == "search"], spec),
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


def _list_first_round(state: _State, *, is_alone: bool) -> list[int]:
    """The candidates that the answer would name and that lack seeds for it, as far as the time suffices: that of the
    batch size first, then those of the other uses, the cheapest first. While that of the batch size ``is_alone``, of
    the others only those that take little of the time. Where nothing can be named yet, one in any case."""
    chosen: list[int] = []
    left, named = state.seconds_left, _list_named(state)
    for place in named:
        price = state.missing(place) * float(state.seconds[place])
        is_first = not chosen and not state.candidates.nameable.any()
        is_due = place == named[0] or not is_alone or price <= _LITTLE * state.seconds_in_all
        if state.missing(place) and state.is_allowed(place) and ((price <= left and is_due) or is_first):
            chosen.append(place)
            left -= price
    return sorted(chosen, key=lambda place: len(state.begun[place]))  # in turn


def _list_named(state: _State) -> list[int]:
    # what the uses would name if every candidate had enough seeds
    named: list[int] = []
    for use in _USES:
        probabilities = find_right(state.candidates, use, state.candidates.draws).mean(axis=0)
        place = pick_surest(state.candidates, use, probabilities, np.ones(len(probabilities), dtype=np.bool_))
        if place is not None:
            # of those that are as probably right, one that has seeds already, so that each seed does not begin another
            alike = np.flatnonzero(probabilities >= probabilities[place] - _ALIKE)
            named.append(max((place, *alike.tolist()), key=lambda each: len(state.begun[each])))
    others = sorted(named[1:], key=lambda place: float(state.seconds[place]))
    return list(dict.fromkeys((*named[:1], *others)))


def _rank_by_worth(state: _State, decisions: Sequence[Decision], batches: BatchDraws) -> list[int]:
    """The candidates whose next seeds are worth something for the ``decisions`` and affordable, the most per second
    first: those that may be named, and those that stand for the batch sizes."""
    if not decisions:
        return []
    places = {int(place) for decision in decisions for place in decision.places if place >= 0}
    places |= set(batches.places.tolist())
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


def count_confirmations(records: Sequence[TrialRecord]) -> dict[str, int]:
    """The number of confirmed configurations, and of trainings for all of them."""
    ended = [record.config for record in records if record.phase == "confirm" and record.outcome is not None]
    configs = {config.model_copy(update={"seed": 0}).model_dump_json() for config in ended}
    return {"configurations": len(configs), "seeds": len(ended)}


def _point_of(record: TrialRecord, spec: StudySpec) -> str:
    return repr([record.values[path] for path in spec.space])
