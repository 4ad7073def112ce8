"""``sweep ask``: a study from a few questions, its forecast, and within a budget its answer."""

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer
from pydantic import ValidationError

from sweep.cli.app import print_answer, print_lines
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    On,
    Plugin,
    Root,
    Sets,
    list_on_option,
    parse_duration,
    parse_sets,
    use_plugin,
    write_new_file,
)
from sweep.config.commands import StudyOrigin, find_study_commands
from sweep.config.errors import InputError, describe_unknown
from sweep.config.sections import escape_bytes
from sweep.config.study import choose_study_name
from sweep.config.study_file import load_study
from sweep.config.tables import DATASETS, MODELS
from sweep.search.ask import TARGETS, Answers

if TYPE_CHECKING:
    from sweep.analysis.answer import Answer
    from sweep.config.script import ScriptSection
    from sweep.config.study import StudySpec
    from sweep.search.guided_study import GuidedStudy, GuideTask
    from sweep.search.session import Options


T = TypeVar("T")


class _Question(NamedTuple):
    """One question: the option that answers it, its text, and the answer that is taken without one."""

    option: str
    text: str
    default: str = ""


_DATA = _Question("--data", "Which data set, or which folder of images with a folder for each class?", "digits")
_TARGET = _Question(
    "--target", f"What counts most: {', '.join(f'{name} ({text})' for name, text in TARGETS.items())}?", "balanced"
)
_WEIGHTS = _Question("--weights", "Fine-tuning from a file of weights? (empty: training from scratch)")
_MODEL = _Question("--model", "Which model are the weights of?")
_DEVICES = _Question("--devices", "How many devices train one model together?", "1")
_BATCH = _Question("--batch", "An effective batch size that must be compared, as from a paper? (empty: none)")
_BUDGET = _Question("--budget", "How long may it take, such as 30m? (empty: only the file is written)")
_METRIC = _Question("--metric", "What does the script report, and is less or more of it better?", "val_loss:min")
_QUESTIONS = (_DATA, _TARGET, _WEIGHTS, _DEVICES, _BATCH, _BUDGET)


def _check_terminal(*, takes_defaults: bool) -> None:
    """Raises ``InputError`` with the options where questions cannot be put."""
    if takes_defaults or sys.stdin.isatty():
        return
    options = "\n".join(f"  {each.option:10} {each.text} [{each.default or 'none'}]" for each in _QUESTIONS)
    raise InputError(
        "standard input is not a terminal, so that no question can be put. Run `sweep ask FILE.toml --yes`, and give "
        f"what differs from the defaults by its options:\n{options}"
    )


def _put_question(question: _Question, given: str | None, parse: Callable[[str], T], *, takes_defaults: bool) -> T:
    """The parsed answer to ``question``: the one ``given`` by its option, the default, or what is typed. What is typed
    and not valid is followed by the reason and the same question. Raises ``InputError``: what was given by the option
    is not valid."""
    if given is not None or takes_defaults:
        return parse(question.default if given is None else given.strip())
    while True:
        text = str(typer.prompt(question.text, default=question.default, show_default=bool(question.default))).strip()
        try:
            return parse(text)
        except InputError as error:
            print_lines([str(error)], err=True)


def collect_answers(
    images: tuple[str, str | None],
    given: Mapping[str, str | None],
    models: tuple[str, ...],
    *,
    num_devices: int,
    takes_defaults: bool,
) -> tuple[Answers, float | None]:
    """The answers about the ``images`` (a data set and its root), and the seconds that the study may take, None where
    it is not to be run; ``given`` are answers by options. The number of devices is a question only where there are
    several, the model only where there are weights. Raises ``InputError``: an answer that was given by an option is not
    valid."""

    def answer(question: _Question, parse: Callable[[str], T]) -> T:
        is_known = takes_defaults or (question is _DEVICES and num_devices == 1)
        return _put_question(question, given.get(question.option), parse, takes_defaults=is_known)

    parse_model = partial(_parse_name, "model", MODELS)
    models = tuple(map(parse_model, models))
    target, weights = answer(_TARGET, partial(_parse_name, "target", TARGETS)), answer(_WEIGHTS, _parse_weights)
    if weights is not None and not models and not takes_defaults:
        models = (answer(_MODEL, parse_model),)
    if weights is not None and len(models) != 1:
        raise InputError("--weights fit one model: name it with --model.")
    devices = answer(_DEVICES, partial(_parse_devices, num_devices))
    batch = answer(_BATCH, partial(_parse_batch, devices))
    budget = answer(_BUDGET, lambda text: parse_duration(text or None, "--budget"))
    name, root = images
    answers = Answers(
        data=name, data_root=root, models=models, target=target, weights=weights, num_devices=devices, batch=batch
    )
    return answers, budget


def _find_data(text: str) -> tuple[str, str | None]:
    """The data set and its root that ``text`` names: a data set, or a folder of images. Raises ``InputError``: it is
    neither."""
    if text in DATASETS:
        return text, None
    if Path(text).is_dir():
        return "imagefolder", escape_bytes(text)
    if "/" in text or os.sep in text:
        raise InputError(f"--data {text}: there is no such folder; give the path of a folder of images.")
    raise InputError(f"--data: {describe_unknown('data set', text, DATASETS)} Or give the path of a folder of images.")


def _parse_count(question: _Question, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{question.option} {text}: give a whole number from 1 on.")
    return int(text)


def _parse_devices(present: int, text: str) -> int:
    count = _parse_count(_DEVICES, text)
    if count > present:
        here = "no GPU or a single one" if present == 1 else f"{present} GPUs"
        raise InputError(
            f"--devices {count}: this machine has {here}; give at most {present}. Several ranks on one processor show "
            f"that the trainings run, not what they cost: for that give --set distributed.world_size={count}."
        )
    return count


def _parse_weights(text: str) -> str | None:
    if text and not Path(text).is_file():
        raise InputError(f"--weights {text}: no such file; give a .safetensors or torch file.")
    return text or None


def _parse_name(what: str, known: Collection[str], text: str) -> str:
    if text not in known:
        raise InputError(f"--{what}: {describe_unknown(what, text, known)}")
    return text


def _parse_batch(devices: int, text: str) -> int | None:
    size = _parse_count(_BATCH, text) if text else None
    if size is not None and size % devices:
        raise InputError(f"--batch {size}: {devices} devices cannot share it evenly; give a multiple of {devices}.")
    return size


_NewStudy = Annotated[
    Path | None, typer.Argument(help="Study file to create; default: a new one here, named after the data.")
]
_Script = Annotated[str | None, typer.Option(help='Training script to ask about, such as "python train.py".')]
_Metric = Annotated[str | None, typer.Option(help="What it reports, such as val_loss:min.")]
_Data = Annotated[str | None, typer.Option(help="Data set, or folder of images.")]
_Models = Annotated[
    list[str] | None, typer.Option("--model", help="Model to train; default: by the image size; repeatable.")
]
_Target = Annotated[str | None, typer.Option(help="balanced, accuracy, speed or memory.")]
_Weights = Annotated[str | None, typer.Option(help="File of weights to fine-tune from.")]
_Devices = Annotated[str | None, typer.Option(help="Number of devices that train one model together.")]
_Batch = Annotated[str | None, typer.Option(help="Effective batch size to compare with the recommended one.")]
_Budget = Annotated[str | None, typer.Option(help="Time for the study, such as 30m; none: only the file.")]
_Yes = Annotated[bool, typer.Option("--yes", help="No questions: the options and the defaults.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only the file and the forecast.")]


def ask(
    path: _NewStudy = None,
    script: _Script = None,
    metric: _Metric = None,
    data: _Data = None,
    model: _Models = None,
    target: _Target = None,
    weights: _Weights = None,
    devices: _Devices = None,
    batch: _Batch = None,
    budget: _Budget = None,
    yes: _Yes = False,
    dry_run: _DryRun = False,
    sets: Sets = None,
    root: Root = RUNS,
    on: On = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Write a study from a few questions, and run it within a budget. Images or a script, devices, times and memory
    are measured; the file has a reason for each key; at the end the answer for the target is printed."""
    began, changes = time.monotonic(), parse_sets(sets)
    if any(key.partition(".")[0] == "batch" for key in changes):
        raise InputError("--set batch: the batch size is what is asked for; compare one of your own with --batch.")
    _check_path(path, changes, root)
    _check_terminal(takes_defaults=yes)

    from sweep.executors.devices import list_devices
    from sweep.executors.table import read_executor
    from sweep.search.guided_study import GuideTask
    from sweep.search.session import Options  # with Optuna and pandas

    plugin_path, executor = use_plugin(plugin), read_executor(on)
    given = {"--target": target, "--weights": weights, "--devices": devices, "--batch": batch, "--budget": budget}
    if script is not None:
        if not script.strip():
            raise InputError('--script: no command; give the one that trains, such as --script "python train.py".')
        of_images = {**given, "--data": data, "--model": model, "--set": sets, "--plugin": plugin, "--batch": None}
        if useless := [option for option, value in of_images.items() if value and option != "--budget"]:
            raise InputError(f"{', '.join(useless)}: about images; leave it out with --script.")
        options = Options(root=root, executor=executor, origin=StudyOrigin(options=list_on_option(on)))
        request = _Request(
            path=path, options=options, began=began, takes_defaults=yes, is_dry=dry_run, as_json=as_json
        )  # fmt: skip
        return _ask_script(request, script, given | {"--metric": metric})
    if metric is not None:
        raise InputError("--metric: about a script; leave it out, or give --script.")
    images = _put_question(_DATA, data, _find_data, takes_defaults=yes)
    # a model that is fixed by --set decides what follows from the model
    models = (str(changes["model.name"]),) if "model.name" in changes else tuple(model or ())
    num_devices = len(list_devices())
    answers, budget_seconds = collect_answers(images, given, models, num_devices=num_devices, takes_defaults=yes)
    file = path or _find_free_path(Path(images[1] or images[0]).resolve().name or "images", root)
    origin = StudyOrigin(argument=str(file), plugin=str(plugin or ""), options=list_on_option(on))
    study = str(changes.get("name", choose_study_name(file)))
    command = find_study_commands(study, str(root / study), origin, origin.plugin).run()
    options = Options(root=root, executor=executor, plugin=plugin_path, resumed_by=f"`{command}`", origin=origin)
    task = GuideTask(
        name=choose_study_name(file),
        answers=answers,
        options=options,
        budget_seconds=budget_seconds,
        began=began if yes else time.monotonic(),  # the time of typing does not count
        changes=changes,
    )
    made, document = _make_study(task, file)
    if task.budget_seconds is not None and not dry_run and (yes or _accepts(made)):
        from sweep.search.ask import find_uses

        return _run(made.spec, task.options, find_uses(answers), answers.batch, document, as_json=as_json)

    from sweep.cli.check import format_data
    from sweep.cli.study_run import format_forecast

    lines = [*format_data(made.data), *format_forecast(made.forecast, made.spec.price), f"run it with: {command}"]
    print_answer(document, lines, as_json=as_json)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What was asked for by options that a script and images share."""

    path: Path | None
    options: "Options"
    takes_defaults: bool
    is_dry: bool
    as_json: bool
    began: float


def _ask_script(request: _Request, command: str, given: Mapping[str, str | None]) -> int:
    """A study of the script that ``command`` runs."""
    from sweep.search.ask_script import ScriptTask, look_at_script, make_script_study

    def answer(question: _Question, parse: Callable[[str], T]) -> T:
        return _put_question(question, given[question.option], parse, takes_defaults=request.takes_defaults)

    script = answer(_METRIC, partial(_parse_script, command))
    batch = _parse_batch(1, given["--batch"] or "")
    budget = answer(_BUDGET, lambda text: parse_duration(text or None, "--budget"))
    file = request.path or _find_free_path(Path(script.name).stem, request.options.root)
    name, root = choose_study_name(file), request.options.root
    origin = replace(request.options.origin, argument=str(file))
    again = find_study_commands(name, str(root / name), origin, origin.plugin).run()
    options = replace(request.options, resumed_by=f"`{again}`", origin=origin)
    began = request.began if request.takes_defaults else time.monotonic()
    task = ScriptTask(
        name=name, file=file, script=script, options=options, budget_seconds=budget, batch=batch, began=began
    )
    print_lines([f"{script.name}: training once with its own values"], err=True)
    facts = look_at_script(task)
    takes = ", ".join(sorted(facts.keys))
    seen = f"batch size {facts.batch}, learning rate {facts.measured.get('observed_lr', 0):g}"
    print_lines([f"it takes {takes}; observed: {seen}", "checking that it follows what it is asked"], err=True)
    made = make_script_study(task, facts)
    write_new_file(file, made.text)
    left_out = [f"left out for lack of time: {'; '.join(made.left_out)}"] * bool(made.left_out)
    print_lines([f"wrote {file}", *made.notes, *left_out], err=True)
    document = {"study": name, "file": str(file), "left_out": list(made.left_out), "notes": list(made.notes)}
    if budget is None or request.is_dry:
        print_answer(document, [f"run it with: {again}"], as_json=request.as_json)
        return 0
    return _run(load_study(file), options, ("balanced",), made.batch, document, as_json=request.as_json)


def _parse_script(command: str, text: str) -> "ScriptSection":
    from sweep.config.script import ScriptSection

    name, _, way = text.partition(":")
    directions = {"min": "minimize", "max": "maximize"}
    if not name or (way and way not in directions):
        raise InputError(f"--metric {text}: give its name with :min or :max, such as val_loss:min.")
    table = {"command": command, "metric": name} | ({"direction": directions[way]} if way else {})
    try:
        return ScriptSection.model_validate(table)
    except ValidationError as error:
        raise InputError(f"--script {command}: {error.errors()[0]['msg']}") from None


def _check_path(path: Path | None, changes: Mapping[str, Any], root: Path) -> None:
    name = str(changes.get("name", choose_study_name(path) if path else ""))
    if name and (root / name).exists():
        raise InputError(f"{root / name}: it has the records of a study {name!r} already; choose another name.")
    if path is None:
        return
    if path.suffix != ".toml":
        raise InputError(f"sweep ask {path}: the name of a study file ends in .toml.")
    if path.exists():
        raise InputError(f"{path} exists already; choose another name.")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it first, or choose another one.")


def _find_free_path(stem: str, root: Path) -> Path:
    number = 1
    while True:
        file = Path(f"{stem}_batch{'' if number == 1 else f'_{number}'}.toml")
        if not file.exists() and not (root / choose_study_name(file)).exists():
            return file
        number += 1


def _make_study(task: "GuideTask", file: Path) -> tuple["GuidedStudy", dict[str, Any]]:
    from reports.labels import describe_decoding, list_notes
    from sweep.cli.check import show_inspection
    from sweep.search.guided_study import look_at_images, make_study

    with show_inspection() as show:
        facts, data = look_at_images(task, show)
        if task.budget_seconds is not None:  # before a part of it is spent
            print_lines([*(f"note: {note}" for note in list_notes(data)), *describe_decoding(data)], err=True)
        if (batch := task.answers.batch or 0) > facts.num_train:
            raise InputError(f"--batch {batch}: the training split has {facts.num_train:,} images; give a smaller one.")
        counted = f"{facts.num_train:,} training and {facts.num_validation:,} validation images"
        print_lines([f"{counted} of {facts.side} x {facts.side} pixels; timing a few training steps"], err=True)
        made = make_study(task, facts)
    write_new_file(file, made.text)
    lines = [f"wrote {file}", *made.notes]
    if made.left_out:
        reason = "because there is no --budget" if task.budget_seconds is None else "for lack of time"
        lines.append(f"left out {reason}: {'; '.join(made.left_out)}")
    lines += [f"the study is about {made.part}"] * bool(made.part)
    print_lines(lines, err=True)
    return made, {
        "study": made.spec.name,
        "file": str(file),
        "part": made.part,
        "forecast": made.forecast.document(),
        "left_out": list(made.left_out),
        "notes": list(made.notes),
    }


def _accepts(made: "GuidedStudy") -> bool:
    offer = f"The whole question takes longer than the budget. Run the study of {made.part}?"
    return not made.part or typer.confirm(offer, default=True, err=True)


def _run(
    spec: "StudySpec",
    options: "Options",
    uses: Sequence[str],
    batch: int | None,
    document: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    from sweep.analysis.recommendation import as_document, recommend
    from sweep.cli.study_run import carry_out_study

    ended = carry_out_study(spec, options)
    if ended.document is None:
        return ended.exit_code
    answer = recommend(ended.place, uses=uses, given_batch=batch)
    if as_json:
        typer.echo(json.dumps(document | {"run": ended.document, "answer": as_document(answer)}))
        return ended.exit_code
    part, left_out = document.get("part"), "; ".join(document["left_out"])
    about = f"This answer is about {part}." if part else f"Left out for lack of time: {left_out}." if left_out else ""
    ended.display.close(ended.document, [*filter(None, [about]), *_describe_answer(answer, uses)])
    return ended.exit_code


def _describe_answer(answer: "Answer", uses: Sequence[str]) -> Iterator[str]:
    from sweep.cli.answer import describe_batch_sizes, format_use

    if answer.batch_size is None:
        yield "no answer: no training is complete"
        return
    yield from describe_batch_sizes(answer.batch_size, answer.quality)
    for use in uses:
        yield from format_use(answer.uses[use], answer.quality)
