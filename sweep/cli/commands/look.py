"""The commands that look around: ``list``, ``new``, ``doctor``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from studies import shipped_studies, template
from sweep.cli.arguments import study_place
from sweep.cli.formats import visible
from sweep.config.errors import InputError
from sweep.config.study import WINDOWS_RESERVED_NAMES, StudySpec, load_study

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("list")(list_studies)
    app.command("new")(new)
    app.command("doctor")(doctor)


def list_studies(as_json: AsJson = False) -> None:
    """Show the shipped studies, what they ask and what they cost."""
    specs = [load_study(path) for path in shipped_studies().values()]
    if as_json:
        typer.echo(json.dumps([{"name": s.name, "question": s.question, "cost": cost(s)} for s in specs]))
        return
    table = Table(box=None)
    for column in ("study", "question", "cost"):
        table.add_column(column, overflow="fold")
    for spec in specs:
        table.add_row(spec.name, Text(spec.question), cost(spec))
    Console(highlight=False).print(table)


def cost(spec: StudySpec) -> str:
    """How much training a study asks for; how long that takes depends on the device."""
    confirm = spec.confirm.max_configurations * spec.confirm.seeds
    budget = spec.config(next(spec.corners())).budget
    if budget.target_accuracy is not None:
        each = f"at most {budget.max_epochs:g} epochs"
    else:
        amounts = {name: getattr(budget, name) for name in ("epochs", "steps", "samples", "seconds")}
        each = next(f"{value:g} {name}" for name, value in amounts.items() if value is not None)
    return f"{spec.trials} + at most {confirm} trainings of {each}"


def new(
    path: Annotated[Path, typer.Argument(help="The file to write, for example my_study.toml.")],
) -> None:
    """Write a commented study that runs as it is."""
    if path.suffix != ".toml":
        raise InputError(f"sweep new {path}: the name of a study file ends in .toml.")
    text = template().replace('name = "my_study"', f'name = "{_study_name(path)}"', 1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists already; choose another name.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}.") from None
    typer.echo(f"wrote {path}; run it with: sweep run {path}")


def _study_name(path: Path) -> str:
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in path.stem)
    is_good = name[:1].isalnum() and name.lower() not in WINDOWS_RESERVED_NAMES
    return name[:64] if is_good else f"study{name}"[:64]


def doctor(
    study: Annotated[
        str | None, typer.Argument(help="Look at this study's trials instead: its folder, its name under the root.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of all studies.")] = Path("runs"),
    as_json: AsJson = False,
) -> int:
    """Check this machine, or what held up the trials of a study; say what to change."""
    found = _machine_checks() if study is None else _study_checks(study, root)
    if as_json:
        typer.echo(json.dumps([check.__dict__ for check in found]))
    else:
        _print_checks(found)
    return 0 if all(check.ok for check in found if check.essential) else 1


def _machine_checks() -> list[Any]:
    from sweep.cli.health import checks

    return checks()


def _study_checks(study: str, root: Path) -> list[Any]:
    from sweep.cli.study_health import study_checks
    from sweep.records.frames.frames import load_frames

    return study_checks(load_frames(study_place(study, root)))


def _print_checks(found: list[Any]) -> None:
    table = Table(box=None)
    for column in ("", "check", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in found:
        mark = "ok" if check.ok else ("FAIL" if check.essential else "note")
        table.add_row(mark, check.name, Text(visible(check.found)), Text(visible(check.remedy)))
    Console(highlight=False).print(table)
