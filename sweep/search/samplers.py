"""The samplers by name, those of Optuna among them.

Grid, random and quasi-random points are functions of their index. Every proposal is seeded by the study's seed and the
trial's number, so a resumed study proposes what an uninterrupted one would.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState

from sweep.config.space import count_grid_points, draw_point, pick_grid_point
from sweep.config.study import StudySpec
from sweep.records.messages import INFEASIBLE
from sweep.records.records import TrialRecord
from sweep.search.cost_aware import CostAwareSampler
from sweep.search.optuna import (
    find_worst_values,
    from_optuna_params,
    list_directions,
    make_distributions,
    make_frozen_trial,
)
from sweep.search.sampler import WINDOW, PointSampler, PredictCost, Sampler, SobolPoints, make_point_key, select_window

_SLACK = 100  # by how many trials the window may grow before it is rebuilt


@final
class _OptunaSampler(Sampler):
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
        self._distributions = make_distributions(spec.space)
        self._records = list(records)
        self._asked: dict[str, optuna.Trial] = {}
        self._rebuild()

    def propose(self, index: int) -> dict[str, Any] | None:
        if len(self._study.get_trials(deepcopy=False)) > WINDOW + _SLACK:
            self._rebuild()
        seed = int(np.random.SeedSequence([self._spec.seed, index]).generate_state(1)[0])
        self._study.sampler = self._make(seed)
        trial = self._study.ask(self._distributions)
        self._asked[make_point_key(trial.params)] = trial
        return from_optuna_params(self._spec.space, trial.params)

    def learn(self, record: TrialRecord) -> None:
        self._records.append(record)
        self._add(record)

    def _add(self, record: TrialRecord) -> None:
        worst = find_worst_values(self._records, self._spec) if record.outcome in INFEASIBLE else []
        frozen = make_frozen_trial(record, self._spec, worst)
        trial = self._asked.pop(make_point_key(frozen.params), None)
        if trial is None:
            if self._generation_size:  # a genetic sampler finds parents by generation, which is not recorded
                num_trials = len(self._study.get_trials(deepcopy=False))
                frozen.system_attrs["NSGAIISampler:generation"] = num_trials // self._generation_size
            self._study.add_trial(frozen)
            return
        for name, value in frozen.constraints.items():
            trial.set_constraint(name, value)
        values = frozen.values if frozen.state == TrialState.COMPLETE else None
        self._study.tell(trial, values=values, state=frozen.state)

    def _rebuild(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = list_directions(self._spec)
        self._study = optuna.create_study(directions=directions, sampler=self._make(self._spec.seed))
        self._asked.clear()
        for record in select_window(self._records, self._spec):
            self._add(record)


def make_sampler(
    spec: StudySpec,
    records: Sequence[TrialRecord],
    predict: PredictCost | None = None,
    chance: float | None = None,
) -> Sampler:
    """The sampler that the study names, which learns from the ended search trials in ``records``; a cost-aware one also
    uses predictions from probes (``predict``) and the accuracy of a model that has learned nothing (``chance``)."""
    generation_size = min(50, max(8, spec.trials // 5))
    match spec.sampler:
        case "tpe":
            return _OptunaSampler(spec, records, lambda seed: TPESampler(seed=seed))
        case "gp":
            return _OptunaSampler(spec, records, lambda seed: GPSampler(seed=seed))
        case "nsga2":
            return _OptunaSampler(
                spec, records, lambda seed: NSGAIISampler(seed=seed, population_size=generation_size), generation_size
            )
        case "qmc":
            return PointSampler(SobolPoints(spec.space, spec.seed))
        case "random":
            return PointSampler(lambda index: draw_point(spec.space, spec.seed, index))
        case "grid":
            size, points = count_grid_points(spec.space) or 0, spec.list_points()
            if points is not None:
                return PointSampler(lambda index: points[index] if index < len(points) else None)
            return PointSampler(lambda index: pick_grid_point(spec.space, index) if index < size else None)
    return CostAwareSampler(spec, records, predict, chance)
