"""``sweep recommend``: which configuration to take for which use, and how sure that is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sweep.cli.arguments import parse_bytes, parse_duration, study_place
from sweep.cli.formats import visible

if TYPE_CHECKING:
    from sweep.analysis.answer.answer import Answer, Recommendation
    from sweep.analysis.claims.findings import Finding


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("recommend")(recommend)


def recommend(
    study: Annotated[str, typer.Argument(help="A study's folder, its name under the root, or a database URL.")],
    max_memory: Annotated[str | None, typer.Option(help="Peak memory of a training step, at most: 24GiB.")] = None,
    max_seconds: Annotated[str | None, typer.Option(help="Training time, at most: 600, 90s, 10m, 2h.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Validation accuracy, at least: 0.93.")] = None,
    use: Annotated[list[str] | None, typer.Option("--use", help="Only this use; repeatable. See the answer.")] = None,
    root: Annotated[Path, typer.Option(help="Folder of all studies.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Say which configuration to take for which use, what it costs, what is given up, and how sure that is."""
    from sweep.analysis.answer.answer import USES
    from sweep.analysis.answer.recommend import as_document
    from sweep.analysis.answer.recommend import recommend as answer_for
    from sweep.analysis.claims.findings import findings
    from sweep.records.frames.frames import load_frames

    max_memory_bytes = parse_bytes(max_memory, "--max-memory")
    limit_seconds = parse_duration(max_seconds, "--max-seconds")
    frames = load_frames(study_place(study, root), evaluations=True)
    answer = answer_for(
        frames,
        max_memory_bytes=max_memory_bytes,
        max_seconds=limit_seconds,
        min_accuracy=min_accuracy,
        uses=tuple(use or USES),
    )
    claims = findings(frames)
    if as_json:
        from sweep.analysis.claims.findings import findings_document

        typer.echo(json.dumps(as_document(answer) | {"findings": findings_document(claims)}))
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        for line in _lines(answer, claims):
            console.print(visible(line))
    return 0


def _lines(answer: "Answer", claims: list["Finding"]) -> Iterator[str]:
    for item in answer.uses.values():
        yield from _use_lines(item)
        yield ""
    yield "Beside it"
    for fact in answer.facts.values():
        yield f"  {fact.statement}: {_effect(fact.unit, fact.value, fact.low, fact.high)}"
        if fact.detail:
            yield f"    {fact.detail}; n = {fact.n}"
        if fact.missing:
            yield f"    to know it: {fact.missing}"
    settled = [claim for claim in claims if claim.verdict != "undecided"]
    yield ""
    yield f"Findings: {len(settled)} of {len(claims)} claims settled by these records; the report has all of them"
    for claim in settled:
        effect = _effect(claim.unit, claim.effect, claim.low, claim.high)
        yield f"  {claim.verdict}: {claim.statement} Measured: {effect}, n = {claim.n}."
    yield from (["", *(f"Note: {note}" for note in answer.notes)] if answer.notes else [])


def _use_lines(item: "Recommendation") -> Iterator[str]:
    from reports.labels import format_interval, format_metric, format_setting, key_label, metric_label
    from sweep.analysis.answer.answer import MEANINGS
    from sweep.config.metrics import METRICS

    yield f"{item.use}: {MEANINGS[item.use]}"
    if item.number is None:
        yield f"  the records do not tell; run: {item.missing}"
        return
    settings = [f"{key_label(key)} {format_setting(item.config[key])}" for key in item.settings]
    yield f"  trial {item.number}: {', '.join(settings)}, global batch {item.global_batch_size}"
    for name, value in item.values.items():
        interval = format_interval(METRICS[name].unit, value.low, value.high, value.median)
        bounds = f" ({interval})" if interval else ""
        yield f"    {metric_label(name)}: {format_metric(name, value.median)}{bounds}, n = {value.n}"
    basis = "confirmed" if item.is_confirmed else "from one seed, not confirmed"
    yield (
        f"  {basis}; {item.certainty:.0%} sure that nothing tried is better, "
        f"{item.on_front:.0%} that it is on the front"
    )
    if item.next_best is not None:
        parts = (
            f"{metric_label(name).lower()} {_difference(item.next_best.units[name], *value[:3])}"
            for name, value in item.next_best.differences.items()
        )
        yield f"  against the next best, trial {item.next_best.number}: {', '.join(parts)}"
    yield f"  evidence: {'; '.join(item.evidence)}"
    if item.missing:
        yield f"  to be surer: {item.missing}"


def _difference(unit: str, value: float, low: float, high: float) -> str:
    factor, form, suffix = (100.0, "+.2f", " points") if unit == "fraction" else (1.0, ".3g", f" {unit}")
    middle, *bounds = (format(number * factor, form) for number in (value, low, high))
    return f"{middle} ({bounds[0]} to {bounds[1]}){' times' if unit == 'ratio' else suffix}"


def _effect(unit: str, value: float, low: float, high: float) -> str:
    from reports.page.answer_texts import effect_text

    shown, interval = effect_text(unit, value, low, high)
    return f"{shown} ({interval})" if interval else shown
