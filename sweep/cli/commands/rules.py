"""``sweep rules``: which rules keep a recipe good at other batch sizes, by the trainings of one study or several."""

import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweep.cli.arguments import choose_study_name, find_records, write_new_study
from sweep.cli.options import RUNS, AsJson, Root
from sweep.cli.output import print_answer, print_lines, print_table
from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sweep.analysis.rules.ranking import Ranking
    from sweep.analysis.rules.settings import TrainedRecipes

_MAX_ROWS = 20


def rules(
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY...", help="Studies on the same data; their trainings are pooled.")
    ],
    reference: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Effective batch size that the rules scale from; default: the one of most trainings with a rule, "
            "otherwise the middle batch on record.",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Write a study for each model that trains all rules.")] = False,
    seeds: Annotated[int | None, typer.Option(min=2, help="With --plan: seeds of each training; default: 3.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --plan: the file to write; default: STUDY_rules.toml.")] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Rank scaling rules by the accuracy that they lose. Each of 60 combinations of rules for the learning rate, the
    weight decay and the betas is compared with tuning at each batch size, on recorded trainings."""
    from sweep.analysis.rules.ranking import rank_rules
    from sweep.analysis.rules.settings import collect_settings
    from sweep.records.frames.frames import load_frames

    if not plan and (given := [name for name, value in {"--seeds": seeds, "--out": out}.items() if value]):
        raise InputError(f"sweep rules: {given[0]} requires --plan.")
    frames = [load_frames(find_records(place, root)) for place in studies]
    trained = collect_settings(frames)
    if plan:
        name = f"{next(iter(frames[0].studies['study']), 'study')}_rules"
        return _plan(trained, out or Path(f"{name}.toml"), reference, seeds or 3, root, as_json)
    ranking = rank_rules(trained, reference)
    if as_json:
        print_answer(_document(ranking), (), as_json=True)
    else:
        _print_ranking(ranking)
    return 0


def _plan(
    trained: "TrainedRecipes", out: Path, reference: int | None, num_seeds: int, root: Path, as_json: bool
) -> int:
    from sweep.analysis.rules.plan import write_plan
    from sweep.analysis.rules.starts import choose_starts
    from sweep.config.study_file import build_study

    if out.suffix != ".toml":
        raise InputError(f"--out {out}: the name of a study file ends in .toml.")
    _, starts = choose_starts(trained, reference)
    models = [start.setting.config.model.name for start in starts]
    if len(set(models)) < len(models):
        names = "; ".join(start.setting.name for start in starts)
        raise InputError(f"sweep rules --plan: the trainings differ in more than the model: {names}. Name one study.")
    paths = [out.with_stem(f"{out.stem}_{model}") if len(models) > 1 else out for model in models]
    texts = [write_plan(choose_study_name(path), start, num_seeds) for path, start in zip(paths, starts, strict=True)]
    planned = [build_study(tomllib.loads(text), str(path)) for path, text in zip(paths, texts, strict=True)]
    for path, text in zip(paths, texts, strict=True):
        write_new_study(path, text)
    options = [] if root == RUNS else ["--root", str(root)]
    commands = [shlex.join(["sweep", "run", str(path), *options]) for path in paths]
    lines = [f"wrote {path}: {spec.trials:,} trainings" for path, spec in zip(paths, planned, strict=True)]
    lines += ["forecast and run:", *(line for each in commands for line in (f"  {each} --dry-run", f"  {each}"))]
    documents = [
        {"file": str(path), "trainings": spec.trials, "command": command}
        for path, spec, command in zip(paths, planned, commands, strict=True)
    ]
    print_answer(documents, lines, as_json=as_json)
    return 0


def _document(ranking: "Ranking") -> dict[str, Any]:
    from sweep.analysis.documents import to_document

    return {
        "reference": ranking.reference,
        "tolerance": ranking.tolerance,
        "num_trainings": ranking.num_trainings,
        "num_needed": ranking.num_needed,
        "starts": [
            {
                "setting": start.setting.name,
                "recipe": start.recipe._asdict(),
                "val_accuracy": start.accuracy,
                "regret": to_document(start.regret.value),
            }
            for start in ranking.starts
        ],
        "places": [place._asdict() for place in ranking.places],
        "rules": [
            to_document(asdict(rule) | {"combinations": [each._asdict() for each in rule.combinations]})
            for rule in ranking.rules
        ],
        "untrained": [each._asdict() for each in ranking.untrained],
        "notes": list(ranking.notes),
    }


def _print_ranking(ranking: "Ranking") -> None:
    from reports.rule_texts import describe_rows, describe_starts, name_columns, summarize

    print_lines(describe_starts(ranking))
    print_lines([""])
    print_table(describe_rows(ranking, ranking.rules[:_MAX_ROWS]), name_columns(ranking))
    print_lines(_close(ranking))
    print_lines(summarize(ranking))


def _close(ranking: "Ranking") -> Iterator[str]:
    rest = len(ranking.rules) - _MAX_ROWS
    if rest > 0:
        yield f"and {rest} more: --json has all"
    yield ""
