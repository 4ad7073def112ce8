"""``sweep ask``: a study from a few questions, its forecast, and within a budget its answer."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from sweep.cli.app import print_answer, print_lines
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    On,
    Plugin,
    Root,
    Sets,
    choose_study_name,
    list_on_option,
    load_plugin,
    parse_duration,
    parse_sets,
    write_new_file,
)
from sweep.config.commands import StudyOrigin, find_study_commands
from sweep.config.errors import InputError, describe_unknown
from sweep.config.tables import DATASETS, MODELS
from sweep.search.ask import TARGETS, Answers, check_budget

if TYPE_CHECKING:
    from sweep.analysis.answer import Answer
    from sweep.cli.study_run import Options
    from sweep.search.guided_study import GuidedStudy, GuideTask


# The questions of the guide, which are put on a terminal one after another or answered by options.

T = TypeVar("T")


class Question(NamedTuple):
    """One question: the option that answers it, its text, and the answer that is taken without one."""

    option: str
    text: str
    default: str = ""


DATA = Question("--data", "Which data set, or which folder of images with a folder for each class?", "digits")
_TARGET = Question(
    "--target", f"What counts most: {', '.join(f'{name} ({text})' for name, text in TARGETS.items())}?", "balanced"
)
_WEIGHTS = Question("--weights", "Fine-tuning from a file of weights? (empty: training from scratch)")
_MODEL = Question("--model", "Which model are the weights of?")
_DEVICES = Question("--devices", "How many devices train one model together?", "1")
_BATCH = Question("--batch", "An effective batch size that must be compared, as from a paper? (empty: none)")
_BUDGET = Question("--budget", "How long may it take, such as 30m? (empty: only the file is written)")
QUESTIONS = (DATA, _TARGET, _WEIGHTS, _DEVICES, _BATCH, _BUDGET)


@dataclass(frozen=True)
class Replies:
    """The answers with the seconds that the study may take; None where it is not to be run."""

    answers: Answers
    budget_seconds: float | None


def _check_terminal(*, takes_defaults: bool) -> None:
    """Raises ``InputError`` with the options where questions cannot be put."""
    if takes_defaults or sys.stdin.isatty():
        return
    options = "\n".join(f"  {each.option:10} {each.text} [{each.default or 'none'}]" for each in QUESTIONS)
    raise InputError(
        "standard input is not a terminal, so that no question can be put. Run `sweep ask FILE.toml --yes`, and give "
        f"what differs from the defaults by its options:\n{options}"
    )


def _put_question(question: Question, given: str | None, parse: Callable[[str], T], *, takes_defaults: bool) -> T:
    """The parsed answer to ``question``: the one ``given`` by its option, the default, or what is typed. What is typed
    and not valid is followed by the reason and the same question.

    Raises:
        InputError: what was given by the option is not valid.
    """
    if given is not None or takes_defaults:
        return parse(question.default if given is None else given.strip())
    while True:
        text = str(typer.prompt(question.text, default=question.default, show_default=bool(question.default))).strip()
        try:
            return parse(text)
        except InputError as error:
            print_lines([str(error)], err=True)


def collect_replies(
    data: str, given: Mapping[str, str | None], models: tuple[str, ...], *, num_devices: int, takes_defaults: bool
) -> Replies:
    """All answers, of which that on the ``data`` is known; ``given`` are the others by option. The number of
    devices is a question only where there are several, the model only where there are weights.

    Raises:
        InputError: an answer that was given by an option is not valid.
    """

    def reply(question: Question, parse: Callable[[str], T]) -> T:
        is_known = takes_defaults or (question is _DEVICES and num_devices == 1)
        return _put_question(question, given.get(question.option), parse, takes_defaults=is_known)

    models = tuple(map(_parse_model, models))
    target, weights = reply(_TARGET, _parse_target), reply(_WEIGHTS, _parse_weights)
    if weights is not None and not models:
        models = (reply(_MODEL, _parse_model),)
    if weights is not None and len(models) != 1:
        raise InputError("--weights fit one model: name it with --model.")
    devices = reply(_DEVICES, partial(_parse_devices, num_devices))
    batch = reply(_BATCH, partial(_parse_batch, devices))
    budget = reply(_BUDGET, _parse_budget)
    name, root = _find_data(data)
    answers = Answers(
        data=name, data_root=root, models=models, target=target, weights=weights, num_devices=devices, batch=batch
    )
    return Replies(answers, budget)


def _find_data(text: str) -> tuple[str, str | None]:
    """The data set and its root that ``text`` names: a data set, or a folder of images.

    Raises:
        InputError: it is neither.
    """
    if text in DATASETS:
        return text, None
    if Path(text).is_dir():
        return "imagefolder", text
    if "/" in text or os.sep in text:
        raise InputError(f"--data {text}: there is no such folder; give the path of a folder of images.")
    raise InputError(f"--data: {describe_unknown('data set', text, DATASETS)} Or give the path of a folder of images.")


def _parse_count(question: Question, text: str) -> int:
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


def _parse_target(text: str) -> str:
    if text not in TARGETS:
        raise InputError(f"--target: {describe_unknown('target', text, TARGETS)}")
    return text


def _parse_weights(text: str) -> str | None:
    if text and not Path(text).is_file():
        raise InputError(f"--weights {text}: no such file; give a .safetensors or torch file.")
    return text or None


def _parse_model(text: str) -> str:
    if not text:
        raise InputError("--weights fit one model: name it with --model.")
    if text not in MODELS:
        raise InputError(f"--model: {describe_unknown('model', text, MODELS)}")
    return text


def _parse_budget(text: str) -> float | None:
    seconds = parse_duration(text or None, "--budget")
    if seconds is not None:
        check_budget(seconds)
    return seconds


def _parse_batch(devices: int, text: str) -> int | None:
    size = _parse_count(_BATCH, text) if text else None
    if size is not None and size % devices:
        raise InputError(f"--batch {size}: {devices} devices cannot share it evenly; give a multiple of {devices}.")
    return size


_BATCH_KEYS = ("batch.micro", "batch.global", "batch.accumulation")
_NewStudy = Annotated[
    Path | None, typer.Argument(help="The study file to create; default: a new one here, named after the data.")
]
Data = Annotated[str | None, typer.Option(help="A data set, or a folder of images.")]
_Models = Annotated[
    list[str] | None, typer.Option("--model", help="Model to train; default: by the image size; repeatable.")
]
_Target = Annotated[str | None, typer.Option(help="balanced, accuracy, speed or memory.")]
Weights = Annotated[str | None, typer.Option(help="File of weights to fine-tune from.")]
_Devices = Annotated[str | None, typer.Option(help="Number of devices that train one model together.")]
Batch = Annotated[str | None, typer.Option(help="An effective batch size to compare with the recommended one.")]
Budget = Annotated[str | None, typer.Option(help="Time for the study, such as 30m; none: only write the file.")]
_Yes = Annotated[bool, typer.Option("--yes", help="Ask no questions: use the options and the defaults.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Write the file, print the forecast, and stop.")]


def ask(
    path: _NewStudy = None,
    data: Data = None,
    model: _Models = None,
    target: _Target = None,
    weights: Weights = None,
    devices: _Devices = None,
    batch: Batch = None,
    budget: Budget = None,
    yes: _Yes = False,
    dry_run: _DryRun = False,
    sets: Sets = None,
    root: Root = RUNS,
    on: On = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Write a study from a few questions, and run it within a budget. Images, devices, times and memory are
    measured; the file has a reason for each key; at the end the answer for the target is printed."""
    began = time.monotonic()
    given = {"--data": data, "--target": target, "--weights": weights, "--devices": devices}
    given |= {"--batch": batch, "--budget": budget}
    request = _Request(
        path=path, given=given, models=model or [], changes=parse_sets(sets), root=root, on=on,
        plugin=plugin, takes_defaults=yes,
    )  # fmt: skip
    file, task = _prepare_task(request, began)
    made, document = _make(task, file)
    if task.budget_seconds is not None and not dry_run:
        return _run(made, task, document=document, as_json=as_json)
    _print_price(made, task, document, as_json=as_json)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What the command line gives; ``given`` are the answers by the option of their question."""

    path: Path | None
    given: Mapping[str, str | None]
    models: Sequence[str]
    changes: Mapping[str, Any]
    root: Path
    on: str
    plugin: Path | None
    takes_defaults: bool


def _prepare_task(request: _Request, began: float) -> tuple[Path, "GuideTask"]:
    # the study file, and what the guide is to make a study of; questions are put here
    file, takes_defaults = _check_path(request.path, request.changes, request.root), request.takes_defaults
    _check_terminal(takes_defaults=takes_defaults)
    module = load_plugin(request.plugin)
    place = _put_question(DATA, request.given["--data"], _check_data, takes_defaults=takes_defaults)

    from sweep.executors.devices import list_devices
    from sweep.search.guided_study import GuideTask  # with Optuna and pandas

    models, num_devices = _list_models(request.models, request.changes), len(list_devices())
    replies = collect_replies(place, request.given, models, num_devices=num_devices, takes_defaults=takes_defaults)
    file = file or _find_free_path(Path(place).resolve().name or "images", request.root)
    task = GuideTask(
        name=choose_study_name(file),
        answers=replies.answers,
        options=_make_options(request, file, module),
        budget_seconds=replies.budget_seconds,
        began=began if takes_defaults else time.monotonic(),  # the time of typing does not count
        changes=request.changes,
    )
    return file, task


def _make_options(request: _Request, file: Path, module: str | None) -> "Options":
    from sweep.cli.study_run import Options, read_executor

    executor = read_executor(request.on)
    origin = StudyOrigin(argument=str(file), plugin=str(request.plugin or ""), options=list_on_option(request.on))
    run = _find_run_command(origin, request.changes, request.root)
    return Options(root=request.root, executor=executor, plugin=module, resumed_by=f"`{run}`", origin=origin)


def _check_data(text: str) -> str:
    _find_data(text)
    return text


def _print_price(made: "GuidedStudy", task: "GuideTask", document: dict[str, Any], *, as_json: bool) -> None:
    from sweep.cli.check import format_data
    from sweep.cli.study_run import format_forecast

    run = _find_run_command(task.options.origin, task.changes, task.options.root)
    lines = [*format_data(made.data), *format_forecast(made.forecast, made.spec.price), f"run it with: {run}"]
    print_answer(document, lines, as_json=as_json)


def _find_run_command(origin: StudyOrigin, changes: Mapping[str, Any], root: Path) -> str:
    study = str(changes.get("name", choose_study_name(Path(origin.argument))))
    return find_study_commands(study, None, str(root / study), origin, origin.plugin).run()


def _list_models(named: Sequence[str], changes: Mapping[str, Any]) -> tuple[str, ...]:
    # a model that is fixed by --set decides what follows from the model
    return (str(changes["model.name"]),) if "model.name" in changes else tuple(named)


def _check_path(path: Path | None, changes: Mapping[str, Any], root: Path) -> Path | None:
    name = str(changes.get("name", choose_study_name(path) if path else ""))
    if name and (root / name).exists():
        raise InputError(f"{root / name}: it has the records of a study {name!r} already; choose another name.")
    if path is None:
        return None
    if path.suffix != ".toml":
        raise InputError(f"sweep ask {path}: the name of a study file ends in .toml.")
    if path.exists():
        raise InputError(f"{path} exists already; choose another name.")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; make it first, or choose another one.")
    return path


def _find_free_path(stem: str, root: Path) -> Path:
    number = 1
    while True:
        file = Path(f"{stem}_batch{'' if number == 1 else f'_{number}'}.toml")
        if not file.exists() and not (root / choose_study_name(file)).exists():
            return file
        number += 1


def _make(task: "GuideTask", file: Path) -> tuple["GuidedStudy", dict[str, Any]]:
    from sweep.cli.check import show_inspection
    from sweep.search.guided_study import look_at_images, make_study

    with show_inspection() as show:
        facts, _ = look_at_images(task, show)
        _check_batch(task, facts.num_train)
        made = make_study(task, facts)
    write_new_file(file, made.text)
    print_lines([f"wrote {file}", *_describe_lack(made, has_budget=task.budget_seconds is not None)], err=True)
    return made, {
        "study": made.spec.name,
        "file": str(file),
        "forecast": made.forecast.document(),
        "left_out": list(made.left_out),
        "notes": list(made.notes),
    }


def _check_batch(task: "GuideTask", num_train: int) -> None:
    batch, fixed = task.answers.batch, [key for key in _BATCH_KEYS if key in task.changes]
    if batch is not None and fixed:
        raise InputError(f"--batch {batch}: --set {fixed[0]} fixes the batch size; give one of the two.")
    if batch is not None and batch > num_train:
        raise InputError(
            f"--batch {batch}: the training split has {num_train:,} images, and a step takes at most all of "
            "them; give a smaller one, or more data."
        )


def _describe_lack(made: "GuidedStudy", *, has_budget: bool) -> Iterator[str]:
    yield from made.notes
    if made.left_out:
        reason = "for lack of time" if has_budget else "because there is no --budget"
        yield f"left out {reason}: {'; '.join(made.left_out)}"


def _run(made: "GuidedStudy", task: "GuideTask", *, document: dict[str, Any], as_json: bool) -> int:
    from sweep.analysis.recommendation import as_document, recommend
    from sweep.cli.study_run import carry_out_study
    from sweep.search.ask import find_uses

    ended = carry_out_study(made.spec, task.options)
    if ended.document is None:
        return ended.exit_code
    uses = find_uses(task.answers)
    answer = recommend(task.options.root / made.spec.name, uses=uses, given_batch=task.answers.batch)
    if as_json:
        typer.echo(json.dumps(document | {"run": ended.document, "answer": as_document(answer)}))
        return ended.exit_code
    print_lines(_describe_answer(answer, uses))
    ended.display.close(ended.document)
    return ended.exit_code


def _describe_answer(answer: "Answer", uses: Sequence[str]) -> Iterator[str]:
    from sweep.cli.answer import describe_batch_sizes, describe_use

    if answer.batch_size is None:
        yield "no answer: no training is complete"
        return
    yield from describe_batch_sizes(answer.batch_size)
    for use in uses:
        yield from describe_use(answer.uses[use])
