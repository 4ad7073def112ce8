"""Frames: declared columns and dtypes, values bit-exact, readers beside a writer."""

import hashlib
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from records_factory import ENVIRONMENT, add_trials, make_config, make_ending, make_evaluation, make_spec, make_store

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.trial import build_config, config_keys, flatten_config
from sweep.records import reading
from sweep.records.frames import FRAME_PARTS
from sweep.records.loading import load_frames


def test_columns_are_the_contract_and_dtypes_do_not_depend_on_rows(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    empty = load_frames(tmp_path, evaluations=True)
    add_trials(store, ["complete", None, "crashed"])
    full = load_frames(tmp_path, evaluations=True)
    assert full.evaluations is not None
    assert empty.evaluations is not None
    assert set(METRICS) | {f"config.{key}" for key in config_keys()} <= set(full.trials.columns)
    assert list(full.attempts.columns) == ["study", "number", "attempt", "cause", "started_at", "busy_seconds"]
    for part in FRAME_PARTS:
        expected = {column.name: column.dtype for column in part.columns}
        for frames in (empty, full) if part.field != "correct_images" else ():
            assert {name: str(dtype) for name, dtype in getattr(frames, part.field).dtypes.items()} == expected
    assert (len(empty.trials), len(full.trials)) == (0, 3)
    assert full.trials["config.data.subset"].dtype == "Int64"
    assert full.trials["config.precision.compile"].dtype == "bool"
    store.close()


def test_values_come_back_exactly(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", None, "out_of_memory"])
    odd = build_config({"batch.global": 96, "batch.micro": 64, "budget.steps": 7, "precision.compile": True}, "test")
    store.add_trial("s", 3, "confirm", odd, "odd", "other/4")
    measurements = {"val_loss": math.nan, "train_accuracy": 0.1 + 0.2}
    flags = ("throttled", "shared")
    ending = make_ending(3, "diverged", measurements=measurements, quality_flags=flags, error="loss\nis NaN")
    store.finish_trial("s", 3, ending)
    frames = load_frames(tmp_path / "study.sqlite")
    trials = frames.trials.set_index("number")
    assert frames.evaluations is None
    for number in (0, 1, 2):
        for key, value in flatten_config(make_config(number)).items():
            cell = trials.loc[number, f"config.{key}"]
            assert pd.isna(cell) if value is None else cell == value
    assert trials["outcome"].fillna("").tolist() == ["complete", "", "out_of_memory", "diverged"]
    assert trials.loc[0, "val_accuracy"] == 0.5
    assert trials.loc[2, "val_loss"] == 1 / 3 / 3
    assert trials.loc[2, "peak_memory_bytes"] == 3_000_000_021
    assert pd.isna(trials.loc[1, "peak_memory_bytes"])
    assert trials.loc[3, "train_accuracy"] == 0.1 + 0.2
    assert math.isnan(trials.loc[3, "val_loss"])
    assert trials["global_batch_size"].tolist() == [16, 32, 64, 96]
    assert trials.loc[3, ["phase", "reused_from", "quality_flags", "error"]].tolist() == [
        "confirm", "other/4", "throttled,shared", "loss\nis NaN",
    ]  # fmt: skip
    assert trials.loc[0, "environment_digest"] == frames.environments.loc[0, "environment_digest"]
    assert frames.environments.loc[0, list(ENVIRONMENT)].tolist() == ["cpu", "2.13.0", "2"]
    assert frames.spec == make_spec()
    store.close()


def test_of_several_attempts_the_curve_is_the_latest_ones(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.add_trial("s", 0, "search", make_config(0), "key")
    for accuracies in [{10: 0.1, 20: 0.2, 30: 0.3, 40: 0.4}, {10: 0.6, 20: 0.7, 30: 0.8}]:
        attempt = store.start_attempt("s", 0)
        for step, accuracy in accuracies.items():
            store.add_evaluation("s", 0, attempt, make_evaluation(step, accuracy, train_loss=math.nan))
        store.end_attempt("s", 0, attempt, "supervisor_lost" if attempt == 1 else "", 2.0)
    frames = load_frames(tmp_path, evaluations=True)
    assert frames.evaluations is not None
    assert frames.evaluations["step"].tolist() == [10, 20, 30]
    assert frames.evaluations["val_accuracy"].tolist() == [0.6, 0.7, 0.8]
    assert [item.val_accuracy for item in store.evaluations("s", 0)] == [0.6, 0.7, 0.8]
    assert np.isnan(frames.evaluations["train_loss"]).all()
    assert frames.attempts["cause"].tolist() == ["supervisor_lost", ""]
    assert (frames.attempts["started_at"] > pd.Timestamp("2024-01-01", tz="UTC")).all()
    store.close()


def test_reading_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    make_store(tmp_path / "study.sqlite").close()
    before = hashlib.sha256((tmp_path / "study.sqlite").read_bytes()).hexdigest()
    load_frames(tmp_path, evaluations=True)
    assert hashlib.sha256((tmp_path / "study.sqlite").read_bytes()).hexdigest() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop to a user who cannot write")
def test_a_reader_without_any_right_to_write_can_read(tmp_path: Path) -> None:
    make_store(tmp_path / "study.sqlite").close()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store = make_store(folder / "study.sqlite")
        add_trials(store, ["complete"])
        store.close()
        # the first load imports what the second one needs, while it may still be read
        code = (
            "import os, sys; from sweep.records.loading import load_frames; load_frames(sys.argv[1]);"
            "os.setgid(65534); os.setuid(65534); print(len(load_frames(sys.argv[2]).trials))"
        )
        command = [sys.executable, "-c", code, str(tmp_path), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.stderr) == ("1", "")
        assert [path.name for path in folder.iterdir()] == ["study.sqlite"]


def test_places_that_hold_no_records_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "study.sqlite").close()
    with pytest.raises(InputError, match=r"unknown study 't'.*Known: s"):
        load_frames(tmp_path, study="t")
    for place in (tmp_path / "absent", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputError, match="no study is recorded there"):
            load_frames(place)


def test_several_studies_in_one_database_are_told_apart(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    store.create_study(make_spec("t", trials=7))
    add_trials(store, ["complete", "complete"])
    add_trials(store, ["crashed"], study="t")
    every = load_frames(f"sqlite:///{tmp_path / 'study.sqlite'}", evaluations=True)
    assert every.spec is None
    assert every.specs["t"].trials == 7
    assert every.trials[["study", "number"]].to_numpy().tolist() == [["s", 0], ["s", 1], ["t", 0]]
    one = load_frames(tmp_path, study="t", evaluations=True)
    assert one.evaluations is not None
    assert (len(one.trials), len(one.evaluations), len(one.attempts)) == (1, 2, 1)
    assert one.spec == make_spec("t", trials=7)
    store.close()


@pytest.mark.parametrize(("to_guess_from", "guesses"), [(100, 4), (1, 4), (1, 1)])  # right, wrong at first, given up
def test_columns_of_equal_cells_take_a_short_cut_to_the_same_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_guess_from: int, guesses: int
) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, ["complete", "complete", None, "crashed"])
    plain, records = load_frames(tmp_path, evaluations=True), store.trial_records("s")
    monkeypatch.setattr(reading, "_MANY_ROWS", 1)
    monkeypatch.setattr(reading, "_NUM_ROWS_TO_GUESS_FROM", to_guess_from)
    monkeypatch.setattr(reading, "_MAX_GUESSES", guesses)
    monkeypatch.setattr(reading, "_ROWS_AT_ONCE", 3)
    short = load_frames(tmp_path, evaluations=True)
    assert short.evaluations is not None
    for one, other in [(plain.trials, short.trials), (plain.attempts, short.attempts)]:
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    pd.testing.assert_frame_equal(plain.evaluations, short.evaluations, check_exact=True)
    assert store.trial_records("s") == records
    store.close()
