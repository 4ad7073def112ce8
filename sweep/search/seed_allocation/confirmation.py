"""Which configurations of the front are trained again with fresh seeds, and in what order.

One search trial is one seed, and the best of many noisy trials is flattered by its noise; the answer rests on the
confirmed medians. Seeds go where they change the answer: a configuration whose place on the front, or off it, is
settled gets no more of them (:mod:`sweep.search.seed_allocation.front_membership`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from sweep.analysis.answer.candidates import ACCURACY, ACCURACY_MARGIN
from sweep.analysis.statistics.intervals import Spread
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.front_membership import Candidate, FrontMembership, estimate_noise

_NUM_REPEATED = 2  # candidates, the cheapest, that get a second seed in any case: they tell how far seeds scatter


def collect_costs(records: Sequence[TrialRecord], objectives: Sequence[str]) -> tuple[list[TrialRecord], Values]:
    """The complete search trials that have every objective, and their values, shape ``[n, m]``, smaller is better."""
    rows = [
        (record, [METRICS[name].sign * record.measurements[name] for name in objectives])
        for record in records
        if record.phase == "search"
        and record.outcome == "complete"
        and all(name in record.measurements for name in objectives)
    ]
    values = np.array([row for _, row in rows], dtype=np.float64).reshape(len(rows), len(objectives))
    return [record for record, _ in rows], values


def find_front(records: Sequence[TrialRecord], objectives: Sequence[str]) -> list[TrialRecord]:
    """The non-dominated complete search trials."""
    complete, costs = collect_costs(records, objectives)
    mask = non_dominated(costs)
    return [record for record, on_front in zip(complete, mask, strict=True) if on_front]


def choose_candidates(records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialRecord]:
    """At most ``confirm.max_configurations`` trials, first those that the answer may name: of the front at a useful
    accuracy the best of each objective, then the best compromise, then those farthest from all chosen. After them so of
    the rest of the front, and where there is room left, those that noise may have kept from it."""
    everything, all_costs = collect_costs(records, spec.objectives)
    on_front = non_dominated(all_costs)
    rows, is_useful = np.flatnonzero(on_front), _are_useful(all_costs[on_front], spec.objectives)
    limit = spec.confirm.max_configurations
    chosen: list[TrialRecord] = []
    for group in (rows[is_useful], rows[~is_useful]):
        chosen += [everything[group[place]] for place in _spread_out(all_costs[group], limit - len(chosen))]
    room = limit - len(chosen) if chosen else 0
    return chosen + (_close_ones(records, spec, everything, on_front)[:room] if room else [])


def _are_useful(costs: Values, objectives: Sequence[str]) -> Mask:
    if ACCURACY not in objectives or not len(costs):
        return np.ones(len(costs), dtype=np.bool_)
    misses = costs[:, list(objectives).index(ACCURACY)]
    return np.asarray(misses <= misses.min() + ACCURACY_MARGIN)


def _spread_out(costs: Values, limit: int) -> list[int]:
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


def _close_ones(
    records: Sequence[TrialRecord], spec: StudySpec, complete: list[TrialRecord], on_front: Mask
) -> list[TrialRecord]:
    # how noisy a training is shows once a few seeds were repeated
    noise = _noise(records, spec)
    if noise is None:
        return []
    front_runners = [Candidate((record.measurements,)) for record, is_on in zip(complete, on_front, strict=True) if is_on]
    race = FrontMembership(spec.objectives, noise, front_runners)
    behind = [record for record, is_on in zip(complete, on_front, strict=True) if not is_on]
    return [record for record in behind if race.could_be_on_front(Candidate((record.measurements,)))]


def list_confirmations(records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialConfig]:
    """The confirming trainings that are still to be done: every candidate gets its first fresh seed before any gets
    its second, so that an early end leaves an even picture; from the second on only those whose place is open, but for
    a few that show the spread which the answer's intervals rest on."""
    done = {
        record.config.model_dump_json()
        for record in records
        if record.phase == "confirm" and record.outcome != "cancelled"
    }
    chosen = choose_candidates(records, spec)
    is_open = _open_ones(records, chosen, spec)
    repeated = sorted(chosen, key=lambda record: record.measurements.get("total_seconds", 0.0))[:_NUM_REPEATED]
    wanted = [
        record.config.model_copy(update={"seed": spec.seed + offset})
        for offset in range(1, spec.confirm.seeds + 1)
        for record, more in zip(chosen, is_open, strict=True)
        if more or offset == 1 or (offset == 2 and record in repeated)
    ]
    return [config for config in wanted if config.model_dump_json() not in done]


def count_confirmations(records: Sequence[TrialRecord]) -> dict[str, int]:
    """What confirming has taken: how many configurations, and how many trainings of them all."""
    spent = [record for record in records if record.phase == "confirm" and record.outcome not in (None, "cancelled")]
    return {"configurations": len({_without_seed(record) for record in spent}), "seeds": len(spent)}


def _open_ones(records: Sequence[TrialRecord], chosen: list[TrialRecord], spec: StudySpec) -> list[bool]:
    noise = _noise(records, spec)
    if noise is None:
        return [True] * len(chosen)
    confirmed = _confirmed(records, spec)
    runners = [Candidate(tuple(confirmed.get(_point(record, spec), ()))) for record in chosen]
    names = {record.number for record in chosen}
    rest = [record for record in find_front(records, spec.objectives) if record.number not in names]
    race = FrontMembership(spec.objectives, noise, [*runners, *(Candidate((record.measurements,)) for record in rest)])
    return [not is_settled for is_settled in race.settled()[: len(chosen)]]


def _noise(records: Sequence[TrialRecord], spec: StudySpec) -> list[Spread] | None:
    """The spread between seeds: of the fresh ones and that of the search, which chose by it. That makes the spread
    wider than it is, so that a place is rather called open."""
    fresh = _confirmed(records, spec)
    complete, _ = collect_costs(records, spec.objectives)
    first = {_point(record, spec): record.measurements for record in complete}
    groups = [[*seeds, first[key]] if key in first else seeds for key, seeds in fresh.items()]
    return estimate_noise(groups, spec.objectives)


def _confirmed(records: Sequence[TrialRecord], spec: StudySpec) -> dict[str, list[Mapping[str, float]]]:
    """What the fresh seeds of each configuration have measured."""
    found: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for record in records:
        is_whole = all(name in record.measurements for name in spec.objectives)
        if record.phase == "confirm" and record.outcome == "complete" and is_whole:
            found[_point(record, spec)].append(record.measurements)
    return found


def _point(record: TrialRecord, spec: StudySpec) -> str:
    return repr([record.values[path] for path in spec.space])


def _without_seed(record: TrialRecord) -> str:
    return record.config.model_copy(update={"seed": 0}).model_dump_json()
