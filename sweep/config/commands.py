"""Command lines of ``sweep`` as texts for a POSIX shell. What reports and answers recommend to run is composed here."""

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from studies import shipped_studies
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import default_settings, flatten_config, replace_keys

_USUAL_ROOT = Path("runs")


@dataclass(frozen=True, kw_only=True)
class StudyOrigin:
    """What a user typed to run a study: the ``argument`` of ``sweep run``, the ``changes`` of its ``--set`` and
    ``--trials`` by dotted key, the file of ``--plugin``, and the ``options`` that choose the executor as words, such as
    ``--on``, ``cpu``; empty where no command line ran it."""

    argument: str = ""
    changes: Mapping[str, object] = field(default_factory=dict)
    plugin: str = ""
    options: tuple[str, ...] = ()

    def locate(self) -> "StudyOrigin":
        """The same with absolute paths of its files, so that commands are right in other folders too."""
        argument, plugin, *options = map(_locate_file, (self.argument, self.plugin, *self.options))
        return replace(self, argument=argument, plugin=plugin, options=tuple(options))


def _locate_file(text: str) -> str:
    return str(Path(text).resolve()) if Path(text).suffix in (".toml", ".py") and Path(text).is_file() else text


@dataclass(frozen=True, kw_only=True)
class StudyCommands:
    """Commands about one study. Records of another program cannot be continued: a command that would add to them is
    a comment of the shell."""

    name: str
    argument: str  # a shipped study or a file
    changes: Mapping[str, object] = field(default_factory=dict)  # of ``--set``, keys of the study among them
    options: tuple[str, ...] = ()  # lead to the records
    run_options: tuple[str, ...] = ()  # choose the executor of a run
    plugin: str = ""  # the file of ``--plugin``
    is_foreign: bool = False  # whether another program made the records
    export: str = ""  # the folder of exported records, which a run imports first
    place: str = ""  # of records that were moved or exported
    absent: tuple[str, ...] = ()  # files of moved or exported records that commands require and that are not here
    spec: StudySpec | None = None  # where it is known, no command is one that the study refuses

    def run(self) -> str:
        """The study as it is; what is on record is kept."""
        return self._run({})

    def run_more(self, trials: int, num_tried: int = 0) -> str:
        """The same study, up to ``trials`` search trials; where the ``num_tried`` configurations are all of its space,
        with more learning rates."""
        points = self.spec.list_points() if self.spec else None
        if points is not None and num_tried >= len(points):
            return self.widen("optimizer.lr")
        trials = trials if points is None else min(trials, len(points))
        changes = {key: value for key, value in self.changes.items() if key != "trials"}
        return self.state_elsewhere("more trainings") or f"{replace(self, changes=changes)._run({})} --trials {trials}"

    def widen(self, key: str) -> str:
        """The study under a new name, whose space has more values of ``key`` than its own."""
        assert self.spec is not None
        swept = self.spec.space.get(key)
        known = swept.grid_values or swept.extremes() if swept else [flatten_config(self.spec.corners.first)[key]]
        values: list[Any] = sorted(value for value in known if not isinstance(value, str)) or [64]
        if key == "seed":
            more = [values[-1] + 1 + index for index in range(len(values))]
        elif isinstance(values[0], int):
            more = [max(1, values[0] // 4), max(1, values[0] // 2)]
        else:
            more = [values[0] / 4, values[0] / 2, 2 * values[-1], 4 * values[-1]]
        changes: dict[str, Any] = {"first": []} if self.spec.first else {}
        changes[f"space.{key}"] = {"choice": sorted({*values, *more})}
        with suppress(InputError):  # the command then says that the study refuses it
            changes["trials"] = max(len(self._change(changes).list_points() or ()), self.spec.trials)
        return self.run_variant("wider", changes)

    def run_again(self) -> str:
        """The same study from its beginning; its old folder is set aside."""
        return self.state_elsewhere("the same trainings again") or f"{self._run({})} --fresh"

    def confirm_more(self, limits: Mapping[str, object]) -> str:
        """The same study with larger ``limits`` of the confirming trials, by dotted key."""
        if self.spec and "seed" in self.spec.space:
            return self.widen("seed")  # such a study confirms nothing
        return self.state_elsewhere("further seeds of the best configurations") or self._run(limits)

    def run_variant(self, suffix: str, fixed: Mapping[str, object]) -> str:
        """The study under a new name with the keys ``fixed``."""
        settings = ", ".join(f"{key} = {toml_literal(value)}" for key, value in fixed.items())
        variant = self._as_new_study()._run({"name": f"{self.name}_{suffix}", **fixed})
        return self.state_elsewhere(f"trainings with {settings}") or variant

    def train_and_save(self, path: str, fixed: Mapping[str, object]) -> str:
        """One training of the study's base configuration with the keys ``fixed``; its weights are saved."""
        command = self._command("train", _select_configuration({**self.changes, **fixed}))
        return self.state_elsewhere("trainings from pretrained weights") or f"{command} --save {shlex.quote(path)}"

    def probe_shapes(self) -> str:
        """Probes of the study's micro batches."""
        command = self._command("cost", _select_configuration(self.changes), ("--measure", *self._root_options()))
        return self.state_elsewhere("the step time and memory of each micro batch") or command

    def check(self) -> str:
        """The known pitfalls of the study with their reasons."""
        return self._command("check", self.changes, self._root_options())

    def recommend(self) -> str:
        """The recommendations from the study's records."""
        return self._read("recommend")

    def read_claims(self) -> str:
        """The common claims, tested on the study's records."""
        return self._read("claims")

    def examine(self) -> str:
        """What is wrong with the measurements of the study's records, and what to do about it."""
        return self._read("check")

    def plan_claim(self, claim: str, fixed: Mapping[str, object]) -> str:
        """The smallest study that settles ``claim``, with the keys ``fixed``; then its run, where this study's records
        are."""
        words = ["sweep claims", claim, "--plan", *_list_sets(fixed), *map(shlex.quote, self._root_options())]
        words += _list_plugin(self.plugin)
        planned = replace(self._as_new_study(), argument=f"claim_{claim}.toml", changes={}, spec=None)
        return f"{self.state_absent(self.plugin)}{' '.join(words)} && {planned.run()}"

    def state_elsewhere(self, what: str) -> str:
        """What is to be done where another program made the records; "" where this one did."""
        return f"# where these records were made: {what}" if self.is_foreign else ""

    def state_absent(self, *files: str) -> str:
        """The beginning of a command that requires ``files`` of which some are not here, as a comment of the shell; ""
        where all are."""
        lacking = [shlex.quote(file) for file in files if file in self.absent]
        return f"# requires {' and '.join(lacking)}, not found here: " if lacking else ""

    def find_absent(self) -> "StudyCommands":
        """The same with the study file and the plug-in that are not here."""
        files = (self.argument, self.plugin)
        absent = [file for file in files if Path(file).suffix in (".toml", ".py") and not Path(file).is_file()]
        return replace(self, absent=tuple(absent))

    def _change(self, changes: Mapping[str, object]) -> StudySpec:
        assert self.spec is not None
        return build_study(self.spec.model_dump(by_alias=True, exclude_none=True), self.name, dict(changes))

    def _as_new_study(self) -> "StudyCommands":
        # it continues nothing, so that exported records are not imported for it
        return replace(self, export="", options=()) if self.export else self

    def _root_options(self) -> tuple[str, ...]:
        return self.options if "--root" in self.options and not self.export else ()

    def _read(self, command: str) -> str:
        if "--store" in self.options:
            return f"sweep {command} {shlex.quote(f'{self.options[1]}#{self.name}')}"
        return " ".join(["sweep", command, *map(shlex.quote, (self.place or self.name, *self.options))])

    def _run(self, more: Mapping[str, object]) -> str:
        try:
            if self.spec and more:
                self._change(more)
        except InputError as error:
            return f"# the study refuses this: {' '.join(str(error).split())}"
        options = (*(() if self.export else self.options), *self.run_options)
        command = self._command("run", replace_keys(dict(self.changes), dict(more)), options)
        imported = f"sweep import {shlex.quote(self.export)} && " if self.export and command[0] != "#" else ""
        return self.state_elsewhere("the same trainings again") or f"{imported}{command}"

    def _command(self, name: str, changes: Mapping[str, object], options: Iterable[str] = ()) -> str:
        words = ["sweep", name, shlex.quote(self.argument), *_list_sets(changes), *map(shlex.quote, options)]
        return self.state_absent(self.argument, self.plugin) + " ".join([*words, *_list_plugin(self.plugin)])


def find_study_commands(
    name: str, place: str = "", origin: StudyOrigin | None = None, plugin: str = "", spec: StudySpec | None = None
) -> StudyCommands:
    """Commands about the study ``name``, whose records were read from ``place`` and whose trials used ``plugin``.

    They repeat what the user typed, the ``origin``. Where that is not on record, as of a study that Python code ran, it
    is the shipped study of this name, or a file of it.
    """
    if origin is None or not origin.argument:
        origin = StudyOrigin(argument=name if name in shipped_studies() else f"{name}.toml")
    is_url, folder = "://" in place, (Path(place).parent if place.endswith(".sqlite") else Path(place)).resolve()
    # records that are not in a folder of the study's name were moved or exported: no study can be resumed there
    is_moved = bool(place) and not is_url and folder.name != name
    options: tuple[str, ...] = ("--store", place.partition("#")[0]) if is_url else ()
    if place and not is_url and not is_moved and folder.parent != _USUAL_ROOT.resolve():
        options = ("--root", str(folder.parent))
    commands = StudyCommands(
        name=name,
        argument=shorten_path(origin.argument),
        changes=origin.changes,
        options=options,
        run_options=tuple(map(shorten_path, origin.options)),
        plugin=shorten_path(plugin),
        place=shorten_path(str(folder)) if is_moved else "",
        spec=spec,
    )
    return commands.find_absent() if is_moved else commands


def shorten_path(text: str) -> str:
    """``text``, relative where it is the path of a file below this folder."""
    is_below = Path(text).is_absolute() and Path(text).is_relative_to(Path.cwd())
    return str(Path(text).relative_to(Path.cwd())) if is_below else text


def train_command(settings: Mapping[str, object], seed: int, plugin: str = "") -> str:
    """``sweep train --set key=value ... --set seed=N`` for the configuration ``settings`` by dotted key.

    Only what differs from the defaults is stated. None is never stated: such a key was replaced by another one, which
    replaces it again.
    """
    defaults = default_settings()
    given = {key: settings[key] for key in defaults if key != "seed" and settings.get(key) is not None}
    named = {key: value for key, value in given.items() if value != defaults[key]}
    return " ".join(["sweep train", *_list_sets({**named, "seed": seed}), *_list_plugin(plugin)])


def _list_plugin(plugin: str) -> list[str]:
    return [f"--plugin {shlex.quote(plugin)}"] if plugin else []


def _select_configuration(changes: Mapping[str, object]) -> dict[str, object]:
    # ``sweep train`` takes no keys of the study, such as trials, sampler or confirm.seeds
    of_study = StudySpec.model_fields.keys() - {"seed"}
    return {key: value for key, value in changes.items() if key.partition(".")[0] not in of_study}


def _list_sets(changes: Mapping[str, object]) -> list[str]:
    # as ``--set`` reads it: TOML, with quotes only around text that would be read as another value
    texts = {key: toml_literal(each) if _is_quoted(each) else each for key, each in changes.items()}
    return [f"--set {shlex.quote(f'{key}={text}')}" for key, text in texts.items()]


def toml_literal(value: object) -> str:
    """``value`` as TOML."""
    if isinstance(value, float):
        return repr(value)  # inf and nan are numbers of TOML too
    if isinstance(value, Mapping):
        keys = {key: key if key.isascii() and key.isidentifier() else json.dumps(key) for key in value}
        return f"{{ {', '.join(f'{keys[key]} = {toml_literal(each)}' for key, each in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_literal, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_quoted(value: object) -> bool:
    text = str(value)
    try:
        tomllib.loads(f"value = {text.strip()}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text != text.strip() or not isinstance(value, str)
    return True
