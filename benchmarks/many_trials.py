"""Studies of very many trials, for timing what grows with their number."""

from contextlib import closing
from pathlib import Path
from typing import Any

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial_config import flatten_config
from sweep.records.columns import CONFIG_COLUMNS
from sweep.records.store.schema import TRIALS
from sweep.records.store.store import open_store
from sweep.search.sampler import SobolPoints

_AT_ONCE = 5_000


def many_spec(name: str, trials: int, sampler: str = "qmc") -> StudySpec:
    """Four parameters and three objectives."""
    return build_study(
        {
            "name": name,
            "trials": trials,
            "sampler": sampler,
            "confirm": {"max_configurations": 0},
            "space": {
                "batch.micro": {"log2": [4, 10]},
                "batch.accumulation": {"choice": [1, 2, 4]},
                "optimizer.lr": {"log": [1e-3, 1.0]},
                "optimizer.weight_decay": {"float": [0.0, 1e-3]},
            },
        },
        "benchmark",
    )


def measured(values: dict[str, Any], number: int) -> dict[str, float | int]:
    """Figures that trade off against each other and differ from trial to trial."""
    micro, lr = values["batch.micro"], values["optimizer.lr"]
    wobble = (number * 0.6180339887) % 1.0
    return {
        "val_accuracy": 0.9 - 0.05 * abs(lr - 0.1) - 1e-5 * micro + 0.01 * wobble,
        "train_seconds": 5.0 + 200.0 / micro + wobble,
        "peak_memory_bytes": 1_000_000 + 20_000 * micro,
        "total_seconds": 7.0 + 200.0 / micro + wobble,
        "step_seconds_median": 0.01 + wobble / 1000,
        "num_steps": 500,
    }


def fill(path: Path, spec: StudySpec, count: int) -> None:
    """A store at ``path`` with ``count`` complete search trials, whose keys are ``key0``, ``key1`` ..."""
    points = SobolPoints(spec.space, spec.seed)
    usual = flatten_config(spec.config(points(0)))  # a configuration is not validated for each of 100,000
    with closing(open_store(path, create=True)) as store:
        store.create_study(spec)
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            rows = [_row(spec, usual | points(number), number) for number in numbers]
            with store.database.begin() as connection:
                connection.execute(TRIALS.insert(), rows)


def _row(spec: StudySpec, values: dict[str, Any], number: int) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: column.to_cell(values[column.path]) for column in CONFIG_COLUMNS}
    row |= {"study": spec.name, "number": number, "phase": "search", "trial_key": f"key{number}"}
    return row | {"outcome": "complete", "device": "cpu", **measured(values, number)}
