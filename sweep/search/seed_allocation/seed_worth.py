"""What further fresh seeds of a configuration are worth: by how much they are expected to raise the probabilities that
the answer's statements are right.

This is the knowledge gradient (Frazier, Powell and Dayanik 2008) of the squares of the statements' probabilities. A
probability itself is worth nothing where no result of one candidate changes what is named, and the seeds would end
before the statement is settled; its square is also worth the expected movement toward 0 or 1, which is its variance.
The possible results are drawn from the joint draws of plausible true values, and each result weights those draws by its
likelihood, so that no statement requires a formula of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.statements import split_batches
from sweep.analysis.answer.tuned_batches import BatchDraws
from sweep.analysis.answer.use_cases import BATCH_SIZE, Use, find_right
from sweep.analysis.comparable_trials import ACCURACY
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values

_NUM_RESULTS = 32
_MOST_ACTIONS = 16  # of one decision, the most probable ones
_SEED = 20_260_101
_HEADLINE_WEIGHT = 3.0  # which batch size to use is the question; each other use counts as 1


@dataclass(frozen=True)
class Decision:
    """One statement: in which draws each of its actions is right, shape ``[draws, actions]``; the candidate that must
    have enough fresh seeds for an action, -1 for none, shape ``[actions]``; and the weight of the statement."""

    right: Mask
    places: Numbers
    weight: float


def list_decisions(candidates: Candidates, uses: Sequence[Use], batches: BatchDraws | None) -> list[Decision]:
    """The statements that are not settled: which candidate each of ``uses`` names, and of each of ``batches`` whether
    it is as good as the best."""
    found = [decision for use in uses if (decision := _decide_use(candidates, use)) is not None]
    return found + (_decide_batches(candidates, batches) if batches else [])


def _decide_use(candidates: Candidates, use: Use) -> Decision | None:
    right = find_right(candidates, use, candidates.draws)
    probabilities = right.mean(axis=0)
    named = probabilities[candidates.nameable]
    if not (probabilities > 0).any() or (len(named) and named.max() >= candidates.rules.confidence):
        return None
    places = np.argsort(-probabilities, kind="stable")[:_MOST_ACTIONS]
    return Decision(right[:, places], places.astype(np.int64), _HEADLINE_WEIGHT if use is BATCH_SIZE else 1.0)


def _decide_batches(candidates: Candidates, batches: BatchDraws) -> list[Decision]:
    tolerance = candidates.rules.tolerance.accuracy
    within, near = batches.find_within(tolerance), batches.find_within(tolerance / 2)
    unknown = split_batches(candidates, batches).unknown
    return [
        Decision(
            np.stack([within[:, index], ~near[:, index]], axis=1),
            np.array([batches.places[index], -1], dtype=np.int64),
            1.0 / len(unknown),
        )
        for index in np.flatnonzero(unknown)
    ]


def measure_worth(candidates: Candidates, decisions: Sequence[Decision], place: int, num_seeds: int) -> float:
    """By how much ``num_seeds`` more seeds of the candidate at ``place``, with which it may be named, are expected to
    raise the squared probabilities of the ``decisions``, summed with their weights; at least 0."""
    weights = _weight_draws(candidates, place, num_seeds)
    is_nameable = candidates.nameable
    is_nameable_then = is_nameable.copy()
    is_nameable_then[place] = True
    worth = 0.0
    for decision in decisions:
        then = weights @ decision.right
        # of the same results, so that a seed which changes no choice is worth exactly nothing
        now = _best(then.mean(axis=0, keepdims=True), decision.places, is_nameable)
        then = _best(then, decision.places, is_nameable_then)
        worth += decision.weight * max(float((then**2).mean() - (now**2).mean()), 0.0)
    return worth


def _best(probabilities: Values, places: Numbers, is_nameable: Mask) -> Values:
    # of the actions that may be taken, shape [results]; 0 where there is none
    is_open = (places < 0) | is_nameable[places]
    return np.asarray(np.where(is_open, probabilities, 0.0).max(axis=1))


def _weight_draws(candidates: Candidates, place: int, num_seeds: int) -> Values:
    # of each draw given each possible result; shape [results, draws], rows that sum to 1
    drawn = candidates.values(ACCURACY, candidates.draws)[:, place]
    level = float(np.clip(candidates.values(ACCURACY)[place], 1e-4, 1 - 1e-4))
    # d accuracy = slope * d angle, the scale of the spread
    noise = candidates.records.posterior(ACCURACY).spread.sd * 2 * np.sqrt(level * (1 - level)) / np.sqrt(num_seeds)
    if not noise > 0:
        noise = 1e-6
    order = np.argsort(drawn)
    middles = drawn[order[((np.arange(_NUM_RESULTS) + 0.5) / _NUM_RESULTS * len(drawn)).astype(np.int64)]]
    results = middles + noise * np.random.default_rng(_SEED).permutation(_NORMAL)
    distances = (results[:, None] - drawn[None, :]) / noise
    weights = np.exp(-0.5 * (distances**2 - (distances**2).min(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _normal_quantiles(count: int) -> Values:
    from scipy.special import ndtri

    return np.asarray(ndtri((np.arange(count) + 0.5) / count))


_NORMAL = _normal_quantiles(_NUM_RESULTS)
