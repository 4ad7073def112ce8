"""``sweep recommend``: which configuration to take for which use, and how sure that is."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from sweep.cli.arguments import load_records, parse_bytes, parse_duration
from sweep.cli.options import RUNS, AnyRecords, AsJson, Columns, Root
from sweep.cli.output import print_answer, print_lines
from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sweep.analysis.answer import Answer, BatchAnswer, Recommendation
    from sweep.analysis.findings import Finding


def recommend(
    study: AnyRecords,
    max_memory: Annotated[str | None, typer.Option(help="Upper limit of peak memory, such as 24GiB.")] = None,
    max_seconds: Annotated[str | None, typer.Option(help="Upper limit of training time: 600, 90s, 10m, 2h.")] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(help="Lower limit of validation accuracy, such as 0.93.")
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option("--use", help="accuracy, speed, memory, balanced, fine_tune or distributed; repeatable."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="An effective batch size to compare with the recommended one.")
    ] = None,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print the tuned batch sizes as a LaTeX table (package booktabs).")
    ] = False,
    columns: Columns = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Recommend a batch size and a configuration for each use. Shows what they cost, the alternatives, and the
    probability that each statement is right."""
    from reports.texts import METHOD
    from sweep.analysis.answer import USES
    from sweep.analysis.findings import evaluate_claims, findings_document
    from sweep.analysis.recommendation import as_document
    from sweep.analysis.recommendation import recommend as answer_for

    if latex and as_json:
        raise InputError("sweep recommend: --latex and --json are two formats of one output; choose one of them.")
    max_memory_bytes = parse_bytes(max_memory, "--max-memory")
    limit_seconds = parse_duration(max_seconds, "--max-seconds")
    frames = load_records(study, root, columns)
    answer = answer_for(
        frames,
        max_memory_bytes=max_memory_bytes,
        max_seconds=limit_seconds,
        min_accuracy=min_accuracy,
        uses=tuple(use or USES),
        given_batch=batch,
    )
    if latex:
        print_lines(_latex_lines(answer, ", ".join(map(str, frames.studies["study"])) or answer.study))
        print_lines(frames.source.describe() if frames.source else [], err=True)
        return 0
    claims = evaluate_claims(frames)
    method = " ".join(text for _, text in METHOD)
    document = as_document(answer) | {"findings": findings_document(claims), "method": method}
    document["source"] = frames.source.to_document() if frames.source else None
    origin = [*frames.source.describe(), ""] if frames.source else []
    print_answer(document, chain(origin, describe_recommendations(answer, claims)), as_json=as_json)
    return 0


def describe_recommendations(answer: "Answer", claims: list["Finding"]) -> Iterator[str]:
    """The lines of text that the command prints."""
    from reports.labels import TOO_UNCERTAIN, format_effect, is_too_uncertain
    from sweep.analysis.findings import UNSETTLED, UNTESTED

    yield answer.validation.statement
    yield ""
    if answer.batch_size is not None:
        yield from describe_batch_sizes(answer.batch_size)
        yield ""
    if answer.no_complete_trial:
        yield answer.no_complete_trial
        yield ""
    is_hopeless = answer.no_complete_trial and not any(item.missing for item in answer.uses.values())
    for item in () if is_hopeless else answer.uses.values():
        yield from describe_use(item)
        yield ""
    yield "Other facts"
    for fact in answer.facts.values():
        yield f"  {fact.statement}: {format_effect(fact.unit, fact.value, fact.low, fact.high)}"
        if fact.detail:
            yield f"    {fact.detail}; n = {fact.n}"
        if fact.missing:
            yield f"    not enough data; run: {fact.missing}"
    settled = [claim for claim in claims if claim.verdict not in UNSETTLED]
    num_untested = sum(claim.verdict in UNTESTED for claim in claims)
    yield ""
    yield (
        f"Findings: {len(settled)} of {len(claims)} claims settled by these records, {num_untested} not tested; the "
        "report has all of them, with the reasons"
    )
    for claim in settled:
        effect = format_effect(claim.unit, claim.effect, claim.low, claim.high)
        effect = TOO_UNCERTAIN if is_too_uncertain(claim.unit, claim.low, claim.high) else effect
        yield f"  {claim.verdict}: {claim.statement} Measured: {effect}, n = {claim.n}."
    yield from (["", *(f"Note: {note}" for note in answer.notes)] if answer.notes else [])


def _latex_lines(answer: "Answer", study: str) -> Iterator[str]:
    from reports.latex_table import write_latex_table

    if answer.batch_size is None:
        raise InputError("sweep recommend: no trial has completed with an accuracy, so that there is no table.")
    return write_latex_table(answer.batch_size, study, answer.validation.statement)


def describe_batch_sizes(found: "BatchAnswer") -> Iterator[str]:
    """The statements about the batch size, and the tuned batch sizes."""
    from reports.texts import CURVE_HEADS, describe_batch_answer

    texts = describe_batch_answer(found)
    yield "Batch size"
    for text, certainty in texts.statements:
        yield f"  {text}{f' ({certainty})' if certainty else ''}"
    if texts.command:
        yield f"  to settle more: {texts.command}"
    if texts.other_command:
        yield f"  to settle the statements below the first: {texts.other_command}"
    yield "The best at each batch size"
    for row in texts.rows:
        cells = zip(CURVE_HEADS, row, strict=True)
        yield "  " + ", ".join(_name_cell(head.lower(), *cell) for head, cell in cells)
    yield from (f"  {line}" for line in (*texts.models, *texts.remarks))


def _name_cell(head: str, value: str, note: str) -> str:
    return " ".join(filter(None, (head, value, f"({note})" if note else "")))


def describe_use(item: "Recommendation") -> Iterator[str]:
    """The recommendation for one use."""
    from reports.labels import (
        describe_price,
        format_difference,
        format_estimate,
        format_probability,
        metric_label,
    )
    from reports.texts import describe_use_setting
    from sweep.analysis.answer import USE_MEANINGS

    yield f"{item.use}: {USE_MEANINGS[item.use]}"
    if item.number is None:
        refused = (
            "no configuration that was tried is eligible, and no command adds one: the limits or the study exclude it"
        )
        yield f"  not enough data; run: {item.missing}" if item.missing else f"  {refused}"
        return
    settings = [describe_use_setting(item, key) for key in item.settings]
    yield f"  trial {item.number}: {', '.join(settings)}, effective batch size {item.global_batch_size}"
    for kind, values in (("", item.values), (", as measured", item.measured)):
        for name, value in values.items():
            shown, interval = format_estimate(name, *value)
            yield f"    {metric_label(name)}: {shown}{f' ({interval})' if interval else ''}, n = {value.n}{kind}"
    if item.price is not None:
        yield f"    price of a training: {describe_price(**vars(item.price))}"
    state = "settled" if item.is_settled else "not settled"
    yield (
        f"  {format_probability(item.probability)} probability that nothing tried is better by more than the tolerance "
        f"({state}), "
        f"{format_probability(item.on_front)} that it is on the Pareto front"
    )
    if item.next_best is not None:
        parts = (
            f"{metric_label(name).lower()} {format_difference(item.next_best.units[name], *value)}"
            for name, value in item.next_best.differences.items()
        )
        yield f"  this one against the next best, trial {item.next_best.number}: {', '.join(parts)}"
    yield f"  evidence: {'; '.join(item.evidence)}"
    if item.missing:
        yield f"  to increase confidence: {item.missing}"
