"""The files of other programs: each gives the twelve trainings that it was made from, and nothing is written to it."""

import importlib
import pickle
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from guide_blocks import DOCS
from optuna.storages import BaseStorage
from optuna_storages import open_storage

from sweep.config.errors import InputError
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.foreign.sources import is_foreign, read_foreign_table

GOLDEN = Path(__file__).parent / "golden" / "foreign"
GALLERY = DOCS / "gallery" / "quickstart"
# Twelve trainings, with values that no two of them share: accuracy as a fraction, seconds, MiB.
RUNS = [
    {"number": 6 * place + 3 * half + seed + 1, "batch_size": batch, "lr": rate, "seed": seed,
     "acc": round(0.9 + 0.001 * (6 * place + 3 * half + seed + 1) + 0.01 * place, 4),
     "seconds": 100.0 + 10 * place + (6 * place + 3 * half + seed + 1) / 8, "mem": 500.0 + 4 * batch}
    for place, batch in enumerate((32, 128)) for half, rate in enumerate((0.03, 0.1)) for seed in range(3)
]  # fmt: skip


def place_of(source: str, folder: Path) -> Path:
    """The trainings in a file of that source."""
    if source != "frame.parquet":
        return GOLDEN / source
    pd.DataFrame(RUNS).to_parquet(folder / source)
    return folder / source


# By source: the columns of batch size, rate, seed, accuracy, seconds and memory.
COLUMNS = {
    "wandb_table.csv": ("batch_size", "lr", "seed", "val/acc", "train_time_s", "mem_mib"),
    "frame.parquet": ("batch_size", "lr", "seed", "acc", "seconds", "mem"),
    "mlflow_search.csv": ("params.batch_size", "params.lr", "params.seed", "metrics.val/acc", "metrics.train_time_s",
                          "metrics.mem_mib"),
    "optuna_journal.log": ("params_batch_size", "params_lr", "user_attrs_seed", "value", "user_attrs_train_time_s",
                           "user_attrs_mem_mib"),
}  # fmt: skip


def make_map(source: str) -> dict[str, Any]:
    """The map of the source's columns."""
    batch, rate, seed, accuracy, seconds, memory = COLUMNS[source]
    columns: dict[str, Any] = {
        "batch.global": batch, "optimizer.lr": rate, "seed": seed,
        "val_accuracy": {"column": accuracy, "unit": "fraction"},
        "train_seconds": {"column": seconds, "unit": "seconds"},
        "peak_memory_bytes": {"column": memory, "unit": "MiB"},
    }  # fmt: skip
    return {"columns": columns, "constants": {"device": "A100"}}


def list_contents(place: Path) -> dict[str, bytes]:
    """The bytes of every file beside and below ``place``."""
    return {str(path): path.read_bytes() for path in place.parent.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", COLUMNS)
def test_each_source_gives_the_trainings_that_it_was_made_from(source: str, tmp_path: Path) -> None:
    place = place_of(source, tmp_path)
    before = list_contents(place)
    frames = load_foreign_frames(place, make_map(source))
    assert list_contents(place) == before, "reading writes nothing"
    trials, made = frames.trials, pd.DataFrame(RUNS)
    assert trials["number"].tolist() == made["number"].tolist()
    assert trials["global_batch_size"].tolist() == made["batch_size"].tolist()
    assert trials["config.optimizer.lr"].tolist() == pytest.approx(made["lr"].tolist(), rel=1e-12)
    assert trials["seed"].tolist() == made["seed"].tolist()
    assert trials["val_accuracy"].tolist() == pytest.approx(made["acc"].tolist(), rel=1e-9)
    assert trials["train_seconds"].tolist() == pytest.approx(made["seconds"].tolist(), rel=1e-9)
    assert trials["peak_memory_bytes"].tolist() == (made["mem"] * 2**20).tolist()
    assert set(trials["outcome"]) == {"complete"}
    assert set(trials["phase"]) == {"confirm"}, "all configurations have the same seeds"
    assert frames.source is not None
    assert frames.source.num_runs == len(RUNS)
    assert len(frames.source.digest) == 64


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
    with pytest.raises(InputError, match=r"its studies are 'one', 'two'; name one in the map: study = "):
        load_foreign_frames(tmp_path / "study.db", OPTUNA_MAP)
    assert len(load_foreign_frames(tmp_path / "study.db", OPTUNA_MAP | {"study": "two"}).trials) == 4


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
])  # fmt: skip
def test_a_table_is_read_as_it_stands(name: str, content: str, cells: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_foreign_table(tmp_path / name).cells.to_dict("list") == cells


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
])  # fmt: skip
def test_what_is_no_table_of_runs_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as caught:
        read_foreign_table(tmp_path / name)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_other_tables_are_no_records_of_this_program(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    with pytest.raises(InputError, match="what wrote it is not known"):
        read_foreign_table(tmp_path / "a.db")
    assert is_foreign(str(GOLDEN / "wandb_table.csv"))
    assert not is_foreign("postgresql://user@host/database")
