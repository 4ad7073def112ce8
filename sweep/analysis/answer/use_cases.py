"""What each use makes of the candidates: which may take part, and which of two is the better."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.config.metrics import METRICS

Score = Callable[[Candidates, Values], Values]


class Use(NamedTuple):
    """``score`` of a table of values, shape ``[..., k, m] -> [..., k]``, smaller is better; ``takes_part`` by the
    settings alone, shape ``[k]``; ``metric`` the one that is made good, None for a compromise; ``is_floored`` where a
    useful accuracy is asked for; ``negligible`` a difference of scores that is not worth a thought, as a share of the
    score where ``is_relative``."""

    score: Score
    takes_part: Callable[[Candidates], Mask]
    metric: str | None
    is_floored: bool
    negligible: float
    is_relative: bool = False

    def is_close(self, candidates: Candidates, score: Values, best: int) -> Mask:
        """Whose score is negligibly worse than that of ``best``; shape ``[k]``. Of accuracies, which are what a use is
        for, within a standard error of the difference too."""
        close = np.asarray(score - score[best] <= self.negligible * (score[best] if self.is_relative else 1.0))
        if self.metric != ACCURACY:
            return close
        posterior = candidates.posterior(ACCURACY)
        centers, errors = posterior.expected[candidates.rows], posterior.standard_errors()[candidates.rows]
        return np.asarray(close & (np.abs(centers - centers[best]) <= np.hypot(errors, errors[best])))


def _score_of(name: str) -> Score:
    return lambda candidates, table: METRICS[name].sign * candidates.values(name, table)


def _compromise(candidates: Candidates, table: Values) -> Values:
    """Distance to the ideal point, each metric over its range on the useful front; time and memory by their
    logarithm."""
    names = [name for name in (ACCURACY, SECONDS, MEMORY) if name in candidates.names]
    front = find_useful(candidates, candidates.estimates, _everyone(candidates))
    costs = _costs(candidates, candidates.estimates, names)
    front &= non_dominated(np.where(front[:, None], costs, np.nan))
    if not front.any():
        return np.full(table.shape[:-1], np.nan)
    ideal, worst = costs[front].min(axis=0), costs[front].max(axis=0)
    scaled = (_costs(candidates, table, names) - ideal) / np.where(worst > ideal, worst - ideal, 1.0)
    return np.asarray(np.linalg.norm(np.maximum(scaled, 0.0), axis=-1))


def _costs(candidates: Candidates, table: Values, names: list[str]) -> Values:
    columns = []
    for name in names:
        values = candidates.values(name, table)
        columns.append(-values if name == ACCURACY else np.log(np.where(values > 0, values, np.nan)))
    return np.stack(columns, axis=-1)


def find_useful(candidates: Candidates, table: Values, part: Mask) -> Mask:
    """Within the limits, and accurate enough beside the best of those that are, among ``part`` (shape ``[k]``); shape
    ``[..., k]``."""
    accuracies, inside = candidates.values(ACCURACY, table), candidates.within_limits(table) & part
    return np.asarray(inside & (accuracies >= candidates.least_useful(np.where(inside, accuracies, -np.inf))))


def _everyone(candidates: Candidates) -> Mask:
    return np.ones(len(candidates.rows), dtype=np.bool_)


def _from_weights(candidates: Candidates) -> Mask:
    return np.asarray(
        read_text(candidates.records.frame, "config.model.weights")[candidates.rows] != "", dtype=np.bool_
    )


def _on_ranks(candidates: Candidates) -> Mask:
    return np.asarray(
        read_numbers(candidates.records.frame, "config.distributed.world_size")[candidates.rows] > 1, dtype=np.bool_
    )


USE_TABLE = {
    "accuracy": Use(_score_of(ACCURACY), _everyone, ACCURACY, False, 0.005),
    "speed": Use(_score_of(SECONDS), _everyone, SECONDS, True, 0.05, True),
    "memory": Use(_score_of(MEMORY), _everyone, MEMORY, True, 0.05, True),
    # which compromise is the best is a matter of taste, so that one surely on the front may be a little further out
    "balanced": Use(_compromise, _everyone, None, True, 0.2),
    "fine_tune": Use(_score_of(ACCURACY), _from_weights, ACCURACY, False, 0.005),
    "distributed": Use(_score_of(SECONDS), _on_ranks, SECONDS, True, 0.05, True),
}


def find_eligible(candidates: Candidates, use: Use, table: Values) -> Mask:
    """Which candidates may win the use when ``table`` is true; shape ``[..., k]``."""
    part = use.takes_part(candidates)
    inside = find_useful(candidates, table, part) if use.is_floored else candidates.within_limits(table) & part
    return np.asarray(inside & np.isfinite(use.score(candidates, table)))


def score_candidates(candidates: Candidates, use: Use, table: Values) -> Values:
    """The use's scores when ``table`` is true, infinite for those that may not win; shape ``[..., k]``."""
    return np.where(find_eligible(candidates, use, table), use.score(candidates, table), np.inf)
