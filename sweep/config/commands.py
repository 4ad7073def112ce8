"""Command lines of ``sweep`` as texts for a POSIX shell. What reports and answers recommend to run is composed here."""

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from studies import shipped_studies
from sweep.config.study import StudySpec
from sweep.config.trial import default_settings, replace_keys

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

    def run(self) -> str:
        """The study as it is; what is on record is kept."""
        return self._run({})

    def run_more(self, trials: int) -> str:
        """The same study, up to ``trials`` search trials."""
        changes = {key: value for key, value in self.changes.items() if key != "trials"}
        return self._elsewhere("more trainings") or f"{replace(self, changes=changes)._run({})} --trials {trials}"

    def run_again(self) -> str:
        """The same study from its beginning; its old folder is set aside."""
        return self._elsewhere("the same trainings again") or f"{self._run({})} --fresh"

    def confirm_more(self, limits: Mapping[str, object]) -> str:
        """The same study with larger ``limits`` of the confirming trials, by dotted key."""
        return self._elsewhere("further seeds of the best configurations") or self._run(limits)

    def run_variant(self, suffix: str, fixed: Mapping[str, object]) -> str:
        """The study under a new name with the keys ``fixed``."""
        settings = ", ".join(f"{key} = {value}" for key, value in fixed.items())
        variant = self._as_new_study()._run({"name": f"{self.name}_{suffix}", **fixed})
        return self._elsewhere(f"trainings with {settings}") or variant

    def train_and_save(self, path: str, fixed: Mapping[str, object]) -> str:
        """One training of the study's base configuration with the keys ``fixed``; its weights are saved."""
        command = self._command("train", _select_configuration({**self.changes, **fixed}))
        return self._elsewhere("trainings from pretrained weights") or f"{command} --save {shlex.quote(path)}"

    def probe_shapes(self) -> str:
        """Probes of the study's micro batches."""
        command = self._command("cost", _select_configuration(self.changes), ("--measure", *self._root_options()))
        return self._elsewhere("the step time and memory of each micro batch") or command

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
        if self.is_foreign:
            return f"sweep claims {claim} --plan && sweep run claim_{claim}.toml"
        words = ["sweep claims", claim, "--plan", *_list_sets(fixed), *map(shlex.quote, self._root_options())]
        words += _list_plugin(self.plugin)
        planned = replace(self._as_new_study(), argument=f"claim_{claim}.toml", changes={})
        return f"{' '.join(words)} && {planned.run()}"

    def _elsewhere(self, what: str) -> str:
        return f"# where these records were made: {what}" if self.is_foreign else ""

    def _as_new_study(self) -> "StudyCommands":
        # it continues nothing, so that exported records are not imported for it
        return replace(self, export="", options=()) if self.export else self

    def _root_options(self) -> tuple[str, ...]:
        return self.options if "--root" in self.options and not self.export else ()

    def _read(self, command: str) -> str:
        if "--store" in self.options:
            return f"sweep {command} {shlex.quote(f'{self.options[1]}#{self.name}')}"
        return " ".join(["sweep", command, *map(shlex.quote, (self.name, *self.options))])

    def _run(self, more: Mapping[str, object]) -> str:
        options = (*(() if self.export else self.options), *self.run_options)
        command = self._command("run", replace_keys(dict(self.changes), dict(more)), options)
        imported = f"sweep import {shlex.quote(self.export)} && " if self.export else ""
        return self._elsewhere("the same trainings again") or f"{imported}{command}"

    def _command(self, name: str, changes: Mapping[str, object], options: Iterable[str] = ()) -> str:
        words = ["sweep", name, shlex.quote(self.argument), *_list_sets(changes), *map(shlex.quote, options)]
        return " ".join([*words, *_list_plugin(self.plugin)])


def name_foreign_commands(name: str, place: str) -> StudyCommands:
    """Commands about the study ``name`` that ``sweep import`` made at ``place`` of another program's records."""
    return StudyCommands(name=name, argument=name, changes={}, options=_record_options(name, place), is_foreign=True)


def find_study_commands(
    name: str, place: str = "", origin: StudyOrigin | None = None, plugin: str = ""
) -> StudyCommands:
    """Commands about the study ``name``, whose records were read from ``place`` and whose trials used ``plugin``.

    They repeat what the user typed, the ``origin``. Where that is not on record, as of a study that Python code ran, it
    is the shipped study of this name, or a file of it.
    """
    if origin is None or not origin.argument:
        origin = StudyOrigin(argument=name if name in shipped_studies() else f"{name}.toml")
    return StudyCommands(
        name=name,
        argument=origin.argument,
        changes=origin.changes,
        options=_record_options(name, place),
        run_options=origin.options,
        plugin=plugin,
    )


def _record_options(name: str, place: str) -> tuple[str, ...]:
    if "://" in place:
        return ("--store", place.partition("#")[0])
    path = Path(place)
    folder = path.parent if path.suffix == ".sqlite" else path
    # records that are not in a folder of the study's name were moved or exported: no study can be resumed there
    is_usual = folder.name != name or folder.parent == _USUAL_ROOT
    return () if is_usual else ("--root", str(folder.parent))


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
    return [f"--set {shlex.quote(f'{key}={_toml_value(value)}')}" for key, value in changes.items()]


def _toml_value(value: object) -> str:
    # as ``--set`` reads it: TOML, with quotes only around text that would be read as another value
    return value if isinstance(value, str) and not _needs_quotes(value) else toml_literal(value)


def toml_literal(value: object) -> str:
    """``value`` as TOML."""
    if isinstance(value, float):
        return repr(value)  # inf and nan are numbers of TOML too
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml_literal(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_literal, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _needs_quotes(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text.strip()}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text != text.strip()
    return True
