"""Space and records in Optuna's terms, and the copy in its tables, each read back with Optuna itself."""

import contextlib
import logging
import math
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from optuna_storages import open_storage
from records_factory import add_trials, fill_mirror, make_ending, make_spec, make_store

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import flatten_config
from sweep.executors.table import ExecutorSettings
from sweep.records.records import TrialRecord
from sweep.search import optuna as optuna_mirror
from sweep.search.optuna import (
    Mirror,
    find_worst_values,
    from_optuna_params,
    list_directions,
    make_distributions,
    make_frozen_trial,
    open_read_only,
    to_optuna_params,
)
from sweep.search.session import Options, run_study


def _spec() -> StudySpec:
    space = {
        "batch.micro": {"log2": [5, 10]}, "batch.accumulation": {"int": [1, 4]}, "optimizer.lr": {"log": [1e-3, 1.0]},
        "optimizer.weight_decay": {"float": [0.0, 1e-3]}, "precision.channels_last": {"choice": [True, False]},
        "data.subset": {"choice": [None, 100]}, "budget.epochs": {"choice": [1, 2]},
    }  # fmt: skip
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


# ---------------------------------------------------------------------- the copy in Optuna's tables


def _optuna_study(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=open_storage(path))


def test_it_holds_every_ended_trial_once_and_is_repaired(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "out_of_memory", None, "crashed", "complete"])
    store.add_trial("s", 5, "confirm", store.trial_records("s")[0].config, "confirmed")
    store.finish_trial("s", 5, make_ending(5))
    with contextlib.closing(Mirror(store.database.url, make_spec())) as killed:
        killed.add(store.trial_records("s"))
        killed.write_next()
    assert [trial.user_attrs["number"] for trial in _optuna_study(path).trials] == [0]
    store.finish_trial("s", 2, make_ending(2))
    for _ in range(2):
        fill_mirror(store, make_spec())
    assert capfd.readouterr() == ("", "")  # not a word of Optuna's
    study = _optuna_study(path)
    trials = {trial.user_attrs["number"]: trial for trial in study.trials}
    assert sorted(trials) == [0, 1, 2, 3, 4]
    assert len(study.trials) == 5
    assert study.metric_names == ["val_accuracy", "train_seconds", "peak_memory_bytes"]
    assert trials[4].values == [1 - 1 / 6, 14.1, 5_000_000_035.0]
    assert trials[1].constraints == {"infeasible": 1.0}
    assert trials[1].values == [0.5, 14.1, 5_000_000_035.0]
    assert trials[3].state is optuna.trial.TrialState.FAIL
    assert trials[4].params["batch.micro (log2)"] == 8
    store.close()


def test_the_read_only_door_reads_and_refuses_to_write(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    with pytest.raises(InputError, match="nothing to browse yet"):
        open_read_only(store.database.url)
    add_trials(store, ["complete"])
    fill_mirror(store, make_spec())
    storage = open_read_only(store.database.url)
    study = optuna.load_study(study_name="s", storage=storage)
    assert [trial.user_attrs["number"] for trial in study.trials] == [0]
    with pytest.raises(StorageInternalError) as refused:
        study.add_trial(study.trials[0])
    assert "readonly database" in str(refused.value.__cause__)
    storage.remove_session()
    storage.engine.dispose()
    store.close()


def test_a_failing_mirror_warns_once_never_raises_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", "complete"])
    mirror = Mirror(store.database.url, make_spec())
    mirror.add(store.trial_records("s"))
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(optuna_mirror, "_RETRY_SECONDS", 0.0)
        patch.setattr(Mirror, "_open", lambda _: open_read_only("sqlite:////nowhere/at/all.sqlite"))
        for _ in range(3):
            mirror.write_next()
        mirror.write_all()
    assert [record.name for record in caplog.records] == ["sweep.search.optuna"]
    mirror.write_all()
    mirror.close()
    assert len(_optuna_study(tmp_path / "study.sqlite").trials) == 2
    store.close()


def test_a_run_mirrors_what_a_killed_one_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(
        trials=2, sampler="random", confirm={"seeds": 0},
        base={"data.name": "digits", "data.subset": 100, "budget.steps": 2, "model.name": "resnet8"},
    )  # fmt: skip
    options = Options(root=tmp_path, executor=ExecutorSettings(name="inline", device="cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "write_all", lambda _: None)  # as if it had been killed when its last trial had ended
        folder = run_study(spec, options)
    assert len(_optuna_study(folder / "study.sqlite").trials) < 2
    run_study(spec.model_copy(update={"trials": 3}), options)
    assert sorted(trial.user_attrs["number"] for trial in _optuna_study(folder / "study.sqlite").trials) == [0, 1, 2]
