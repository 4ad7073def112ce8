"""The configurations that could win a use: their estimates and draws of their plausible true values."""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from threadpoolctl import ThreadpoolController

from sweep.analysis.answer.answer import Limits
from sweep.analysis.answer.response import draw_response
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS, USUAL_OBJECTIVES, ComparableTrials
from sweep.analysis.posterior import draw_all
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values, front_probabilities, non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import FEWEST_SEEDS, AnswerRules

# A use that is not about accuracy still requires a useful one: this close to the best, unless a limit is given.
ACCURACY_MARGIN = 0.02
_NUM_DRAWS = 1000
_RESPONSE_SEED = 1
# More candidates than this cannot be told apart anyway; those left out are behind several fronts.
_MAX_CANDIDATES = 300
# Draws are rounded to what a page can contain exactly: accuracies to 16-bit multiples of 0.002 points, times and memory
# to 32-bit floats.
ACCURACY_STEPS = 50_000


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """``rows`` are the candidates' places among the configurations (shape ``[k]``); ``draws`` plausible true values of
    ``names``, shape ``[draws, k, m]``, ``estimates`` the most plausible ones, shape ``[k, m]``; ``p_front`` the
    probability of being on the Pareto front of the study's objectives among all candidates, shape ``[k]``;
    ``num_seeds`` the fresh seeds that each was trained with, shape ``[k]``."""

    records: ComparableTrials
    limits: Limits
    names: tuple[str, ...]
    rows: Numbers
    draws: Values
    estimates: Values
    num_seeds: Numbers
    p_front: Values

    @property
    def rules(self) -> AnswerRules:
        """The study's tolerance and confidence; the defaults where it is not on record."""
        return self.records.spec.answer if self.records.spec else AnswerRules()

    @property
    def nameable(self) -> Mask:
        """Which candidates have enough fresh seeds to be named; shape ``[k]``."""
        return np.asarray(self.num_seeds >= FEWEST_SEEDS)

    def values(self, name: str, table: Values | None = None) -> Values:
        """One metric of ``table`` (by default the estimates), shape ``[..., k]``; NaN where it was not measured."""
        whole = self.estimates if table is None else table
        if name not in self.names:
            return np.full(whole.shape[:-1], np.nan)
        return np.asarray(whole[..., self.names.index(name)])

    def number(self, place: int) -> int:
        """The number of a candidate's first trial."""
        return int(self._numbers[self.rows[place]])

    @cached_property
    def _numbers(self) -> Values:
        return read_numbers(self.records.frame, "number")

    def basis_of(self, place: int) -> Numbers:
        """The rows of complete trials that a candidate's values rest on; shape ``[seeds]``."""
        return self.records.basis_of(int(self.rows[place]))

    def is_time_doubtful(self, place: int) -> bool:
        """Whether the candidate has a training time, and none that can be used for certain."""
        return SECONDS in self.names and bool(self.records.has_doubtful_time[self.rows[place]])

    def least_useful(self, accuracies: Values, margin: float = ACCURACY_MARGIN) -> Values:
        """The accuracy from which on a configuration is useful when ``accuracies`` (shape ``[..., k]``) are true; shape
        ``[..., 1]``: the limit, otherwise ``margin`` below the best."""
        if self.limits.min_accuracy is not None:
            return np.full((*accuracies.shape[:-1], 1), self.limits.min_accuracy)
        return np.asarray(np.nanmax(accuracies, axis=-1, keepdims=True) - margin)

    @property
    def floor(self) -> float:
        """The least useful accuracy by the estimates."""
        return float(self.least_useful(self.values(ACCURACY))[0])

    def within_limits(self, table: Values | None = None) -> Mask:
        """Which candidates keep to the limits; shape ``[..., k]``."""
        inside = np.ones((self.estimates if table is None else table).shape[:-1], dtype=np.bool_)
        if self.limits.min_accuracy is not None:
            inside &= self.values(ACCURACY, table) >= self.limits.min_accuracy
        if self.limits.max_seconds is not None:
            inside &= self.values(SECONDS, table) <= self.limits.max_seconds
        if self.limits.max_memory_bytes is not None:
            inside &= self.values(MEMORY, table) <= self.limits.max_memory_bytes
        return inside


def select_candidates(records: ComparableTrials, limits: Limits) -> Candidates | None:
    """The candidates of ``records``; None where no complete trial has an accuracy."""
    objectives = records.spec.objectives if records.spec else USUAL_OBJECTIVES
    posteriors = [records.posterior(name) for name in dict.fromkeys((*objectives, *USUAL_OBJECTIVES))]
    known = [posterior for posterior in posteriors if np.isfinite(posterior.centers).any()]
    names = tuple(posterior.name for posterior in known)
    if ACCURACY not in names:
        return None
    estimates = np.stack([posterior.estimates for posterior in known], axis=1)
    signs = np.array([METRICS[name].sign for name in names])
    is_objective = np.isin(names, objectives)
    costs, confirmed = estimates * signs, records.grouping.confirmed
    rows = _select_rows(costs[:, is_objective], costs[:, names.index(ACCURACY)], confirmed)
    place, generator = names.index(ACCURACY), np.random.default_rng(_RESPONSE_SEED)
    with _find_threads().limit(limits=1):  # several wait for each other longer than one takes
        draws = draw_all(known, rows, _NUM_DRAWS)
        response = draw_response(records, rows, draws[..., place], estimates[rows, place], generator)
    draws[..., place], estimates[rows, place] = response.draws, response.estimates
    _round_draws(draws, names)
    return Candidates(
        records=records,
        limits=limits,
        names=names,
        rows=rows,
        draws=draws,
        estimates=estimates[rows],
        num_seeds=records.num_seeds[rows],
        p_front=front_probabilities(draws[..., is_objective], signs[is_objective]),
    )


@cache
def _find_threads() -> ThreadpoolController:
    return ThreadpoolController()  # it searches all loaded libraries


def _round_draws(draws: Values, names: tuple[str, ...]) -> None:
    for place, name in enumerate(names):
        if name == ACCURACY:
            draws[..., place] = np.rint(draws[..., place] * ACCURACY_STEPS) / ACCURACY_STEPS
        elif name in (SECONDS, MEMORY):
            held = np.finfo(np.float32)
            draws[..., place] = np.clip(draws[..., place], held.tiny, held.max).astype(np.float32)


def _select_rows(costs: Values, misses: Values, confirmed: Mask) -> Numbers:
    # all that were confirmed, the most accurate, and fronts behind fronts until there are enough
    usable = np.isfinite(misses)
    chosen = confirmed & usable
    best = np.argsort(np.where(usable, misses, np.inf), kind="stable")[: _MAX_CANDIDATES // 3]
    chosen[best[usable[best]]] = True
    rest = np.where((usable & ~chosen)[:, None], costs, np.nan)
    while chosen.sum() < _MAX_CANDIDATES:
        layer = np.flatnonzero(non_dominated(rest))
        if not len(layer):
            break
        layer = layer[np.linspace(0, len(layer) - 1, min(len(layer), _MAX_CANDIDATES)).astype(np.int64)]
        chosen[layer] = True
        rest[chosen] = np.nan
    return np.flatnonzero(chosen)
