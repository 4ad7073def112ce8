"""The copy in Optuna's tables, read back with Optuna itself."""

import contextlib
import logging
import sqlite3
from pathlib import Path

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna_storages import open_storage
from records_factory import add_trials, make_config, make_ending, make_spec, make_store

from sweep.config.errors import InputError
from sweep.records.trial_record import TrialRecord
from sweep.search.mirror.optuna_mirror import Mirror, open_read_only


def _optuna_study(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=open_storage(path))


def test_it_holds_every_ended_search_trial_once_and_is_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "out_of_memory", None, "crashed", "complete"])
    store.add_trial("s", 5, "confirm", make_config(0), "confirmed")
    store.finish_trial("s", 5, make_ending(5))
    records = store.trial_records("s")
    mirror = Mirror(store.url, make_spec())
    assert [record.number for record in mirror.pending(records)] == [0, 1, 3, 4]
    assert mirror.catch_up(records, limit=1) == 1
    mirror.close()

    store.finish_trial("s", 2, make_ending(2))
    again = Mirror(store.url, make_spec())
    assert again.catch_up(store.trial_records("s")) == 4
    assert again.catch_up(store.trial_records("s")) == 0
    again.close()
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


def test_records_and_mirror_are_written_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    mirror = Mirror(store.url, make_spec())
    for number in range(10):
        add_trials(store, ["complete"], first=number)
        mirror.push(store.trial_records("s")[-1])
    mirror.close()
    assert len(_optuna_study(path).trials) == len(store.trial_records("s")) == 10
    store.close()


def test_the_read_only_door_reads_and_refuses_to_write(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    with pytest.raises(InputError, match="nothing to browse yet"):
        open_read_only(store.url)
    add_trials(store, ["complete"])
    mirror = Mirror(store.url, make_spec())
    mirror.catch_up(store.trial_records("s"))
    storage = open_read_only(store.url)
    study = optuna.load_study(study_name="s", storage=storage)
    assert [trial.user_attrs["number"] for trial in study.trials] == [0]
    with pytest.raises(StorageInternalError) as refused:
        study.add_trial(study.trials[0])
    assert "readonly database" in str(refused.value.__cause__)
    storage.remove_session()
    storage.engine.dispose()
    mirror.close()
    store.close()


def test_a_failing_mirror_warns_once_and_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", "complete"])
    mirror = Mirror("sqlite:////nowhere/at/all.sqlite", make_spec())
    with caplog.at_level(logging.WARNING):
        assert mirror.catch_up(store.trial_records("s")) == 0
        mirror.push(store.trial_records("s")[0])
        assert mirror.pending(store.trial_records("s")) == []
    assert [record.name for record in caplog.records] == ["sweep.search.mirror.optuna_mirror"]
    mirror.close()
    store.close()


def _mirrored(path: Path, records: list[TrialRecord]) -> list[int]:
    mirror = Mirror(f"sqlite:///{path}", make_spec())
    mirror.catch_up(records)
    mirror.close()
    return sorted(trial.user_attrs["number"] for trial in _optuna_study(path).trials)


DOCTORED = {
    "an older major": "UPDATE version_info SET library_version = '4.9.0'",
    "a newer major": "UPDATE version_info SET library_version = '6.0.1'",
    "another layout": "UPDATE alembic_version SET version_num = 'v3.0.0.d'",
    "an unknown layout": "UPDATE alembic_version SET version_num = 'v9.9.9'",
    "of a newer major, and unlike": "UPDATE version_info SET library_version = '6.0'; DROP TABLE trial_params",
}


@pytest.mark.parametrize("how", DOCTORED)
def test_tables_of_another_optuna_are_made_anew(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "crashed"])
    records = store.trial_records("s")
    assert _mirrored(path, records) == [0, 1]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(DOCTORED[how] + "; DELETE FROM trial_user_attributes WHERE value_json = '1'")
    if "layout" in how:
        with pytest.raises(InputError, match="another version of Optuna made what is to be browsed; run the study's"):
            open_read_only(f"sqlite:///{path}")
    assert _mirrored(path, records) == [0, 1]
    assert [entry.message for entry in caplog.records] == [
        "another version of Optuna made the copy for optuna-dashboard; it is filled anew"
    ]
    assert _mirrored(path, records) == [0, 1]
    assert len(caplog.records) == 1
    assert store.trial_records("s") == records
    store.close()


def test_studies_of_others_are_not_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete"])
    records = store.trial_records("s")
    _mirrored(path, records)
    optuna.create_study(study_name="a thesis", storage=open_storage(path))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(DOCTORED["an older major"])
    assert _mirrored(path, records) == [0]
    assert "studies that are not recorded here (a thesis)" in caplog.text
    assert len(optuna.get_all_study_names(open_storage(path))) == 2
    store.close()
