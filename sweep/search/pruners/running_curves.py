"""Learning curves of running trials: costs (smaller is better) over the share of the schedule."""

import math
from dataclasses import dataclass, field
from typing import final

import numpy as np

from sweep.analysis.statistics.pareto import front_rank
from sweep.config.data_sections import BudgetSection
from sweep.config.metrics import METRICS
from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import derive_shape, find_largest_accumulation
from sweep.records.messages import Evaluation

RUNGS = (1 / 9, 1 / 3)  # shares of the schedule
REDUCTION = 3  # of those at a rung, one in three is ahead
SECONDS, MEMORY = "train_seconds", "peak_memory_bytes"
CURVES = frozenset({"val_accuracy", "val_loss"})


def measure_budget_share(budget: BudgetSection, evaluation: Evaluation) -> float | None:
    """How much of its budget a trial has spent, from 0 to 1; None for a budget without a known total."""
    spent = {
        "epochs": evaluation.epoch,
        "steps": evaluation.step,
        "samples": evaluation.samples,
        "seconds": evaluation.train_seconds,
    }
    for unit, amount in spent.items():
        total: float | None = getattr(budget, unit)
        if total is not None:
            return min(amount / total, 1.0)
    return None


def make_cost_key(config: TrialConfig) -> str:
    """Equal for configurations whose trainings take the same time and memory: equal in shape, accumulation and
    budget."""
    budget = config.apply_rules().budget.model_dump_json()
    return f"{derive_shape(config).text} {find_largest_accumulation(config)} {budget}"


@final
@dataclass(kw_only=True)
class RunningCurves:
    """The evaluations of one trial: shares of its schedule, and for each objective that changes over it the costs.

    A cost of ``train_seconds`` is the logarithm of the seconds that the whole budget would take at the pace so far.
    """

    key: str  # see :func:`make_cost_key`
    shares: list[float] = field(default_factory=list)
    costs: dict[str, list[float]] = field(default_factory=dict)
    num_rungs: int = 0  # that the trial has passed
    is_ahead: bool = True  # at the last of them; True before the first

    def add(self, share: float, evaluation: Evaluation) -> None:
        """Takes an evaluation into account; a repeated one, or one without a time, is left out."""
        if (self.shares and share <= self.shares[-1]) or not evaluation.train_seconds > 0:
            return
        self.shares.append(share)
        costs = {name: METRICS[name].sign * float(getattr(evaluation, name)) for name in CURVES}
        costs[SECONDS] = math.log(evaluation.train_seconds / share)
        for name, cost in costs.items():
            self.costs.setdefault(name, []).append(cost)

    def last(self, name: str) -> float:
        return self.costs[name][-1]


@final
class Rungs:
    """Which trials are ahead at each rung: asynchronous successive halving (Li et al. 2020, arXiv:1810.05934) ranked by
    dominance (Schmucker et al. 2021, arXiv:2106.12639)."""

    def __init__(self) -> None:
        self._rows: list[list[list[float]]] = [[] for _ in RUNGS]

    def record_costs(self, curves: RunningCurves, row: list[float]) -> None:
        """Records the costs of a trial (``row``, NaN where unknown) at each rung that its last evaluation reached."""
        while curves.num_rungs < len(RUNGS) and curves.shares[-1] >= RUNGS[curves.num_rungs]:
            rows = self._rows[curves.num_rungs]
            rows.append(row)
            curves.num_rungs += 1
            curves.is_ahead = _is_ahead(np.array(rows))


def _is_ahead(rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    ranks = front_rank(rows)
    if ranks[-1] <= 0:  # on the front, or without a rank because a cost is unknown
        return True
    return bool(np.sum((ranks >= 0) & (ranks < ranks[-1])) < len(rows) / REDUCTION)
