"""``sweep claims``: what is commonly claimed about batch sizes, what a study's records show of it, and the smallest
study that settles one claim."""

import math
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sweep.cli.arguments import find_records, load_plugin, parse_sets, write_new_study
from sweep.cli.options import RUNS, AsJson, Plugin, Root, Sets
from sweep.cli.output import print_answer
from sweep.config.commands import StudyCommands
from sweep.config.errors import InputError, describe_unknown

if TYPE_CHECKING:
    from sweep.analysis.claims import Claim
    from sweep.analysis.findings import Finding
    from sweep.config.study import StudySpec
    from sweep.search.study_forecast import Forecast


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
        text = write_plan(claim, data or "digits", parse_sets(sets or []))
        return _plan(claim, text, _lead_to_plan(claim, out, root, plugin), root, as_json)
    if given := [name for name, value in {"--data": data, "--set": sets, "--out": out}.items() if value]:
        raise InputError(f"sweep claims: {given[0]} requires --plan, with the name of a claim.")
    if subject and claim is None:
        return _test(_find_study(subject, root), as_json)
    chosen = CLAIMS if claim is None else (claim,)
    print_answer([_describe(each) for each in chosen], _list_lines(chosen), as_json=as_json)
    return 0


def _find_study(subject: str, root: Path) -> str:
    from sweep.analysis.claim_table import CLAIMS

    try:
        return find_records(subject, root)
    except InputError as error:
        near = get_close_matches(subject, [claim.name for claim in CLAIMS])
        raise InputError(f"{error} Claims of a similar name: {', '.join(near)}." if near else str(error)) from None


def _describe(claim: "Claim") -> dict[str, Any]:
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


def _list_lines(chosen: Sequence["Claim"]) -> Iterator[str]:
    from reports.labels import describe_range, format_margin

    for claim in chosen:
        facts = _describe(claim)
        yield claim.name
        yield f"    {claim.statement}"
        yield f"    source: {claim.published}"
        yield f"    a study has to {claim.needs}"
        yield (
            f"    claimed: {describe_range(claim.unit, *claim.region)}; difference that matters: "
            f"{format_margin(claim.unit, claim.matters)}; trainings for power 0.8: {facts['trainings']:,}"
        )


def _test(place: str, as_json: bool) -> int:
    from sweep.analysis.findings import evaluate_claims, findings_document
    from sweep.records.frames.frames import load_frames

    frames = load_frames(place, evaluations=True)
    found = evaluate_claims(frames)
    document = {"study": list(frames.studies["study"]), "findings": findings_document(found)}
    print_answer(document, _finding_lines(found), as_json=as_json)
    return 0


def _finding_lines(found: Sequence["Finding"]) -> Iterator[str]:
    from reports.labels import TOO_UNCERTAIN, format_effect, is_too_uncertain
    from sweep.analysis.statistics import Verdict

    order = get_args(Verdict)
    for item in sorted(found, key=lambda each: order.index(each.verdict)):
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
    if item.remark:
        yield f"    note: {item.remark}"


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
    write_new_study(Path(commands.argument), text)
    forecast, command = _forecast(spec, root), commands.run()
    lines = [
        f"wrote {commands.argument}: {spec.trials:,} trainings; {_describe_price(forecast, command, root)}",
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


def _describe_price(forecast: "Forecast | None", command: str, root: Path) -> str:
    if forecast is None:
        return f"its time requires probes, which `{command} --dry-run` makes"
    from sweep.cli.study_run import describe_time  # with Optuna and pandas

    return f"{describe_time(forecast)} by the probes under {root}"


def _forecast(spec: "StudySpec", root: Path) -> "Forecast | None":
    """The forecast of the study by the probes on record; None where there are none for it. Probes nothing."""
    from sweep.records.store.probe_book import PROBES_FILE

    if not (root / PROBES_FILE).is_file():
        return None
    from sweep.search.loop.run_options import Options
    from sweep.search.loop.session import open_session  # with torch and Optuna

    try:
        with open_session(spec, Options(root=root), preview=True) as session:
            forecast = session.forecaster.forecast_other(spec, math.inf)
    except InputError:  # what the study requires is not here yet: data, or weights to start from
        return None
    return None if forecast.expected_total_seconds is None else forecast
