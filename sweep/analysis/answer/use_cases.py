"""What each use requires of the candidates: which are eligible, which of two is the better, and what difference does
not matter."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.candidates import ACCURACY_MARGIN, Candidates
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.analysis.statistics.scales import LOG
from sweep.config.metrics import METRICS
from sweep.config.study import Tolerance

Score = Callable[[Candidates, Values], Values]
COMPROMISE_TOLERANCE = 0.2  # of the distance to the ideal point: which compromise is the best is a matter of taste


@dataclass(frozen=True, kw_only=True)
class Use:
    """``score`` of a table of values, shape ``[..., k, m] -> [..., k]``, smaller is better; ``takes_part`` by the
    settings alone, shape ``[k]``; ``metric`` the one that is optimized, None for a compromise. ``find_margin`` gives
    the accuracy that a candidate may be below the best, None where accuracy itself is optimized."""

    score: Score
    takes_part: Callable[[Candidates], Mask]
    metric: str | None
    find_margin: Callable[[Tolerance], float] | None


def score_candidates(candidates: Candidates, use: Use, table: Values) -> Values:
    """The use's scores when ``table`` (shape ``[..., k, m]``) is true, infinite for those that may not win; shape
    ``[..., k]``."""
    return _score(candidates, use, table, 0.0)


def find_right(candidates: Candidates, use: Use, table: Values) -> Mask:
    """Which candidates the use may name when ``table`` (shape ``[..., k, m]``) is true; shape ``[..., k]``: those that
    are eligible and within the tolerance of the best.

    A rival whose accuracy is only just enough does not make another one wrong: rivals must lose less by half the
    tolerance of accuracy (an indifference zone, without which a rival at the edge could never be decided about).
    """
    own = score_candidates(candidates, use, table)
    rivals = _score(candidates, use, table, candidates.rules.tolerance.accuracy / 2)
    best = rivals.min(axis=-1, keepdims=True)
    return np.asarray(np.isfinite(own) & (own <= widen_best(candidates, use, best)))


def find_regrets(candidates: Candidates, use: Use, table: Values) -> Values:
    """What each candidate loses against the best when ``table`` (shape ``[..., k, m]``) is true, in the unit of the
    score; infinite where it may not be named; shape ``[..., k]``."""
    scores = score_candidates(candidates, use, table)
    best = scores.min(axis=-1, keepdims=True)
    return np.asarray(scores - np.where(np.isfinite(best), best, 0.0))


def widen_best(candidates: Candidates, use: Use, best: Values) -> Values:
    """The score that is no worse than ``best`` by more than the tolerance; of its shape."""
    tolerance = candidates.rules.tolerance
    if use.metric is None:
        return best + COMPROMISE_TOLERANCE
    if use.metric == ACCURACY:
        return best + tolerance.accuracy
    return best * (1.0 + (tolerance.memory if METRICS[use.metric].is_memory else tolerance.time))


def _score(candidates: Candidates, use: Use, table: Values, stricter: float) -> Values:
    score, part = use.score(candidates, table), use.takes_part(candidates)
    inside = candidates.within_limits(table) & part
    if use.find_margin is not None:
        margin = use.find_margin(candidates.rules.tolerance)
        inside = _are_useful(candidates, table, inside, margin - min(stricter, margin / 2))
    return np.where(inside & np.isfinite(score), score, np.inf)


def _are_useful(candidates: Candidates, table: Values, inside: Mask, margin: float) -> Mask:
    # accurate enough compared with the best of those ``inside``
    accuracies = candidates.values(ACCURACY, table)
    return np.asarray(inside & (accuracies >= candidates.least_useful(np.where(inside, accuracies, -np.inf), margin)))


def _optimize(
    name: str, takes_part: Callable[[Candidates], Mask], find_margin: Callable[[Tolerance], float] | None
) -> Use:
    return Use(
        score=lambda candidates, table: METRICS[name].sign * candidates.values(name, table),
        takes_part=takes_part,
        metric=name,
        find_margin=find_margin,
    )


def _compromise(candidates: Candidates, table: Values) -> Values:
    # distance to the ideal point, each metric over its range on the useful front; time and memory by their logarithm
    names = [name for name in (ACCURACY, SECONDS, MEMORY) if name in candidates.names]
    costs = _costs(candidates, candidates.estimates, names)
    inside = candidates.within_limits()
    front = _are_useful(candidates, candidates.estimates, inside, ACCURACY_MARGIN)
    front &= non_dominated(np.where(front[:, None], costs, np.nan))
    if not front.any():
        return np.full(table.shape[:-1], np.nan)
    ideal, worst = costs[front].min(axis=0), costs[front].max(axis=0)
    scaled = (_costs(candidates, table, names) - ideal) / np.where(worst > ideal, worst - ideal, 1.0)
    return np.asarray(np.linalg.norm(np.maximum(scaled, 0.0), axis=-1))


def _costs(candidates: Candidates, table: Values, names: list[str]) -> Values:
    values = {name: candidates.values(name, table) for name in names}
    return np.stack([-each if name == ACCURACY else LOG.forward(each) for name, each in values.items()], axis=-1)


def _everyone(candidates: Candidates) -> Mask:
    return np.ones(len(candidates.rows), dtype=np.bool_)


def _from_weights(candidates: Candidates) -> Mask:
    weights = read_text(candidates.records.frame, "config.model.weights")
    return np.asarray(weights[candidates.rows] != "", dtype=np.bool_)


def _on_ranks(candidates: Candidates) -> Mask:
    return read_numbers(candidates.records.frame, "config.distributed.world_size")[candidates.rows] > 1


def _useful(_tolerance: Tolerance) -> float:
    return ACCURACY_MARGIN


# The headline: which batch size to use.
BATCH_SIZE = _optimize(SECONDS, _everyone, lambda tolerance: tolerance.accuracy)
USE_TABLE = {
    "accuracy": _optimize(ACCURACY, _everyone, None),
    "speed": _optimize(SECONDS, _everyone, _useful),
    "memory": _optimize(MEMORY, _everyone, _useful),
    "balanced": Use(score=_compromise, takes_part=_everyone, metric=None, find_margin=_useful),
    "fine_tune": _optimize(ACCURACY, _from_weights, None),
    "distributed": _optimize(SECONDS, _on_ranks, _useful),
}
