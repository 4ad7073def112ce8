"""The findings: what is commonly claimed about batch sizes, tested on a study's own records."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep.analysis.claims import accumulation, accuracy, learning, learning_rates, step_costs
from sweep.analysis.claims.claim import Claim, Measurement
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

CLAIMS = (*learning_rates.CLAIMS, *accuracy.CLAIMS, *accumulation.CLAIMS, *step_costs.CLAIMS, *learning.CLAIMS)


_TOO_LITTLE = "the records have too little for an interval"
UNSETTLED: tuple[Verdict, ...] = ("undecided", "not tested")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim and what the records show of it.

    ``effect`` with its 95 % interval is in ``unit`` (a metric's unit, "ratio", "exponent", "fraction/doubling"); NaN
    where there is too little; ``claimed`` is the range that the statement allows, open where a bound is infinite.
    ``n`` counts what the interval rests on, as ``detail`` describes: pairs, batch sizes or
    configurations. ``p`` is that of the test behind the verdict, corrected for the number of tests (Holm 1979); the
    verdict is undecided unless it is at most 0.05, and "not tested" where the records cannot test the claim: there is
    no effect then, for the ``reason``. ``settle`` is what would settle the claim ("" where it is settled),
    ``published`` what others measured.
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


def evaluate_claims(frames: Frames) -> list[Finding]:
    """Every claim in a fixed order; what the records do not show is undecided or not tested, with what would settle
    it."""
    records = select_comparable(frames)
    measured = [claim.measure(records) for claim in CLAIMS]
    assessed = [
        assess_region(measurement.estimate, measurement.region or claim.region)
        for claim, measurement in zip(CLAIMS, measured, strict=True)
    ]
    tested = np.array([measurement.estimate.degrees > 0 for measurement in measured])
    p_values = np.array([p for _, p in assessed])
    corrected = np.ones(len(CLAIMS))
    corrected[tested] = correct_holm(p_values[tested])
    verdicts: list[Verdict] = [
        "not tested" if not is_tested else verdict if p <= SIGNIFICANT else "undecided"
        for (verdict, _), p, is_tested in zip(assessed, corrected, tested.tolist(), strict=True)
    ]
    return [_finding(records, *each) for each in zip(CLAIMS, measured, verdicts, corrected.tolist(), strict=True)]


def _finding(records: ComparableTrials, claim: Claim, measurement: Measurement, verdict: Verdict, p: float) -> Finding:
    is_tested = verdict != "not tested"
    effect, low, high = confidence_interval(measurement.estimate if is_tested else NOTHING)
    return Finding(
        name=claim.name,
        statement=claim.statement,
        effect=effect,
        low=low,
        high=high,
        unit=claim.unit,
        claimed=measurement.region or claim.region,
        n=measurement.estimate.n,
        verdict=verdict,
        settle=claim.settle(records) if verdict in UNSETTLED else "",
        published=claim.published,
        detail=measurement.detail,
        p=p,
        reason="" if is_tested else measurement.reason or _TOO_LITTLE,
    )


def findings_document(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings for a JSON document; what is not known is null."""
    return [to_document(item) for item in found]
