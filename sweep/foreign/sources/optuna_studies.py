"""Studies of Optuna: its SQLite storage, read through Optuna itself, and its journal file, read line by line."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.foreign.foreign_table import Cell, ForeignTable, Role, Run, compute_digest, read_small_text, tabulate_runs
from sweep.foreign.run_states import STATES
from sweep.foreign.sources.optuna_journal import JournalStudy, replay_journal

OPTUNA_TABLES = frozenset({"studies", "trials", "trial_params", "trial_values"})
_PARAMS, _ATTRS = "params_", "user_attrs_"


def read_optuna_database(path: Path, study: str) -> ForeignTable:
    """The trials of ``study`` ("" for the only one). Raises ``InputError`` where it is no storage of Optuna, or there
    is no such study."""
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        # both skipped, because they would write tables into a database of another program
        url, options = f"sqlite:///{path.resolve()}", {"poolclass": NullPool}  # no connection is left open
        storage = RDBStorage(url, options, skip_table_creation=True, skip_compatibility_check=True)
        try:
            found = {each.study_name: each for each in storage.get_all_studies()}
            chosen = found[choose_study(list(found), study, str(path))]
            names = chosen.system_attrs.get("study:metric_names")
            runs = [_convert(trial, names) for trial in storage.get_all_trials(chosen._study_id, deepcopy=False)]
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (SQLAlchemyError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise InputError(f"{path}: it cannot be read as a storage of Optuna: {cause}.") from None
    return _tabulate(runs, path)


def read_optuna_journal(path: Path, study: str) -> ForeignTable:
    """:func:`read_optuna_database` for the journal file that Optuna's file backend writes."""
    studies = replay_journal(read_small_text(path), path)
    chosen = studies[choose_study(list(studies), study, str(path))]
    return _tabulate([_convert_journal(trial, chosen) for trial in chosen.trials], path)


def choose_study(names: list[str], requested: str, where: str) -> str:
    """The study to read. Raises ``InputError`` naming those that are there."""
    if requested in names:
        return requested
    if requested or len(names) != 1:
        present = ", ".join(map(repr, sorted(names))) or "none"
        raise InputError(f'{where}: its studies are {present}; name one in the map: study = "...".')
    return names[0]


def _tabulate(runs: Sequence[Run], path: Path) -> ForeignTable:
    cells, curves = tabulate_runs(runs, path)
    return ForeignTable(
        program="Optuna",
        place=str(path),
        digest=compute_digest([path], path),
        cells=cells,
        roles={str(name): _find_role(str(name)) for name in cells},
        curves=curves,
        state="state",
        outcomes=STATES["Optuna"],
    )


def _find_role(name: str) -> Role:
    if name.startswith(_PARAMS):
        return "parameter"
    return "metric" if name.startswith("value") or name == "intermediate_value" else "fact"


def name_values(values: Sequence[float] | None, names: Sequence[str] | None) -> dict[str, Cell]:
    """The values of a trial under the names that ``trials_dataframe`` gives them."""
    if values is None:
        return {}
    if names is not None:
        return {f"values_{name}": value for name, value in zip(names, values, strict=False)}
    return {"value": values[0]} if len(values) == 1 else {f"values_{place}": each for place, each in enumerate(values)}


def make_optuna_run(
    state: str,
    values: Mapping[str, Cell],
    params: Mapping[str, Any],
    attrs: Mapping[str, Any],
    steps: Mapping[int, float],
) -> Run:
    """A trial as a run: ``params`` in their outer values, ``steps`` the intermediate values by step."""
    cells: dict[str, Cell] = {"state": state, **values}
    cells |= {f"{_PARAMS}{name}": _to_cell(value) for name, value in params.items()}
    cells |= {f"{_ATTRS}{name}": _to_cell(value) for name, value in attrs.items()}
    series = (
        {"intermediate_value": sorted((float(step), float(value)) for step, value in steps.items())} if steps else {}
    )
    return Run(cells=cells, series=series)


def _to_cell(value: Any) -> Cell:
    return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value)


def _convert(trial: Any, names: Sequence[str] | None) -> Run:
    run = make_optuna_run(
        trial.state.name, name_values(trial.values, names), trial.params, trial.user_attrs, trial.intermediate_values
    )
    return _add_duration(run, trial.datetime_start, trial.datetime_complete)


def _convert_journal(trial: Any, study: JournalStudy) -> Run:
    values = name_values(trial.values, study.metric_names)
    run = make_optuna_run(trial.state, values, trial.params, trial.user_attrs, trial.intermediate_values)
    return _add_duration(run, trial.started, trial.completed)


def _add_duration(run: Run, started: datetime | None, completed: datetime | None) -> Run:
    if started and completed:
        run.cells["duration_seconds"] = (completed - started).total_seconds()
    return run
