"""The contest of configurations: estimates and plausible true values of those that could win a use."""

from dataclasses import dataclass

import numpy as np

from sweep.analysis.answer.answer import Limits
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.intervals import front_probabilities
from sweep.analysis.statistics.pareto import Mask, Values, non_dominated
from sweep.analysis.statistics.posterior import Numbers, Posterior, draw_all
from sweep.config.metrics import METRICS

ACCURACY, SECONDS, MEMORY = "val_accuracy", "train_seconds", "peak_memory_bytes"
# A use that is not about accuracy still wants a useful one: this close to the best, unless a limit says otherwise.
ACCURACY_MARGIN = 0.02
NUM_DRAWS = 1000
# More contenders than this cannot be told apart anyway; those left out are behind several fronts.
_MAX_CONTENDERS = 300


@dataclass(frozen=True)
class Candidates:
    """``rows`` are the contenders' places among the configurations (shape ``[k]``); ``draws`` plausible true values of
    ``names``, shape ``[draws, k, m]``, ``estimates`` the most plausible ones, shape ``[k, m]``; ``p_front`` the
    probability of being on the front of the study's objectives."""

    ground: ComparableTrials
    limits: Limits
    names: tuple[str, ...]
    rows: Numbers
    draws: Values
    estimates: Values
    confirmed: Mask
    p_front: Values

    def values(self, name: str, table: Values | None = None) -> Values:
        """One metric of ``table`` (by default the estimates), shape ``[..., k]``; NaN where it was not measured."""
        whole = self.estimates if table is None else table
        if name not in self.names:
            return np.full(whole.shape[:-1], np.nan)
        return np.asarray(whole[..., self.names.index(name)])

    def belief(self, name: str) -> Posterior:
        """The belief about a metric of all configurations."""
        return self.ground.belief(name)

    def least_useful(self, accuracies: Values) -> Values:
        """The accuracy from which on a configuration is useful when ``accuracies`` (shape ``[..., k]``) are true; shape
        ``[..., 1]``: the limit, otherwise a margin below the best."""
        if self.limits.min_accuracy is not None:
            return np.full((*accuracies.shape[:-1], 1), self.limits.min_accuracy)
        return np.asarray(np.nanmax(accuracies, axis=-1, keepdims=True) - ACCURACY_MARGIN)

    @property
    def floor(self) -> float:
        """The least useful accuracy by the estimates."""
        return float(self.least_useful(self.values(ACCURACY))[0])

    def within_limits(self, table: Values | None = None) -> Mask:
        """Which contenders keep to the limits; shape ``[..., k]``."""
        inside = np.ones((self.estimates if table is None else table).shape[:-1], dtype=np.bool_)
        if self.limits.min_accuracy is not None:
            inside &= self.values(ACCURACY, table) >= self.limits.min_accuracy
        if self.limits.max_seconds is not None:
            inside &= self.values(SECONDS, table) <= self.limits.max_seconds
        if self.limits.max_memory_bytes is not None:
            inside &= self.values(MEMORY, table) <= self.limits.max_memory_bytes
        return inside


def select_candidates(ground: ComparableTrials, limits: Limits) -> Candidates | None:
    """The contest on ``ground``; None where no complete trial has an accuracy."""
    objectives = ground.spec.objectives if ground.spec else (ACCURACY, SECONDS, MEMORY)
    wanted = dict.fromkeys((*objectives, ACCURACY, SECONDS, MEMORY))
    beliefs = {name: ground.belief(name) for name in wanted}
    known = {name: belief for name, belief in beliefs.items() if np.isfinite(belief.centres).any()}
    if ACCURACY not in known:
        return None
    names = tuple(known)
    table = np.stack([belief.estimates for belief in known.values()], axis=1)
    signs = [METRICS[name].sign for name in names]
    is_objective = [name in objectives for name in names]
    rows = _contenders(table * signs, is_objective, names.index(ACCURACY), ground.grouping.confirmed)
    draws = draw_all(list(known.values()), rows, NUM_DRAWS)
    confirmed = ground.grouping.confirmed[rows]
    p_front = front_probabilities(
        draws[..., is_objective], [sign for sign, is_one in zip(signs, is_objective, strict=True) if is_one]
    )
    return Candidates(ground, limits, names, rows, draws, table[rows], confirmed, p_front)


def _contenders(costs: Values, is_objective: list[bool], accuracy: int, confirmed: Mask) -> Numbers:
    # fronts behind fronts until there are enough, the most accurate, and all that were confirmed
    usable = np.isfinite(costs[:, accuracy])
    chosen = confirmed & usable
    best = np.argsort(np.where(usable, costs[:, accuracy], np.inf), kind="stable")[: _MAX_CONTENDERS // 3]
    chosen[best[usable[best]]] = True
    rest = np.where((usable & ~chosen)[:, None], costs[:, is_objective], np.nan)
    while chosen.sum() < _MAX_CONTENDERS:
        layer = np.flatnonzero(non_dominated(rest))
        if not len(layer):
            break
        layer = layer[np.linspace(0, len(layer) - 1, min(len(layer), _MAX_CONTENDERS)).astype(np.int64)]
        chosen[layer] = True
        rest[chosen] = np.nan
    return np.flatnonzero(chosen)
