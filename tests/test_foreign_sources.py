"""The files of other programs: each golden file gives the twelve trainings that it was made from, and live ones too."""

import json
import sqlite3
import warnings
import zipfile
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from foreign_runs import GOLDEN, NUM_EPOCHS, curve_of, list_golden_runs
from optuna.storages import BaseStorage
from optuna_storages import open_storage

from sweep.config.errors import InputError
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.foreign.source_kinds import is_foreign, read_foreign_table
from sweep.records.frames.study_frames import Frames

RUNS = list_golden_runs()
# By golden file: the name of each quantity's column, in the order batch, rate, seed, accuracy, seconds, memory.
COLUMNS = {
    "table.csv": ("batch", "lr", "seed", "top1 (%)", "minutes", None),
    "wandb_table.csv": ("batch_size", "lr", "seed", "val/acc", "train_time_s", "mem_mib"),
    "wandb_api.csv": ("config.batch_size", "config.lr", "config.seed", "summary.val/acc", "summary.train_time_s",
                      "summary.mem_mib"),
    "wandb_api.json": ("config.batch_size", "config.lr", "config.seed", "summary.val/acc", "summary.train_time_s",
                       "summary.mem_mib"),
    "neptune": ("parameters/batch_size", "parameters/lr", "parameters/seed", "metrics/val/acc", "results/train_time_s",
                "results/mem_mib"),
    "mlflow_search.csv": ("params.batch_size", "params.lr", "params.seed", "metrics.val/acc", "metrics.train_time_s",
                          "metrics.mem_mib"),
    "mlruns.zip": ("params.batch_size", "params.lr", "params.seed", "metrics.val/acc", "metrics.train_time_s",
                   "metrics.mem_mib"),
    "mlflow_database.sql": ("params.batch_size", "params.lr", "params.seed", "metrics.val/acc", "metrics.train_time_s",
                            "metrics.mem_mib"),
    "optuna_journal.log": ("params_batch_size", "params_lr", "user_attrs_seed", "value", "user_attrs_train_time_s",
                           "user_attrs_mem_mib"),
    "tensorboard.zip": ("hparams.batch_size", "hparams.lr", "hparams.seed", "val/acc", "train_time_s", "mem_mib"),
}  # fmt: skip
WITH_CURVES = {"wandb_api.json", "neptune", "mlruns.zip", "mlflow_database.sql", "tensorboard.zip"}


def write_map(folder: Path, columns: tuple[str | None, ...], extra: str = "", unit: str = "fraction") -> Path:
    """A map of these columns, with times in seconds and memory in MiB."""
    batch, rate, seed, accuracy, seconds, memory = columns
    lines = [
        'steps = "epochs"',
        extra,
        "[columns]",
        f'"batch.global" = "{batch}"',
        f'"optimizer.lr" = "{rate}"',
        f'seed = "{seed}"',
        f'val_accuracy = {{ column = "{accuracy}", unit = "{unit}" }}',
        f'train_seconds = {{ column = "{seconds}", unit = "{"minutes" if unit == "percent" else "seconds"}" }}',
        f'peak_memory_bytes = {{ column = "{memory}", unit = "MiB" }}' if memory else "",
        "[constants]",
        'device = "A100"',
    ]
    path = folder / "map.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def unpack(name: str, folder: Path) -> Path:
    """The golden file ``name`` as its program leaves it."""
    if name.endswith(".zip"):
        pytest.importorskip("tensorboard", reason="the extra [export] is not installed") if "tensor" in name else None
        zipfile.ZipFile(GOLDEN / name).extractall(folder / "unpacked")
        return folder / "unpacked"
    if name.endswith(".sql"):
        with sqlite3.connect(folder / "mlflow.db") as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.executescript("BEGIN;" + (GOLDEN / name).read_text() + "COMMIT;")
        connection.close()
        return folder / "mlflow.db"
    return GOLDEN / name


def load_golden(name: str, folder: Path) -> Frames:
    unit = "percent" if name == "table.csv" else "fraction"
    return load_foreign_frames(unpack(name, folder), write_map(folder, COLUMNS[name], unit=unit))


@pytest.mark.parametrize("name", COLUMNS)
def test_each_golden_file_gives_the_trainings_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    frames = load_golden(name, tmp_path)
    trials = frames.trials
    assert trials["number"].tolist() == [run["number"] for run in RUNS]
    assert trials["global_batch_size"].tolist() == [run["batch"] for run in RUNS]
    assert trials["config.optimizer.lr"].tolist() == pytest.approx([run["lr"] for run in RUNS], rel=1e-12)
    assert trials["seed"].tolist() == [run["seed"] for run in RUNS]
    # add_scalar of torch keeps 32 bits
    exact = 1e-7 if name == "tensorboard.zip" else 1e-9
    assert trials["val_accuracy"].tolist() == pytest.approx([run["accuracy"] for run in RUNS], rel=exact)
    assert trials["train_seconds"].tolist() == pytest.approx([run["seconds"] for run in RUNS], rel=1e-7)
    if COLUMNS[name][-1]:
        assert trials["peak_memory_bytes"].tolist() == [run["bytes"] for run in RUNS]
    assert set(trials["outcome"]) == {"complete"}
    assert set(trials["phase"]) == {"confirm"}, "all configurations have the same seeds"
    assert frames.source is not None
    assert frames.source.num_runs == len(RUNS)
    assert len(frames.source.digest) == 64


@pytest.mark.parametrize("name", sorted(WITH_CURVES))
def test_series_are_learning_curves(name: str, tmp_path: Path) -> None:
    evaluations = load_golden(name, tmp_path).evaluations
    assert evaluations is not None
    assert len(evaluations) == NUM_EPOCHS * len(RUNS)
    for run in RUNS:
        own = evaluations[evaluations["number"] == run["number"]]
        assert own["val_accuracy"].tolist() == pytest.approx(curve_of(run), rel=1e-6)
        assert own["epoch"].tolist() == [0, 1, 2]
        assert own["step"].isna().all(), "epochs are no optimizer steps"


def test_without_the_meaning_of_steps_there_are_no_curves(tmp_path: Path) -> None:
    path = write_map(tmp_path, COLUMNS["wandb_api.json"])
    path.write_text(path.read_text().replace('steps = "epochs"', ""))
    frames = load_foreign_frames(GOLDEN / "wandb_api.json", path)
    assert frames.evaluations is not None
    assert not len(frames.evaluations)
    assert frames.source is not None
    assert any("What the steps of the series count is not stated" in limit for limit in frames.source.limits)


def test_the_largest_value_of_a_series_is_taken_where_the_map_states_it(tmp_path: Path) -> None:
    path = write_map(tmp_path, COLUMNS["optuna_journal.log"])
    text = path.read_text().replace('column = "value", unit', 'column = "intermediate_value", take = "min", unit')
    path.write_text(text)
    trials = load_foreign_frames(GOLDEN / "optuna_journal.log", path).trials
    assert trials["val_accuracy"].tolist() == pytest.approx([curve_of(run)[0] for run in RUNS])


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


OPTUNA_MAP = """
[columns]
"batch.global" = "params_batch"
"optimizer.lr" = "params_lr"
"optimizer.name" = "params_optimizer"
val_accuracy = { column = "values_acc", unit = "fraction" }
train_seconds = { column = "values_seconds", unit = "seconds" }
device = "user_attrs_gpu"
"""


@pytest.mark.parametrize("kind", ["database", "journal"])
def test_a_live_study_of_optuna_is_read_as_optuna_reads_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("study.db" if kind == "database" else "study.log")
    storage: BaseStorage
    if kind == "database":
        storage = open_storage(path)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            storage = optuna.storages.JournalStorage(backend)
    study = make_study(storage)
    (tmp_path / "map.toml").write_text(OPTUNA_MAP)
    before = path.read_bytes()
    frames = load_foreign_frames(path, tmp_path / "map.toml")
    trials, theirs = frames.trials, study.get_trials()[:4]
    assert trials["outcome"].tolist() == ["complete", "complete", "pruned", "crashed"]
    assert trials["global_batch_size"].tolist() == [trial.params["batch"] for trial in theirs]
    assert trials["config.optimizer.lr"].tolist() == [trial.params["lr"] for trial in theirs]
    assert trials["config.optimizer.name"].tolist() == [trial.params["optimizer"] for trial in theirs]
    assert trials["val_accuracy"].tolist()[:2] == [trial.values[0] for trial in theirs[:2]]
    assert trials["train_seconds"].tolist()[:2] == [trial.values[1] for trial in theirs[:2]]
    assert frames.source is not None
    assert "1 run left out: they have not ended." in frames.source.limits
    assert path.read_bytes() == before, "reading writes nothing"


def test_several_studies_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_study(open_storage(tmp_path / "study.db"), name)
    (tmp_path / "map.toml").write_text(OPTUNA_MAP)
    with pytest.raises(InputError, match=r"its studies are 'one', 'two'; name one in the map: study = "):
        load_foreign_frames(tmp_path / "study.db", tmp_path / "map.toml")
    (tmp_path / "map.toml").write_text(f'study = "two"\n{OPTUNA_MAP}')
    assert len(load_foreign_frames(tmp_path / "study.db", tmp_path / "map.toml").trials) == 4


def test_a_cut_journal_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    text = (GOLDEN / "optuna_journal.log").read_text()
    (tmp_path / "j.log").write_text(text + '{"op_code": 4, "worker')
    assert len(read_foreign_table(tmp_path / "j.log").cells) == len(RUNS)
    (tmp_path / "j.log").write_text(text + '{"op_code": 5, "trial_id": 99}\n')
    with pytest.raises(InputError, match=r"j\.log:\d+: no operation of a journal"):
        read_foreign_table(tmp_path / "j.log")


def test_hyperparameters_of_lightning_lie_in_a_file_beside_the_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra [export] is not installed")
    folder = unpack("tensorboard.zip", tmp_path)
    (folder / "run-01" / "hparams.yaml").write_text("batch_size: 64\nlr: 0.5\nnested:\n  key: 1\nname: 'x'\n")
    cells = read_foreign_table(folder).cells
    own = cells[cells["run"] == "run-01"].iloc[0]
    assert (own["hparams.batch_size"], own["hparams.lr"], own["hparams.name"]) == ("64", "0.5", "x")
    assert "hparams.nested" not in cells


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,b\n1,2", "its last line has no end"),
        ("a.csv", "a,a\n1,2\n", "column 'a' occurs twice"),
        ("a.csv", "a,b\n1\n", "a.csv:2: 1 cells, the header has 2"),
        ("a.csv", "a\n1\n", "its first line has no comma"),
        ("a.csv", "a,b\n", "it holds no run"),
        ("a.csv", 'summary,config,name\n"__import__(\'os\')","{}",x\n', "it is no dictionary of plain values"),
        ("a.json", "{", "no JSON"),
        ("a.json", "[1]", "run 1 has neither config nor summary"),
        ("a.json", "3", "it is no list of runs"),
        ("a.parquet", "PAR1", "no Parquet file"),
        ("a.db", "SQLite format 3\0 and no more", "cannot be read as an SQLite database"),
        ("a.txt", "hello\n", "what wrote it is not known"),
    ],
)
def test_what_is_no_table_of_runs_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
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
    assert is_foreign(str(GOLDEN / "table.csv"))
    assert not is_foreign("postgresql://user@host/database")


def test_semicolons_and_tabs_separate_too(tmp_path: Path) -> None:
    for name, mark in (("a.csv", ";"), ("b.tsv", "\t")):
        (tmp_path / name).write_text(f"bs{mark}acc\n32{mark}0.5\n")
        cells = read_foreign_table(tmp_path / name).cells
        assert cells.to_dict("list") == {"bs": ["32"], "acc": ["0.5"]}


def test_a_frame_saved_as_parquet_is_read(tmp_path: Path) -> None:
    pd.DataFrame({"bs": [32, 64], "acc": [0.5, np.nan]}).to_parquet(tmp_path / "a.parquet")
    cells = read_foreign_table(tmp_path / "a.parquet").cells
    assert cells["bs"].tolist() == [32, 64]
    assert cells["acc"].tolist()[0] == 0.5


def test_rows_of_a_history_without_a_step_are_named(tmp_path: Path) -> None:
    runs = json.loads((GOLDEN / "wandb_api.json").read_text())
    del runs[0]["history"][1]["_step"], runs[1]["history"][0]["_step"]
    runs[2]["history"] = "a table"
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    (tmp_path / "map.toml").write_text(write_map(tmp_path, COLUMNS["wandb_api.json"]).read_text())
    whole = load_foreign_frames(GOLDEN / "wandb_api.json", tmp_path / "map.toml")
    frames = load_foreign_frames(tmp_path / "runs.json", tmp_path / "map.toml")
    assert frames.evaluations is not None
    assert whole.evaluations is not None
    assert len(whole.evaluations) - len(frames.evaluations) == 2 + NUM_EPOCHS
    assert frames.source is not None
    assert any(limit.startswith("3 rows of `history` left out") for limit in frames.source.limits)
