"""Space and records in Optuna's words, against Optuna itself."""

import math

import optuna
import pytest
from optuna.trial import TrialState

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import flatten_config
from sweep.records.records import TrialRecord
from sweep.search.optuna import (
    find_worst_values,
    from_optuna_params,
    list_directions,
    make_distributions,
    make_frozen_trial,
    to_optuna_params,
)


def _spec() -> StudySpec:
    space = {
        "batch.micro": {"log2": [5, 10]},
        "batch.accumulation": {"int": [1, 4]},
        "optimizer.lr": {"log": [1e-3, 1.0]},
        "optimizer.weight_decay": {"float": [0.0, 1e-3]},
        "precision.channels_last": {"choice": [True, False]},
        "data.subset": {"choice": [None, 100]},
        "budget.epochs": {"choice": [1, 2]},
    }
    return build_study({"name": "s", "space": space}, "test")


def _record(spec: StudySpec, u: float, number: int = 0, **fields: object) -> TrialRecord:
    values = {path: parameter.at(u) for path, parameter in spec.space.items()}
    record = {"number": number, "phase": "search", "values": flatten_config(spec.config(values)), "outcome": "complete"}
    return TrialRecord(**{**record, **fields})


@pytest.mark.parametrize("u", [0.0, 0.3, 0.999999])
def test_params_round_trip_and_lie_in_the_distributions(u: float) -> None:
    spec = _spec()
    record = _record(spec, u)
    params = to_optuna_params(spec.space, record.values)
    assert params["batch.micro (log2)"] == math.log2(record.config.batch.micro)
    for name, distribution in make_distributions(spec.space).items():
        assert distribution._contains(distribution.to_internal_repr(params[name]))
    again = spec.config(from_optuna_params(spec.space, params))
    assert again.model_copy(update={"optimizer": record.config.optimizer}) == record.config
    assert again.optimizer.lr == pytest.approx(record.config.optimizer.lr, rel=1e-12)


def test_a_value_outside_the_space_is_refused() -> None:
    spec = _spec()
    values = _record(spec, 0.5).values
    for path, value in [("batch.micro", 48), ("batch.micro", 2048), ("optimizer.lr", 2.0), ("data.subset", 7)]:
        with pytest.raises(ValueError, match=path):
            to_optuna_params(spec.space, {**values, path: value})


def test_outcomes_become_states_constraints_and_placeholders() -> None:
    spec = _spec()
    good = {"val_accuracy": 0.9, "train_seconds": 5.0, "peak_memory_bytes": 1000}
    poor = {"val_accuracy": 0.4, "train_seconds": 9.0, "peak_memory_bytes": 500}
    records = [_record(spec, 0.1, 0, measurements=good), _record(spec, 0.2, 1, measurements=poor)]
    worst = find_worst_values(records, spec)
    assert worst == [0.4, 9.0, 1000.0]
    study = optuna.create_study(directions=list_directions(spec))
    expected = {
        "complete": (TrialState.COMPLETE, {"infeasible": 0.0}),
        "out_of_memory": (TrialState.COMPLETE, {"infeasible": 1.0}),
        "not_fitting": (TrialState.COMPLETE, {"infeasible": 1.0}),
        "diverged": (TrialState.COMPLETE, {"infeasible": 1.0}),
        "timed_out": (TrialState.COMPLETE, {"infeasible": 1.0}),
        "target_missed": (TrialState.COMPLETE, {"infeasible": 1.0}),
        "pruned": (TrialState.PRUNED, {"infeasible": 0.0}),
        "crashed": (TrialState.FAIL, {}),
        "cancelled": (TrialState.FAIL, {}),
    }
    for number, outcome in enumerate(expected):
        record = _record(spec, number / 10, number, outcome=outcome, measurements=good)
        study.add_trial(make_frozen_trial(record, spec, worst))
    for trial, (outcome, (state, constraints)) in zip(study.trials, expected.items(), strict=True):
        assert (trial.state, trial.constraints, trial.user_attrs["outcome"]) == (state, constraints, outcome)
        assert trial.user_attrs["number"] == trial.number
    assert study.trials[0].values == [0.9, 5.0, 1000.0]
    assert study.trials[1].values == worst
    assert [trial.number for trial in study.best_trials] == [0]


def test_a_missing_or_endless_objective_is_never_told_as_a_result() -> None:
    spec = _spec()
    for value in (math.nan, math.inf, None):
        measured = {"val_accuracy": value, "train_seconds": 1.0, "peak_memory_bytes": 1}
        kept = {name: number for name, number in measured.items() if number is not None}
        trial = make_frozen_trial(_record(spec, 0.1, measurements=kept), spec, [0.0, 1.0, 1.0])
        assert trial.state is TrialState.FAIL
    assert all(math.isfinite(value) for value in find_worst_values([], spec))
    assert find_worst_values([], spec)[0] == 0.0


def test_a_running_trial_is_refused() -> None:
    spec = _spec()
    with pytest.raises(ValueError, match="still runs"):
        make_frozen_trial(_record(spec, 0.5, outcome=None), spec, [0.0, 1.0, 1.0])
