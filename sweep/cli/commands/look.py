"""The commands that look around: ``list``, ``new``, ``doctor``."""

import json
import shutil
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from studies import shipped_studies, template
from sweep.cli.arguments import choose_study_name, find_records, write_new_study
from sweep.cli.options import RUNS, AsJson, Root
from sweep.cli.output import print_answer, print_table
from sweep.config.errors import InputError
from sweep.config.fields import list_fields
from sweep.config.study import StudySpec, describe_cost
from sweep.config.study_file import load_study
from sweep.config.trial_config import config_fields

_INDENT = "    "
_LEAST_WIDTH = 20
_HEADS = {"study": "keys of the study", "configuration": "configuration keys, in [base], [space] and --set"}


def list_studies(
    keys: Annotated[bool, typer.Option("--keys", help="List every key of a study file instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the shipped studies, or all keys of a study file. A study has its question and cost, a key its default."""
    if keys:
        rows = list(_list_keys())
        print_answer(rows, _format_keys(rows), as_json=as_json)
        return
    specs = [load_study(path) for path in shipped_studies().values()]
    document = [{"name": spec.name, "question": spec.question, "cost": describe_cost(spec)} for spec in specs]
    # question and cost below the name: side by side they would be columns of a few words
    width = max(shutil.get_terminal_size().columns - len(_INDENT), _LEAST_WIDTH)
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    lines = [[each["name"], *(_INDENT + line for key in ("question", "cost") for line in wrap(each[key]))]
             for each in document]  # fmt: skip
    print_answer(document, chain.from_iterable(lines), as_json=as_json)


def _list_keys() -> Iterator[dict[str, Any]]:
    # base and space hold configuration keys and are none themselves
    study = {path: field for path, field in list_fields(StudySpec).items() if path not in ("base", "space")}
    for where, fields in (("study", study), ("configuration", config_fields())):
        for path, field in fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            yield {
                "key": path,
                "where": where,
                "is_required": field.is_required(),
                "default": None if field.is_required() else field.default,
                "unit": extra.get("unit", ""),
                "meaning": field.description or "",
            }


def _format_keys(rows: list[dict[str, Any]]) -> Iterator[str]:
    for where, group in groupby(rows, lambda row: row["where"]):
        yield _HEADS[where]
        for row in group:
            unit = f", in {row['unit']}" if row["unit"] else ""
            default = json.dumps(row["default"]) if row["default"] is not None else "absent"
            yield f"  {row['key']} ({'required' if row['is_required'] else f'default: {default}'}{unit})"
            yield f"      {row['meaning']}"


def new(
    path: Annotated[Path, typer.Argument(help="The study file to create, such as my_study.toml.")],
    is_asked: Annotated[bool, typer.Option("--ask", help="Fill it from a few questions, as `sweep ask` does.")] = False,
) -> int:
    """Write a commented study file that runs as it is."""
    if is_asked:
        from sweep.cli.commands.ask import ask

        return ask(path)
    if path.suffix != ".toml":
        raise InputError(f"sweep new {path}: the name of a study file ends in .toml.")
    text = _fill_template().replace('name = "my_study"', f'name = "{choose_study_name(path)}"', 1)
    write_new_study(path, text)
    typer.echo(f"wrote {path}; run it with: sweep run {path}")
    return 0


def _fill_template() -> str:
    from sweep.config.tables.datasets import DATASETS
    from sweep.config.tables.models import MODELS
    from sweep.config.tables.recipes import OPTIMIZERS, SCHEDULES

    text = template()
    tables = (("models", MODELS), ("data sets", DATASETS), ("optimizers", OPTIMIZERS), ("schedules", SCHEDULES))
    for kind, table in tables:
        text = text.replace(f"<{kind}>", " ".join(table))
    return text


def doctor(
    study: Annotated[
        str | None, typer.Argument(help="Diagnose the trials of this study: its folder, or its name under the root.")
    ] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Check this machine, or diagnose the trials of a study. Reports bottlenecks and quality warnings with a remedy
    for each."""
    from sweep.cli.health import check_machine, check_trials

    if study is None:
        found = list(check_machine())
    else:
        from sweep.records.frames.frames import load_frames

        found = list(check_trials(load_frames(find_records(study, root))))
    if as_json:
        typer.echo(json.dumps([check._asdict() for check in found]))
    else:
        rows = [(check.status, check.name, check.found, check.remedy) for check in found]
        print_table(rows, ("", "check", "found", "remedy"))
    return 1 if any(check.status == "FAIL" for check in found) else 0
