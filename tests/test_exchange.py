"""Export and import: equal frames on the other side, and foreign or hostile folders refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from records_factory import add_trials, make_ending, make_evaluation, make_spec, make_store

from sweep.config.errors import InputError
from sweep.config.trial import build_config
from sweep.records.files import export_frames, exported_study, import_records
from sweep.records.frames import MAX_CELL_CHARACTERS, Frames
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


def test_the_commands_about_an_export_import_it_before_they_continue_it(tmp_path: Path) -> None:
    make_store(tmp_path / "study.sqlite").close()
    export_frames(_load(tmp_path / "study.sqlite"), tmp_path / "out")
    commands = load_frames(tmp_path / "out").find_commands("s")
    assert commands.run_more(9) == f"sweep import {tmp_path}/out && sweep run s.toml --trials 9"
    assert commands.probe_shapes() == "sweep cost s.toml --measure"
    assert commands.run_variant("b", {"batch.micro": 8}) == "sweep run s.toml --set name=s_b --set batch.micro=8"
    planned = commands.plan_claim("warmup_needed", {})
    assert planned == "sweep claims warmup_needed --plan && sweep run claim_warmup_needed.toml"
    assert "import" not in load_frames(tmp_path / "study.sqlite").find_commands("s").run_more(9)


def test_an_empty_study_comes_back_too(tmp_path: Path) -> None:
    make_store(tmp_path / "a" / "study.sqlite").close()
    before = _load(tmp_path / "a")
    export_frames(before, tmp_path / "out")
    _assert_equal(load_frames(tmp_path / "out", evaluations=True), before)


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
    frames = _load(tmp_path / "a")
    export_frames(frames, tmp_path / "out", "csv")
    export_frames(frames, tmp_path / "out", "parquet")
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
