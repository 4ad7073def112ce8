"""The claims about batch sizes: what each requires, and what was measured of it on the digits."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from generators.markdown import table

from reports.labels import TOO_UNCERTAIN, format_effect, format_margin, is_too_uncertain
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.findings import count_planned

Json = dict[str, Any]
_RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
_ORDER = ("contradicted", "supported", "undecided", "not tested", "not measured")


def claims() -> str:
    """Every claim with its source and the trainings that settle it."""
    rows = [
        (
            f"`{claim.name}`: {claim.statement}",
            claim.published,
            str(claim.design.count_trainings(count_planned(claim))),
        )
        for claim in CLAIMS
    ]
    return table(("claim", "source", "trainings"), rows)


def claims_measured() -> str:
    """What the newest result on the digits shows of each claim, contradicted ones first."""
    result = _read_newest()
    rows = sorted(result["claims"], key=lambda row: _ORDER.index(row["verdict"]))
    head = ("claim", "measured on the digits [95 % interval]", "verdict", "trainings")
    return table(head, [_make_row(row) for row in rows])


def claims_summary() -> str:
    """How many claims have which verdict, and what the result rests on."""
    result = _read_newest()
    verdicts = Counter(row["verdict"] for row in result["claims"])
    counted = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in _ORDER if verdicts[verdict])
    studies = list({row["study"]: row for row in result["claims"]}.values())
    untested = [row for row in result["claims"] if row["verdict"] in _ORDER[-2:]]
    num_removed = result["num_tested"] - (len(result["claims"]) - len(untested))
    removed = f", {num_removed} of them removed from the list since" if num_removed else ""
    lines = [
        f"Of {len(result['claims'])} claims: {counted}. The p values are corrected for the {result['num_tested']} "
        f"claims that were tested together{removed} (Holm 1979).",
        _describe_cuts(studies, untested)
        + _count_trainings(studies)
        + f" ({result['environment']['device']}, one thread for each, {result['date']}).",
        _describe_load([row for row in studies if row["is_timed"]]),
    ]
    recorded = {row["name"] for row in result["claims"]}
    missing = ", ".join(f"`{claim.name}`" for claim in CLAIMS if claim.name not in recorded)
    lines += [f"Without records: {missing}."] if missing else []
    return "\n\n".join(lines)


def _describe_cuts(studies: list[Json], untested: list[Json]) -> str:
    num_cut, num_untested = sum(map(_is_cut_short, studies)), sum(map(_is_cut_short, untested))
    among = f", among them those of {num_untested} of the {len(untested)} claims without a test" if num_untested else ""
    return f"{num_cut} of {len(studies)} studies were cut short by the limit of time{among}. " if num_cut else ""


def _count_trainings(studies: list[Json]) -> str:
    keys = ("trainings_planned", "trainings_run", "trainings_reused", "seconds")
    planned, run, reused, seconds = (sum(row[key] for row in studies) for key in keys)
    return (
        f"{run:,} of {planned:,} planned trainings were run; {reused:,} of them were reused, and the others took "
        f"{seconds / 3600:.1f} hours"
    )


def _describe_load(timed: list[Json]) -> str:
    busy, run = (sum(row[key] for row in timed) for key in ("trainings_with_busy_host", "trainings_run"))
    alone = "Studies that measure time or memory had no other study beside them"
    if not busy:
        return f"{alone}, and other programs used less than 10 % of the cores during each of their {run:,} trainings."
    return (
        f"{alone}, but other programs: during {busy:,} of their {run:,} trainings these used 10 % of the cores or "
        "more. Read their times with that in mind."
    )


def _read_newest() -> Json:
    results = (json.loads(path.read_text(encoding="utf-8")) for path in _RESULTS.glob("claims_digits-*.json"))
    newest: Json = max(results, key=lambda result: str(result["date"]))
    names = {claim.name for claim in CLAIMS}  # a recorded claim may have left the list
    return newest | {"claims": [row for row in newest["claims"] if row["name"] in names]}


def _make_row(row: Json) -> tuple[str, ...]:
    unit, bounds = row["unit"], [_or_nan(row[key]) for key in ("effect", "low", "high")]
    measured = "cut short" if _is_cut_short(row) else row["reason"]
    if not row["reason"]:
        is_vague = is_too_uncertain(unit, *bounds[1:])
        effect = TOO_UNCERTAIN if is_vague else format_effect(unit, *bounds)
        measured = f"{effect}; n = {row['n']}, p = {row['p']:.2g}"
    return f"`{row['name']}`", measured, f"**{row['verdict']}**", _describe(row)


def _describe(row: Json) -> str:
    # the trainings, and how many settle the claim
    run, needed, matters = row["trainings_run"], row["trainings_needed"], format_margin(row["unit"], row["matters"])
    text = f"{run:,} of {row['trainings_planned']:,}"
    if needed is None or (row["effect"] is None and not _is_cut_short(row)):  # more trainings show no more
        return text
    return f"{text}; {needed:,} settle it" if needed > run else f"{text}; closer to a bound than {matters}"


def _is_cut_short(row: Json) -> bool:
    return bool(row["trainings_run"] < row["trainings_planned"])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
