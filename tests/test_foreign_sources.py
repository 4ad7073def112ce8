"""The files of other programs: each gives the twelve trainings that it was made from, and nothing is written to it."""

import gzip
import importlib
import json
import pickle
import sqlite3
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from guide_blocks import DOCS, read_blocks
from optuna.storages import BaseStorage
from optuna_storages import open_storage

from sweep.analysis import recommend
from sweep.config.errors import InputError
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.foreign.sources import is_foreign, read_foreign_table
from sweep.records.frames import Frames
from sweep.records.loading import load_frames

GOLDEN = Path(__file__).parent / "golden" / "foreign"
GALLERY = DOCS / "gallery" / "quickstart"
NUM_EPOCHS = 3
_REASON = "the package is not installed: make test-import"

# Twelve trainings, with values that no two of them share: accuracy as a fraction, seconds, MiB.
RUNS = [
    {"number": 6 * place + 3 * half + seed + 1, "batch_size": batch, "lr": rate, "seed": seed,
     "acc": round(0.9 + 0.001 * (6 * place + 3 * half + seed + 1) + 0.01 * place, 4),
     "seconds": 100.0 + 10 * place + (6 * place + 3 * half + seed + 1) / 8, "mem": 500.0 + 4 * batch}
    for place, batch in enumerate((32, 128)) for half, rate in enumerate((0.03, 0.1)) for seed in range(3)
]  # fmt: skip


def curve_of(run: dict[str, float]) -> list[float]:
    """The accuracy after each epoch; the last one is the run's."""
    return [round(run["acc"] * (epoch + 1) / NUM_EPOCHS, 6) for epoch in range(NUM_EPOCHS - 1)] + [run["acc"]]


def write_mlflow(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings as runs of an experiment of MLflow, with one more that was deleted."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("images", artifact_location="file:///artifacts")
    for run in [*RUNS, RUNS[0]]:
        key = client.create_run(experiment, start_time=1_700_000_000_000 + int(run["number"])).info.run_id
        for name in ("batch_size", "lr", "seed"):
            client.log_param(key, name, run[name])
        for name in ("seconds", "mem"):
            client.log_metric(key, name, run[name])
        for step, value in enumerate(curve_of(run)):
            client.log_metric(key, "acc", value, step=step)
        client.set_terminated(key)
    client.delete_run(key)


def write_tensorboard(folder: Path) -> None:
    """The trainings as torch writes them: hyperparameters in a folder of their own, inside that of the scalars."""
    writing = importlib.import_module("torch.utils.tensorboard")
    for run in RUNS:
        with writing.SummaryWriter(str(folder / f"run-{run['number']:02d}")) as writer:
            for step, value in enumerate(curve_of(run)):
                writer.add_scalar("acc", value, step)
            settings, results = (
                {name: run[name] for name in names} for names in (("batch_size", "lr", "seed"), ("seconds", "mem"))
            )
            writer.add_hparams(settings, results, run_name="hparams")
    with writing.SummaryWriter(str(folder / "other")) as writer:
        writer.add_scalar("acc", 0.5, 0)


def place_of(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The trainings in a file or folder of that source."""
    if source == "mlruns":
        pytest.importorskip("mlflow", reason=_REASON)
        write_mlflow((folder / "mlruns").as_uri(), monkeypatch)
        for path in (folder / "mlruns").glob("*/*/metrics/mem"):
            path.with_name("killed").touch()
    elif source == "mlflow.db":
        pytest.importorskip("mlflow", reason=_REASON)
        write_mlflow(f"sqlite:///{folder / source}", monkeypatch)
    elif source == "events":
        pytest.importorskip("tensorboard", reason=_REASON)
        write_tensorboard(folder / source)
    elif source == "frame.parquet":
        pd.DataFrame(RUNS).to_parquet(folder / source)
    else:
        return GOLDEN / source
    return folder / source


# By source: the columns of batch size, rate, seed, accuracy, seconds and memory.
COLUMNS = {
    "wandb_table.csv": ("batch_size", "lr", "seed", "val/acc", "train_time_s", "mem_mib"),
    "frame.parquet": ("batch_size", "lr", "seed", "acc", "seconds", "mem"),
    "mlflow_search.csv": ("params.batch_size", "params.lr", "params.seed", "metrics.val/acc", "metrics.train_time_s",
                          "metrics.mem_mib"),
    "mlruns": ("params.batch_size", "params.lr", "params.seed", "metrics.acc", "metrics.seconds", "metrics.mem"),
    "mlflow.db": ("params.batch_size", "params.lr", "params.seed", "metrics.acc", "metrics.seconds", "metrics.mem"),
    "optuna_journal.log": ("params_batch_size", "params_lr", "user_attrs_seed", "value", "user_attrs_train_time_s",
                           "user_attrs_mem_mib"),
    "events": ("hparams.batch_size", "hparams.lr", "hparams.seed", "acc", "seconds", "mem"),
}  # fmt: skip
NOTES = {
    "mlruns": ["1 deleted run left out.", "Left out, because it has no value: "],
    "mlflow.db": ["1 deleted run left out."],
    "events": ["1 folder of scalars without hyperparameters left out."],
}


def make_map(source: str) -> dict[str, Any]:
    """The map of the source's columns."""
    batch, rate, seed, accuracy, seconds, memory = COLUMNS[source]
    columns: dict[str, Any] = {
        "batch.global": batch, "optimizer.lr": rate, "seed": seed,
        "val_accuracy": {"column": accuracy, "unit": "fraction"},
        "train_seconds": {"column": seconds, "unit": "seconds"},
        "peak_memory_bytes": {"column": memory, "unit": "MiB"},
    }  # fmt: skip
    return {"steps": "epochs", "columns": columns, "constants": {"device": "A100"}}


def list_contents(place: Path) -> dict[str, bytes]:
    """The bytes of every file beside and below ``place``."""
    return {str(path): path.read_bytes() for path in place.parent.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", COLUMNS)
def test_each_source_gives_the_trainings_that_it_was_made_from(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(source, tmp_path, monkeypatch)
    before = list_contents(place)
    frames = load_foreign_frames(place, make_map(source))
    assert list_contents(place) == before, "reading writes nothing"
    trials, made = frames.trials, pd.DataFrame(RUNS)
    assert trials["number"].tolist() == made["number"].tolist()
    assert trials["global_batch_size"].tolist() == made["batch_size"].tolist()
    assert trials["config.optimizer.lr"].tolist() == pytest.approx(made["lr"].tolist(), rel=1e-12)
    assert trials["seed"].tolist() == made["seed"].tolist()
    exact = 1e-7 if source == "events" else 1e-9  # add_scalar of torch keeps 32 bits
    assert trials["val_accuracy"].tolist() == pytest.approx(made["acc"].tolist(), rel=exact)
    assert trials["train_seconds"].tolist() == pytest.approx(made["seconds"].tolist(), rel=1e-7)
    assert trials["peak_memory_bytes"].tolist() == (made["mem"] * 2**20).tolist()
    assert set(trials["outcome"]) == {"complete"}
    assert set(trials["phase"]) == {"confirm"}, "all configurations have the same seeds"
    assert frames.source is not None
    assert frames.source.num_runs == len(RUNS)
    assert len(frames.source.digest) == 64
    for note in NOTES.get(source, []):
        assert any(limit.startswith(note) for limit in frames.source.limits)
    assert frames.evaluations is not None
    if source in {"mlruns", "mlflow.db", "events"}:
        for run in RUNS:
            own = frames.evaluations[frames.evaluations["number"] == run["number"]]
            assert own["val_accuracy"].tolist() == pytest.approx(curve_of(run), rel=1e-6)
            assert own["epoch"].tolist() == [0, 1, 2]
            assert own["step"].isna().all(), "epochs are no optimizer steps"
    else:
        assert frames.evaluations.empty


def test_a_series_gives_the_value_and_the_curve_that_the_map_states() -> None:
    given = make_map("optuna_journal.log")
    given["columns"]["val_accuracy"] |= {"column": "intermediate_value", "take": "min"}
    frames = load_foreign_frames(GOLDEN / "optuna_journal.log", given)
    assert frames.trials["val_accuracy"].tolist() == pytest.approx([curve_of(run)[0] for run in RUNS])
    assert frames.evaluations is not None
    assert len(frames.evaluations) == NUM_EPOCHS * len(RUNS)
    frames = load_foreign_frames(GOLDEN / "optuna_journal.log", given | {"steps": ""})
    assert frames.evaluations is not None
    assert frames.evaluations.empty
    assert frames.source is not None
    assert any("What the steps of the series count is not stated" in limit for limit in frames.source.limits)


# ---------------------------------------------------------------------- Optuna


def make_study(storage: BaseStorage, name: str = "live") -> optuna.Study:
    """Trials of every ending, with a parameter of each kind."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=storage, study_name=name, directions=["maximize", "minimize"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names(["acc", "seconds"])
    for number, state in enumerate(("COMPLETE", "COMPLETE", "PRUNED", "FAIL")):
        trial = study.ask()
        trial.suggest_int("batch", 16, 512, log=True)
        trial.suggest_float("lr", 1e-3, 1.0, log=True)
        trial.suggest_categorical("optimizer", ["sgd", "adam"])
        trial.set_user_attr("gpu", "A100")
        values = [0.9 + number / 100, 10.0 + number] if state == "COMPLETE" else None
        study.tell(trial, values, state=optuna.trial.TrialState[state])
    study.ask()
    return study


OPTUNA_MAP = {
    "columns": {
        "batch.global": "params_batch", "optimizer.lr": "params_lr", "optimizer.name": "params_optimizer",
        "val_accuracy": {"column": "values_acc", "unit": "fraction"},
        "train_seconds": {"column": "values_seconds", "unit": "seconds"}, "device": "user_attrs_gpu",
    }
}  # fmt: skip


def open_journal(path: Path) -> BaseStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))


@pytest.mark.parametrize("open_", [open_storage, open_journal])
def test_a_live_study_of_optuna_is_read_as_optuna_reads_it(
    open_: Callable[[Path], BaseStorage], tmp_path: Path
) -> None:
    study = make_study(open_(tmp_path / "study"))
    before = list_contents(tmp_path / "study")
    frames = load_foreign_frames(tmp_path / "study", OPTUNA_MAP)
    assert list_contents(tmp_path / "study") == before, "reading writes nothing"
    trials, theirs = frames.trials, study.get_trials()[:4]
    assert trials["outcome"].tolist() == ["complete", "complete", "pruned", "crashed"]
    assert trials["global_batch_size"].tolist() == [trial.params["batch"] for trial in theirs]
    assert trials["config.optimizer.lr"].tolist() == [trial.params["lr"] for trial in theirs]
    assert trials["config.optimizer.name"].tolist() == [trial.params["optimizer"] for trial in theirs]
    assert trials["val_accuracy"].tolist()[:2] == [trial.values[0] for trial in theirs[:2]]
    assert trials["train_seconds"].tolist()[:2] == [trial.values[1] for trial in theirs[:2]]
    assert frames.source is not None
    assert "1 run left out: they have not ended." in frames.source.limits


def test_several_studies_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_study(open_storage(tmp_path / "study.db"), name)
    with pytest.raises(InputError, match=r"with trials: 'one', 'two'; name one in the map: study = .*--study"):
        load_foreign_frames(tmp_path / "study.db", OPTUNA_MAP)
    assert len(load_foreign_frames(tmp_path / "study.db", OPTUNA_MAP | {"study": "two"}).trials) == 4


# What an older and a newer Optuna leave in a database, and one of so long ago that its tables have other columns.
OTHER_VERSIONS = {
    "UPDATE alembic_version SET version_num = 'v2.6.0.a'": "upgrade the copy: optuna storage upgrade",
    "UPDATE alembic_version SET version_num = 'v99.0.0.a'": "install a newer Optuna",
    "ALTER TABLE version_info RENAME COLUMN schema_version TO version": "upgrade the copy: optuna storage upgrade",
}


@pytest.mark.parametrize("change", OTHER_VERSIONS)
def test_a_database_of_another_version_of_optuna_is_refused_with_its_remedy(change: str, tmp_path: Path) -> None:
    make_study(open_storage(tmp_path / "study.db"))
    with sqlite3.connect(tmp_path / "study.db") as connection:
        connection.execute("UPDATE version_info SET schema_version = 11")
        connection.execute(change)
    connection.close()
    with pytest.raises(InputError, match=rf"another version of Optuna .*{OTHER_VERSIONS[change]}"):
        read_foreign_table(tmp_path / "study.db")


def test_studies_without_trials_are_no_choice(tmp_path: Path) -> None:
    for name in ("empty", "bare"):
        optuna.create_study(storage=open_storage(tmp_path / "study.db"), study_name=name)
    with pytest.raises(InputError, match="studies with trials: none; it holds no run"):
        read_foreign_table(tmp_path / "study.db")
    make_study(open_storage(tmp_path / "study.db"), "filled")
    assert len(read_foreign_table(tmp_path / "study.db").cells) == 5


def test_a_database_is_read_with_what_its_log_holds(tmp_path: Path) -> None:
    make_study(open_storage(tmp_path / "study.db"))
    with sqlite3.connect(tmp_path / "study.db") as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("UPDATE trial_values SET value = 0.5")
        connection.commit()
        assert (tmp_path / "study.db-wal").stat().st_size
        before = list_contents(tmp_path / "study.db").keys()
        cells = read_foreign_table(tmp_path / "study.db").cells
        assert list_contents(tmp_path / "study.db").keys() == before
    connection.close()
    assert cells["values_acc"].tolist()[:2] == [0.5, 0.5]


def test_a_point_without_a_value_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = [
        {"op_code": 0, "study_name": "s", "directions": [2]},
        {"op_code": 4, "study_id": 0, "datetime_start": "2026-01-01T00:00:00"},
        {"op_code": 7, "trial_id": 0, "step": 0, "intermediate_value": None},
        {"op_code": 6, "trial_id": 0, "state": 1, "values": [0.9], "datetime_complete": "2026-01-01T00:10:00"},
    ]
    text = "".join(json.dumps({"worker_id": "w"} | line) + "\n" for line in lines)
    (tmp_path / "a.log").write_text(text)
    table = read_foreign_table(tmp_path / "a.log")
    assert table.cells["duration_seconds"].tolist() == [600.0]
    assert table.curves.empty
    assert table.notes == ("1 point of the series without a value left out.",)


def test_a_journal_is_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(content: bytes) -> None:
        raise AssertionError(f"unpickled {content!r}")

    make_study(open_journal(tmp_path / "study.log"))
    monkeypatch.setattr(pickle, "loads", refuse)
    assert len(read_foreign_table(tmp_path / "study.log").cells) == 5
    base = importlib.import_module("optuna.storages.journal._base")
    assert not issubclass(optuna.storages.journal.JournalFileBackend, base.BaseJournalSnapshot)


# ---------------------------------------------------------------------- tables, and what is none


@pytest.mark.parametrize(("name", "content", "cells"), [
    ("no_last_newline.csv", "a,b\n1,2", {"a": ["1"], "b": ["2"]}),
    ("upper.CSV", "a,b\n1,2\n", {"a": ["1"], "b": ["2"]}),
    ("semicolons.csv", "a;b\n1;2,5\n", {"a": ["1"], "b": ["2,5"]}),
    ("tabs.tsv", "a\tb\n1\t2\n", {"a": ["1"], "b": ["2"]}),
    ("index.csv", ",b\n0,2\n", {"column 1": ["0"], "b": ["2"]}),
    ("nothing.csv", "a,b\nNaN, - \n", {"a": [None], "b": [None]}),
    ("separators.csv", "a,b\nx\u2028y,p\x0cq\n", {"a": ["x\u2028y"], "b": ["p\x0cq"]}),
    ("quoted.csv", 'a,b\n"1\n,",007\n', {"a": ["1\n,"], "b": ["007"]}),
    ("separator.csv", "sep=;\na;b\n1;2\n", {"a": ["1"], "b": ["2"]}),
    ("a.json", '[{"a": 1, "b": {"c": 0.5}}, {"b": {"d": true}}]', {"a": [1, None], "b.c": [0.5, None],
                                                                  "b.d": [None, True]}),
    ("a.jsonl", '{"a": 1}\n\n{"a": "x\u2028y"}\n', {"a": [1, "x\u2028y"]}),
    ("text.json", """[{"b": "{'lr': 0.1}"}]""", {"b.lr": [0.1]}),
    ("numpy.csv", """a;b\nx;"{'acc': np.float64(0.9), 'n': -np.int64(3), 'ok': np.True_, 'e': nan}"\n""",
     {"a": ["x"], "b.acc": [0.9], "b.n": [-3], "b.ok": [True], "b.e": [None]}),
    ("words.csv", """a;b\n{'t': 'mode: inference only'};{x, y}\n{'t': 'nan or infinite'};\n""",
     {"a.t": ["mode: inference only", "nan or infinite"], "b": ["{x, y}", None]}),
    ("json.csv", """a;b\n"{""lr"": 0.1, ""on"": true, ""to"": null}";1\n;2\n""",
     {"a.lr": [0.1, None], "a.on": [True, None], "a.to": [None, None], "b": ["1", "2"]}),
])  # fmt: skip
def test_a_table_is_read_as_it_stands(name: str, content: str, cells: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_foreign_table(tmp_path / name).cells.to_dict("list") == cells


def test_a_table_in_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\tb\n\xe9\t2\n", encoding="utf-16")
    assert read_foreign_table(tmp_path / "a.csv").cells.to_dict("list") == {"a": ["\xe9"], "b": ["2"]}


def test_a_run_of_mlflow_without_what_nobody_reads_is_read(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason=_REASON)
    for number, size in enumerate((64, 128)):
        run = tmp_path / "runs/123" / f"r{number}"
        about = f"run_id: r{number}\nrun_uuid: r{number}\nstatus: 3\nlifecycle_stage: active\nstart_time: {number}\n"
        files = {"params/batch_size": str(size), "metrics/acc": f"1 0.9{number} 1", "meta.yaml": about}
        for path, text in files.items():
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            (run / path).write_text(text)
    (tmp_path / "runs/123/meta.yaml").write_text("experiment_id: '123'\nname: exp\nlifecycle_stage: active\n")
    (run / "metrics/killed").touch()
    (run / "metrics/torn").write_text("1 0.5 0\n2\n")
    for number, name in enumerate(("r2", "r3")):
        (tmp_path / "runs/123" / name / "tags").mkdir(parents=True)
        (tmp_path / "runs/123" / name / "tags/user").write_text("u")
        (tmp_path / "runs/123" / name / "meta.yaml").write_text("")
        if number:
            (tmp_path / "runs/123" / name / "meta.yaml").unlink()
    table = read_foreign_table(tmp_path / "runs")
    assert table.cells["params.batch_size"].tolist() == ["64", "128"]
    assert table.cells["metrics.acc"].tolist() == [0.90, 0.91]
    assert table.notes == (
        "Left out, because it has no value: 123/r1/metrics/killed.",
        "Left out, because it has no value: 123/r1/metrics/torn.",
        "Left out, because it has no meta.yaml: 123/r2.",
        "Left out, because it has no meta.yaml: 123/r3.",
    )
    (tmp_path / "runs/123/meta.yaml").unlink()
    with pytest.raises(InputError, match=r"left out: 123, it has no meta.yaml"):
        read_foreign_table(tmp_path / "runs")


def test_a_torn_event_file_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=_REASON)
    write_tensorboard(tmp_path / "events")
    whole = read_foreign_table(tmp_path / "events")
    torn = next((tmp_path / "events/run-03").glob("events*"))
    torn.write_bytes(torn.read_bytes()[:-9])
    table = read_foreign_table(tmp_path / "events")
    lost = whole.curves["row"].value_counts() - table.curves["row"].value_counts()
    assert lost[lost > 0].to_dict() == {2: 1}, "one point of the third run"
    assert {*table.notes} - {*whole.notes} == {"1 event file torn: what follows the last whole record is left out."}


def test_cells_of_a_frame_are_values() -> None:
    frame = pd.DataFrame({"bs": [32, None], "acc": np.array([0.5, np.nan]), "at": pd.Timestamp(0), "many": [[1], [2]]})
    table = read_foreign_table(frame)
    assert table.cells.to_dict("list") == {"bs": [32, None], "acc": [0.5, None], "at": ["1970-01-01 00:00:00"] * 2}
    assert table.notes == ("Columns whose cells are no single values were not read: many.",)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.csv", "a,a\n1,2\n", "column 'a' occurs twice"),
    ("a.csv", "a,b\n1,2\n3\n", "a.csv:3: 1 cells, the header has 2"),
    ("a.csv", "a,b\n1,2,3\n", "a.csv:2: 3 cells, the header has 2"),
    ("a.csv", 'a,b\n1,"2\n', "cannot be read as CSV: unexpected end of data"),
    ("a.csv", "a,b\n1,\udcff\n", "cannot be read as CSV: 'utf-8' codec"),
    ("a.csv", "a\n1\n", "its first line has no comma"),
    ("a.csv", "a,b\n", "it holds no run"),
    ("a.parquet", "PAR1", "cannot be read as Parquet"),
    ("a.db", "SQLite format 3\0 and no more", "cannot be read as an SQLite database"),
    ("a.log", '{"op_code": 0, "worker_id": "w"}\n', "cannot be read as Optuna"),
    ("a.txt", "hello\n", "what wrote it is not known"),
    ("a.csv.gz", "\x1f", "compressed by gzip; unpack it"),
    ("a.csv", "PK\x03\x04", "a spreadsheet or an archive; unpack it, or save the table of the runs as CSV"),
    ("a.csv", "a,b\n1,\udce9\n", "Save it as UTF-8"),
    ("a.csv", "a,b\n1,{'c': <Figure>}\n", "column 'b', run 1: the text of a dictionary that cannot be read"),
    ("a.csv", "a;a.b\n{'b': 1};2\n", "column 'a.b' occurs twice"),
    ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: it cannot be read as JSON"),
    ("a.json", "[1, 2]", "it is no list of runs; write a list of objects"),
    ("a.json", '{"a": {"0": 1}}', "it is no list of runs; write a list of objects"),
    ("a.json", "[" * 100_000, "cannot be read as JSON"),
    ("a.json", "[]", "it holds no run"),
])  # fmt: skip
def test_what_is_no_table_of_runs_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    encoded = content.encode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(gzip.compress(b"a,b\n1,2\n") if name.endswith(".gz") else encoded)
    with pytest.raises(InputError) as caught:
        read_foreign_table(tmp_path / name)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_other_tables_are_no_records_of_this_program(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    with pytest.raises(InputError, match="neither a store of this program nor a database of Optuna or MLflow"):
        read_foreign_table(tmp_path / "a.db")
    assert is_foreign(str(GOLDEN / "wandb_table.csv"))
    assert not is_foreign("postgresql://user@host/database")


@pytest.mark.parametrize(("source", "module"), [("mlruns", "mlflow"), ("events", "tensorboard")])
def test_a_missing_package_is_named(source: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / source / "1" / ("meta.yaml" if source == "mlruns" else "events.out.tfevents.1")
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(InputError, match=rf"requires the package {module}.*pip install 'batch-sweep\[import\]'"):
        read_foreign_table(tmp_path / source)


# ---------------------------------------------------------------------- the other way: the recipes of the guide


def run_recipe(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Frames:
    """Runs the recipe in ``folder`` on a recorded study, of which the frames are returned."""
    blocks = read_blocks(DOCS / "guides" / "records-from-elsewhere.md")
    (text,) = [block.text for block in blocks if block.title == name]
    monkeypatch.chdir(folder)
    exec(text.replace("runs/my_study", str(GALLERY)), {})
    return load_frames(GALLERY, evaluations=True)


@pytest.mark.filterwarnings("ignore")
def test_the_recipe_for_mlflow_loses_no_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason=_REASON)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    study = run_recipe("to_mlflow.py", tmp_path, monkeypatch)
    columns = {"batch.micro": "params.config.batch.micro", "optimizer.lr": "params.config.optimizer.lr",
               "val_accuracy": {"column": "metrics.val_accuracy", "unit": "fraction"}}  # fmt: skip
    given = {"columns": columns, "own_seeds": True, "ignored": []}
    found = load_foreign_frames(tmp_path, given).trials
    assert sorted(found["val_accuracy"].dropna()) == sorted(study.trials["val_accuracy"].dropna())
    assert sorted(found["config.optimizer.lr"]) == sorted(study.trials["config.optimizer.lr"])


@pytest.mark.filterwarnings("ignore")
def test_the_recipe_for_wandb_writes_a_run_per_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason=_REASON)
    monkeypatch.setenv("WANDB_SILENT", "true")
    study = run_recipe("to_wandb.py", tmp_path, monkeypatch)
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == len(study.trials)


def test_an_unstable_rate_does_not_spoil_what_is_known_of_the_others(tmp_path: Path) -> None:
    # effective batch size and rate: accuracies of three seeds; the highest rate fails at 32 and is unstable at 128
    runs = {
        (32, 0.02): (0.885, 0.890, 0.883), (32, 0.1): (0.906, 0.9065, 0.909), (32, 0.4): (0.0995, 0.0945, 0.1075),
        (128, 0.02): (0.756, 0.715, 0.7615), (128, 0.1): (0.793, 0.8435, 0.7835), (128, 0.4): (0.8255, 0.189, 0.72),
        (512, 0.02): (0.1015, 0.1985, 0.191), (512, 0.1): (0.175, 0.19, 0.3835), (512, 0.4): (0.668, 0.688, 0.5885),
    }  # fmt: skip
    rows = [
        f"{batch},{rate},{seed},{accuracy},{20 / batch}"
        for (batch, rate), accuracies in runs.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["batch,lr,seed,acc,seconds", *rows, ""]))
    columns = {"batch.global": '"batch"', "optimizer.lr": '"lr"', "seed": '"seed"'}
    metrics = {"val_accuracy": ("acc", "fraction"), "train_seconds": ("seconds", "seconds")}
    lines = [f'"{key}" = {column}' if "." in key else f"{key} = {column}" for key, column in columns.items()]
    lines += [f'{name} = {{ column = "{column}", unit = "{unit}" }}' for name, (column, unit) in metrics.items()]
    constants = ['"model.name" = "own"', '"data.name" = "mine"', 'device = "cpu"']
    (tmp_path / "map.toml").write_text("\n".join(["[columns]", *lines, "[constants]", *constants, ""]))
    answer = recommend(load_foreign_frames(tmp_path / "runs.csv", tmp_path / "map.toml")).batch_size
    assert answer is not None
    curve = {point.batch: point for point in answer.curve}
    assert curve[32].accuracy.median == pytest.approx(0.907, abs=0.005)
    assert curve[32].accuracy.high - curve[32].accuracy.low < 0.06
    assert answer.statements[0].batches == (32,)
    assert max(curve[batch].p_without_loss for batch in (128, 512)) < 0.1
