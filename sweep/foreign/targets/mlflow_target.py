"""The trials of a study as runs of MLflow, in its SQLite database, which ``mlflow ui`` opens."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sweep.foreign.foreign_packages import import_package
from sweep.foreign.own_runs import SERIES, RunContents

T = TypeVar("T")
DATABASE = "mlflow.db"
_STATUS = {"": "RUNNING", "complete": "FINISHED", "pruned": "KILLED", "cancelled": "KILLED", "timed_out": "KILLED"}
_MAX_ENTITIES = 100  # of one kind in one request
_MAX_VALUE = 5000  # characters; the database refuses longer ones


def write_mlflow(runs: Sequence[RunContents], folder: Path, final: Path) -> None:
    """Writes ``folder / DATABASE`` with an experiment per study. ``final`` is where the folder will lie, which MLflow
    keeps as the place of artifacts. Raises ``InputError`` where the package mlflow-skinny is not installed."""
    tracking, entities = (
        import_package("mlflow.tracking", "mlflow-skinny"),
        import_package("mlflow.entities", "mlflow-skinny"),
    )
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{folder.resolve()}/{DATABASE}")
    experiments: dict[str, str] = {}
    for run in runs:
        if run.study not in experiments:
            place = (final.resolve() / "artifacts").as_uri()
            experiments[run.study] = client.create_experiment(run.study, artifact_location=place)
        _write_run(client, entities, experiments[run.study], run)


def _write_run(client: Any, entities: Any, experiment: str, run: RunContents) -> None:
    started = run.started_ms or 0
    name = f"trial {run.number}"
    made = client.create_run(experiment, run_name=name, start_time=started).info.run_id
    ended = started + round(1000 * run.results.get("total_seconds", 0.0))
    metrics = [entities.Metric(key, value, ended, 0) for key, value in run.results.items()]
    metrics += [
        entities.Metric(f"{SERIES}{key}", value, started, step)
        for step, values in run.curves
        for key, value in values.items()
    ]
    params = [entities.Param(key, str(value)[:_MAX_VALUE]) for key, value in run.settings.items()]
    tags = [entities.RunTag(key, value[:_MAX_VALUE]) for key, value in run.facts.items()]
    for kind, every in (("metrics", metrics), ("params", params), ("tags", tags)):
        for part in _split(every):
            client.log_batch(made, **{kind: part})
    client.set_terminated(made, status=_STATUS.get(run.outcome, "FAILED"), end_time=ended)


def _split(every: Sequence[T]) -> Iterator[Sequence[T]]:
    return (every[start : start + _MAX_ENTITIES] for start in range(0, len(every), _MAX_ENTITIES))
