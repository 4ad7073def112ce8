"""Makes the golden files of this folder anew, with the programs that they are of: `python make_golden.py` with the
extra `export`. What W&B's page and Neptune's exporter write is written here as they write it, because both need a
server."""

import csv
import json
import os
import sqlite3
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from foreign_runs import curve_of, list_golden_runs  # noqa: E402

RUNS = list_golden_runs()
_MLFLOW_TABLES = ("experiments", "runs", "params", "metrics", "latest_metrics", "tags")


def _names(run: dict[str, float]) -> tuple[dict[str, Any], dict[str, float]]:
    settings = {"batch_size": int(run["batch"]), "lr": run["lr"], "seed": int(run["seed"]), "model": "resnet18"}
    return settings, {"val/acc": run["accuracy"], "train_time_s": run["seconds"], "mem_mib": run["bytes"] / 2**20}


def make_csv() -> None:
    with (HERE / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["batch", "lr", "seed", "top1 (%)", "minutes", "GPU", "note"])
        for run in RUNS:
            cells = (int(run["batch"]), run["lr"], int(run["seed"]), 100 * run["accuracy"], run["seconds"] / 60)
            writer.writerow([*(f"{cell:.10g}" for cell in cells), "A100", f"row {run['number']}"])


def make_wandb() -> None:
    records = []
    with (HERE / "wandb_table.csv").open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["Name", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep",
                         "batch_size", "lr", "model", "seed", "mem_mib", "train_time_s", "val/acc"])  # fmt: skip
        for run in RUNS:
            settings, results = _names(run)
            writer.writerow([f"run-{run['number']}", "finished", "-", "somebody", "", "2026-11-01T10:00:00.000Z", "120",
                             "", *(settings[name] for name in ("batch_size", "lr", "model", "seed")),
                             *(results[name] for name in ("mem_mib", "train_time_s", "val/acc"))])  # fmt: skip
            history = [{"_step": step, "val/acc": value} for step, value in enumerate(curve_of(run))]
            records.append({"name": f"run-{run['number']}", "state": "finished", "config": settings,
                            "summary": results | {"_runtime": 120.0}, "history": history})  # fmt: skip
    (HERE / "wandb_api.json").write_text(json.dumps(records, indent=1) + "\n")
    # as the example in W&B's documentation of the public API does
    frame = pd.DataFrame({key: [each[key] for each in records] for key in ("summary", "config", "name")})
    frame.to_csv(HERE / "wandb_api.csv")


def make_neptune() -> None:
    text = ("project_id", "run_id", "attribute_path", "attribute_type")
    schema = pa.schema([
        *((name, pa.string()) for name in text),
        ("step", pa.decimal128(18, 6)), ("timestamp", pa.timestamp("ms", "UTC")),
        ("int_value", pa.int64()), ("float_value", pa.float64()), ("string_value", pa.string()),
        ("bool_value", pa.bool_()), ("datetime_value", pa.timestamp("ms", "UTC")),
        ("string_set_value", pa.list_(pa.string())), ("file_value", pa.struct([("path", pa.string())])),
    ])  # fmt: skip
    rows: list[dict[str, Any]] = []
    for run in RUNS:
        settings, results = _names(run)
        head = {"project_id": "team/images", "run_id": f"RUN-{run['number']}"}
        kinds = {"batch_size": "int", "seed": "int", "lr": "float", "model": "string"}
        for name, kind in kinds.items():
            rows.append(
                {
                    **head,
                    "attribute_path": f"parameters/{name}",
                    "attribute_type": kind,
                    f"{kind}_value": settings[name],
                }
            )
        for name in ("train_time_s", "mem_mib"):
            rows.append(
                {**head, "attribute_path": f"results/{name}", "attribute_type": "float", "float_value": results[name]}
            )
        rows.append({**head, "attribute_path": "sys/failed", "attribute_type": "bool", "bool_value": False})
        rows.append({**head, "attribute_path": "sys/tags", "attribute_type": "string_set", "string_set_value": ["a"]})
        for step, value in enumerate(curve_of(run)):
            rows.append({**head, "attribute_path": "metrics/val/acc", "attribute_type": "float_series", "step": step,
                         "float_value": value})  # fmt: skip
    folder = HERE / "neptune" / "team_images"
    folder.mkdir(parents=True, exist_ok=True)
    half = len(rows) // 2
    for part, some in enumerate((rows[:half], rows[half:])):
        parquet.write_table(pa.Table.from_pylist(some, schema=schema), folder / f"runs_part_{part}.parquet")


def make_mlflow() -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as aside:
        base = Path(aside)
        for uri in (f"file://{base}/mlruns", f"sqlite:///{base}/mlflow.db"):
            client = MlflowClient(tracking_uri=uri)
            experiment = client.create_experiment("images", artifact_location="file:///artifacts")
            for run in RUNS:
                settings, results = _names(run)
                made = client.create_run(
                    experiment, start_time=1_700_000_000_000 + int(run["number"]), tags={"gpu": "A100"}
                )
                for name, value in settings.items():
                    client.log_param(made.info.run_id, name, value)
                for name in ("train_time_s", "mem_mib"):
                    client.log_metric(made.info.run_id, name, results[name], timestamp=1)
                for step, value in enumerate(curve_of(run)):
                    client.log_metric(made.info.run_id, "val/acc", value, step=step, timestamp=1)
                client.set_terminated(made.info.run_id, end_time=1_700_000_100_000)
        _keep_mlflow(base)


def _keep_mlflow(base: Path) -> None:
    for path in (base / "mlruns").rglob("meta.yaml"):
        path.write_text(path.read_text().replace(str(base), "/home/somebody"))
    _pack(base / "mlruns", HERE / "mlruns.zip")
    # the tables alone, as text: the whole database is a megabyte
    with sqlite3.connect(base / "mlflow.db") as connection:
        dump = list(connection.iterdump())
    begins = tuple(f"{verb} {name}" for verb in ("CREATE TABLE", "INSERT INTO") for table in _MLFLOW_TABLES
                   for name in (f"{table} ", f'"{table}"'))  # fmt: skip
    lines = [line for line in dump if line.startswith(begins)]
    text = "\n".join(lines).replace(str(base), "/home/somebody").replace(str(Path.cwd()), "/home/somebody")
    (HERE / "mlflow_database.sql").write_text(text + "\n")
    _write_search(base)


def _write_search(base: Path) -> None:
    # the columns that mlflow.search_runs gives
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{base}/mlflow.db")
    experiment = client.get_experiment_by_name("images").experiment_id
    rows = [
        {"run_id": run.info.run_id, "experiment_id": experiment, "status": run.info.status,
         "start_time": pd.to_datetime(run.info.start_time, unit="ms", utc=True),
         **{f"metrics.{name}": value for name, value in run.data.metrics.items()},
         **{f"params.{name}": value for name, value in run.data.params.items()},
         "tags.gpu": run.data.tags["gpu"]}
        for run in client.search_runs([experiment], order_by=["start_time"])
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(HERE / "mlflow_search.csv", index=False)


def make_tensorboard() -> None:
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as aside:
        for run in RUNS:
            settings, results = _names(run)
            with SummaryWriter(str(Path(aside) / f"run-{run['number']:02d}")) as writer:
                for step, value in enumerate(curve_of(run)):
                    writer.add_scalar("val/acc", value, step, walltime=1.0)
                final = {name: results[name] for name in ("train_time_s", "mem_mib")}
                writer.add_hparams(settings, final, run_name="hparams")
        for path in list(Path(aside).rglob("events.out.tfevents.*")):
            path.rename(path.with_name("events.out.tfevents.1"))  # without the name of the machine
        _pack(Path(aside), HERE / "tensorboard.zip")


def _pack(folder: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            packed.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), path.read_bytes(), zipfile.ZIP_DEFLATED)


def make_optuna() -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    path = HERE / "optuna_journal.log"
    path.unlink(missing_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(storage=storage, study_name="images", direction="maximize")
    for run in RUNS:
        trial = study.ask()
        trial.suggest_int("batch_size", int(run["batch"]), int(run["batch"]))
        trial.suggest_float("lr", run["lr"], run["lr"])
        trial.set_user_attr("seed", int(run["seed"]))
        trial.set_user_attr("train_time_s", run["seconds"])
        trial.set_user_attr("mem_mib", run["bytes"] / 2**20)
        for step, value in enumerate(curve_of(run)):
            trial.report(value, step)
        study.tell(trial, run["accuracy"])


if __name__ == "__main__":
    for make in (make_csv, make_wandb, make_neptune, make_mlflow, make_tensorboard, make_optuna):
        make()
