"""``sweep ask``: a study from a few questions, its price, and within a budget its answer."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweep.cli.arguments import choose_study_name, load_plugin, parse_sets, write_new_study
from sweep.cli.options import RUNS, AsJson, Device, Plugin, Root, Sets
from sweep.cli.output import print_answer, print_lines
from sweep.config.command_lines import StudyOrigin, find_study_commands
from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sweep.analysis.answer.answer import Answer
    from sweep.search.guide.guided_study import GuidedStudy, GuideTask

_BATCH_KEYS = ("batch.micro", "batch.global", "batch.accumulation")
NewStudy = Annotated[
    Path | None, typer.Argument(help="The study file to create; default: a new one here, named after the data.")
]


def ask(
    path: NewStudy = None,
    data: Annotated[str | None, typer.Option(help="A data set, or a folder of images.")] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Model to train; default: by the image size; repeatable.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="balanced, accuracy, speed or memory.")] = None,
    weights: Annotated[str | None, typer.Option(help="File of weights to fine-tune from.")] = None,
    devices: Annotated[str | None, typer.Option(help="Number of devices that train one model together.")] = None,
    batch: Annotated[str | None, typer.Option(help="An effective batch size to compare in any case.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time for the study, such as 30m; none: only write the file.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Put no question: use the options and the defaults.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the file, print the price, and stop.")] = False,
    sets: Sets = None,
    root: Root = RUNS,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Write a study from a few questions, and run it within a budget. Images, devices, times and memory are
    measured; the file has a reason for each key; at the end the answer for the target is printed."""
    began = time.monotonic()
    from sweep.cli.data_lines import format_data
    from sweep.cli.questions import DATA, check_terminal, collect_replies, find_data, put_question

    file = _check_path(path, changes := parse_sets(sets or []), root)
    check_terminal(takes_defaults=yes)
    module = load_plugin(plugin)
    place, name = put_question(DATA, data, lambda text: (text, find_data(text)[0]), takes_defaults=yes)

    from sweep.cli.study_run import ExecutorSettings, Options, format_forecast  # with Optuna and pandas
    from sweep.executors.devices import list_devices

    given = {"--target": target, "--weights": weights, "--devices": devices, "--batch": batch, "--budget": budget}
    num_devices = len(list_devices())
    replies = collect_replies(place, given, _list_models(model, changes), num_devices=num_devices, takes_defaults=yes)
    file = file or _find_free_path(Path(place).name if name == "imagefolder" else name, root)
    origin = StudyOrigin(str(file), plugin=str(plugin or ""))
    run = _find_run_command(origin, changes, root)
    options = Options(
        root=root, executor=ExecutorSettings(device=device), plugin=module, resumed_by=f"`{run}`", origin=origin
    )
    from sweep.search.guide.guided_study import GuideTask

    began = began if yes else time.monotonic()  # the time of typing does not count
    name, budget_seconds = choose_study_name(file), replies.budget_seconds
    answers = replies.answers
    task = GuideTask(
        name=name, answers=answers, options=options, budget_seconds=budget_seconds, began=began, changes=changes
    )
    made, document = _make(task, file)
    if budget_seconds is not None and not dry_run:
        return _run(made, task, document=document, as_json=as_json)
    lines = [*format_data(made.data), *format_forecast(made.forecast), f"run it with: {run}"]
    print_answer(document, lines, as_json=as_json)
    return 0


def _find_run_command(origin: StudyOrigin, changes: dict[str, Any], root: Path) -> str:
    study = str(changes.get("name", choose_study_name(Path(origin.argument))))
    return find_study_commands(study, None, str(root / study), origin, origin.plugin).resume()


def _list_models(named: list[str] | None, changes: dict[str, Any]) -> tuple[str, ...]:
    # a model that is fixed by --set decides what follows from the model
    return (str(changes["model.name"]),) if "model.name" in changes else tuple(named or ())


def _check_path(path: Path | None, changes: dict[str, Any], root: Path) -> Path | None:
    name = str(changes.get("name", choose_study_name(path) if path else ""))
    if name and (root / name).exists():
        raise InputError(f"{root / name}: it has the records of a study {name!r} already; choose another name.")
    if path is None:
        return None
    if path.suffix != ".toml":
        raise InputError(f"sweep ask {path}: the name of a study file ends in .toml.")
    if path.exists():
        raise InputError(f"{path} exists already; choose another name.")
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
    from sweep.search.guide.guided_study import look_at_images, make_study

    with show_inspection() as show:
        facts, _ = look_at_images(task, show)
        _check_batch(task, facts.num_train)
        made = make_study(task, facts)
    write_new_study(file, made.text)
    print_lines([f"wrote {file}", *_describe_lack(made)], err=True)
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


def _describe_lack(made: "GuidedStudy") -> Iterator[str]:
    yield from made.notes
    if made.left_out:
        yield f"left out for lack of time: {'; '.join(made.left_out)}"


def _run(made: "GuidedStudy", task: "GuideTask", *, document: dict[str, Any], as_json: bool) -> int:
    from sweep.analysis.answer.recommend import as_document, recommend
    from sweep.cli.study_run import carry_out_study
    from sweep.search.guide.decision_tree import find_use

    ended = carry_out_study(made.spec, task.options)
    if ended.document is None:
        return ended.exit_code
    use = find_use(task.answers)
    answer = recommend(task.options.root / made.spec.name, uses=(use,), given_batch=task.answers.batch)
    if as_json:
        typer.echo(json.dumps(document | {"run": ended.document, "answer": as_document(answer)}))
        return ended.exit_code
    print_lines(_describe_answer(answer, use))
    ended.display.close(ended.document)
    return ended.exit_code


def _describe_answer(answer: "Answer", use: str) -> Iterator[str]:
    from sweep.cli.commands.recommend import describe_batch_sizes, describe_use

    if answer.batch_size is None:
        yield "no answer: no training is complete"
        return
    yield from describe_batch_sizes(answer.batch_size)
    yield from describe_use(answer.uses[use])
