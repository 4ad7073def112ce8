"""``sweep ask``: a study from a few questions, its forecast, and within a budget its answer."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweep.cli.arguments import choose_study_name, load_plugin, parse_sets, write_new_study
from sweep.cli.options import RUNS, AsJson, Device, Plugin, Root, Sets
from sweep.cli.output import print_answer, print_lines
from sweep.cli.questions import DATA, check_terminal, collect_replies, find_data, put_question
from sweep.config.commands import StudyOrigin, find_study_commands
from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sweep.analysis.answer import Answer
    from sweep.cli.study_run import Options
    from sweep.search.guided_study import GuidedStudy, GuideTask

_BATCH_KEYS = ("batch.micro", "batch.global", "batch.accumulation")
NewStudy = Annotated[
    Path | None, typer.Argument(help="The study file to create; default: a new one here, named after the data.")
]
Data = Annotated[str | None, typer.Option(help="A data set, or a folder of images.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="Model to train; default: by the image size; repeatable.")
]
Target = Annotated[str | None, typer.Option(help="balanced, accuracy, speed or memory.")]
Weights = Annotated[str | None, typer.Option(help="File of weights to fine-tune from.")]
Devices = Annotated[str | None, typer.Option(help="Number of devices that train one model together.")]
Batch = Annotated[str | None, typer.Option(help="An effective batch size to compare with the recommended one.")]
Budget = Annotated[str | None, typer.Option(help="Time for the study, such as 30m; none: only write the file.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask no questions: use the options and the defaults.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write the file, print the forecast, and stop.")]


def ask(
    path: NewStudy = None,
    data: Data = None,
    model: Models = None,
    target: Target = None,
    weights: Weights = None,
    devices: Devices = None,
    batch: Batch = None,
    budget: Budget = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    sets: Sets = None,
    root: Root = RUNS,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Write a study from a few questions, and run it within a budget. Images, devices, times and memory are
    measured; the file has a reason for each key; at the end the answer for the target is printed."""
    began = time.monotonic()
    given = {"--data": data, "--target": target, "--weights": weights, "--devices": devices}
    given |= {"--batch": batch, "--budget": budget}
    request = _Request(
        path=path, given=given, models=model or [], changes=parse_sets(sets or []), root=root, device=device,
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
    device: str
    plugin: Path | None
    takes_defaults: bool


def _prepare_task(request: _Request, began: float) -> tuple[Path, "GuideTask"]:
    # the study file, and what the guide is to make a study of; questions are put here
    file, takes_defaults = _check_path(request.path, request.changes, request.root), request.takes_defaults
    check_terminal(takes_defaults=takes_defaults)
    module = load_plugin(request.plugin)
    place = put_question(DATA, request.given["--data"], _check_data, takes_defaults=takes_defaults)

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
    from sweep.cli.study_run import ExecutorSettings, Options

    executor = ExecutorSettings(device=request.device)
    origin = StudyOrigin(argument=str(file), plugin=str(request.plugin or ""), options=executor.list_options())
    run = _find_run_command(origin, request.changes, request.root)
    return Options(root=request.root, executor=executor, plugin=module, resumed_by=f"`{run}`", origin=origin)


def _check_data(text: str) -> str:
    find_data(text)
    return text


def _print_price(made: "GuidedStudy", task: "GuideTask", document: dict[str, Any], *, as_json: bool) -> None:
    from sweep.cli.data_lines import format_data
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
    from sweep.cli.data_lines import show_inspection
    from sweep.search.guided_study import look_at_images, make_study

    with show_inspection() as show:
        facts, _ = look_at_images(task, show)
        _check_batch(task, facts.num_train)
        made = make_study(task, facts)
    write_new_study(file, made.text)
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
    from sweep.cli.commands.recommend import describe_batch_sizes, describe_use

    if answer.batch_size is None:
        yield "no answer: no training is complete"
        return
    yield from describe_batch_sizes(answer.batch_size)
    for use in uses:
        yield from describe_use(answer.uses[use])
