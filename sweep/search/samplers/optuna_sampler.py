"""Optuna's samplers over an in-memory study that is rebuilt from the records, over a bounded window."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from sweep.config.study import StudySpec
from sweep.records.messages import INFEASIBLE
from sweep.records.trial_record import TrialRecord
from sweep.search.mirror.optuna_conversion import (
    find_worst_values,
    from_optuna_params,
    list_directions,
    make_distributions,
    make_frozen_trial,
)
from sweep.search.samplers.base import WINDOW, Sampler, select_window

_SLACK = 100  # by how many trials the window may grow before it is rebuilt


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
