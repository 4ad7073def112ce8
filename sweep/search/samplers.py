"""Where the next configuration comes from.

Optuna is not on the critical path: grid, random and quasi-random points are a function of their index; Optuna's
samplers see an in-memory study rebuilt from the records, over a bounded window. Every proposal is seeded by the
study's seed and the trial's number, so a continued study proposes what an unbroken one would have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState

from sweep.analysis.pareto import non_dominated
from sweep.records.messages import INFEASIBLE
from sweep.records.rows import TrialRecord
from sweep.search.confirm import complete_costs
from sweep.search.costs import Known
from sweep.search.optuna_bridge import directions, distributions, from_optuna_params, frozen_trial, worst_values
from sweep.search.sobol import SobolPoints
from sweep.spec.space import grid_point, grid_size, random_point
from sweep.spec.study import StudySpec

# A sampler's cost grows with what it sees: MO-TPE takes 400 ms at 10,000 trials. Beyond 250 it calls no more
# of them good, so that further ones sharpen the picture of the bad alone.
WINDOW = 600
_SLACK = 100  # how far the window may grow before it is rebuilt


class Sampler(ABC):
    """Proposes points of the space and learns from ended trials."""

    @abstractmethod
    def propose(self, index: int) -> dict[str, Any] | None:
        """Values for search trial ``index``; None when there are no more points."""

    @abstractmethod
    def learn(self, record: TrialRecord) -> None:
        """Takes an ended search trial into account."""


@final
class PointSampler(Sampler):
    """A sequence whose points depend on the index alone."""

    def __init__(self, point: Callable[[int], dict[str, Any] | None]) -> None:
        self._point = point

    def propose(self, index: int) -> dict[str, Any] | None:
        return self._point(index)

    def learn(self, record: TrialRecord) -> None:
        del record  # a fixed sequence learns nothing


@final
class OptunaSampler(Sampler):
    """An Optuna sampler over an in-memory study."""

    def __init__(
        self,
        spec: StudySpec,
        records: Sequence[TrialRecord],
        make: Callable[[int], BaseSampler],
        generation_size: int | None = None,
    ) -> None:
        self._spec = spec
        self._make = make
        self._generation_size = generation_size
        self._distributions = distributions(spec.space)
        self._records = list(records)
        self._asked: dict[str, optuna.Trial] = {}
        self._rebuild()

    def propose(self, index: int) -> dict[str, Any] | None:
        if len(self._study.get_trials(deepcopy=False)) > WINDOW + _SLACK:
            self._rebuild()
        self._study.sampler = self._make(_mix(self._spec.seed, index))
        trial = self._study.ask(self._distributions)
        self._asked[_key(trial.params)] = trial
        return from_optuna_params(self._spec.space, trial.params)

    def learn(self, record: TrialRecord) -> None:
        self._records.append(record)
        self._add(record)

    def _add(self, record: TrialRecord) -> None:
        worst = worst_values(self._records, self._spec) if record.outcome in INFEASIBLE else []
        told = frozen_trial(record, self._spec, worst)
        trial = self._asked.pop(_key(told.params), None)
        if trial is None:
            self._study.add_trial(self._with_generation(told))
            return
        for name, value in told.constraints.items():
            trial.set_constraint(name, value)
        values = told.values if told.state == TrialState.COMPLETE else None
        self._study.tell(trial, values=values, state=told.state)

    def _with_generation(self, trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
        # a genetic sampler finds its parents by generation, which records do not know
        if self._generation_size:
            known = len(self._study.get_trials(deepcopy=False))
            trial.system_attrs["NSGAIISampler:generation"] = known // self._generation_size
        return trial

    def _rebuild(self) -> None:
        self._study = self._empty_study()
        self._asked.clear()
        for record in window(self._records, self._spec):
            self._add(record)

    def _empty_study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(directions=directions(self._spec), sampler=self._make(self._spec.seed))


def window(records: list[TrialRecord], spec: StudySpec, size: int = WINDOW) -> list[TrialRecord]:
    """At most ``size`` records in their order: the front (of a large one an even spread), the latest half, and an even
    spread of the rest."""
    if len(records) <= size:
        return records
    complete, costs = complete_costs(records, spec.objectives)
    front = [record.number for record, keep in zip(complete, non_dominated(costs), strict=True) if keep]
    chosen = {record.number for record in records[-(size // 2) :]} | _spread(front, size // 4)
    rest = [record.number for record in records if record.number not in chosen]
    chosen |= _spread(rest, size - len(chosen))
    return [record for record in records if record.number in chosen]


def _spread(numbers: Sequence[int], count: int) -> set[int]:
    return {numbers[int(place)] for place in np.linspace(0, len(numbers) - 1, min(count, len(numbers)))}


def make_sampler(spec: StudySpec, records: Sequence[TrialRecord], known: Known | None = None) -> Sampler:
    """The sampler that the study names, knowing the ended search trials in ``records``; one that weighs costs also
    knows what probes say (``known``)."""
    make = _SAMPLERS[spec.sampler]
    if known and spec.sampler == "cost_aware":
        make = partial(_cost_aware, known=known)
    if spec.retune:
        from sweep.search.retuning import RetuningSampler  # not at the top: it builds on this module

        return RetuningSampler(spec, records, make)
    return make(spec, records)


def _grid(spec: StudySpec, _records: Sequence[TrialRecord]) -> Sampler:
    size = grid_size(spec.space) or 0
    return PointSampler(lambda index: grid_point(spec.space, index) if index < size else None)


def _random(spec: StudySpec, _records: Sequence[TrialRecord]) -> Sampler:
    return PointSampler(lambda index: random_point(spec.space, spec.seed, index))


def _qmc(spec: StudySpec, _records: Sequence[TrialRecord]) -> Sampler:
    return PointSampler(SobolPoints(spec.space, spec.seed))


def _tpe(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
    return OptunaSampler(spec, records, lambda seed: TPESampler(seed=seed))


def _nsga2(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
    size = min(50, max(8, spec.trials // 5))
    return OptunaSampler(spec, records, lambda seed: NSGAIISampler(seed=seed, population_size=size), size)


def _gp(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
    return OptunaSampler(spec, records, lambda seed: GPSampler(seed=seed))


def _cost_aware(spec: StudySpec, records: Sequence[TrialRecord], known: Known | None = None) -> Sampler:
    from sweep.search.cost_aware import CostAwareSampler  # not at the top: it builds on this module

    return CostAwareSampler(spec, records, known)


_SAMPLERS: dict[str, Callable[[StudySpec, Sequence[TrialRecord]], Sampler]] = {
    "tpe": _tpe,
    "nsga2": _nsga2,
    "gp": _gp,
    "cost_aware": _cost_aware,
    "qmc": _qmc,
    "random": _random,
    "grid": _grid,
}


def _mix(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _key(params: dict[str, Any]) -> str:
    return repr(sorted(params.items()))
