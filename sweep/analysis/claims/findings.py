"""The findings: what is commonly claimed about batch sizes, tested on a study's own records."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep.analysis.claims.claim import Claim, Measurement, command_plan, not_tested
from sweep.analysis.claims.plans import CLAIMS, count_needed
from sweep.analysis.comparable_trials import ComparableTrials, select_comparable
from sweep.analysis.documents import to_document
from sweep.analysis.statistics.estimates import (
    NOTHING,
    SIGNIFICANT,
    Region,
    Verdict,
    assess_region,
    confidence_interval,
    correct_holm,
)  # fmt: skip
from sweep.records.frames.study_frames import Frames

_TOO_LITTLE = "the records have too little for an interval"
UNTESTED: tuple[Verdict, ...] = ("not tested", "not measured")
UNSETTLED: tuple[Verdict, ...] = ("undecided", *UNTESTED)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim and what the records show of it.

    ``effect`` with its 95 % interval is in ``unit`` (a metric's unit, "ratio", "exponent", "fraction/doubling"); NaN
    where there is too little; ``claimed`` is the range that the statement allows, open where a bound is infinite.
    ``n`` counts what the interval rests on, as ``detail`` describes: pairs, batch sizes or
    configurations. ``p`` is that of the test behind the verdict, corrected for the number of tests (Holm 1979); the
    verdict is undecided unless it is at most 0.05. It is "not measured" where the study did not vary or measure what
    the claim is about, and "not tested" where it did and the records cannot test the claim: there is no effect then,
    for the ``reason``. ``settle`` is the command that would settle the claim ("" where it is settled), ``remark`` what
    that requires or what else would settle it, ``trainings`` how many a study would require for that with a power of
    0.8 at the effect that ``matters``: by the spread of these records, without an effect by an assumed one.
    ``published`` is what others measured, with the source.
    """

    name: str
    statement: str
    effect: float
    low: float
    high: float
    unit: str
    claimed: Region
    n: int
    verdict: Verdict
    settle: str
    published: str
    detail: str
    p: float
    reason: str = ""
    remark: str = ""
    matters: float = np.nan
    trainings: int = 0


def evaluate_claims(frames: Frames) -> list[Finding]:
    """Every claim in a fixed order; what the records do not show is undecided or not tested, with what would settle
    it."""
    records = select_comparable(frames)
    lacks = [claim.find_lack(records) for claim in CLAIMS]
    measured = [not_tested(lack) if lack else claim.measure(records) for claim, lack in zip(CLAIMS, lacks, strict=True)]
    assessed = [
        assess_region(measurement.estimate, measurement.region or claim.region)
        for claim, measurement in zip(CLAIMS, measured, strict=True)
    ]
    tested = np.array([measurement.estimate.degrees > 0 for measurement in measured])
    p_values = np.array([p for _, p in assessed])
    corrected = np.ones(len(CLAIMS))
    corrected[tested] = correct_holm(p_values[tested])
    verdicts: list[Verdict] = [
        verdict if p <= SIGNIFICANT else "undecided" for (verdict, _), p in zip(assessed, corrected, strict=True)
    ]
    for place in np.flatnonzero(~tested):
        verdicts[place] = "not measured" if lacks[place] else "not tested"
    num_tested = int(tested.sum())
    return [
        _finding(records, claim, measurement, verdict, p, num_tested)
        for claim, measurement, verdict, p in zip(CLAIMS, measured, verdicts, corrected.tolist(), strict=True)
    ]


def _finding(
    records: ComparableTrials, claim: Claim, measurement: Measurement, verdict: Verdict, p: float, num_tested: int
) -> Finding:
    is_tested = verdict not in UNTESTED
    effect, low, high = confidence_interval(measurement.estimate if is_tested else NOTHING)
    region = measurement.region or claim.region
    step = claim.settle(records) if verdict in UNSETTLED else None
    return Finding(
        name=claim.name,
        statement=claim.statement,
        effect=effect,
        low=low,
        high=high,
        unit=claim.unit,
        claimed=region,
        n=measurement.estimate.n,
        verdict=verdict,
        settle=(step.command or command_plan(records, claim.name)) if step else "",
        published=claim.published,
        detail=measurement.detail,
        p=p,
        reason="" if is_tested else measurement.reason or _TOO_LITTLE,
        remark=step.remark if step else "",
        matters=claim.matters,
        trainings=count_needed(claim, measurement.estimate, region, len(records.done), num_tested),
    )


def findings_document(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings for a JSON document; what is not known is null."""
    return [to_document(item) for item in found]
