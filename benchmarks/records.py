"""What grows with the number of trials: frames, beside Optuna's, and reports."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, create_engine, text

from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import flatten_config
from sweep.records.loading import load_frames
from sweep.records.records import make_config_cells
from sweep.records.schema import EVALUATIONS, TRIALS
from sweep.records.store import Store, open_store
from sweep.search.optuna import list_directions, make_distributions, to_optuna_params
from sweep.search.sampler import SobolPoints

# ---------------------------------------------------------------------- studies of very many trials


def many_spec(trials: int) -> StudySpec:
    space = {
        "batch.micro": {"log2": [4, 10]}, "batch.accumulation": {"choice": [1, 2, 4]},
        "optimizer.lr": {"log": [1e-3, 1.0]}, "optimizer.weight_decay": {"float": [0.0, 1e-3]},
    }  # fmt: skip
    plain = {"name": "many", "trials": trials, "sampler": "qmc", "confirm": {"max_configurations": 0}}
    return build_study(plain | {"space": space}, "benchmark")


_SPEC = many_spec(1)


def _measured(values: dict[str, Any], number: int) -> dict[str, float | int]:
    # figures that trade off against each other and differ from trial to trial
    micro, lr = values["batch.micro"], values["optimizer.lr"]
    wobble = (number * 0.6180339887) % 1.0
    return {
        "val_accuracy": 0.9 - 0.05 * abs(lr - 0.1) - 1e-5 * micro + 0.01 * wobble,
        "train_seconds": 5.0 + 200.0 / micro + wobble, "peak_memory_bytes": 1_000_000 + 20_000 * micro,
        "total_seconds": 7.0 + 200.0 / micro + wobble, "step_seconds_median": 0.01 + wobble / 1000, "num_steps": 500,
    }  # fmt: skip


def fill(path: Path, spec: StudySpec, count: int) -> None:
    """A store at ``path`` with ``count`` complete search trials, whose keys are ``key0``, ``key1`` ..."""
    points = SobolPoints(spec.space, spec.seed)
    usual = flatten_config(spec.config(points(0)))  # a configuration is not validated for each of 100,000

    def make_row(number: int) -> dict[str, Any]:
        values = usual | points(number)
        row: dict[str, Any] = make_config_cells(values)
        row |= {"study": spec.name, "number": number, "phase": "search", "trial_key": f"key{number}"}
        return row | {"outcome": "complete", "device": "cpu", **_measured(values, number)}

    with closing(open_store(path, create=True)) as store:
        store.create_study(spec)
        for start in range(0, count, 5_000):
            rows = [make_row(number) for number in range(start, min(start + 5_000, count))]
            store.database.write(partial(_insert, TRIALS, rows))


def _insert(table: Any, rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(table.insert(), rows)


# ---------------------------------------------------------------------- the same in Optuna, on SQLite

_COPIED = {"trial_params": "param_id", "trial_values": "trial_value_id"}


def _make_optuna_study(path: Path, count: int) -> None:
    # complete trials with parameters and values; Optuna itself writes 1,000, the others are copies of them
    storage = RDBStorage(f"sqlite:///{path}")
    study = optuna.create_study(storage=storage, study_name="many", directions=list_directions(_SPEC))
    written = min(count, 1_000)
    study.add_trials(_optuna_trials(written))
    storage.remove_session()
    storage.engine.dispose()
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        columns = "number + :shift, study_id, state, datetime_start, datetime_complete"
        for shift in range(written, count, written):
            room = {"shift": shift, "count": min(written, count - shift)}
            connection.execute(
                # names of Optuna's own tables and columns
                text(f"INSERT INTO trials SELECT trial_id + :shift, {columns} FROM trials WHERE number < :count"),  # nosec B608
                room,
            )
            for table, key in _COPIED.items():
                rest = [row[1] for row in connection.execute(text(f"PRAGMA table_info({table})"))]
                names = ", ".join(name for name in rest if name not in (key, "trial_id"))
                into = f"{table} (trial_id, {names})"
                connection.execute(
                    text(f"INSERT INTO {into} SELECT trial_id + :shift, {names} FROM {table} WHERE trial_id <= :count"),  # nosec B608
                    room,
                )
    engine.dispose()


def _optuna_trials(count: int) -> list[FrozenTrial]:
    points, kinds = SobolPoints(_SPEC.space, _SPEC.seed), make_distributions(_SPEC.space)
    return [
        create_trial(
            state=TrialState.COMPLETE,
            params=to_optuna_params(_SPEC.space, points(number)),
            distributions=kinds,
            values=_objectives(points(number), number),
        )
        for number in range(count)
    ]


def _objectives(point: dict[str, Any], number: int) -> list[float]:
    found = _measured(point, number)
    return [float(found[name]) for name in _SPEC.objectives]


# ---------------------------------------------------------------------- frames


@benchmark(
    "frames", "trials a second from a file of 100,000 to a frame, over Optuna's trials_dataframe() on SQLite",
    "trials/second", "higher", 40.0, num_pairs=5,
)  # fmt: skip
def frames(setting: Setting) -> Iterator[Arms]:
    """Both arms open their file and make a frame of all trials; ours has all keys and metrics as columns."""
    count = setting.pick(100_000, 300)
    rows: dict[str, int] = {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        own, optunas = Path(name) / "own.sqlite", Path(name) / "optuna.sqlite"
        fill(own, many_spec(count), count)
        _make_optuna_study(optunas, count)

        def speed(arm: str, read: Callable[[], Any]) -> float:
            began = time.perf_counter()
            rows[arm] = len(read())
            return count / (time.perf_counter() - began)

        def check() -> dict[str, int]:
            if rows["ours"] != rows["theirs"]:
                raise ArmsDifferError(f"{rows['ours']} rows and {rows['theirs']}")
            return {"rows": rows["ours"]}

        yield Arms(
            lambda _pair: speed("ours", lambda: load_frames(own).trials),
            lambda _pair: speed(
                "theirs",
                lambda: optuna.load_study(study_name="many", storage=f"sqlite:///{optunas}").trials_dataframe(),
            ),
            check,
            {"trials": count},
        )


# ---------------------------------------------------------------------- reports

_EVALUATIONS = 10  # of each trial
_REPORT = """
import json, resource, sys
from reports import write_report
page = write_report(sys.argv[1], out=sys.argv[2])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([page.stat().st_size, *(item.ru_utime + item.ru_stime for item in used)]))
"""


@benchmark(
    "report", "seconds of a report of 1,000 trials over the 3 it may take, from the start of a process", "seconds",
    "lower", 1.0, num_pairs=5,
)  # fmt: skip
def report(setting: Setting) -> Iterator[Arms]:
    yield from _report_arms(setting.pick(1_000, 64), 3.0, 3e6)


@benchmark(
    "report_many", "seconds of a report of 100,000 trials over the 15 it may take; its page within 10 MB", "seconds",
    "lower", 1.0, num_pairs=5,
)  # fmt: skip
def report_many(setting: Setting) -> Iterator[Arms]:
    yield from _report_arms(setting.pick(100_000, 64), 15.0, 10e6)


def _report_arms(count: int, allowed_seconds: float, max_bytes: float) -> Iterator[Arms]:
    told: list[list[float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "many"
        fill_whole(folder / "study.sqlite", count)

        def ours(_pair: int) -> float:
            began = time.perf_counter()
            command = [sys.executable, "-c", _REPORT, str(folder), name]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds = time.perf_counter() - began
            told.append(json.loads(said))
            return seconds

        def check() -> dict[str, Any]:
            if (size := told[-1][0]) > max_bytes:
                raise ArmsDifferError(f"the page has {size:,.0f} bytes, more than the {max_bytes:,.0f} it may have")
            _, page, pictures = zip(*told, strict=True)
            return {"page_bytes": size, "processor_seconds_page": page, "processor_seconds_pictures": pictures}

        yield Arms(ours, lambda _pair: allowed_seconds, check, {"trials": count})


def fill_whole(path: Path, count: int) -> None:
    """A study of ``count`` search trials with learning curves, of which every eighth ran out of memory, and four
    configurations confirmed with three seeds each."""
    path.parent.mkdir(parents=True)
    spec = many_spec(count)
    fill(path, spec, count)
    with closing(open_store(path)) as store:
        spoilt = TRIALS.update().where(TRIALS.c.number % 8 == 7)
        values = {"outcome": "out_of_memory", "val_accuracy": None, "train_seconds": None, "error": "out of memory"}
        store.database.write(lambda connection: connection.execute(spoilt.values(values)))
        _confirm(store, count)
        for start in range(0, count, 2_000):
            numbers = range(start, min(start + 2_000, count))
            rows = [
                _evaluation(number, (index + 1) / _EVALUATIONS) for number in numbers for index in range(_EVALUATIONS)
            ]
            store.database.write(partial(_insert, EVALUATIONS, rows))


def _confirm(store: Store, count: int) -> None:
    chosen = TRIALS.select().where(TRIALS.c.outcome == "complete").order_by(TRIALS.c.val_accuracy.desc()).limit(4)
    found = store.database.read(lambda connection: connection.execute(chosen).mappings().all())
    again = [
        {**row, "number": count + 3 * place + seed, "phase": "confirm", "config.seed": seed + 1, "trial_key": ""}
        | {"val_accuracy": row["val_accuracy"] + 0.001 * (seed - 1)}
        for place, row in enumerate(found)
        for seed in range(3)
    ]
    store.database.write(partial(_insert, TRIALS, again))


def _evaluation(number: int, share: float) -> dict[str, Any]:
    row = {"study": "many", "number": number, "attempt": 1, "step": round(500 * share), "epoch": 10 * share}
    row |= {"samples": round(50_000 * share), "train_seconds": 8 * share, "train_loss": 2.3 * (1 - 0.8 * share)}
    row |= {"val_loss": 2.3 * (1 - 0.7 * share), "val_accuracy": 0.9 * share**0.5, "learning_rate": 0.1}
    return row | {"global_batch_size": 64}
