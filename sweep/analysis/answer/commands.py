"""The exact commands that would fill a gap in the records."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from studies import shipped_studies
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study

_USUAL_ROOT = Path("runs")


class Called(NamedTuple):
    """How a study is called on the command line: ``argument`` is a shipped study or a file, ``changes`` what was set
    over it, ``where`` the options that lead to its records."""

    name: str
    argument: str
    changes: Mapping[str, object]
    where: tuple[str, ...] = ()


def called(name: str, spec: StudySpec | None, place: str = "") -> Called:
    """A shipped study by its name with what was changed, any other by the file that has its name; one that was named
    after a shipped one, ``quickstart_noise``, is that with changes. ``place`` is where its records were read from."""
    where = _where(name, place)
    near = [each for each in shipped_studies() if name == each or name.startswith(f"{each}_")]
    if near and spec is not None:
        shipped = max(near, key=len)
        changes = _changes(load_study(shipped_studies()[shipped]), spec)
        if changes is not None:
            return Called(name, shipped, changes, where)
    return Called(name, name if name in near else f"{name}.toml", {}, where)


def _where(name: str, place: str) -> tuple[str, ...]:
    if "://" in place:
        return ("--store", place)
    path = Path(place)
    folder = path.parent if path.suffix == ".sqlite" else path
    # what is no folder of a study under a root was moved or exported, and cannot be gone on with there
    is_usual = folder.name != name or folder.parent == _USUAL_ROOT
    return () if is_usual else ("--root", str(folder.parent))


def _changes(shipped: StudySpec, spec: StudySpec) -> dict[str, object] | None:
    # None where --set cannot make one of the other: it fixes swept keys and adds none
    if any(shipped.space.get(path) != parameter for path, parameter in spec.space.items()):
        return None
    found: dict[str, object] = {} if spec.name == shipped.name else {"name": spec.name}
    for key in ("seed", "objectives", "sampler", "pruner"):
        if getattr(spec, key) != getattr(shipped, key):
            found[key] = getattr(spec, key)
    return found | {key: value for key, value in spec.base.items() if shipped.base.get(key) != value}


def run_more(study: Called, trials: int) -> str:
    """More search trials of the same study."""
    return f"{_run(study, {})} --trials {trials}"


def confirm_more(study: Called, configurations: int, seeds: int) -> str:
    """More configurations of the front confirmed, with so many seeds each."""
    return _run(study, {"confirm.max_configurations": configurations, "confirm.seeds": seeds})


def run_variant(study: Called, suffix: str, fixed: Mapping[str, object]) -> str:
    """The study once more under a new name with keys ``fixed``."""
    return _run(study, {"name": f"{study.name}_{suffix}", **fixed})


def train_and_save(study: Called, path: str, fixed: Mapping[str, object]) -> str:
    """The study's base configuration trained once, with keys ``fixed``, and its weights kept."""
    sets = _sets({**study.changes, **fixed}, leave_out="name")
    return " ".join([f"sweep train {study.argument}", *sets, f"--save {path}"])


def probe(study: Called) -> str:
    """Micro batches tried out on their own."""
    sets = _sets(study.changes, leave_out="name")
    return " ".join([f"sweep probe {study.argument}", *sets, *(_options(study) if "--root" in study.where else [])])


def sweep_both(study: Called, key: str, form: str) -> str:
    """What to add to a study file; no command line changes a space."""
    return f'a copy of {study.argument} under a new name, with "{key}" = {{ {form} }} in [space]'


def _run(study: Called, more: Mapping[str, object]) -> str:
    return " ".join([f"sweep run {study.argument}", *_sets({**study.changes, **more}), *_options(study)])


def _options(study: Called) -> list[str]:
    return [shlex.quote(part) for part in study.where]


def _sets(changes: Mapping[str, object], leave_out: str = "") -> list[str]:
    pairs = (f"{key}={_toml(value)}" for key, value in changes.items() if key != leave_out)
    return [f"--set {shlex.quote(pair)}" for pair in pairs]


def _toml(value: Any) -> str:
    # bare words are text to the command line; JSON's lists, numbers, truth values and quoted texts are TOML's
    is_bare = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) and value not in _NO_TEXT
    return str(value) if is_bare else json.dumps(value)


_NO_TEXT = frozenset({"true", "false", "inf", "nan"})
