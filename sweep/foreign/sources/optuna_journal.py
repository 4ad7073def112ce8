"""The journal file of Optuna: a JSON object per line, each an operation; replayed here, because nothing but JSON is
read from a foreign file."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError

# op_code of optuna.storages.journal._storage.JournalOperation
_CREATE_STUDY, _DELETE_STUDY, _STUDY_SYSTEM_ATTR = 0, 1, 3
_CREATE_TRIAL, _SET_PARAM, _SET_STATE, _SET_INTERMEDIATE, _SET_USER_ATTR = 4, 5, 6, 7, 8
_STATES = ("RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING")
_UNFINISHED = {"RUNNING", "WAITING"}  # a finished trial is not changed
_METRIC_NAMES = "study:metric_names"


@dataclass(kw_only=True)
class JournalTrial:
    """A trial while its operations are replayed."""

    state: str = "RUNNING"
    values: list[float] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    user_attrs: dict[str, Any] = field(default_factory=dict)
    intermediate_values: dict[int, float] = field(default_factory=dict)
    started: datetime | None = None
    completed: datetime | None = None


@dataclass
class JournalStudy:
    """A study with its trials in the order in which they were created."""

    name: str
    trials: list[JournalTrial] = field(default_factory=list)
    metric_names: list[str] | None = None


@dataclass
class _Journal:
    """What the operations so far have made: studies by number, and all trials by theirs."""

    studies: dict[int, JournalStudy] = field(default_factory=dict)
    trials: list[JournalTrial] = field(default_factory=list)
    num_created: int = 0


def is_journal(text: str) -> bool:
    """Whether the first line of ``text`` is an operation."""
    try:
        first = json.loads(text.partition("\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"op_code", "worker_id"} <= first.keys()


def replay_journal(text: str, path: Path) -> dict[str, JournalStudy]:
    """The studies by name. Raises ``InputError`` with the line that is no operation; a last line that an interruption
    cut off is left out, as Optuna does."""
    journal = _Journal()
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            _apply(json.loads(line), journal)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise InputError(f"{path}:{number}: no operation of a journal: {type(error).__name__} {error}.") from None
    return {study.name: study for study in journal.studies.values()}


def _apply(entry: dict[str, Any], journal: "_Journal") -> None:
    code = entry["op_code"]
    study = journal.studies.get(entry["study_id"]) if "study_id" in entry else None
    if code == _CREATE_STUDY and entry["study_name"] not in {each.name for each in journal.studies.values()}:
        journal.studies[journal.num_created] = JournalStudy(str(entry["study_name"]))
        journal.num_created += 1
    elif code == _DELETE_STUDY:
        journal.studies.pop(entry["study_id"], None)
    elif code == _STUDY_SYSTEM_ATTR and study is not None:
        study.metric_names = entry["system_attr"].get(_METRIC_NAMES, study.metric_names)
    elif code == _CREATE_TRIAL and study is not None:
        journal.trials.append(_create(entry))
        study.trials.append(journal.trials[-1])
    elif code in _OF_TRIAL and journal.trials[entry["trial_id"]].state in _UNFINISHED:
        _OF_TRIAL[code](journal.trials[entry["trial_id"]], entry)


def _create(entry: dict[str, Any]) -> JournalTrial:
    trial = JournalTrial(started=_read_time(entry.get("datetime_start")))
    trial.state = _STATES[entry.get("state", 0)]
    trial.values = entry.get("values") or ([entry["value"]] if entry.get("value") is not None else None)
    trial.completed = _read_time(entry.get("datetime_complete"))
    trial.user_attrs = dict(entry.get("user_attrs") or {})
    trial.intermediate_values = {int(step): each for step, each in (entry.get("intermediate_values") or {}).items()}
    distributions = entry.get("distributions") or {}
    trial.params = {name: _to_outer(value, distributions[name]) for name, value in (entry.get("params") or {}).items()}
    return trial


def _set_param(trial: JournalTrial, entry: dict[str, Any]) -> None:
    trial.params[entry["param_name"]] = _to_outer(entry["param_value_internal"], entry["distribution"])


def _to_outer(value: float, distribution: str) -> Any:
    # of a choice its place is recorded, of a whole number a float
    from optuna.distributions import json_to_distribution  # 0.3 s, and few files need it

    return json_to_distribution(distribution).to_external_repr(value)


def _set_state(trial: JournalTrial, entry: dict[str, Any]) -> None:
    trial.state = _STATES[entry["state"]]
    trial.values = entry.get("values") or trial.values
    trial.started = _read_time(entry.get("datetime_start")) or trial.started
    trial.completed = _read_time(entry.get("datetime_complete")) or trial.completed


def _set_intermediate(trial: JournalTrial, entry: dict[str, Any]) -> None:
    trial.intermediate_values[int(entry["step"])] = entry["intermediate_value"]


def _set_user_attr(trial: JournalTrial, entry: dict[str, Any]) -> None:
    trial.user_attrs |= entry["user_attr"]


def _read_time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


_OF_TRIAL = {
    _SET_PARAM: _set_param,
    _SET_STATE: _set_state,
    _SET_INTERMEDIATE: _set_intermediate,
    _SET_USER_ATTR: _set_user_attr,
}
