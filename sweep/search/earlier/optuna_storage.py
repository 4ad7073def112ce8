"""Finished trials of a study in Optuna's own storage, as earlier results.

A parameter stands for a key of the space when it has the key's dotted path for its name, its last part where that is
unambiguous (``lr``), or the name that this project gives it. Values are those of the objectives by name where the
study names its metrics, else in the same order and with the same directions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from sweep.config.errors import InputError, unknown_name
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.store.database import store_path
from sweep.search.earlier.earlier_results import EarlierResult
from sweep.search.mirror.optuna_conversion import list_directions, make_optuna_name


def read_storage(url: str, study: str | None, spec: StudySpec) -> list[EarlierResult]:
    """The finished trials of ``study`` (the only one there when absent) in the storage ``url``.

    Raises:
        InputError: no storage of Optuna, no such study, or objectives of another number or direction.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _open(url)
    try:
        found = optuna.load_study(study_name=_name(storage, study, url), storage=storage)
        names = _metric_names(found, spec)
        keys = _keys(spec)
        return [_earlier(trial, names, keys) for trial in found.get_trials(deepcopy=False) if _is_judged(trial)]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open(url: str) -> RDBStorage:
    try:
        # skipped, so that a database of something else gets no tables
        storage = RDBStorage(url, skip_table_creation=True, skip_compatibility_check=True)
        storage.get_all_studies()
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        where = store_path(url) or "the URL"
        raise InputError(
            f"--warm-start: {where} is neither a store of this program nor a storage of Optuna's: {cause}."
        ) from None
    return storage


def _name(storage: RDBStorage, wanted: str | None, url: str) -> str:
    names = [study.study_name for study in storage.get_all_studies()]
    if wanted is not None and wanted not in names:
        raise InputError(f"--warm-start: {unknown_name('study', wanted, names)}")
    if wanted is None and len(names) != 1:
        there = ", ".join(names) or "none"
        raise InputError(f"--warm-start {store_path(url) or 'URL'}: name one of its studies after a #: {there}.")
    return wanted or names[0]


def _metric_names(study: optuna.Study, spec: StudySpec) -> Sequence[str]:
    if study.metric_names is not None:
        return study.metric_names
    theirs = [direction.name.lower() for direction in study.directions]
    if theirs != list_directions(spec):
        ours = ", ".join(f"{name} {way}" for name, way in zip(spec.objectives, list_directions(spec), strict=True))
        raise InputError(
            f"--warm-start: the study {study.study_name!r} in Optuna's storage does not name its metrics, and its "
            f"directions are {', '.join(theirs)}, not those of this study ({ours}); call study.set_metric_names first."
        )
    return spec.objectives


def _keys(spec: StudySpec) -> dict[str, tuple[str, bool]]:
    """The key behind each name that a parameter may have, and whether its value is an exponent of 2."""
    ends = [path.rpartition(".")[2] for path in spec.space]
    keys = {path.rpartition(".")[2]: (path, False) for path in spec.space if ends.count(path.rpartition(".")[2]) == 1}
    for path, parameter in spec.space.items():
        keys[path] = (path, False)
        keys[make_optuna_name(path, parameter)] = (path, parameter.log2 is not None)
    return keys


def _is_judged(trial: FrozenTrial) -> bool:
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


def _earlier(trial: FrozenTrial, names: Sequence[str], keys: Mapping[str, tuple[str, bool]]) -> EarlierResult:
    values: dict[str, Any] = {}
    for name, value in trial.params.items():
        if name in keys:
            path, is_exponent = keys[name]
            values[path] = 2 ** int(value) if is_exponent else value
    measured = dict(zip(names, trial.values or (), strict=False))
    known = {name: value for name, value in measured.items() if name in METRICS}
    if trial.state == TrialState.PRUNED:
        return EarlierResult(values, "pruned", {})
    if any(excess > 0 for excess in trial.constraints.values()):  # the values are placeholders
        return EarlierResult(values, trial.user_attrs.get("outcome", "not_fitting"), {})
    return EarlierResult(values, "complete", known)
