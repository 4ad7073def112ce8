"""The commands that answer from records: ``recommend``, ``compare`` and ``claims``."""

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sweep.cli.app import print_answer
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    Plugin,
    RecordedStudy,
    Root,
    Sets,
    find_records,
    load_records,
    parse_bytes,
    parse_duration,
    parse_sets,
    use_plugin,
    write_new_file,
)
from sweep.config.commands import StudyCommands
from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import IMAGES, METRICS, Quality, format_count

if TYPE_CHECKING:
    from reports.texts import BatchTexts
    from sweep.analysis.answer import Answer, BatchAnswer, Recommendation
    from sweep.analysis.claims import Claim
    from sweep.analysis.comparison import Comparison, Difference
    from sweep.analysis.findings import Finding


_MAX_LINES = 20  # configurations, or trials of a front, that are listed


def recommend(
    study: RecordedStudy,
    max_memory: Annotated[str | None, typer.Option(help="Upper limit of peak memory, such as 24GiB.")] = None,
    max_seconds: Annotated[str | None, typer.Option(help="Upper limit of training time: 600, 90s, 10m, 2h.")] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(help="Lower limit of validation accuracy, such as 0.93.")
    ] = None,
    limit_quality: Annotated[
        float | None, typer.Option(help="Limit of what a script reports: at least, or at most where less is better.")
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option("--use", help="accuracy, speed, memory, balanced, fine_tune or distributed; repeatable."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="An effective batch size to compare with the recommended one.")
    ] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Recommend a batch size and a configuration for each use. Shows what they cost, the alternatives, and the
    probability that each statement is right."""
    from reports.texts import describe_method
    from sweep.analysis.answer import USES, Limits, to_document
    from sweep.analysis.findings import evaluate_claims
    from sweep.analysis.recommendation import as_document, recommend_within

    max_memory_bytes = parse_bytes(max_memory, "--max-memory")
    limit_seconds = parse_duration(max_seconds, "--max-seconds")
    frames = load_records(study, root)
    limits = Limits(
        max_memory_bytes=max_memory_bytes,
        max_seconds=limit_seconds,
        min_accuracy=min_accuracy,
        limit_quality=limit_quality,
    )
    answer = recommend_within(frames, limits, tuple(use or USES), batch)
    claims = evaluate_claims(frames)
    method = " ".join(text for _, text in describe_method(answer.quality))
    document = as_document(answer) | {"findings": to_document(claims), "method": method}
    document["source"] = frames.source.to_document() if frames.source else None
    origin = [*frames.source.describe(), ""] if frames.source else []
    print_answer(document, chain(origin, describe_recommendations(answer, claims)), as_json=as_json)
    return 0


def describe_recommendations(answer: "Answer", claims: list["Finding"]) -> Iterator[str]:
    """The lines of text that the command prints."""
    from reports.labels import format_effect
    from sweep.analysis.findings import UNSETTLED, UNTESTED

    yield answer.validation.statement
    yield ""
    if answer.batch_size is not None:
        yield from describe_batch_sizes(answer.batch_size, answer.quality)
        yield ""
    if answer.no_complete_trial:
        yield answer.no_complete_trial
        yield ""
    is_hopeless = answer.no_complete_trial and not any(item.missing for item in answer.uses.values())
    for item in () if is_hopeless else answer.uses.values():
        yield from format_use(item, answer.quality)
        yield ""
    yield "Other facts"
    for fact in answer.facts.values():
        yield f"  {fact.statement}: {format_effect(fact.unit, fact.value)}"
        if fact.detail:
            yield f"    {fact.detail}; n = {fact.n}"
        if fact.missing:
            yield f"    not enough data; to get it: {fact.missing}"
    settled = [claim for claim in claims if claim.verdict not in UNSETTLED]
    num_untested = sum(claim.verdict in UNTESTED for claim in claims)
    yield ""
    yield (
        f"Findings: {len(settled)} of {len(claims)} claims settled by these records, {num_untested} not tested; the "
        "report has all of them, with the reasons"
    )
    yield from (f"  {line}" for line in describe_findings(settled))
    yield from (["", *(f"Note: {note}" for note in answer.notes)] if answer.notes else [])


def describe_statements(texts: "BatchTexts") -> Iterator[str]:
    """The statements about the batch size, and the next step."""
    yield "Batch size"
    for text, certainty in texts.statements:
        yield f"  {text}{f' ({certainty})' if certainty else ''}"
    if texts.command:
        yield f"  next step: {texts.command}"


def describe_batch_sizes(answer: "BatchAnswer", quality: Quality = IMAGES) -> Iterator[str]:
    """The statements about the batch size, the next step, and the tuned batch sizes."""
    from reports.texts import describe_batch_answer, head_curve

    texts = describe_batch_answer(answer, quality)
    yield from describe_statements(texts)
    yield "The configuration for each batch size"
    for row in texts.rows:
        cells = [
            " ".join(filter(None, (head.lower(), value, f"({note})" if note else "")))
            for head, (value, note) in zip(head_curve(quality), row, strict=True)
        ]
        yield f"  {', '.join(cells)}"
    yield from (f"  {line}" for line in (*texts.models, *texts.remarks))


def format_use(item: "Recommendation", quality: Quality = IMAGES) -> Iterator[str]:
    """The recommendation for one use."""
    from reports.labels import describe_price, format_estimate, metric_label
    from reports.texts import describe_recommendation, describe_use_setting

    card = describe_recommendation(item, quality)
    yield f"{item.use}: {card.meaning}"
    if item.number is None:
        refused = (
            "no configuration that was tried is eligible, and no command adds one: the limits or the study exclude it"
        )
        yield f"  not enough data; to get it: {item.missing}" if item.missing else f"  {refused}"
        return
    settings = [describe_use_setting(item, key) for key in item.settings if key != "batch.global"]
    yield f"  trial {item.number}: {', '.join(settings)}, effective batch size {item.global_batch_size}"
    for kind, values in (("", item.values), (", as measured", item.measured)):
        for name, value in values.items():
            shown, interval = format_estimate(name, *value, quality)
            bounds = f" ({interval})" if interval else ""
            yield f"    {metric_label(name, quality)}: {shown}{bounds}, n = {value.n}{kind}"
    if item.price is not None:
        yield f"    price of a training: {describe_price(**vars(item.price))}"
    yield from (f"  {line}" for line in (card.confidence, card.comparison, *card.evidence) if line)


# ---------------------------------------------------------------------- compare


def compare(
    study_a: RecordedStudy,
    study_b: Annotated[str, typer.Argument(help="Study to compare with it.")],
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Compare two studies. Shows configurations that both have, their Pareto fronts, and what changed in settings and
    environment."""
    from sweep.analysis.answer import to_document
    from sweep.analysis.comparison import compare_studies
    from sweep.analysis.statistics import read_text

    frames = {study: load_records(study, root, evaluations=False) for study in (study_a, study_b)}
    for study, each in frames.items():
        if each.source is not None and not any(read_text(each.trials, "config.data.name")):
            raise InputError(
                f"{study}: its data set is not stated, and results on different data are never compared; map a column "
                'as data.name, or add "data.name" = "..." to [constants].'
            )
    comparison = compare_studies(frames[study_a], frames[study_b])
    sources = {"a": frames[study_a].source, "b": frames[study_b].source}
    documents = {f"source_{side}": source.to_document() if source else None for side, source in sources.items()}
    document = to_document(comparison) | documents
    origin = [f"{side.upper()}: {line}" for side, source in sources.items() if source for line in source.describe()]
    print_answer(document, chain(origin, _describe_comparison(comparison)), as_json=as_json)
    return 0


def _describe_comparison(comparison: "Comparison") -> Iterator[str]:
    from reports.labels import format_setting
    from sweep.config.trial import key_label

    yield f"A: {comparison.study_a}   B: {comparison.study_b}"
    yield f"{len(comparison.aligned)} configurations in both; differences are B - A, ratios B / A"
    budgets_differ = any(name.startswith("budget.") for name in comparison.changed)
    if not comparison.aligned and budgets_differ:
        yield "  the budgets differ (see below), and a configuration of another budget is another configuration"
    for name, value in comparison.overall.items():
        n = format_count(value.interval.n, "configuration")
        yield f"  {_describe_difference(comparison, name, value)}, n = {n}"
    yield from _describe_times(comparison)
    for item in comparison.aligned[:_MAX_LINES]:
        settings = ", ".join(f"{key_label(key)} {format_setting(value)}" for key, value in item.config.items())
        yield f"  A's trial {item.number_a}, B's trial {item.number_b} ({settings})"
        yield from (f"    {_describe_difference(comparison, *each)}" for each in item.differences.items())
    if len(comparison.aligned) > _MAX_LINES:
        yield f"  and {len(comparison.aligned) - _MAX_LINES} more: --json has all"
    if budgets_differ:
        yield "The budgets differ (see below), so that each volume is what a study reached with its own budget:"
    for label, front in (("A", comparison.front_a), ("B", comparison.front_b)):
        numbers = ", ".join(map(str, front.numbers[:_MAX_LINES])) or "none"
        yield f"Front of {label}: {front.volume:.1%} of the volume behind both; trials {numbers}"
    yield "Changed:" if comparison.changed else "Settings and environment are equal."
    for name, (first, second) in comparison.changed.items():
        yield f"  {name}: {first} -> {second}"


def _describe_difference(comparison: "Comparison", name: str, item: "Difference") -> str:
    from reports.labels import format_difference, metric_label

    verdict = f"{item.verdict} in B"
    if item.verdict in ("undecided", "not_known"):
        verdict = "no difference beyond chance" if item.verdict == "undecided" else "not known"
    elif METRICS[name].is_speed:
        is_better = (item.verdict == "higher") == (METRICS[name].direction == "maximize")
        verdict = f"B is {'faster' if is_better else 'slower'}"
    shown = format_difference(comparison.units[name], *item.interval[:3])
    return f"{metric_label(name, comparison.quality)}: {shown}: {verdict}"


def _describe_times(comparison: "Comparison") -> Iterator[str]:
    pace = comparison.pace
    if not {"train_seconds", "images_per_second"} & comparison.overall.keys():
        return
    if pace.reason:
        yield f"  Whether the code makes times differ is not known: {pace.reason}."
        yield from (f"    to settle it: {command}" for command in comparison.commands)
        return
    counts = " and ".join(map(str, pace.num_references))
    yield (
        f"  The machine: the reference work took {pace.ratio:.3g} times as long in B as in A (timed {counts} times); "
        f"times of equal code may differ by +-{pace.half_width:.1%} (95 % interval), which the intervals contain."
    )


# ---------------------------------------------------------------------- claims


def claims(
    subject: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY | CLAIM]", help="A study's file, folder, name or URL, or the name of a claim."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Write the smallest study that settles the claim.")] = False,
    sets: Sets = None,
    root: Root = RUNS,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """List claims, test them, or plan the study that settles one. Claims are tested on the records of a study; --plan
    writes the smallest study for one of them into claim_NAME.toml, on the digits or as --set says."""
    from sweep.analysis.claim_table import CLAIMS
    from sweep.analysis.findings import find_claim

    claim = find_claim(subject) if subject else None
    if plan:
        if subject is None:
            raise InputError("sweep claims --plan: the name of a claim is required; `sweep claims` lists all of them.")
        if claim is None:
            raise InputError(describe_unknown("claim", subject, [each.name for each in CLAIMS]))
        use_plugin(plugin)
        print_answer(*_plan(claim, parse_sets(sets), root, plugin), as_json=as_json)
        return 0
    if sets:
        raise InputError("sweep claims: --set requires --plan, with the name of a claim.")
    if subject and claim is None:
        return _test_claims(subject, root, as_json)
    listed = CLAIMS if claim is None else (claim,)
    print_answer([_document_claim(each) for each in listed], _describe_claims(listed), as_json=as_json)
    return 0


def _document_claim(claim: "Claim") -> dict[str, Any]:
    from sweep.analysis.findings import count_planned, count_tested

    repetitions = count_planned(claim)
    return {
        "name": claim.name,
        "statement": claim.statement,
        "source": claim.published,
        "varies": list(claim.varies),
        "sets": list(claim.sets),
        "metrics": list(claim.metrics),
        "unit": claim.unit,
        "claimed": [bound if math.isfinite(bound) else None for bound in claim.region],
        "matters": claim.matters,
        "assumed_spread": claim.design.spread,
        "num_tested": count_tested(claim),
        "repetitions": repetitions,
        "trainings": claim.design.count_trainings(repetitions),
    }


def _describe_claims(claims: Sequence["Claim"]) -> Iterator[str]:
    from reports.labels import describe_range, format_margin

    for claim in claims:
        facts = _document_claim(claim)
        yield claim.name
        yield f"    {claim.statement}"
        yield f"    source: {claim.published}"
        yield f"    a study has to {claim.needs}"
        yield (
            f"    claimed: {describe_range(claim.unit, *claim.region)}; difference that matters: "
            f"{format_margin(claim.unit, claim.matters)}; trainings for power 0.8: {facts['trainings']:,}"
        )


def _test_claims(study: str, root: Path, as_json: bool) -> int:
    from sweep.analysis.answer import to_document
    from sweep.analysis.claim_table import CLAIMS
    from sweep.analysis.findings import evaluate_claims

    try:
        find_records(study, root)
    except InputError as error:
        near = get_close_matches(study, [claim.name for claim in CLAIMS])
        raise InputError(f"{error} Claims of a similar name: {', '.join(near)}." if near else str(error)) from None
    frames = load_records(study, root)
    findings = evaluate_claims(frames)
    document = {
        "study": list(frames.studies["study"]) or sorted(set(frames.trials["study"])),
        "findings": to_document(findings),
    }
    print_answer(document, describe_findings(findings), as_json=as_json)
    return 0


def describe_findings(findings: Sequence["Finding"]) -> Iterator[str]:
    """What was found about each claim, sorted by the verdict, and what settles it."""
    from reports.labels import TOO_UNCERTAIN, format_effect, is_too_uncertain
    from sweep.analysis.statistics import Verdict

    order = get_args(Verdict)
    for item in sorted(findings, key=lambda finding: order.index(finding.verdict)):
        yield f"{item.verdict}: {item.name}"
        yield f"    {item.statement}"
        if item.reason:
            yield f"    {item.reason}"
        else:
            is_vague = is_too_uncertain(item.unit, item.low, item.high)
            effect = TOO_UNCERTAIN if is_vague else format_effect(item.unit, item.effect, item.low, item.high)
            yield f"    {effect}; n = {item.n}; p = {item.p:.2g}, corrected for all tested claims"
            yield f"    {item.detail}"
        if item.verdict == "undecided":
            yield f"    trainings for power 0.8 by the spread of these records: {item.trainings:,}"
        if item.settle:  # the command has a line of its own, so that it can be pasted
            yield "    to settle it:"
            yield f"      {item.settle}"


def _plan(claim: "Claim", changes: dict[str, Any], root: Path, plugin: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Writes the study that settles ``claim``; the document and the lines to print."""
    import tomllib

    from sweep.analysis.findings import write_plan
    from sweep.config.study_file import build_study

    text, file = write_plan(claim, changes), f"claim_{claim.name}.toml"
    spec = build_study(tomllib.loads(text), f"the study of {claim.name}")
    write_new_file(Path(file), text)
    options = () if root == RUNS else ("--root", str(root))
    commands = StudyCommands(name=spec.name, argument=file, options=options, plugin=str(plugin or ""))
    lines = [
        f"wrote {file}: {spec.trials:,} trainings",
        f"what it takes: {commands.run()} --dry-run",
        f"run it with: {commands.run()}",
        f"then: {commands.read_claims()}",
    ]
    return {"claim": claim.name, "file": file, "trainings": spec.trials, "command": commands.run()}, lines
