"""Reads a study: from its TOML file, with changes of the command line over it, and from a record; and compares two."""

import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from studies import shipped_studies
from sweep.config.errors import InputError, describe_unknown, explain_refusal, shorten_text
from sweep.config.script import ScriptSection
from sweep.config.sections import Section, list_fields
from sweep.config.space import flatten_space
from sweep.config.study import AnswerRules, Confirm, StudySpec
from sweep.config.tables import DATASETS, MODELS, DatasetEntry, ModelEntry
from sweep.config.trial import TrialConfig, config_keys, find_rivals, flatten_table, replace_keys

_MAX_FILE_BYTES = 100_000
_MAX_DOTS = 100  # in one key, or in a line of prose
_MAX_NAME = 200  # characters of a recorded name
_SECTIONS: dict[str, type[Section]] = {"confirm": Confirm, "answer": AnswerRules, "script": ScriptSection}
# What may change between two invocations on the same records.
CHANGEABLE = frozenset({
    "question", "trials", "timeout", "search_timeout", "trial_timeout", "stall_timeout", "price_per_hour", "currency",
    "deliberate", "confirm", "answer",
})  # fmt: skip
_PLAIN_KEYS = StudySpec.model_fields.keys() - {"base", "space", *_SECTIONS}


def load_study(path: str | Path, changes: dict[str, Any] | None = None) -> StudySpec:
    """The study in the TOML file ``path``, with ``changes`` (dotted keys of the study or its base) over it.

    A path without the ending .toml names a shipped study (``sweep list``): ``load_study("quickstart", {"trials": 4})``.

    Raises:
        InputError: naming the file, the key, the value, the rule and the remedy.
    """
    path = Path(path)
    if path.suffix != ".toml":
        name, shipped = str(path), shipped_studies()
        if name not in shipped:
            raise InputError(f"{describe_unknown('study', name, shipped)} Or give the path of a .toml file.")
        path = shipped[name]
    table = read_toml(path)
    if isinstance(script := table.get("script"), dict):  # its folder is seen from the file, wherever the study is run
        table = table | {"script": script | {"folder": str((path.parent / str(script.get("folder", "."))).resolve())}}
    return build_study(table, str(path), changes)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a user's file of at most a page or two. Raises ``InputError``: it cannot be read, is too large, or
    no TOML."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; it should be a page of text.")
    try:
        text = content.decode("utf-8-sig")
        # Python's parser takes minutes for a key of thousands of parts
        if max(part.count(".") for part in re.split("[=\n]", text)) > _MAX_DOTS:
            raise RecursionError
        return tomllib.loads(text)
    except ValueError as error:  # also bytes that are no text, and numbers of thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}.") from None
    except RecursionError:
        raise InputError(f"{path}: its tables or lists are nested too deep.") from None


def build_study(table: dict[str, Any], where: str, changes: dict[str, Any] | None = None) -> StudySpec:
    """A study from a parsed table; errors as :func:`load_study`."""
    for key in ("base", "space"):
        if not isinstance(table.get(key, {}), dict):
            raise InputError(f"{where}: {key}: give a table: {{ key = value }}")
    table = apply_changes(table, changes or {})
    try:
        spec = StudySpec.model_validate(table)
    except ValidationError as error:
        raise InputError(explain_refusal(error, where, {*list_fields(StudySpec), *config_keys()})) from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_root(changes or {}, spec.corners.first.data.name)
    return spec


def apply_changes(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``--set`` pairs over a study's table: a key of the study changes it, any other the base configuration.

    A key of the base that the space sweeps is fixed: it leaves the space and the points that are tried first.
    """
    table = dict(table)
    base, space = flatten_table(table.get("base", {})), flatten_space(table.get("space", {}))
    check_keys(changes)
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        if rest and head in _PLAIN_KEYS:
            raise InputError(f"--set {path}: {head} is one value of the study; write --set {head}=VALUE.")
        if head == "space" and not isinstance(value, Mapping):
            raise InputError(
                f"--set {path}: give a range, such as {{choice = [1, 2]}}; --set KEY=VALUE fixes a swept key."
            )
        is_own = head == "script" and rest not in ScriptSection.model_fields  # a value of the script's own
        if head in StudySpec.model_fields and head not in ("base", "space") and not is_own:
            table[head] = _set_within(table.get(head, {}), rest, value) if rest else value
            continue
        key = rest if head == "space" else path
        base = replace_keys(base, {key: value})
        for fixed in (key, *find_rivals(key)):
            space.pop(fixed, None)
            table = _fix_in_first(table, fixed)
        if head == "space":
            space[key] = base.pop(key)
    return table | {"base": base, "space": space}


def _fix_in_first(table: dict[str, Any], key: str) -> dict[str, Any]:
    # ``table`` whose first points are without ``key``, and without repetitions
    points = table.get("first")
    if not isinstance(points, list) or not any(isinstance(point, dict) and key in point for point in points):
        return table
    rest = [{name: each for name, each in point.items() if name != key} for point in points]
    return table | {"first": [point for index, point in enumerate(rest) if point not in rest[:index]]}


def check_keys(changes: Collection[str]) -> None:
    """Raises ``InputError`` for a key of ``--set`` whose first part neither a study nor a configuration has."""
    for path in changes:
        if path.partition(".")[0] not in {*StudySpec.model_fields, *TrialConfig.model_fields}:
            known = {*list_fields(StudySpec), *config_keys()}
            raise InputError(f"--set: {describe_unknown('key', shorten_text(path), known)}")


def check_root(changes: Mapping[str, Any], name: str) -> None:
    """Raises ``InputError`` where ``--set`` gives a folder to the data set ``name``, which reads none."""
    entry = DATASETS.get(name)
    if "data.root" in changes and entry is not None and not entry.depends_on_root and entry.published is None:
        raise InputError(
            f"--set data.root={changes['data.root']}: the data set {name!r} reads no folder; add --set "
            "data.name=imagefolder for a folder of images, or leave data.root out."
        )


def _set_within(table: Any, path: str, value: Any) -> dict[str, Any]:
    # ``table`` with ``value`` at the dotted ``path``
    head, _, rest = path.partition(".")
    inside = dict(table) if isinstance(table, dict) else {}
    return inside | {head: _set_within(inside.get(head), rest, value) if rest else value}


def admit_recorded(study: dict[str, Any]) -> None:
    """Adds the models and data sets that a recorded study names, without their functions, so that its records can be
    read where its plug-in is not loaded."""
    base, space = _table(study, "base"), _table(study, "space")
    tables: tuple[tuple[str, dict[str, Any], Any], ...] = (
        ("model.name", MODELS, ModelEntry(build=None)),
        ("data.name", DATASETS, DatasetEntry(load=None)),
    )
    for path, table, entry in tables:
        choices = _table(space, path).get("choice")
        for name in (base.get(path), *(choices if isinstance(choices, list) else ())):
            if isinstance(name, str) and len(name) <= _MAX_NAME:
                table.setdefault(name, entry)


def _table(content: Any, name: str) -> dict[str, Any]:
    # a record from elsewhere may hold anything there
    part = content.get(name) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}


def find_differences(old: StudySpec, new: StudySpec) -> list[str]:
    """What ``new`` changes among the keys that the records depend on, a line each."""
    before, after = _identity(old), _identity(new)
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def _identity(spec: StudySpec) -> dict[str, Any]:
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(CHANGEABLE))
    flat = {key: value for key, value in table.items() if key not in {"base", "space", "script"}}
    flat |= {f"script.{key}": value for key, value in table.get("script", {}).items() if key != "folder"}
    flat |= {f"base.{key}": value for key, value in table["base"].items()}
    return flat | {f"space.{key}": value for key, value in table["space"].items()}
