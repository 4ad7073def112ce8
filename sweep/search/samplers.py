"""The samplers by name: Optuna's, and a search of its own for each batch size.

Grid, random and quasi-random points are functions of their index. Every proposal is seeded by the study's seed and the
trial's number, so a resumed study proposes what an uninterrupted one would.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState

from sweep.config.space import count_grid_points, draw_point, pick_grid_point
from sweep.config.study import StudySpec, is_batch_key
from sweep.config.trial import replace_keys
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
_Maker = Callable[[StudySpec, Sequence[TrialRecord]], Sampler]


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
        self._study.sampler = self._make(_mix(self._spec.seed, index))
        trial = self._study.ask(self._distributions)
        self._asked[_key(trial.params)] = trial
        return from_optuna_params(self._spec.space, trial.params)

    def learn(self, record: TrialRecord) -> None:
        self._records.append(record)
        self._add(record)

    def _add(self, record: TrialRecord) -> None:
        worst = find_worst_values(self._records, self._spec) if record.outcome in INFEASIBLE else []
        frozen = make_frozen_trial(record, self._spec, worst)
        trial = self._asked.pop(_key(frozen.params), None)
        if trial is None:
            self._study.add_trial(self._with_generation(frozen))
            return
        for name, value in frozen.constraints.items():
            trial.set_constraint(name, value)
        values = frozen.values if frozen.state == TrialState.COMPLETE else None
        self._study.tell(trial, values=values, state=frozen.state)

    def _with_generation(self, trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
        # a genetic sampler finds parents by generation, which is not recorded
        if self._generation_size:
            num_trials = len(self._study.get_trials(deepcopy=False))
            trial.system_attrs["NSGAIISampler:generation"] = num_trials // self._generation_size
        return trial

    def _rebuild(self) -> None:
        self._study = self._empty_study()
        self._asked.clear()
        for record in select_window(self._records, self._spec):
            self._add(record)

    def _empty_study(self) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(directions=list_directions(self._spec), sampler=self._make(self._spec.seed))


def _mix(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _key(params: dict[str, Any]) -> str:
    return repr(sorted(params.items()))


@final
class _RetuningSampler(Sampler):
    """Each combination of batch parameters, in turn, gets a sampler of its own for the other parameters, which ``make``
    makes for a study of these alone."""

    def __init__(self, spec: StudySpec, records: Sequence[TrialRecord], make: _Maker) -> None:
        self._spec, self._make = spec, make
        self._outer = {path: item for path, item in spec.space.items() if is_batch_key(path)}
        self._inner = {path: item for path, item in spec.space.items() if not is_batch_key(path)}
        self._num_combinations = count_grid_points(self._outer) or 1
        self._samplers: dict[str, Sampler] = {}
        self._records: dict[str, list[TrialRecord]] = defaultdict(list)
        for record in records:
            self._records[self._key(record.values)].append(record)

    def propose(self, index: int) -> dict[str, Any] | None:
        for turn in range(self._num_combinations):
            combination = pick_grid_point(self._outer, (index + turn) % self._num_combinations)
            point = self._sampler(combination).propose(index // self._num_combinations)
            if point is not None:
                return combination | point
        return None

    def learn(self, record: TrialRecord) -> None:
        key = self._key(record.values)
        if key in self._samplers:
            self._samplers[key].learn(record)
        else:
            self._records[key].append(record)

    def _sampler(self, combination: dict[str, Any]) -> Sampler:
        key = self._key(combination)
        if key not in self._samplers:
            trials = max(1, self._spec.trials // self._num_combinations)
            base = replace_keys(self._spec.base, combination)
            inner = self._spec.model_copy(update={"base": base, "space": self._inner, "trials": trials, "retune": ()})
            self._samplers[key] = self._make(inner, self._records.pop(key, []))
        return self._samplers[key]

    def _key(self, values: Any) -> str:
        return make_point_key({path: values[path] for path in self._outer})


def make_sampler(spec: StudySpec, records: Sequence[TrialRecord], predict: PredictCost | None = None) -> Sampler:
    """The sampler that the study names, which learns from the ended search trials in ``records``; a cost-aware one also
    uses predictions from probes (``predict``)."""
    make = _SAMPLERS[spec.sampler]
    if predict and spec.sampler == "cost_aware":
        make = partial(CostAwareSampler, predict=predict)
    if spec.retune:
        return _RetuningSampler(spec, records, make)
    return make(spec, records)


def _grid(spec: StudySpec, _records: Sequence[TrialRecord]) -> Sampler:
    size = count_grid_points(spec.space) or 0
    return PointSampler(lambda index: pick_grid_point(spec.space, index) if index < size else None)


def _nsga2(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
    size = min(50, max(8, spec.trials // 5))
    return _OptunaSampler(spec, records, lambda seed: NSGAIISampler(seed=seed, population_size=size), size)


_SAMPLERS: dict[str, Callable[[StudySpec, Sequence[TrialRecord]], Sampler]] = {
    "tpe": lambda spec, records: _OptunaSampler(spec, records, lambda seed: TPESampler(seed=seed)),
    "nsga2": _nsga2,
    "gp": lambda spec, records: _OptunaSampler(spec, records, lambda seed: GPSampler(seed=seed)),
    "cost_aware": CostAwareSampler,
    "qmc": lambda spec, _records: PointSampler(SobolPoints(spec.space, spec.seed)),
    "random": lambda spec, _records: PointSampler(lambda index: draw_point(spec.space, spec.seed, index)),
    "grid": _grid,
}
