"""Optuna studies of very many trials on SQLite, with the parameters and objectives of :mod:`benchmarks.many_trials`."""

import statistics
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState, create_trial
from sqlalchemy import create_engine, text

from benchmarks.many_trials import many_spec, measured
from sweep.config.study import StudySpec
from sweep.search.mirror.optuna_conversion import (
    from_optuna_params,
    list_directions,
    make_distributions,
    to_optuna_params,
)
from sweep.search.sampler import SobolPoints

NAME = "many"
SPEC = many_spec("many", 1)
_WRITTEN = 1_000  # trials that Optuna itself writes; the others are copies of them
_COPIED = {"trial_params": "param_id", "trial_values": "trial_value_id"}


def make_study(path: Path, count: int) -> None:
    """``count`` complete trials in an SQLite file, each with its parameters and values."""
    storage = RDBStorage(f"sqlite:///{path}")
    study = optuna.create_study(storage=storage, study_name=NAME, directions=list_directions(SPEC))
    written = min(count, _WRITTEN)
    study.add_trials(trials(SPEC, written))
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
                rest = [name for name in rest if name not in (key, "trial_id")]
                into, names = f"{table} (trial_id, {', '.join(rest)})", ", ".join(rest)
                connection.execute(
                    text(f"INSERT INTO {into} SELECT trial_id + :shift, {names} FROM {table} WHERE trial_id <= :count"),  # nosec B608
                    room,
                )
    engine.dispose()


def load(path: Path, sampler: BaseSampler | None = None) -> optuna.Study:
    """The study as a user opens it."""
    return optuna.load_study(study_name=NAME, storage=f"sqlite:///{path}", sampler=sampler)


def ask_milliseconds(study: optuna.Study, count: int) -> float:
    """Median over ``count`` trials of what one costs: asked for, and the end of it told."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        trial = study.ask(make_distributions(SPEC.space))
        study.tell(trial, values(from_optuna_params(SPEC.space, trial.params), trial.number))
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds)


def trials(spec: StudySpec, count: int) -> list[optuna.trial.FrozenTrial]:
    """Complete trials at quasi-random points."""
    points, kinds = SobolPoints(spec.space, spec.seed), make_distributions(spec.space)
    return [
        create_trial(
            state=TrialState.COMPLETE,
            params=to_optuna_params(spec.space, points(number)),
            distributions=kinds,
            values=values(points(number), number),
        )
        for number in range(count)
    ]


def values(point: dict[str, Any], number: int) -> list[float]:
    """The three objectives at a point."""
    found = measured(point, number)
    return [float(found[name]) for name in SPEC.objectives]
