"""The commands that answer from records: ``recommend``, ``compare`` and ``claims``."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
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
    load_plugin,
    load_records,
    parse_bytes,
    parse_duration,
    parse_sets,
    write_new_file,
)
from sweep.config.commands import StudyCommands
from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import METRICS, format_count

if TYPE_CHECKING:
    from sweep.analysis.answer import Answer, BatchAnswer, Recommendation
    from sweep.analysis.claims import Claim
    from sweep.analysis.comparison import Comparison, Difference
    from sweep.analysis.findings import Finding
    from sweep.config.study import StudySpec
    from sweep.records.frames import Frames
    from sweep.search.study_forecast import Forecast


_MAX_LINES = 20  # configurations, or trials of a front, that are listed


def recommend(
    study: RecordedStudy,
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

    max_memory_bytes = parse_bytes(max_memory, "--max-memory")
    limit_seconds = parse_duration(max_seconds, "--max-seconds")
    frames = load_records(study, root)
    answer = answer_for(
        frames,
        max_memory_bytes=max_memory_bytes,
        max_seconds=limit_seconds,
        min_accuracy=min_accuracy,
        uses=tuple(use or USES),
        given_batch=batch,
    )
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


def describe_batch_sizes(answer: "BatchAnswer") -> Iterator[str]:
    """The statements about the batch size, and the tuned batch sizes."""
    from reports.texts import CURVE_HEADS, describe_batch_answer

    texts = describe_batch_answer(answer)
    yield "Batch size"
    for text, certainty in texts.statements:
        yield f"  {text}{f' ({certainty})' if certainty else ''}"
    if texts.command:
        yield f"  to settle more: {texts.command}"
    if texts.other_command:
        yield f"  to settle the statements below the first: {texts.other_command}"
    yield "The best at each batch size"
    for row in texts.rows:
        cells = [
            " ".join(filter(None, (head.lower(), value, f"({note})" if note else "")))
            for head, (value, note) in zip(CURVE_HEADS, row, strict=True)
        ]
        yield f"  {', '.join(cells)}"
    yield from (f"  {line}" for line in (*texts.models, *texts.remarks))


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


# ---------------------------------------------------------------------- compare


def compare(
    study_a: RecordedStudy,
    study_b: Annotated[str, typer.Argument(help="Study to compare with it.")],
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Compare two studies. Shows configurations that both have, their Pareto fronts, and what changed in settings and
    environment."""
    from sweep.analysis.comparison import compare_studies

    frames = {study: load_records(study, root, evaluations=False) for study in (study_a, study_b)}
    for study, each in frames.items():
        _require_data_name(study, each)
    comparison = compare_studies(frames[study_a], frames[study_b])
    sources = {"a": frames[study_a].source, "b": frames[study_b].source}
    document = _document_comparison(comparison)
    document["source"] = {side: source.to_document() if source else None for side, source in sources.items()}
    origin = [f"{side.upper()}: {line}" for side, source in sources.items() if source for line in source.describe()]
    print_answer(document, chain(origin, _describe_comparison(comparison)), as_json=as_json)
    return 0


def _require_data_name(study: str, frames: "Frames") -> None:
    from sweep.analysis.statistics import read_text

    if frames.source is not None and not any(read_text(frames.trials, "config.data.name")):
        raise InputError(
            f"{study}: its data set is not stated, and results on different data are never compared; map a column as "
            'data.name, or add "data.name" = "..." to [constants].'
        )


def _document_comparison(comparison: "Comparison") -> dict[str, Any]:
    return {
        "a": comparison.study_a,
        "b": comparison.study_b,
        "num_aligned": len(comparison.aligned),
        "overall": {name: _document_difference(value) for name, value in comparison.overall.items()},
        "times": _document_times(comparison),
        "units": comparison.units,
        "aligned": [
            {
                "number_a": item.number_a,
                "number_b": item.number_b,
                "config": item.config,
                "num_paired_seeds": item.num_paired,
                **{name: _document_difference(value) for name, value in item.differences.items()},
            }
            for item in comparison.aligned
        ],
        "front_a": asdict(comparison.front_a),
        "front_b": asdict(comparison.front_b),
        "changed": {name: {"a": a, "b": b} for name, (a, b) in comparison.changed.items()},
    }


def _document_difference(item: "Difference") -> dict[str, float | int | str | None]:
    return {key: _finite(part) for key, part in item.interval._asdict().items()} | {"verdict": item.verdict}


def _document_times(comparison: "Comparison") -> dict[str, Any]:
    pace = comparison.pace
    return {
        "reference_ratio": _finite(pace.ratio),
        "log_error": _finite(pace.error),
        "num_references": {"a": pace.num_references[0], "b": pace.num_references[1]},
        "reason": pace.reason,
        "commands": list(comparison.commands) if pace.reason else [],
    }


def _finite(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _describe_comparison(comparison: "Comparison") -> Iterator[str]:
    from reports.labels import format_difference, format_setting, metric_label
    from sweep.config.trial import key_label

    yield f"A: {comparison.study_a}   B: {comparison.study_b}"
    yield f"{len(comparison.aligned)} configurations in both; differences are B - A, ratios B / A"
    budgets_differ = any(name.startswith("budget.") for name in comparison.changed)
    if not comparison.aligned and budgets_differ:
        yield "  the budgets differ (see below), and a configuration of another budget is another configuration"
    for name, value in comparison.overall.items():
        difference = format_difference(comparison.units[name], *value.interval[:3])
        n = format_count(value.interval.n, "configuration")
        yield f"  {metric_label(name)}: {difference}, n = {n}{_describe_verdict(name, value)}"
    yield from _describe_times(comparison)
    for item in comparison.aligned[:_MAX_LINES]:
        settings = ", ".join(f"{key_label(key)} {format_setting(value)}" for key, value in item.config.items())
        yield f"  A's trial {item.number_a}, B's trial {item.number_b} ({settings})"
        for name, value in item.differences.items():
            difference = format_difference(comparison.units[name], *value.interval[:3])
            yield f"    {metric_label(name)}: {difference}{_describe_verdict(name, value)}"
    if len(comparison.aligned) > _MAX_LINES:
        yield f"  and {len(comparison.aligned) - _MAX_LINES} more: --json has all"
    if budgets_differ:
        yield "The budgets differ (see below), so that each volume is what a study reached with its own budget:"
    for label, front in (("A", comparison.front_a), ("B", comparison.front_b)):
        numbers = ", ".join(map(str, front.numbers[:_MAX_LINES])) or "none"
        yield f"Front of {label}: {front.volume:.1%} of the volume behind both; trials {numbers}"
    yield "Changed:" if comparison.changed else "Settings and environment are equal."
    for name, (a, b) in comparison.changed.items():
        yield f"  {name}: {a} -> {b}"


def _describe_verdict(name: str, item: "Difference") -> str:
    if item.verdict == "undecided":
        return ": no difference beyond chance"
    if item.verdict == "not_known":
        return ": not known"
    if not METRICS[name].is_speed:
        return f": {item.verdict} in B"
    is_better = (item.verdict == "higher") == (METRICS[name].direction == "maximize")
    return f": B is {'faster' if is_better else 'slower'}"


def _describe_times(comparison: "Comparison") -> Iterator[str]:
    names = {"train_seconds", "images_per_second"} & comparison.overall.keys()
    pace = comparison.pace
    if not names:
        return
    if pace.reason:
        yield f"  Whether the code makes times differ is not known: {pace.reason}."
        for command in comparison.commands:
            yield f"    to settle it: {command}"
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
    data: Annotated[str | None, typer.Option(help="With --plan: the data set of that study; default: digits.")] = None,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(help="With --plan: the file to write; default: claim_NAME.toml.")] = None,
    root: Root = RUNS,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """List claims, test them, or plan the study that settles one. Claims are tested on the records of a study; --plan
    writes the smallest study for one of them, which `sweep run` runs."""
    from sweep.analysis.claim_table import CLAIMS
    from sweep.analysis.findings import find_claim, write_plan

    claim = find_claim(subject) if subject else None
    if plan:
        if subject is None:
            raise InputError("sweep claims --plan: the name of a claim is required; `sweep claims` lists all of them.")
        if claim is None:
            raise InputError(describe_unknown("claim", subject, [each.name for each in CLAIMS]))
        load_plugin(plugin)
        text = write_plan(claim, data or "digits", parse_sets(sets))
        return _plan(claim, text, _lead_to_plan(claim, out, root, plugin), root, as_json)
    if given := [name for name, value in {"--data": data, "--set": sets, "--out": out}.items() if value]:
        raise InputError(f"sweep claims: {given[0]} requires --plan, with the name of a claim.")
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
    from sweep.analysis.claim_table import CLAIMS
    from sweep.analysis.findings import evaluate_claims, findings_document

    try:
        find_records(study, root)
    except InputError as error:
        near = get_close_matches(study, [claim.name for claim in CLAIMS])
        raise InputError(f"{error} Claims of a similar name: {', '.join(near)}." if near else str(error)) from None
    frames = load_records(study, root)
    findings = evaluate_claims(frames)
    document = {
        "study": list(frames.studies["study"]) or sorted(set(frames.trials["study"])),
        "findings": findings_document(findings),
    }
    print_answer(document, _describe_findings(findings), as_json=as_json)
    return 0


def _describe_findings(findings: Sequence["Finding"]) -> Iterator[str]:
    from reports.labels import TOO_UNCERTAIN, format_effect, is_too_uncertain
    from sweep.analysis.statistics import Verdict

    order = get_args(Verdict)
    for item in sorted(findings, key=lambda finding: order.index(finding.verdict)):
        yield f"{item.verdict}: {item.name}"
        yield f"    {item.statement}"
        if item.reason:
            yield f"    {item.reason}"
            yield from _list_remedies(item)
            continue
        is_vague = is_too_uncertain(item.unit, item.low, item.high)
        effect = TOO_UNCERTAIN if is_vague else format_effect(item.unit, item.effect, item.low, item.high)
        yield f"    {effect}; n = {item.n}; p = {item.p:.2g}, corrected for all tested claims"
        if item.verdict == "undecided":
            yield f"    trainings for power 0.8 by the spread of these records: {item.trainings:,}"
        yield from _list_remedies(item)


def _list_remedies(item: "Finding") -> Iterator[str]:
    # the command has a line of its own, so that it can be pasted
    if item.settle:
        yield "    to settle it:"
        yield f"      {item.settle}"


def _lead_to_plan(claim: "Claim", out: Path | None, root: Path, plugin: Path | None) -> StudyCommands:
    path = out or Path(f"claim_{claim.name}.toml")
    if path.suffix != ".toml":
        raise InputError(f"--out {path}: the name of a study file ends in .toml.")
    options = () if root == RUNS else ("--root", str(root))
    return StudyCommands(
        name=f"claim_{claim.name}", argument=str(path), changes={}, options=options, plugin=str(plugin or "")
    )


def _plan(claim: "Claim", text: str, commands: StudyCommands, root: Path, as_json: bool) -> int:
    import tomllib

    from sweep.config.study_file import build_study

    spec = build_study(tomllib.loads(text), f"the study of {claim.name}")
    write_new_file(Path(commands.argument), text)
    forecast, command = _forecast_by_record(spec, root), commands.run()
    if forecast is None:
        price = f"its time requires probes, which `{command} --dry-run` makes"
    else:
        from sweep.cli.study_run import describe_time  # with Optuna and pandas

        price = f"{describe_time(forecast)} by the probes under {root}"
    lines = [
        f"wrote {commands.argument}: {spec.trials:,} trainings; {price}",
        f"run it with: {command}",
        f"then: {commands.read_claims()}",
    ]
    document = {
        "claim": claim.name,
        "file": commands.argument,
        "trainings": spec.trials,
        "seconds": forecast and forecast.expected_total_seconds,
        "seconds_low": forecast and forecast.expected_total_seconds_low,
        "seconds_high": forecast and forecast.expected_total_seconds_high,
        "command": command,
    }
    print_answer(document, lines, as_json=as_json)
    return 0


def _forecast_by_record(spec: "StudySpec", root: Path) -> "Forecast | None":
    """The forecast of the study by the probes on record; None where there are none for it. Probes nothing."""
    from sweep.records.store import PROBES_FILE

    if not (root / PROBES_FILE).is_file():
        return None
    from sweep.search.session import Options, open_session  # with Optuna

    try:
        with open_session(spec, Options(root=root), preview=True) as session:
            forecast = session.forecaster.forecast_other(spec, math.inf)
    except InputError:  # what the study requires is not here yet: data, or weights to start from
        return None
    return None if forecast.expected_total_seconds is None else forecast
