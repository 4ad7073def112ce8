"""Stops a search trial that cannot reach the Pareto front any more, for any number of objectives.

An evaluation stops a trial where two conditions hold. The trial was behind at the last rung of the schedule, by
non-dominated rank; and a complete trial dominates its best plausible end, at the time and the memory that it will have
taken. The first condition alone would stop slow starters that end on the front, the second alone would judge before
the curves differ.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from sweep.analysis.statistics import Values, front_rank, median_errors, non_dominated
from sweep.config.metrics import IMAGES, Quality, find_metric
from sweep.config.sections import BudgetSection
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.probing.shape import derive_shape, find_largest_accumulation
from sweep.records.messages import Evaluation, Progress
from sweep.records.quality import find_time_doubts
from sweep.records.records import TrialRecord
from sweep.records.store import Store

_GRID = 101  # shares at which curves are kept
_NUM_CURVES = 1000  # the latest are kept
# A bound that holds for this many independent curves fails for the next in 1 of 21 cases, before any margin for noise.
NUM_NEAREST = 20
_MARGIN = 3.0  # standard deviations of the noise between two seeds
_RUNGS = (1 / 9, 1 / 3)  # shares of the schedule
_REDUCTION = 3  # of those at a rung, one in three is ahead
SECONDS, MEMORY = "train_seconds", "peak_memory_bytes"
_CURVES = frozenset({"val_accuracy", "val_loss", "quality"})
_NUM_RESTORED = 500  # curves that are read when a study is resumed
_NO_DIFFERENCE = 1e-9


@final
class CurveFamily:
    """Whole curves of one quantity. ``is_share``: it is between 0 and 1, counted on a finite number of samples."""

    def __init__(self, *, is_share: bool = False) -> None:
        self._is_share = is_share
        self._shares = np.linspace(0.0, 1.0, _GRID)
        self._costs = np.empty((0, _GRID))
        self._roughness: list[float] = []

    def __len__(self) -> int:
        return len(self._costs)

    def add(self, shares: Sequence[float], costs: Sequence[float]) -> None:
        """Adds a complete curve; ``shares`` and ``costs`` have shape ``[points]``, shares ascend, the last is taken as
        1."""
        if not np.isfinite(costs).all() or not len(costs):
            return
        known = np.array([*shares[:-1], 1.0])
        # A curve has no value before its first evaluation.
        row = np.where(self._shares >= known[0] - 1e-9, np.interp(self._shares, known, costs), np.nan)
        self._costs = np.vstack([self._costs, row])[-_NUM_CURVES:]
        self._roughness = [*self._roughness, _measure_roughness(known, np.asarray(costs))][-_NUM_CURVES:]

    def best_end(self, share: float, cost: float) -> float:
        """The smallest end that is plausible for a curve with ``cost`` at ``share``; -inf where too little is known.

        It is the better of two, less a margin for noise: ``cost`` less the largest gain that any of the nearest curves
        still made, and the best end of a curve that was no better at this share.
        """
        known = self._known_at(share)
        if known is None:
            return -np.inf
        at, ends = known
        from_behind = np.min(ends[at >= cost], initial=np.inf)
        by_gain = cost - np.max(_nearest_gains(at, ends, cost))
        return float(min(by_gain, from_behind, cost) - _MARGIN * np.sqrt(2.0) * self.noise())

    def likely_end(self, share: float, cost: float) -> tuple[float, float]:
        """The median end of a curve with ``cost`` at ``share``, and its standard error: how differently the nearest
        curves continued from there, and the error of their median. ``cost`` and infinity where too little is known."""
        known = self._known_at(share)
        if known is None:
            return cost, np.inf
        gains = _nearest_gains(*known, cost)
        error = float(median_errors(np.array([len(gains)]))[0])
        return float(cost - np.median(gains)), float(gains.std(ddof=1) * np.hypot(1.0, error))

    def noise(self) -> float:
        """Standard deviation of an end between seeds, as far as single curves show it: how much they vary towards
        their end and, for a share, the binomial error of counting it on as many samples as its resolution implies."""
        roughness = float(np.sqrt(np.mean(np.square(self._roughness)))) if self._roughness else 0.0
        ends, counting = np.unique(np.round(self._costs[:, -1], 9)), 0.0
        if self._is_share and len(ends) > 1:
            middle = float(np.clip(np.median(np.abs(ends)), 0.0, 1.0))
            counting = float(np.sqrt(middle * (1.0 - middle) * np.diff(ends).min()))
        return float(np.hypot(roughness, counting))

    def _known_at(self, share: float) -> tuple[Values, Values] | None:
        """Costs at the share and at the end, of the curves that reach back to it; None if these are too few."""
        position = min(max(share, 0.0), 1.0) * (_GRID - 1)
        low = int(position)
        high = min(low + 1, _GRID - 1)
        at = self._costs[:, low] + (position - low) * (self._costs[:, high] - self._costs[:, low])
        known = np.isfinite(at)
        return (at[known], self._costs[known, -1]) if known.sum() >= NUM_NEAREST else None


def _nearest_gains(at: Values, ends: Values, cost: float) -> Values:
    nearest = np.argsort(np.abs(at - cost), kind="stable")[:NUM_NEAREST]
    return np.asarray(at[nearest] - ends[nearest])


def _measure_roughness(shares: Values, costs: Values) -> float:
    """How far evaluations of the last third are from the line between their neighbors."""
    late = costs[shares >= 2.0 / 3.0]
    if len(late) < 3:
        return 0.0
    bends = late[:-2] - 2.0 * late[1:-1] + late[2:]
    return float(np.sqrt(np.mean(bends**2) / 6.0))


def _measure_budget_share(budget: BudgetSection, evaluation: Evaluation) -> float | None:
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


def _make_cost_key(config: TrialConfig) -> str:
    """Equal for configurations whose trainings take the same time and memory: equal in shape, accumulation and
    budget."""
    budget = config.apply_rules().budget.model_dump_json()
    return f"{derive_shape(config).text} {find_largest_accumulation(config)} {budget}"


@final
@dataclass(kw_only=True)
class _RunningCurves:
    """The evaluations of one trial: shares of its schedule, and for each objective that changes over it the costs.

    A cost of ``train_seconds`` is the logarithm of the seconds that the whole budget would take at the pace so far.
    """

    key: str  # see :func:`_make_cost_key`
    shares: list[float] = field(default_factory=list)
    costs: dict[str, list[float]] = field(default_factory=dict)
    num_rungs: int = 0  # that the trial has passed
    is_ahead: bool = True  # at the last of them; True before the first

    def add(self, share: float, evaluation: Evaluation, quality: Quality) -> None:
        """Takes an evaluation into account; a repeated one, or one without a time, is left out."""
        if (self.shares and share <= self.shares[-1]) or not evaluation.train_seconds > 0:
            return
        self.shares.append(share)
        reported = {name: getattr(evaluation, name) for name in _CURVES}
        # what a script does not report is NaN, which no objective is
        costs = {name: _cost(name, math.nan if value is None else value, quality) for name, value in reported.items()}
        costs[SECONDS] = math.log(evaluation.train_seconds / share)
        for name, cost in costs.items():
            self.costs.setdefault(name, []).append(cost)

    def last(self, name: str) -> float:
        return self.costs[name][-1]


def _is_ahead(rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Whether the last of ``rows`` is ahead of the others at a rung: asynchronous successive halving (Li et al. 2020,
    arXiv:1810.05934) ranked by dominance (Schmucker et al. 2021, arXiv:2106.12639)."""
    ranks = front_rank(rows)
    if ranks[-1] <= 0:  # on the front, or without a rank because a cost is unknown
        return True
    return bool(np.sum((ranks >= 0) & (ranks < ranks[-1])) < len(rows) / _REDUCTION)


@final
class FrontPruner:
    """Decides which running search trials of a study are stopped early."""

    def __init__(self, objectives: Sequence[str], quality: Quality = IMAGES) -> None:
        self._objectives, self._quality = list(objectives), quality
        followed = [name for name in self._objectives if name in _CURVES] + [SECONDS]
        shares = {name for name in followed if find_metric(name, quality).unit_facts.is_share}
        self._families = {name: CurveFamily(is_share=name in shares) for name in followed}
        self._rungs: list[list[list[float]]] = [[] for _ in _RUNGS]  # costs of the trials that reached each rung
        self._curves: dict[int, _RunningCurves] = {}
        self._progress: dict[int, Progress] = {}
        self._likely_ends: dict[int, tuple[dict[str, float | int], dict[str, float]]] = {}  # with their errors
        self._memory: dict[str, float] = {}  # by cost key, as measured
        self._device = ""
        self._rivals = np.empty((0, len(self._objectives)))
        # Between trials of equal time and memory the other objectives decide, however noisy their measurement.
        self._judged = [index for index, name in enumerate(self._objectives) if name in _CURVES]
        self._peers: dict[str, Values] = defaultdict(lambda: np.empty((0, len(self._judged))))

    # ------------------------------------------------------------------ while a trial runs

    def should_prune(self, record: TrialRecord, message: Progress | Evaluation) -> bool:
        """Takes a message of a running trial into account; returns whether to stop the trial."""
        if isinstance(message, Evaluation):
            return self._is_dominated(record, message)
        self._progress[record.number] = message
        return False

    def partial_measurements(self, number: int) -> dict[str, float | int]:
        """The measurements that a running trial has reported so far, for its ending."""
        progress = self._progress.get(number)
        return {MEMORY: progress.peak_memory_bytes} if progress and progress.peak_memory_bytes is not None else {}

    def _is_dominated(self, record: TrialRecord, evaluation: Evaluation) -> bool:
        curves = self._follow(record, evaluation)
        if curves is None or curves.is_ahead or curves.shares[-1] >= 1.0:
            return False
        ends = self._best_ends(record.number, curves)
        if (self._peers[curves.key] < ends[self._judged] - _NO_DIFFERENCE).all(axis=1).any():
            return True
        progress = self._progress.get(record.number)
        if progress is not None and find_time_doubts(progress.quality_flags):
            return False
        worse_nowhere = (self._rivals <= ends + _NO_DIFFERENCE).all(axis=1)
        better_somewhere = (self._rivals < ends - _NO_DIFFERENCE).any(axis=1)
        return bool((worse_nowhere & better_somewhere).any())

    def _follow(self, record: TrialRecord, evaluation: Evaluation) -> _RunningCurves | None:
        share = _measure_budget_share(record.config.apply_rules().budget, evaluation)
        if not share:
            return None
        if record.number not in self._curves:
            self._curves[record.number] = _RunningCurves(key=_make_cost_key(record.config))
        curves = self._curves[record.number]
        curves.add(share, evaluation, self._quality)
        if not curves.shares:
            return None
        costs = {name: curves.last(name) for name in curves.costs}
        costs[MEMORY] = self._memory_of(record.number, curves.key)
        while curves.num_rungs < len(_RUNGS) and curves.shares[-1] >= _RUNGS[curves.num_rungs]:
            rung = self._rungs[curves.num_rungs]
            rung.append([costs[name] for name in self._objectives])  # NaN if unknown
            curves.num_rungs += 1
            curves.is_ahead = _is_ahead(np.array(rung))
        return curves

    def _best_ends(self, number: int, curves: _RunningCurves) -> Values:
        share = curves.shares[-1]
        ends = {name: family.best_end(share, curves.last(name)) for name, family in self._families.items()}
        memory = self._memory_of(number, curves.key)
        ends[MEMORY] = -np.inf if math.isnan(memory) else memory
        return np.array([ends[name] for name in self._objectives])

    def _memory_of(self, number: int, key: str) -> float:
        progress = self._progress.get(number)
        if progress is not None and progress.peak_memory_bytes is not None:
            return float(progress.peak_memory_bytes)
        return self._memory.get(key, math.nan)

    # ------------------------------------------------------------------ what ended trials contribute

    def restore_trial(self, record: TrialRecord, evaluations: Iterable[Evaluation]) -> None:
        """Takes an ended search trial of an earlier run into account."""
        if (memory := record.measurements.get(MEMORY)) is not None:
            self._progress[record.number] = Progress(
                step=0, num_steps=0, epoch=0.0, images_per_second=0.0, peak_memory_bytes=int(memory)
            )
        for evaluation in evaluations:
            self._follow(record, evaluation)
        self.learn(record)

    def learn(self, record: TrialRecord) -> None:
        curves = self._curves.pop(record.number, _RunningCurves(key=""))
        self._progress.pop(record.number, None)
        if record.outcome == "pruned" and curves.shares:
            self._likely_ends[record.number] = self._extrapolate(curves)
        if record.outcome == "complete":
            if curves.shares:
                for name, family in self._families.items():
                    family.add(curves.shares, curves.costs[name])
            self._add_rival(record)

    def extrapolate_record(self, record: TrialRecord) -> TrialRecord:
        """The record with the likely final measurements of a pruned trial and their standard errors, for a sampler; any
        other unchanged."""
        if record.number not in self._likely_ends:
            return record
        ends, errors = self._likely_ends[record.number]
        return replace(record, measurements=record.measurements | ends, errors=errors)

    def _extrapolate(self, curves: _RunningCurves) -> tuple[dict[str, float | int], dict[str, float]]:
        ends: dict[str, float | int] = {}
        errors: dict[str, float] = {}
        for name, family in self._families.items():
            end, error = family.likely_end(curves.shares[-1], curves.last(name))
            if name == SECONDS:
                ends[name], errors[name] = math.exp(end), math.exp(end) * error
            else:
                ends[name], errors[name] = find_metric(name, self._quality).sign * end, error
        return ends, errors

    def _add_rival(self, record: TrialRecord) -> None:
        measured, key = record.measurements, _make_cost_key(record.config)
        if record.device != self._device:  # times and memory of another device are not comparable
            self._device, self._rivals = record.device, self._rivals[:0]
            self._memory.clear()
        if (memory := measured.get(MEMORY)) is not None:
            self._memory[key] = float(memory)
        if any(name not in measured for name in self._objectives):
            return
        row = np.array([_cost(name, measured[name], self._quality) for name in self._objectives])
        self._peers[key] = _front(np.vstack([self._peers[key], row[self._judged]]))
        if SECONDS not in self._objectives or SECONDS not in record.errors:
            self._rivals = _front(np.vstack([self._rivals, row]))


def make_pruner(spec: StudySpec, store: Store, ended: Sequence[TrialRecord]) -> FrontPruner | None:
    """The pruner that the study names, which learns from the latest ``ended`` search trials; None stops no trial."""
    if spec.pruner == "none":
        return None
    pruner = FrontPruner(spec.objectives, spec.quality)
    for record in ended[-_NUM_RESTORED:]:
        if record.outcome in ("complete", "pruned"):
            pruner.restore_trial(record, store.evaluations(spec.name, record.number))
    return pruner


def _cost(name: str, value: float, quality: Quality) -> float:
    return math.log(value) if name == SECONDS else find_metric(name, quality).sign * float(value)


def _front(rows: Values) -> Values:
    return np.unique(rows[non_dominated(rows)], axis=0) if rows.shape[1] else rows[:0]
