"""``sweep check``: what is wrong with a study before it runs, and what its records say against that."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from sweep.cli.arguments import find_study, parse_sets
from sweep.config.advice import Advice, advice
from sweep.config.study import StudySpec

if TYPE_CHECKING:
    from sweep.analysis.claims.findings import Finding


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("check")(check)


def check(
    study: Annotated[str, typer.Argument(help="A shipped study (see `sweep list`) or the path of a .toml file.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the base or the study; repeatable.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of all studies, for what earlier records say.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Check a study and say which known pitfalls it walks into, each with its reason. Trains nothing."""
    spec = find_study(study, parse_sets(sets or []))
    found = advice(spec)
    measured = measured_findings(spec, root) if found else {}
    if as_json:
        typer.echo(json.dumps({"study": spec.name, "advice": [_document(item, measured) for item in found]}))
        return 0
    console = Console(highlight=False, soft_wrap=True, markup=False)
    count = "one piece" if len(found) == 1 else f"{len(found)} pieces"
    console.print(f"{spec.name}: {count} of advice" if found else f"{spec.name}: nothing to say against it")
    for line in advice_lines(found, measured):
        console.print(line)
    return 0


def tell_advice(spec: StudySpec, study: str) -> None:
    """Says in a line each what the study walks into, before it runs."""
    found = advice(spec)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    for item in found:
        console.print(f"advice on {item.key}: {item.statement}")
    if found:
        console.print(f"`sweep check {study}` says why, and what to write instead")


def measured_findings(spec: StudySpec, root: Path) -> dict[str, "Finding"]:
    """The settled findings on the study's own records by name; empty where it has none."""
    folder = root / spec.name
    if not (folder / "study.sqlite").exists():
        return {}
    from sweep.analysis.claims.findings import findings
    from sweep.records.frames.frames import load_frames

    found = findings(load_frames(folder, spec.name, evaluations=True))
    return {item.name: item for item in found if item.verdict != "undecided"}


def advice_lines(found: Sequence[Advice], measured: dict[str, "Finding"]) -> list[str]:
    """The advice for people, with what the records say for or against it."""
    lines = []
    for item in found:
        lines += [f"  {item.key}: {item.statement}", f"    why: {item.reason}", f"    instead: {item.remedy}"]
        if item.finding in measured:
            lines.append(f"    measured here: {_measured(measured[item.finding])}")
    return lines


def _measured(finding: "Finding") -> str:
    from reports.page.answer_texts import effect_text

    effect, interval = effect_text(finding.unit, finding.effect, finding.low, finding.high)
    return f"{finding.verdict}: {finding.statement} {effect} ({interval}), n = {finding.n}."


def _document(item: Advice, measured: dict[str, "Finding"]) -> dict[str, Any]:
    from sweep.analysis.claims.findings import findings_document

    known = findings_document([measured[item.finding]])[0] if item.finding in measured else None
    return {**item._asdict(), "finding": known}
