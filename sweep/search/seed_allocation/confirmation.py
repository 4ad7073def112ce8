"""Which configurations of the front are trained again with fresh seeds, and in what order.

One search trial is one seed, and the best of many noisy trials owes its rank to chance in part, so the answer rests on
the confirmed medians. Seeds are spent where they change the answer: a configuration whose place on or off the front is
settled gets no more of them.

Plausible true means of every objective are drawn from Student's t distribution around the measured ones, with a spread
between seeds that is pooled over all configurations. The place of a configuration is settled when it is on the front
in at least 95 % of the draws, or in at most 5 %. Unlike the posteriors behind the answer's ``p_front``, these means are
not corrected by a prior: which seeds are spent depends on the measurements of the candidates alone.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from sweep.analysis.answer.candidates import ACCURACY_MARGIN
from sweep.analysis.comparable_trials import ACCURACY
from sweep.analysis.statistics.intervals import CONFIDENCE, Spread, pooled_spread
from sweep.analysis.statistics.pareto import Mask, Values, front_probabilities, non_dominated
from sweep.analysis.statistics.scales import scale_of
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.trial_record import TrialRecord

_NUM_REPEATED = 2  # candidates, the cheapest, that always get a second seed, to measure the spread between seeds
_NUM_DRAWS = 1000
_SEED = 20_260_101
_MAX_LUCK = 2.8  # standard deviations; two seeds of one configuration differ by more in 1 of 20 cases

Measurements = Mapping[str, float]
Candidate = Sequence[Measurements]  # a configuration: the measurements of each of its seeds


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


def choose_candidates(records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialRecord]:
    """At most ``confirm.max_configurations`` search trials, those first that the answer may name.

    Of the front at a useful accuracy: the best of each objective, then the best compromise, then those farthest from
    all chosen. Then likewise of the rest of the front, and last those that chance may have kept from it.
    """
    complete, costs = collect_costs(records, spec.objectives)
    on_front = non_dominated(costs)
    rows, is_useful = np.flatnonzero(on_front), _are_useful(costs[on_front], spec.objectives)
    limit = spec.confirm.max_configurations
    chosen: list[TrialRecord] = []
    for group in (rows[is_useful], rows[~is_useful]):
        chosen += [complete[group[index]] for index in _spread_out(costs[group], limit - len(chosen))]
    num_left = limit - len(chosen) if chosen else 0
    return chosen + (_find_unlucky(records, spec, complete, on_front)[:num_left] if num_left else [])


def _are_useful(costs: Values, objectives: Sequence[str]) -> Mask:
    if ACCURACY not in objectives or not len(costs):
        return np.ones(len(costs), dtype=np.bool_)
    misses = costs[:, list(objectives).index(ACCURACY)]
    return np.asarray(misses <= misses.min() + ACCURACY_MARGIN)


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


def _find_unlucky(
    records: Sequence[TrialRecord], spec: StudySpec, complete: list[TrialRecord], on_front: Mask
) -> list[TrialRecord]:
    """The trials that would be on the front if they had had the worst and the front no luck."""
    noise = _estimate_noise(records, spec)
    if noise is None:  # no configuration was repeated yet
        return []
    signs = [METRICS[name].sign for name in spec.objectives]
    lift = np.array([_MAX_LUCK * spread.sd for spread in noise])
    means = [_mean([record.measurements], spec.objectives) * signs for record in complete]
    front = np.array([mean for mean, is_on in zip(means, on_front, strict=True) if is_on])
    return [
        record
        for record, mean, is_on in zip(complete, means, on_front, strict=True)
        if not is_on and non_dominated(np.vstack([front, mean - lift]))[-1]
    ]


def list_confirmations(records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialConfig]:
    """The confirming trainings still to be done, in order.

    Every candidate gets its first fresh seed before any gets its second, so that an early end leaves all comparable.
    From the second seed on only those whose place is not settled get more, except the cheapest: their second seeds give
    the spread for the intervals of the answer.
    """
    done = {record.config.model_dump_json() for record in records if record.phase == "confirm"}
    chosen = choose_candidates(records, spec)
    is_open = _are_open(records, chosen, spec)
    repeated = sorted(chosen, key=lambda record: record.measurements.get("total_seconds", 0.0))[:_NUM_REPEATED]
    configs = [
        record.config.model_copy(update={"seed": spec.seed + offset})
        for offset in range(1, spec.confirm.seeds + 1)
        for record, needs_more in zip(chosen, is_open, strict=True)
        if needs_more or offset == 1 or (offset == 2 and record in repeated)
    ]
    return [config for config in configs if config.model_dump_json() not in done]


def count_confirmations(records: Sequence[TrialRecord]) -> dict[str, int]:
    """The number of confirmed configurations, and of trainings for all of them."""
    ended = [record.config for record in records if record.phase == "confirm" and record.outcome is not None]
    configs = {config.model_copy(update={"seed": 0}).model_dump_json() for config in ended}
    return {"configurations": len(configs), "seeds": len(ended)}


def _are_open(records: Sequence[TrialRecord], chosen: list[TrialRecord], spec: StudySpec) -> list[bool]:
    noise, confirmed = _estimate_noise(records, spec), _collect_confirmed(records, spec)
    candidates = [confirmed.get(_point_of(record, spec), []) for record in chosen]
    if noise is None or not any(candidates):
        return [True] * len(chosen)
    numbers = {record.number for record in chosen}
    rest = [record for record in find_front(records, spec.objectives) if record.number not in numbers]
    seeds: list[Candidate] = [each for each in candidates if each]
    seeds += [[record.measurements] for record in rest]
    signs = [METRICS[name].sign for name in spec.objectives]
    shares = iter(front_probabilities(_draw_means(seeds, noise, spec), signs))
    # without a seed a place is never settled
    places = [next(shares) if candidate else 0.5 for candidate in candidates]
    return [1.0 - CONFIDENCE < share < CONFIDENCE for share in places]


def _draw_means(candidates: list[Candidate], noise: list[Spread], spec: StudySpec) -> Values:
    """Plausible true means, shape ``[draws, candidates, objectives]``."""
    generator = np.random.default_rng(_SEED)
    centers = np.array([_mean(seeds, spec.objectives) for seeds in candidates])
    errors = np.array([[spread.sd / np.sqrt(len(seeds)) for spread in noise] for seeds in candidates])
    degrees = np.array([spread.degrees for spread in noise])
    shape = (_NUM_DRAWS, len(candidates), len(noise))
    return np.asarray(centers + errors * generator.standard_t(degrees, size=shape))


def _mean(candidate: Candidate, objectives: Sequence[str]) -> Values:
    return np.array([float(np.mean(_to_scale(name, candidate))) for name in objectives])


def _to_scale(name: str, candidate: Candidate) -> Values:
    return scale_of(name).forward(np.array([float(measured[name]) for measured in candidate], dtype=np.float64))


def _estimate_noise(records: Sequence[TrialRecord], spec: StudySpec) -> list[Spread] | None:
    """The spread between seeds of each objective on its scale, pooled over the configurations: the fresh seeds and that
    of the search; None where no configuration has two. The search chose by its seed, which makes the spread look wider,
    so that a place is rather called open."""
    complete, _ = collect_costs(records, spec.objectives)
    searched = {_point_of(record, spec): record.measurements for record in complete}
    candidates = [
        [*seeds, searched[point]] if point in searched else seeds
        for point, seeds in _collect_confirmed(records, spec).items()
    ]
    rows = [(index, measured) for index, seeds in enumerate(candidates) for measured in seeds]
    groups = np.array([index for index, _ in rows], dtype=np.int64)
    spreads = [pooled_spread(_to_scale(name, [measured for _, measured in rows]), groups) for name in spec.objectives]
    return spreads if all(spread.degrees for spread in spreads) else None


def _collect_confirmed(records: Sequence[TrialRecord], spec: StudySpec) -> dict[str, list[Measurements]]:
    """The measurements of the fresh seeds, by point of the space."""
    confirmed: dict[str, list[Measurements]] = defaultdict(list)
    for record in records:
        if record.phase == "confirm" and _is_measured(record, spec.objectives):
            confirmed[_point_of(record, spec)].append(record.measurements)
    return confirmed


def _point_of(record: TrialRecord, spec: StudySpec) -> str:
    return repr([record.values[path] for path in spec.space])
