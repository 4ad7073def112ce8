"""What each use requires of the candidates: which are eligible, and which of two is the better."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.analysis.statistics.scales import LOG
from sweep.config.metrics import METRICS

Score = Callable[[Candidates, Values], Values]


@dataclass(frozen=True, kw_only=True)
class Use:
    """``score`` of a table of values, shape ``[..., k, m] -> [..., k]``, smaller is better; ``takes_part`` by the
    settings alone, shape ``[k]``; ``metric`` the one that is optimized, None for a compromise; ``is_floored`` where a
    useful accuracy is required; ``negligible`` a difference of scores that does not matter, as a share of the score
    where ``is_relative``."""

    score: Score
    takes_part: Callable[[Candidates], Mask]
    metric: str | None
    is_floored: bool
    negligible: float
    is_relative: bool

    def is_close(self, candidates: Candidates, score: Values, best: int) -> Mask:
        """Whose ``score`` is negligibly worse than that of ``best``; both of shape ``[k]``. Of accuracies, which are
        what a use is for, within a standard error of the difference too."""
        close = np.asarray(score - score[best] <= self.negligible * (score[best] if self.is_relative else 1.0))
        if self.metric != ACCURACY:
            return close
        posterior = candidates.records.posterior(ACCURACY)
        centers = posterior.expected[candidates.rows]
        errors, _ = posterior.compare(int(candidates.rows[best]), candidates.rows)
        return np.asarray(close & (np.abs(centers - centers[best]) <= errors))


def score_candidates(candidates: Candidates, use: Use, table: Values) -> Values:
    """The use's scores when ``table`` (shape ``[..., k, m]``) is true, infinite for those that may not win; shape
    ``[..., k]``."""
    score, part = use.score(candidates, table), use.takes_part(candidates)
    inside = _are_useful(candidates, table, part) if use.is_floored else candidates.within_limits(table) & part
    return np.where(inside & np.isfinite(score), score, np.inf)


def _are_useful(candidates: Candidates, table: Values, part: Mask) -> Mask:
    # within the limits, and accurate enough compared with the best of those that are, among ``part``
    accuracies, inside = candidates.values(ACCURACY, table), candidates.within_limits(table) & part
    return np.asarray(inside & (accuracies >= candidates.least_useful(np.where(inside, accuracies, -np.inf))))


def _optimize(name: str, takes_part: Callable[[Candidates], Mask]) -> Use:
    is_cost = name != ACCURACY
    return Use(
        score=lambda candidates, table: METRICS[name].sign * candidates.values(name, table),
        takes_part=takes_part,
        metric=name,
        is_floored=is_cost,
        negligible=0.05 if is_cost else 0.005,
        is_relative=is_cost,
    )


def _compromise(candidates: Candidates, table: Values) -> Values:
    # distance to the ideal point, each metric over its range on the useful front; time and memory by their logarithm
    names = [name for name in (ACCURACY, SECONDS, MEMORY) if name in candidates.names]
    costs = _costs(candidates, candidates.estimates, names)
    front = _are_useful(candidates, candidates.estimates, _everyone(candidates))
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


USE_TABLE = {
    "accuracy": _optimize(ACCURACY, _everyone),
    "speed": _optimize(SECONDS, _everyone),
    "memory": _optimize(MEMORY, _everyone),
    # which compromise is the best is a matter of taste, so one surely on the front may be a little farther out
    "balanced": Use(
        score=_compromise, takes_part=_everyone, metric=None, is_floored=True, negligible=0.2, is_relative=False
    ),
    "fine_tune": _optimize(ACCURACY, _from_weights),
    "distributed": _optimize(SECONDS, _on_ranks),
}
