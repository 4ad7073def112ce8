"""Earlier results as prior knowledge of a sampler: from records, from Optuna's storage, from tables."""

import json
import math
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from cli_calls import INLINE
from optuna_storages import open_storage
from records_factory import make_ending, make_spec, make_store
from test_tuner import run

from reports import write_report
from sweep.cli import study_run
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.files import export_frames
from sweep.records.loading import load_frames
from sweep.records.messages import Outcome
from sweep.records.store import Store, open_store
from sweep.search.reuse import EarlierResult, make_prior_records, read_earlier

HERE = "test device"


@pytest.fixture
def spec() -> StudySpec:
    return make_spec("new", trials=10, confirm={"max_configurations": 0, "seeds": 0})


def optuna_study(place: Path, name: str = "old", **fields: Any) -> optuna.Study:
    directions = fields.pop("directions", ["maximize", "minimize", "minimize"])
    return optuna.create_study(storage=open_storage(place), study_name=name, directions=directions)


def tell(study: optuna.Study, micro: float, lr: float, values: list[float]) -> None:
    """As somebody's own script would: names of its own, the batch as its power of two."""
    trial = study.ask()
    trial.suggest_int("batch.micro", 1, 4096)
    trial.suggest_float("lr", 1e-6, 10.0)
    study.add_trial(
        optuna.trial.create_trial(
            params={"batch.micro": micro, "lr": lr}, distributions=trial.distributions, values=values
        )
    )
    study.tell(trial, state=optuna.trial.TrialState.FAIL)


def test_trials_of_an_optuna_storage_are_read_by_the_names_of_their_parameters(tmp_path: Path, spec: StudySpec) -> None:
    study = optuna_study(tmp_path / "old.db")
    tell(study, 64, 0.1, [0.9, 12.0, 1e6])
    tell(study, 128, 0.01, [0.8, 6.0, 2e6])
    tell(study, 100, 0.01, [0.7, 6.0, 2e6])  # no power of two
    tell(study, 2048, 0.01, [0.6, 6.0, 2e6])  # outside of the space
    found = read_earlier(f"sqlite:///{tmp_path}/old.db", spec)
    assert [(one.values["batch.micro"], one.values["optimizer.lr"]) for one in found] == [(64, 0.1), (128, 0.01)]
    assert found[0].measurements == {"val_accuracy": 0.9, "train_seconds": 12.0, "peak_memory_bytes": 1e6}
    records = make_prior_records(found, spec, HERE)
    assert [record.number for record in records] == [-1, -2]
    assert records[1].measurements["train_seconds"] == 6.0  # nothing says that it was another device
    assert records[0].config.batch.micro == 64
    assert read_earlier(str(tmp_path / "old.db"), spec) == found  # a path is as good as the URL


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_named_metrics_decide_which_value_is_which(tmp_path: Path, spec: StudySpec) -> None:
    study = optuna_study(tmp_path / "old.db", directions=["minimize", "maximize"])
    study.set_metric_names(["train_seconds", "val_accuracy"])
    tell(study, 64, 0.1, [12.0, 0.9])
    (earlier,) = read_earlier(str(tmp_path / "old.db"), spec)
    assert earlier.measurements == {"train_seconds": 12.0, "val_accuracy": 0.9}


def test_infeasible_trials_of_a_storage_keep_no_placeholders(tmp_path: Path, spec: StudySpec) -> None:
    study = optuna_study(tmp_path / "old.db")
    trial = study.ask()
    trial.suggest_int("batch.micro", 64, 64)
    trial.suggest_float("optimizer.lr", 0.1, 0.1)
    trial.set_constraint("memory", 0.5)
    study.tell(trial, [0.0, 99.0, 9e9])
    (record,) = make_prior_records(read_earlier(str(tmp_path / "old.db"), spec), spec, HERE)
    assert (record.outcome, record.measurements) == ("not_fitting", {})


def test_a_storage_of_several_studies_wants_a_name(tmp_path: Path, spec: StudySpec) -> None:
    for name, accuracy in (("one", 0.5), ("two", 0.6)):
        tell(optuna_study(tmp_path / "old.db", name), 64, 0.1, [accuracy, 1.0, 1.0])
    place = f"sqlite:///{tmp_path}/old.db"
    assert read_earlier(f"{place}#two", spec)[0].measurements["val_accuracy"] == 0.6
    with pytest.raises(InputError, match=r"after a #: one, two"):
        read_earlier(place, spec)
    with pytest.raises(InputError, match="three"):
        read_earlier(f"{place}#three", spec)


def test_unnamed_values_in_other_directions_are_refused(tmp_path: Path, spec: StudySpec) -> None:
    tell(optuna_study(tmp_path / "old.db", directions=["minimize"] * 3), 64, 0.1, [0.1, 1.0, 1.0])
    with pytest.raises(InputError, match="set_metric_names"):
        read_earlier(str(tmp_path / "old.db"), spec)


# ---------------------------------------------------------------------- records of this program


def recorded(folder: Path, outcomes: list[Outcome], base: dict[str, Any] | None = None, **fields: Any) -> Path:
    """An earlier study with a trial for each outcome, micro batch 64, learning rates 0.01, 0.02 ..."""
    earlier = make_spec("earlier", base=base or {})
    with closing(make_store(folder / "study.sqlite", earlier)) as store:
        for number, outcome in enumerate(outcomes):
            config = earlier.config({"batch.micro": 64, "optimizer.lr": 0.01 * (number + 1)}, seed=number)
            store.add_trial("earlier", number, "search", config, f"key{number}")
            store.finish_trial("earlier", number, make_ending(number, outcome, **fields))
    return folder


def test_accuracy_comes_from_any_device_and_times_from_the_same(tmp_path: Path, spec: StudySpec) -> None:
    outcomes: list[Outcome] = ["complete", "crashed", "out_of_memory", "diverged", "target_missed", "timed_out"]
    place = str(recorded(tmp_path / "earlier", outcomes, device="another"))
    found = read_earlier(place, spec)
    there, here = (make_prior_records(found, spec, device) for device in (HERE, "another"))
    assert [record.outcome for record in there] == ["complete", "diverged", "target_missed"]
    assert [record.outcome for record in here] == [outcome for outcome in outcomes if outcome != "crashed"]
    assert there[0].measurements["val_accuracy"] == make_ending(0).measurements["val_accuracy"]
    assert not {"train_seconds", "peak_memory_bytes", "total_seconds"} & there[0].measurements.keys()
    assert here[0].measurements["train_seconds"] == make_ending(0).measurements["train_seconds"]
    assert all(record.config.seed == spec.seed and record.phase == "search" for record in here)


def test_times_that_were_disturbed_are_not_learned(tmp_path: Path, spec: StudySpec) -> None:
    place = recorded(tmp_path / "earlier", ["complete"], device=HERE, quality_flags=("contention",))
    (record,) = make_prior_records(read_earlier(str(place), spec), spec, HERE)
    assert "train_seconds" not in record.measurements
    assert record.measurements["val_accuracy"] == 0.5


def test_an_export_and_a_folder_of_studies_say_the_same(tmp_path: Path, spec: StudySpec) -> None:
    place = recorded(tmp_path / "runs" / "earlier", ["complete", "complete"])
    export_frames(load_frames(place, evaluations=True, correct_images=True), tmp_path / "exported")
    found = read_earlier(str(place), spec)
    assert len(found) == 2
    assert read_earlier(str(tmp_path / "exported"), spec) == found
    assert read_earlier(str(tmp_path / "runs"), spec) == found
    assert read_earlier(f"sqlite:///{place}/study.sqlite#earlier", spec) == found


def test_another_base_teaches_nothing(tmp_path: Path, spec: StudySpec) -> None:
    place = recorded(tmp_path / "earlier", ["complete"], base={"optimizer.name": "adamw"})
    with pytest.raises(InputError, match=r"optimizer.name = 'adamw', in this study 'momentum' \(1 trials\)"):
        read_earlier(str(place), spec)
    indifferent = recorded(tmp_path / "other", ["complete"], base={"data.workers": 2, "diagnostics.sharpness": True})
    assert len(read_earlier(str(indifferent), spec)) == 1


# ---------------------------------------------------------------------- tables

ROWS = {
    "batch.micro": [64, 128, None], "config.optimizer.lr": [0.1, 0.01, 0.01], "val_accuracy": [0.9, 0.8, 0.7],
    "train_seconds": [3.0, None, 1.0], "remark": ["mine", None, None],
}  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_is_read_by_the_names_of_its_columns(tmp_path: Path, spec: StudySpec, ending: str) -> None:
    path = tmp_path / f"trials.{ending}"
    frame = pd.DataFrame(ROWS)
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    found = read_earlier(str(path), spec)
    assert [one.values["batch.micro"] for one in found] == [64, 128]  # floats in the file, for the missing cell
    assert [dict(one.measurements) for one in found] == [
        {"val_accuracy": 0.9, "train_seconds": 3.0},
        {"val_accuracy": 0.8},
    ]


@pytest.mark.parametrize(("change", "word"), [
    ({"batch.micro": None}, "no column batch.micro"),
    ({"val_accuracy": None, "train_seconds": None}, "no column of an objective"),
    ({"val_accuracy": ["good", "bad", "bad"]}, "'good' is no number"),
    ({"outcome": ["fine"] * 3}, "outcome"),
    ({"batch.micro": [3, 3, 3]}, "log2"),
])  # fmt: skip
def test_a_table_of_no_use_is_refused(tmp_path: Path, spec: StudySpec, change: dict[str, Any], word: str) -> None:
    columns = {name: cells for name, cells in (ROWS | change).items() if cells is not None}
    pd.DataFrame(columns).to_csv(tmp_path / "trials.csv", index=False)
    with pytest.raises(InputError, match=word):
        read_earlier(str(tmp_path / "trials.csv"), spec)


@pytest.mark.parametrize("name", ["absent.csv", "absent", "sqlite:////nowhere/at.db"])
def test_a_place_where_nothing_is_is_refused(tmp_path: Path, spec: StudySpec, name: str) -> None:
    with pytest.raises(InputError):
        read_earlier(name if "://" in name else str(tmp_path / name), spec)


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, spec: StudySpec) -> None:
    path = tmp_path / "notes.db"
    path.write_text("no database at all")
    with pytest.raises(InputError):
        read_earlier(str(path), spec)
    assert path.read_text() == "no database at all"


# ---------------------------------------------------------------------- what a search makes of it


def known(num: int) -> list[EarlierResult]:
    """What the formula of the test runner gives for learning rates all over the range, at micro batch 64."""
    rates = [10 ** (-3 + 3 * (index + 0.5) / num) for index in range(num)]
    return [
        EarlierResult(
            values={"batch.micro": 64, "optimizer.lr": rate},
            outcome="complete",
            measurements={"val_accuracy": 0.9 - 0.05 * math.log10(rate / 0.03) ** 2},
        )
        for rate in rates
    ]


def off(store: Store) -> float:
    """How far the trials' learning rates lie from the best one, in decades, on average."""
    rates = [record.config.optimizer.lr for record in store.trial_records("new")]
    return sum(abs(math.log10(rate / 0.03)) for rate in rates) / len(rates)


def test_the_sampler_begins_where_earlier_trials_were_good_and_records_its_own_only(tmp_path: Path) -> None:
    spec = make_spec(
        "new", trials=10, objectives=["val_accuracy"], confirm={"max_configurations": 0, "seeds": 0}, sampler="tpe"
    )
    distances = {}
    for name, prior in (("cold", ()), ("warm", make_prior_records(known(40), spec, HERE))):
        with closing(open_store(tmp_path / name / "study.sqlite", create=True)) as store:
            store.create_study(spec)
            run(store, spec, prior=prior)
            assert [record.number for record in store.trial_records("new")] == list(range(10))
            distances[name] = off(store)
    assert distances["warm"] < 0.6 * distances["cold"]


def test_the_command_learns_from_an_optuna_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_run, "write_report", partial(write_report, formats=()))
    study = optuna_study(tmp_path / "old.db")
    tell(study, 64, 0.1, [0.9, 12.0, 1e6])
    file = tmp_path / "new.toml"
    file.write_text(
        'name = "new"\ntrials = 1\nconfirm = { max_configurations = 0, seeds = 0 }\n'
        "[base]\nbudget.steps = 2\ndata.subset = 100\n"
        '[space]\n"batch.micro" = { choice = [32, 64] }\n"optimizer.lr" = { log = [0.01, 1.0] }\n'
    )
    arguments = ["run", str(file), "--root", str(tmp_path / "runs"), *INLINE, "--json"]
    assert run_app([*arguments, "--warm-start", str(tmp_path / "nothing.db")]) == 2
    assert "nothing is there" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert run_app([*arguments, "--warm-start", f"sqlite:///{tmp_path}/old.db"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["num_earlier"], answer["num_trials"]) == (1, 1)
