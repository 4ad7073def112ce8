"""Frames: declared columns and dtypes, values bit-exact, readers beside a writer; and their export and import, where
foreign or hostile folders are refused."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from records_factory import ENVIRONMENT, add_trials, make_config, make_ending, make_evaluation, make_spec, make_store

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.trial import build_config, config_keys, flatten_config
from sweep.records import reading
from sweep.records.files import export_frames, exported_study, import_records
from sweep.records.frames import FRAME_PARTS, MAX_CELL_CHARACTERS, Frames
from sweep.records.loading import load_frames
from sweep.records.store import Store, open_store

ODD_TEXTS = [
    "=1+1", "+a", "-b", "@c", "'quoted", "''", 'a,b\n"c"\r\nd', "\tTab", "Ünï ✓ \u2028", " x ", "", "NA", "None",
]  # fmt: skip


def _odd_store(path: Path) -> Store:
    store = make_store(path, make_spec(question="=cmd|' /C calc'!A0", confirm={"max_configurations": 1, "seeds": 2}))
    add_trials(store, ["complete", None, "out_of_memory"])
    for number, text in enumerate(ODD_TEXTS, start=3):
        values = {"batch.global": 100 + number, "data.root": text or "-", "budget.steps": 5, "optimizer.lr": 0.1 / 3}
        store.add_trial("s", number, "confirm", build_config(values, "test"), text, text)
        attempt = store.start_attempt("s", number)
        store.add_evaluation("s", number, attempt, make_evaluation(1, train_loss=math.nan, val_loss=math.inf))
        store.end_attempt("s", number, attempt, text, 0.1 + 0.2)
        measurements = {
            "val_accuracy": 1 / 3, "train_seconds": 5e-324, "val_loss": math.nan, "peak_memory_bytes": 2**62,
        }  # fmt: skip
        ending = make_ending(number, "crashed", measurements=measurements, error=text, environment={"t": text})
        store.finish_trial("s", number, ending)
    return store


def _load(place: Path) -> Frames:
    return load_frames(place, evaluations=True, correct_images=True)


def _assert_equal(one: Frames, other: Frames) -> None:
    for name in ("trials", "attempts", "probes", "evaluations", "studies", "environment_rows"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True, obj=name)
    assert one.specs == other.specs


def test_an_export_comes_back_equal(tmp_path: Path) -> None:
    store = _odd_store(tmp_path / "a" / "study.sqlite")
    before = _load(tmp_path / "a")
    assert len(before.trials) == 3 + len(ODD_TEXTS)
    export_frames(before, tmp_path / "out")
    _assert_equal(load_frames(tmp_path / "out", evaluations=True), before)
    assert exported_study(tmp_path / "out") == "s"
    other = open_store(tmp_path / "b" / "study.sqlite", create=True)
    assert import_records(tmp_path / "out", other) == len(before.trials)
    _assert_equal(load_frames(tmp_path / "b", evaluations=True), before)
    assert other.trial_records("s") == store.trial_records("s")
    other.finish_trial("s", 1, make_ending(1))  # what was running can be taken up
    with pytest.raises(InputError, match="already holds a study 's'"):
        import_records(tmp_path / "out", other)
    store.close()
    other.close()


def test_the_commands_about_an_export_import_it_before_they_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "study.sqlite").close()
    export_frames(_load(tmp_path / "study.sqlite"), tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    absent = load_frames(tmp_path / "out").find_commands("s")
    assert absent.run_more(9) == "# requires s.toml, not found here: sweep run s.toml --trials 9"
    assert absent.plan_claim("warmup_needed", {}).startswith("sweep claims warmup_needed --plan && sweep run claim_")
    (tmp_path / "s.toml").touch()
    commands = load_frames(tmp_path / "out").find_commands("s")
    assert commands.run_more(9) == f"sweep import {tmp_path}/out && sweep run s.toml --trials 9"
    assert commands.probe_shapes() == "sweep cost s.toml --measure"
    assert commands.run_variant("b", {"batch.micro": 8}) == "sweep run s.toml --set name=s_b --set batch.micro=8"
    planned = commands.plan_claim("warmup_needed", {})
    assert planned == "sweep claims warmup_needed --plan && sweep run claim_warmup_needed.toml"
    assert "import" not in load_frames(tmp_path / "study.sqlite").find_commands("s").run_more(9)


def test_no_cell_of_a_csv_starts_like_a_formula_and_programs_read_its_numbers(tmp_path: Path) -> None:
    store = _odd_store(tmp_path / "a" / "study.sqlite")
    store.close()
    export_frames(_load(tmp_path / "a"), tmp_path / "out", "csv")
    cells = pd.read_csv(tmp_path / "out" / "trials.csv", dtype=str, keep_default_na=False)
    for column in ("error", "trial_key", "reused_from", "config.data.root"):
        assert not cells[column].str.startswith(("=", "+", "-", "@", "\t", "\r")).any()
    assert "'=1+1" in set(cells["error"])
    found, known = pd.read_csv(tmp_path / "out" / "trials.csv"), _load(tmp_path / "a").trials
    assert found["val_accuracy"].tolist() == pytest.approx(known["val_accuracy"].tolist(), rel=1e-15, nan_ok=True)
    with pytest.raises(InputError, match="export as Parquet"):
        load_frames(tmp_path / "out")


def test_a_folder_with_other_files_is_left_alone_and_an_earlier_export_replaced(tmp_path: Path) -> None:
    make_store(tmp_path / "a" / "study.sqlite").close()
    frames = _load(tmp_path / "a")  # an empty study, which comes back too
    export_frames(frames, tmp_path / "out", "csv")
    export_frames(frames, tmp_path / "out", "parquet")
    _assert_equal(load_frames(tmp_path / "out", evaluations=True), frames)
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".parquet", ".json"}
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        export_frames(frames, tmp_path / "out")
    with pytest.raises(InputError, match="unknown format 'xlsx'"):
        export_frames(frames, tmp_path / "new", "xlsx")
    with pytest.raises(InputError, match="evaluations were not loaded"):
        export_frames(load_frames(tmp_path / "a"), tmp_path / "new")


def _export(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "a" / "study.sqlite")
    add_trials(store, ["complete", "crashed"])
    store.close()
    export_frames(_load(tmp_path / "a"), tmp_path / "out")
    return tmp_path / "out"


def _put(**columns: Any) -> Callable[[Path], None]:
    return lambda path: pd.read_parquet(path).assign(**columns).to_parquet(path, index=False)


def _rename(old: str, new: str) -> Callable[[Path], None]:
    return lambda path: pd.read_parquet(path).rename(columns={old: new}).to_parquet(path, index=False)


def _write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


HOSTILE: list[tuple[str, Callable[[Path], object], str]] = [
    ("trials.parquet", _put(outcome="splendid"), "unknown outcome 'splendid'"),
    ("trials.parquet", _put(phase="hunt"), "unknown phase 'hunt'"),
    ("trials.parquet", _put(**{"config.model.name": "resnet9"}), "unknown model 'resnet9'"),
    ("trials.parquet", _rename("config.batch.micro", "config.batch.mikro"), "unknown key 'batch.mikro'"),
    ("trials.parquet", _rename("number", "nummer"), "column number is missing"),
    ("trials.parquet", _put(number=[0, None]), "column number"),
    ("trials.parquet", _put(number=["0", "1"]), "column number holds"),
    ("trials.parquet", _put(number=0), "UNIQUE"),
    ("trials.parquet", _put(study="other"), "FOREIGN KEY"),
    ("trials.parquet", _put(trial_key="k" * (MAX_CELL_CHARACTERS + 1)), "more than .* characters"),
    ("trials.parquet", lambda path: path.write_bytes(path.read_bytes()[:-100]), "trials.parquet: cannot be read"),
    ("trials.parquet", lambda path: path.write_bytes(b""), "trials.parquet: cannot be read"),
    ("trials.parquet", lambda path: pd.read_parquet(path)[:1].to_parquet(path), "1 of 2 rows, a file is torn"),
    ("trials.parquet", Path.unlink, "the file is missing"),
    ("studies.parquet", _put(spec='{"objektives": 1}'), "objektives"),
    ("environments.parquet", _put(environment="[1]"), "JSON"),
    ("export.json", _write("[" * 90_000), "cannot be read"),
    ("export.json", _write(json.dumps({"kind": "tar"})), "does not describe an export"),
    ("export.json", Path.unlink, "export.json is missing"),
]


@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_foreign_and_hostile_exports_are_refused_whole(tmp_path: Path, case: int) -> None:
    name, change, message = HOSTILE[case]
    folder = _export(tmp_path)
    change(folder / name)
    store = open_store(tmp_path / "b" / "study.sqlite", create=True)
    with pytest.raises(InputError, match=message):
        import_records(folder, store)
    assert store.study_names() == []
    store.close()


def test_an_older_export_without_a_key_or_a_table_has_its_default(tmp_path: Path) -> None:
    folder = _export(tmp_path)
    lacking = ["config.optimizer.momentum", "config.model.norm", "is_enqueued", "power_watts"]
    path = folder / "trials.parquet"
    pd.read_parquet(path).drop(columns=lacking).to_parquet(path, index=False)
    (folder / "queue.parquet").unlink()
    manifest = json.loads((folder / "export.json").read_text())
    del manifest["num_rows"]["queue"]
    (folder / "export.json").write_text(json.dumps(manifest))
    trials = load_frames(folder).trials
    assert trials["config.optimizer.momentum"].tolist() == [0.9, 0.9]
    assert trials["config.model.norm"].tolist() == ["batch", "batch"]
    assert trials["is_enqueued"].tolist() == [False, False]
    assert trials["power_watts"].isna().all()


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
    before = (tmp_path / "study.sqlite").read_bytes()
    load_frames(tmp_path, evaluations=True)
    assert (tmp_path / "study.sqlite").read_bytes() == before


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
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "absent", tmp_path / "empty"):
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
