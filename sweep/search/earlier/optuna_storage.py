"""Finished trials of a study in a storage of Optuna, as earlier results.

A parameter is matched with a key of the space by the key's dotted path, by its last part where that is unambiguous
(``lr``), or by the name that :mod:`sweep.search.mirror.optuna_conversion` gives it. The values are matched with the
objectives by name if the study names its metrics, else by order, where the directions must be the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.address import store_path
from sweep.search.earlier.earlier_results import EarlierResult
from sweep.search.mirror.optuna_conversion import list_directions, make_optuna_name


def read_storage(url: str, study: str | None, spec: StudySpec) -> list[EarlierResult]:
    """The finished trials of ``study`` (None: the only one there) in the storage ``url``.

    Raises:
        InputError: no storage of Optuna, no such study, or objectives of another number or direction.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _open(url)
    try:
        loaded = optuna.load_study(study_name=_choose_study(storage, study, url), storage=storage)
        names, keys = _match_metrics(loaded, spec), _match_keys(spec)
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        return [_convert(trial, names, keys) for trial in loaded.get_trials(deepcopy=False, states=states)]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open(url: str) -> RDBStorage:
    try:
        # both skipped, because they would write tables into a database of another program
        options = {"poolclass": NullPool}  # so that no connection is left open, whatever fails
        storage = RDBStorage(url, options, skip_table_creation=True, skip_compatibility_check=True)
        storage.get_all_studies()
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        where = store_path(url) or "the URL"
        raise InputError(
            f"--warm-start: {where} is neither a store of this program nor a storage of Optuna: {cause}."
        ) from None
    return storage


def _choose_study(storage: RDBStorage, requested: str | None, url: str) -> str:
    names = [study.study_name for study in storage.get_all_studies()]
    if requested is not None and requested not in names:
        raise InputError(f"--warm-start: {describe_unknown('study', requested, names)}")
    if requested is None and len(names) != 1:
        present = ", ".join(names) or "none"
        raise InputError(f"--warm-start {store_path(url) or 'URL'}: name one of its studies after a #: {present}.")
    return requested or names[0]


def _match_metrics(study: optuna.Study, spec: StudySpec) -> Sequence[str]:
    if study.metric_names is not None:
        return study.metric_names
    theirs, ours = [direction.name.lower() for direction in study.directions], list_directions(spec)
    if theirs != ours:
        expected = ", ".join(f"{name} {way}" for name, way in zip(spec.objectives, ours, strict=True))
        raise InputError(
            f"--warm-start: the study {study.study_name!r} in Optuna's storage does not name its metrics, and its "
            f"directions are {', '.join(theirs)}, not those of this study ({expected}); call study.set_metric_names "
            "first."
        )
    return spec.objectives


def _match_keys(spec: StudySpec) -> dict[str, tuple[str, bool]]:
    """By each name that a parameter may have: its key, and whether its value is an exponent of 2."""
    ends = Counter(path.rpartition(".")[2] for path in spec.space)
    keys = {end: (path, False) for path in spec.space if ends[end := path.rpartition(".")[2]] == 1}
    for path, parameter in spec.space.items():
        keys[path] = (path, False)
        keys[make_optuna_name(path, parameter)] = (path, parameter.log2 is not None)
    return keys


def _convert(trial: FrozenTrial, names: Sequence[str], keys: Mapping[str, tuple[str, bool]]) -> EarlierResult:
    values: dict[str, Any] = {}
    for name, value in trial.params.items():
        if name in keys:
            path, is_exponent = keys[name]
            values[path] = 2 ** int(value) if is_exponent else value
    if trial.state == TrialState.PRUNED:
        return EarlierResult(values=values, outcome="pruned", measurements={})
    if any(excess > 0 for excess in trial.constraints.values()):  # the values are placeholders
        return EarlierResult(values=values, outcome=trial.user_attrs.get("outcome", "not_fitting"), measurements={})
    measured = zip(names, trial.values or (), strict=False)
    measurements = {name: value for name, value in measured if name in METRICS}
    return EarlierResult(values=values, outcome="complete", measurements=measurements)
