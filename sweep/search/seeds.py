"""Which configurations are trained again with fresh seeds, and in what order.

One search trial is one seed, and the best of many noisy trials owes its rank to chance in part, so the answer names
only configurations with fresh seeds. First those that the answer would name get the fewest seeds with which it may.
Then each further seed goes where it is expected to make the answer's statements most certain per second. The first
four fifths of the time belong to the question of the batch size until that is settled. The confirming ends when every
statement is settled, when the time is spent, or when no seed is worth anything.

The answer itself gives the probabilities, so that what stops the confirming is what the user reads.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from scipy.special import ndtri

from sweep.analysis.answer import Limits
from sweep.analysis.candidates import (
    BATCH_SIZE,
    USE_TABLE,
    Candidates,
    Use,
    find_right,
    find_right_batches,
    pick_for,
    pick_of_batch,
    select_candidates,
)
from sweep.analysis.comparable import select_comparable
from sweep.analysis.statements import split_batches
from sweep.analysis.statistics import Mask, Numbers, Values, non_dominated
from sweep.analysis.tuned_batches import BatchDraws, draw_batches, find_thin_batches, list_models
from sweep.config.metrics import IMAGES, Quality, find_metric
from sweep.config.space import count_grid_points
from sweep.config.study import FEWEST_SEEDS, TRIAL_SECONDS, ConfirmTime, StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.frames import Frames
from sweep.records.records import TrialRecord

_NUM_RESULTS = 32
_MOST_ACTIONS = 16  # of one decision, the most probable ones
_SEED = 20_260_101
_HEADLINE_WEIGHT = 3.0  # which batch size to use is the question; each other use counts as 1
_LEAST_SHARE = 0.5  # of the planned search trials
_STEPS = 10  # between them and all how often it is looked at
_LEAST_PART = 0.5  # of the doubt about the batch size that what was not tried must have for another search trial
_USES = (BATCH_SIZE, *USE_TABLE.values())
# Shares of the time for confirming: the batch size has the first alone until it is settled; the first seeds of another
# use do not wait if they take no more than the second.
_HEADLINE_SHARE, _LITTLE = 0.8, 0.1
_ALIKE = 0.02  # probabilities that differ by less are equal for the choice of the first seeds
_FACTORS = (1, 3, 9)  # numbers of seeds that are considered at once, times the fewest
_LEAST_WORTH = 0.001  # of a squared probability


@dataclass(frozen=True)
class _Decision:
    """One statement: in which draws each of its actions is right, shape ``[draws, actions]``; the candidate that must
    have enough fresh seeds for an action, -1 for none, shape ``[actions]``; and the weight of the statement."""

    right: Mask
    rows: Numbers
    weight: float


def _list_decisions(candidates: Candidates, uses: Sequence[Use], batches: BatchDraws | None) -> list[_Decision]:
    """The statements that are not settled: which candidate each of ``uses`` names, and of each of ``batches`` whether
    it is as good as the best."""
    decisions = [decision for use in uses if (decision := _decide_use(candidates, use)) is not None]
    return decisions + (_decide_batches(candidates, batches) if batches else [])


def _decide_use(candidates: Candidates, use: Use) -> _Decision | None:
    if use is BATCH_SIZE:
        return _decide_headline(candidates)
    right = find_right(candidates, use)
    probabilities = right.mean(axis=0)
    named = probabilities[candidates.nameable]
    if not (probabilities > 0).any() or (len(named) and named.max() >= candidates.rules.confidence):
        return None
    rows = np.argsort(-probabilities, kind="stable")[:_MOST_ACTIONS]
    return _Decision(right[:, rows], rows.astype(np.int64), 1.0)


def _decide_headline(candidates: Candidates) -> _Decision | None:
    groups, everyone = find_right_batches(candidates), np.ones(len(candidates.rows), dtype=np.bool_)
    rows = []
    for group in range(groups.right.shape[1]):
        named = pick_of_batch(candidates, groups, group, candidates.nameable)
        rows.append(named if named >= 0 else pick_of_batch(candidates, groups, group, everyone))
    tried = np.flatnonzero(np.array(rows) >= 0)  # the others cannot be named
    right, places = groups.right[:, tried], np.array(rows, dtype=np.int64)[tried]
    probabilities = right.mean(axis=0)
    named_ones = probabilities[candidates.nameable[places]]
    if not probabilities.any() or (len(named_ones) and named_ones.max() >= candidates.rules.confidence):
        return None
    return _Decision(right, places, _HEADLINE_WEIGHT)


def _decide_batches(candidates: Candidates, batches: BatchDraws) -> list[_Decision]:
    within = batches.find_within(candidates.tolerance)
    unknown = split_batches(candidates, batches).unknown
    return [
        _Decision(
            np.stack([within[:, index], ~within[:, index]], axis=1),
            np.array([batches.places[index], -1], dtype=np.int64),
            1.0 / len(unknown),
        )
        for index in np.flatnonzero(unknown)
    ]


def _measure_worth(candidates: Candidates, decisions: Sequence[_Decision], row: int, num_seeds: int) -> float:
    """By how much ``num_seeds`` more seeds of the candidate at ``row``, with which it may be named, are expected to
    raise the squared probabilities of the ``decisions``, summed with their weights; at least 0."""
    weights = _weight_draws(candidates, row, num_seeds)
    is_nameable = candidates.nameable
    is_nameable_then = is_nameable.copy()
    is_nameable_then[row] = True
    worth = 0.0
    for decision in decisions:
        then = weights @ decision.right
        # From the same results, so that a seed which changes no choice is worth exactly nothing.
        now = _best(then.mean(axis=0, keepdims=True), decision.rows, is_nameable)
        then = _best(then, decision.rows, is_nameable_then)
        worth += decision.weight * max(float((then**2).mean() - (now**2).mean()), 0.0)
    return worth


def _best(probabilities: Values, rows: Numbers, is_nameable: Mask) -> Values:
    """The highest probability of an action that may be taken, shape ``[results]``; 0 if there is none."""
    is_open = (rows < 0) | is_nameable[rows]
    return np.asarray(np.where(is_open, probabilities, 0.0).max(axis=1))


def _weight_draws(candidates: Candidates, row: int, num_seeds: int) -> Values:
    """The weight of each draw given each possible result, shape ``[results, draws]``; each row sums to 1."""
    records, name = candidates.records, candidates.records.judged[0]
    drawn, level = candidates.values(name, candidates.draws)[:, row], abs(float(candidates.values(name)[row]))
    scale = find_metric(name, records.quality).scale
    # The spread is on the scale of the noise: d accuracy = slope * d angle.
    share = float(np.clip(level, 1e-4, 1 - 1e-4))
    slope = 2 * np.sqrt(share * (1 - share)) if scale == "angle" else level if scale == "log" else 1.0
    noise = records.posterior(name).spread.sd * slope / np.sqrt(num_seeds)
    if not np.isfinite(drawn).all():  # a time that is not on record
        return np.full((_NUM_RESULTS, len(drawn)), 1.0 / len(drawn))
    noise = noise if noise > 0 else 1e-6
    shares = (np.arange(_NUM_RESULTS) + 0.5) / _NUM_RESULTS
    middles = np.sort(drawn)[(shares * len(drawn)).astype(np.int64)]
    results = middles + noise * np.random.default_rng(_SEED).permutation(ndtri(shares))
    distances = (results[:, None] - drawn[None, :]) / noise
    weights = np.exp(-0.5 * (distances**2 - (distances**2).min(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@final
class SearchEnd:
    """Decides between the next search trial and seeds, which have one budget. From the records, so that a resumed study
    decides the same. ``reason`` tells why the search of a study has ended early, empty while it has not; unless the
    answer ``is_settled`` the search continues when no seed is worth anything. ``lacking`` are the models and effective
    batch sizes that may be as good as the best and are not tuned; None where nothing tells."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._looked_at: tuple[int, int] | None = None
        self.reason = ""
        self.is_settled = False
        self.lacking: frozenset[tuple[str, int]] | None = None

    def is_due(self, records: Sequence[TrialRecord]) -> bool:
        """Whether it is to be decided anew (:meth:`decide`): with each confirming trial, and with each tenth of the
        search from its half on, because reading the frames after each trial would take time from short ones. A sampler
        that does not learn from the answer ends as it was planned."""
        phases = Counter(record.phase for record in records if record.outcome)
        step = max(self._spec.trials // _STEPS, 1)
        state = (phases["search"] // step, phases["confirm"])
        is_early = phases["search"] < _LEAST_SHARE * self._spec.trials
        if is_early or state == self._looked_at or self._spec.sampler != "cost_aware":
            return False
        self._looked_at = state
        return True

    def decide(self, candidates: Candidates | None) -> None:
        """Sets :attr:`reason`: every batch size is tuned or known to be worse, and what was not tried changes the
        answer less than the luck of seeds does."""
        self.reason, self.is_settled, self.lacking = "", False, None
        if candidates is None:
            return
        self.lacking = _find_lacking(candidates)
        if self.lacking:
            return
        # As if all had enough fresh seeds: the confirming provides them.
        enough = replace(candidates, num_seeds=np.full(len(candidates.rows), FEWEST_SEEDS))
        tried = enough.leave_out_untried()
        whole, of_tried = (float(find_right_batches(each).right.mean(axis=0).max()) for each in (enough, tried))
        batches = draw_batches(enough, list_models(enough)[0])
        if whole >= enough.rules.confidence and not _list_decisions(enough, _USES, batches):
            self.is_settled = True
            self.reason = "every statement is settled, including those about settings that were not tried"
        elif of_tried - whole <= _LEAST_PART * (1.0 - whole):
            self.reason = "fresh seeds tell more about the batch size to use than further trials"


def _find_lacking(candidates: Candidates) -> frozenset[tuple[str, int]]:
    # the models and batch sizes that are neither tuned nor known to be worse
    draws, groups = (
        [draw_batches(candidates, model) for model in list_models(candidates)],
        find_right_batches(candidates),
    )
    limit = np.max([each.tuned.max(axis=1) for each in draws], axis=0) - candidates.tolerance
    lacking: set[tuple[str, int]] = set()
    for batches in draws:
        is_good = batches.tuned >= limit[:, None]
        if candidates.records.until_target:  # all of them reach it, and the slow ones are worse
            is_good = groups.right[:, groups.of_candidates[batches.places]]
        is_worse = is_good.mean(axis=0) <= 1 - candidates.rules.confidence
        thin = find_thin_batches(candidates, batches).keys() - set(batches.batches[is_worse].tolist())
        lacking |= {(batches.model, batch) for batch in thin}
    return frozenset(lacking)


def collect_costs(
    records: Sequence[TrialRecord], objectives: Sequence[str], quality: Quality = IMAGES
) -> tuple[list[TrialRecord], Values]:
    """The complete search trials that have every objective, and their values, shape ``[n, m]``, smaller is better."""
    signs = {name: find_metric(name, quality).sign for name in objectives}
    rows = [
        (record, [sign * record.measurements[name] for name, sign in signs.items()])
        for record in records
        if record.phase == "search"
        and record.outcome == "complete"
        and all(name in record.measurements for name in objectives)
    ]
    values = np.array([row for _, row in rows], dtype=np.float64).reshape(len(rows), len(objectives))
    return [record for record, _ in rows], values


def find_front(
    records: Sequence[TrialRecord], objectives: Sequence[str], quality: Quality = IMAGES
) -> list[TrialRecord]:
    """The non-dominated complete search trials."""
    complete, costs = collect_costs(records, objectives, quality)
    return [record for record, on_front in zip(complete, non_dominated(costs), strict=True) if on_front]


@dataclass(frozen=True, kw_only=True)
class _State:
    """What the confirming has done and may still do: by row among the candidates the search trial, the offsets of the
    seeds that were begun, and the seconds of a training; and the time for confirming."""

    candidates: Candidates
    spec: StudySpec
    searched: list[TrialRecord]
    begun: list[set[int]]
    seconds: Values
    time: ConfirmTime

    def missing(self, row: int) -> int:
        """The seeds that a candidate still requires to be named."""
        return max(FEWEST_SEEDS - len(self.begun[row]), 0)

    def is_allowed(self, row: int) -> bool:
        """Whether a candidate may have another seed by the limits of the study."""
        confirm = self.spec.confirm
        num_begun = sum(bool(offsets) for offsets in self.begun)
        is_one = bool(self.begun[row]) or num_begun < confirm.max_configurations
        return is_one and len(self.begun[row]) < confirm.seeds

    def make_config(self, row: int) -> TrialConfig:
        """The training of a candidate with its next seed."""
        offset = next(number for number in range(1, 10**6) if number not in self.begun[row])
        return self.searched[row].config.model_copy(update={"seed": self.spec.seed + offset})


def list_confirmations(frames: Frames, records: Sequence[TrialRecord], spec: StudySpec) -> list[TrialConfig]:
    """The confirming trainings that may be done next, the best first; empty when nothing is left to do.

    ``records`` are the study's own, with those that have not ended; ``frames`` hold the same trials.
    """
    return rank_confirmations(find_candidates(frames), records, spec) if spec.confirm.most_trials else []


def find_candidates(frames: Frames) -> Candidates | None:
    """The candidates of a study's frames, under no limit; None where no complete trial has a quality."""
    return select_candidates(select_comparable(frames), Limits())


def rank_confirmations(
    candidates: Candidates | None, records: Sequence[TrialRecord], spec: StudySpec
) -> list[TrialConfig]:
    """The same as :func:`list_confirmations` where the ``candidates`` of these records are known."""
    if candidates is None:
        return []
    state = _read_state(candidates, records, spec)
    batches = draw_batches(candidates, list_models(candidates)[0])
    headline = _list_decisions(candidates, (BATCH_SIZE,), None)
    is_alone = bool(headline) and state.time.left > (1.0 - _HEADLINE_SHARE) * state.time.in_all
    first = _list_first_round(state, is_alone=is_alone)
    if not first and is_alone:
        first = _rank_by_worth(state, headline, batches)
    if not first:
        first = _rank_by_worth(state, _list_decisions(candidates, _USES, batches), batches)
    return [state.make_config(row) for row in first]


def _read_state(candidates: Candidates, records: Sequence[TrialRecord], spec: StudySpec) -> _State:
    by_number = {record.number: record for record in records}
    searched = [by_number[candidates.number(row)] for row in range(len(candidates.rows))]
    rows = {_point_of(record, spec): row for row, record in enumerate(searched)}
    begun: list[set[int]] = [set() for _ in searched]
    for record in (record for record in records if record.phase == "confirm"):
        row = rows.get(_point_of(record, spec))
        if row is not None:
            begun[row].add(record.config.seed - spec.seed)
    seconds = np.array([_price(record) for record in searched])
    usual = float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else 1.0
    return _State(
        candidates=candidates,
        spec=spec,
        searched=searched,
        begun=begun,
        seconds=np.where(np.isfinite(seconds), seconds, usual),
        time=measure_time_left(records, spec),
    )


def measure_confirm_time(records: Sequence[TrialRecord], spec: StudySpec) -> ConfirmTime:
    """The time for confirming trials after the trials of ``records``."""
    return spec.confirm.measure_time([(each.phase, _point_of(each, spec), _price(each)) for each in records])


def measure_time_left(records: Sequence[TrialRecord], spec: StudySpec) -> ConfirmTime:
    """The same with what a search that ended early has not used: all trials of a study have one budget."""
    time = measure_confirm_time(records, spec)
    num_searched = sum(each.phase == "search" and each.outcome is not None for each in records)
    planned = min(spec.trials, count_grid_points(spec.space) or spec.trials)
    if not 0 < num_searched < planned:
        return time
    unused = planned / num_searched - 1.0
    if spec.search_timeout:
        searched = time.in_all / spec.confirm.share
        unused = min(unused, max(spec.search_timeout / searched - 1.0, 0.0)) if searched else 0.0
    return time._replace(in_all=time.in_all * (1.0 + unused + unused / spec.confirm.share))


def may_search_on(records: Sequence[TrialRecord], spec: StudySpec) -> bool:
    """Whether the budget allows a search trial of the usual length after a search that ended early."""
    prices = [_price(each) for each in records if each.phase == "search" and each.outcome is not None]
    is_open = 0 < len(prices) < spec.trials and bool(np.isfinite(prices).any())
    return is_open and bool(measure_time_left(records, spec).left >= np.nanmean(prices))


def _price(record: TrialRecord) -> float:
    return next((float(record.measurements[name]) for name in TRIAL_SECONDS if name in record.measurements), np.nan)


def _list_first_round(state: _State, *, is_alone: bool) -> list[int]:
    """The candidates that the answer would name and that lack seeds for it, as far as the time suffices: first the one
    for the batch size, then the other uses, the cheapest first. While the batch size ``is_alone``, another use gets
    seeds only if they take little of the time. If nothing can be named yet, one candidate gets seeds in any case."""
    chosen: list[int] = []
    left, named = state.time.left, _list_named(state)
    has_name = pick_for(state.candidates, BATCH_SIZE, state.candidates.nameable)[0] is not None
    for row in named:
        price = state.missing(row) * float(state.seconds[row])
        is_first = not chosen and not has_name
        is_due = row == named[0] or not is_alone or price <= _LITTLE * state.time.in_all
        if state.missing(row) and state.is_allowed(row) and ((price <= left and is_due) or is_first):
            chosen.append(row)
            left -= price
    return sorted(chosen, key=lambda row: len(state.begun[row]))  # in turn


def _list_named(state: _State) -> list[int]:
    """The candidates that the uses would name if each candidate that may get seeds had enough of them."""
    named: list[int] = []
    rows = range(len(state.candidates.rows))
    tried = state.candidates.leave_out_untried()
    eligible = np.array([state.is_allowed(row) or not state.missing(row) for row in rows])
    for use in _USES:
        row, probabilities = pick_for(tried, use, eligible)
        if row is not None:
            # Of candidates that are as probably right, one with seeds already, so that a seed does not begin another.
            alike = np.flatnonzero(probabilities >= probabilities[row] - _ALIKE)
            named.append(max((row, *alike.tolist()), key=lambda each: len(state.begun[each])))
    others = sorted(named[1:], key=lambda row: float(state.seconds[row]))
    return list(dict.fromkeys((*named[:1], *others)))


def _rank_by_worth(state: _State, decisions: Sequence[_Decision], batches: BatchDraws) -> list[int]:
    """The candidates whose next seeds are worth something for the ``decisions`` and affordable, the most per second
    first: those that may be named, and those that stand for the batch sizes."""
    if not decisions:
        return []
    rows = {int(row) for decision in decisions for row in decision.rows if row >= 0}
    rows |= set(batches.places.tolist())
    rates = {row: _measure_rate(state, decisions, row) for row in sorted(rows) if state.is_allowed(row)}
    return sorted((row for row, rate in rates.items() if rate > 0), key=lambda row: -rates[row])


def _measure_rate(state: _State, decisions: Sequence[_Decision], row: int) -> float:
    """The largest worth per second of one or more seeds: one alone may change nothing while several do (Frazier and
    Powell 2010). 0 if none is affordable or worth more than chance in the draws."""
    least, price = max(state.missing(row), 1), float(state.seconds[row])
    counts = [least * factor for factor in _FACTORS]
    affordable = [count for count in counts if count * price <= state.time.left]
    worths = {count: _measure_worth(state.candidates, decisions, row, count) for count in affordable}
    return max((worth / (count * price) for count, worth in worths.items() if worth >= _LEAST_WORTH), default=0.0)


def count_confirmations(records: Sequence[TrialRecord]) -> dict[str, int]:
    """The number of confirmed configurations, and of trainings for all of them."""
    ended = [record.config for record in records if record.phase == "confirm" and record.outcome is not None]
    configs = {config.model_copy(update={"seed": 0}).model_dump_json() for config in ended}
    return {"configurations": len(configs), "seeds": len(ended)}


def _point_of(record: TrialRecord, spec: StudySpec) -> str:
    return repr([record.values[path] for path in spec.space])
