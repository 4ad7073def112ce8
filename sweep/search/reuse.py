"""Earlier records: trials of equal content key replace a training, and other results teach a sampler (--warm-start).

With an equal key, accuracy holds on any device, memory on the same device class, and time there too if its quality
flags leave no doubt or its undisturbed windows are known. With a budget in seconds accuracy depends on the speed of
the training, so it holds only where time does. A quality flag is taken over with the trial.
"""

import csv
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, final

import optuna
import pandas as pd
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from sweep.config.errors import InputError, describe_unknown, hide_credentials
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial import find_rivals, flatten_config
from sweep.records.address import store_path
from sweep.records.files import cells_of, is_export
from sweep.records.loading import load_frames, records_of_frame
from sweep.records.messages import OUTCOMES, Ending, Outcome
from sweep.records.quality import find_time_doubts, has_undisturbed_windows
from sweep.records.records import CONFIG_PREFIX, ReusableTrial, TrialRecord
from sweep.records.schema import VERSIONS
from sweep.records.store import Store, open_store
from sweep.search.optuna import from_optuna_params, list_directions, make_optuna_name, to_optuna_params

_log = logging.getLogger(__name__)
_FACTS_OF_TIMES = ("driver", "cuda", "cudnn", "power_limit_watts")  # of an environment
ASIDE = ".aside-"  # in the name of a folder that --fresh has set aside


def list_study_files(root: Path) -> list[Path]:
    """The store files of the studies under ``root``, without those set aside."""
    return sorted(path for path in root.glob("*/study.sqlite") if ASIDE not in path.parent.name)


def list_reuse_files(paths: Sequence[Path]) -> list[Path]:
    """The store files for ``--reuse``: for each path the study there, or the studies under it.

    Raises:
        InputError: a path holds no study.
    """
    files: list[Path] = []
    for path in paths:
        of_path = [path / "study.sqlite"] if (path / "study.sqlite").exists() else list_study_files(path)
        if not of_path:
            raise InputError(f"--reuse {path}: no study there; give a study's folder or a folder of studies.")
        files.extend(of_path)
    return files


def open_reuse_index(own: Store | None, root: Path, own_file: Path | None, more: Sequence[Path]) -> "ReuseIndex":
    """Opens the records to take trials from: the study's own, all studies under ``root`` except ``own_file``,
    and ``more`` (study folders or roots). A study under the root that cannot be read is left out, with a warning.

    Raises:
        InputError: a path of ``more`` holds no study.
    """
    stores = [own] if own else []
    for path in list_study_files(root):
        if own_file is not None and path.resolve() == own_file.resolve():
            continue
        try:
            stores.append(open_store(path, read_only=True))
        except InputError as error:
            _log.warning("no reuse from %s: %s", path, error)
    stores.extend(open_store(file, read_only=True) for file in list_reuse_files(more))
    return ReuseIndex(stores, owns_first=own is None)


@final
class ReuseIndex:
    """Looks trials up by content key, the study's own store first."""

    def __init__(self, stores: Sequence[Store], *, owns_first: bool = False) -> None:
        self._stores = stores
        self._to_close = stores if owns_first else stores[1:]

    def find(self, key: str, machine: Mapping[str, Any], required: Iterable[str]) -> ReusableTrial | None:
        """A trial of that key that has every ``required`` metric valid on ``machine``, or None."""
        names = set(required)
        for store in self._stores:
            trial = store.find_by_key(key)
            if trial is None:
                continue
            ending, evaluations = keep_portable(trial.ending, machine, is_timed=trial.is_timed), trial.evaluations
            if not _is_same_machine(trial.ending, machine):
                evaluations = tuple(replace(each, train_seconds=math.nan) for each in evaluations)
            if names <= ending.measurements.keys():
                return replace(trial, ending=ending, evaluations=evaluations)
        return None

    def close(self) -> None:
        """Closes every store except the study's own."""
        for store in self._to_close:
            store.close()


def keep_portable(ending: Ending, machine: Mapping[str, Any], *, is_timed: bool = False) -> Ending:
    """The part of ``ending`` that holds on ``machine``, a mapping with ``device`` and the facts of its environment.

    On the device class where it was measured, with the same driver, libraries and power limit, everything holds
    except times in doubt; elsewhere, what does not depend on the device. If the budget of the trial was in seconds
    (``is_timed``), nothing else does, because a slower training takes fewer steps.
    """
    is_same = _is_same_machine(ending, machine)
    has_windows = has_undisturbed_windows(ending.quality_flags, ending.measurements)
    if is_same and (not find_time_doubts(ending.quality_flags) or (has_windows and not is_timed)):
        return ending
    kept = {
        name: value
        for name, value in ending.measurements.items()
        if (not METRICS[name].is_of_a_device and not is_timed) or (is_same and METRICS[name].is_memory)
    }
    return replace(ending, measurements=kept, bottleneck="")


def _is_same_machine(ending: Ending, machine: Mapping[str, Any]) -> bool:
    facts = ending.environment  # empty in results of other programs, which name the device alone
    known = [name for name in _FACTS_OF_TIMES if name in facts and name in machine]
    return bool(ending.device == machine["device"] and all(facts[name] == machine[name] for name in known))


# ---------------------------------------------------------------------- results that a sampler learns from

# Keys that change no measurement of a training, or only by chance.
_IRRELEVANT = frozenset({"seed", "data.root", "data.workers", "data.prefetch", "data.placement"})
# Outcomes that the configuration causes on every device.
_PORTABLE_OUTCOMES = frozenset({"complete", "pruned", "diverged", "target_missed"})
_OWN_OUTCOMES = _PORTABLE_OUTCOMES | {"out_of_memory", "not_fitting", "timed_out"}


@dataclass(frozen=True, kw_only=True)
class EarlierResult:
    """One earlier result: its values by dotted path (those that are known), its outcome and its measurements."""

    values: Mapping[str, Any]
    outcome: str
    measurements: Mapping[str, float | int]
    device: str | None = None  # where it was measured; None: unknown, and taken for the device of the study
    quality_flags: tuple[str, ...] = ()


def read_earlier(source: str, spec: StudySpec) -> list[EarlierResult]:
    """The results at ``source`` (a folder, file or URL, with a study's name after a #) in the space of ``spec`` that
    were made with its base, with their values converted to the study's.

    Raises:
        InputError: nothing is there, it cannot be read, or nothing of it fits the study; the message has the most
            frequent reasons.
    """
    where, _, study = source.partition("#")
    base = {path: value for path, value in flatten_config(spec.corners.first).items() if _must_agree(path, spec)}
    fitting: list[EarlierResult] = []
    reasons: Counter[str] = Counter()
    for result in _read_source(where, study or None, spec):
        try:
            fitting.append(_fit(result, base, spec))
        except ValueError as error:
            reasons[str(error)] += 1
    if not fitting:
        why = ", ".join(f"{reason} ({count} trials)" for reason, count in reasons.most_common(3)) or "it has no trials"
        raise InputError(
            f"--warm-start {hide_credentials(source)}: nothing there that this study can learn from: {why}. Leave it "
            "out."
        )
    return fitting


def _must_agree(path: str, spec: StudySpec) -> bool:
    is_swept = path in spec.space or any(rival in spec.space for rival in find_rivals(path))
    return not (is_swept or path in _IRRELEVANT or path.startswith("diagnostics."))


def _fit(result: EarlierResult, base: Mapping[str, Any], spec: StudySpec) -> EarlierResult:
    """Raises ``ValueError`` with the reason if the result is not of this study's space or base."""
    if missing := [path for path in spec.space if result.values.get(path) is None]:
        raise ValueError(f"{missing[0]} is missing")
    values = {path: _restore_int(parameter, result.values[path]) for path, parameter in spec.space.items()}
    converted = from_optuna_params(spec.space, to_optuna_params(spec.space, values))
    for path, value in base.items():
        if path in result.values and result.values[path] != value:
            raise ValueError(f"{path} = {result.values[path]!r}, in this study {value!r}")
    return replace(result, values={**base, **converted})


def _restore_int(parameter: Parameter, value: Any) -> Any:
    # A column with missing cells holds integers as floats.
    is_integer = parameter.log2 is not None or parameter.int_ is not None
    return int(value) if is_integer and isinstance(value, float) and value.is_integer() else value


def make_prior_records(results: Iterable[EarlierResult], spec: StudySpec, device: str) -> list[TrialRecord]:
    """The results as search trials with negative numbers, for a sampler to learn from.

    Time, memory and what did not fit are taken over from the same ``device`` only, and time only as
    :func:`keep_portable` states.
    """
    records: list[TrialRecord] = []
    for result in results:
        is_same = result.device in (None, device)
        if result.outcome not in (_OWN_OUTCOMES if is_same else _PORTABLE_OUTCOMES):
            continue
        ending = Ending(
            outcome=cast(Outcome, result.outcome),
            measurements=dict(result.measurements),
            device=device if is_same else str(result.device),
            quality_flags=result.quality_flags,
        )
        is_timed = {**spec.base, **result.values}.get("budget.seconds") is not None
        values = {**result.values, "seed": spec.seed}
        record = TrialRecord(number=-1 - len(records), phase="search", values=values)
        records.append(record.with_ending(keep_portable(ending, {"device": device}, is_timed=is_timed)))
    return records


# ---------------------------------------------------------------------- the sources of earlier results

_TABLES = (".parquet", ".csv")


def _read_source(where: str, study: str | None, spec: StudySpec) -> Iterable[EarlierResult]:
    path = None if "://" in where else Path(where)
    if path is not None and path.suffix in _TABLES:
        return _read_table(path, spec)
    if path is not None and path.is_dir():
        files = [] if is_export(path) else list_study_files(path)
        return [result for file in (files or [path]) for result in _read_records(str(file), study)]
    return _read_records(where, study) if _holds_records(where) else _read_storage(_make_url(where), study, spec)


def _make_url(where: str) -> str:
    return where if "://" in where else f"sqlite:///{Path(where).resolve()}"


def _holds_records(where: str) -> bool:
    path = store_path(where)
    if path is not None and not path.is_file():
        raise InputError(
            f"--warm-start {hide_credentials(where)}: nothing is there; give a study, an export, a table or a "
            "storage URL."
        )
    try:
        engine = create_engine(_make_url(where), hide_parameters=True)
        try:
            return inspect(engine).has_table(VERSIONS.name)
        finally:
            engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        raise InputError(f"--warm-start: the database cannot be opened: {cause}.") from None


def _read_records(where: str, study: str | None) -> list[EarlierResult]:
    return [
        EarlierResult(
            values=record.values,
            outcome=record.outcome or "running",
            measurements=record.measurements,
            device=record.device,
            quality_flags=record.quality_flags,
        )
        for record in records_of_frame(load_frames(where, study).trials)
    ]


def _read_table(path: Path, spec: StudySpec) -> Iterator[EarlierResult]:
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except FileNotFoundError:
        raise InputError(f"--warm-start {path}: the file is not there.") from None
    except (OSError, ValueError, UnicodeDecodeError, csv.Error, pd.errors.ParserError) as error:
        raise InputError(f"--warm-start {path}: cannot be read: {error}.") from None
    columns = {str(name).removeprefix(CONFIG_PREFIX): cells_of(frame[name]) for name in frame}
    if missing := [key for key in spec.space if key not in columns]:
        raise InputError(f"--warm-start {path}: it has no column {missing[0]}, which this study varies.")
    if not any(name in columns for name in spec.objectives):
        raise InputError(f"--warm-start {path}: it has no column of an objective ({', '.join(spec.objectives)}).")
    for cells in zip(*columns.values(), strict=True):
        row = dict(zip(columns, cells, strict=True))
        outcome = row.get("outcome") or "complete"
        if outcome not in OUTCOMES:
            raise InputError(f"--warm-start {path}: {describe_unknown('outcome', str(outcome), OUTCOMES)}")
        yield EarlierResult(
            values={name: value for name, value in row.items() if value is not None},
            outcome=outcome,
            measurements={name: _check_number(row[name], name, path) for name in METRICS if row.get(name) is not None},
            device=row.get("device"),
            quality_flags=tuple(filter(None, str(row.get("quality_flags") or "").split(","))),
        )


def _check_number(value: Any, name: str, path: Path) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"--warm-start {path}: {name} = {value!r} is no number.")
    return value


def _read_storage(url: str, study: str | None, spec: StudySpec) -> list[EarlierResult]:
    """The finished trials of ``study`` (None: the only one there) in the storage ``url``.

    Raises:
        InputError: no storage of Optuna, no such study, or objectives of another number or direction.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _open_storage(url)
    try:
        loaded = optuna.load_study(study_name=_choose_study(storage, study, url), storage=storage)
        names, keys = _match_metrics(loaded, spec), _match_keys(spec)
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        return [_convert(trial, names, keys) for trial in loaded.get_trials(deepcopy=False, states=states)]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open_storage(url: str) -> RDBStorage:
    try:
        # Both are skipped, because they would write tables into a database of another program.
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
