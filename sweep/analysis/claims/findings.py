"""The findings: what is commonly claimed about batch sizes, tested on a study's own records."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sweep.analysis.claims.claim import Claim, Measurement, command_plan, not_tested
from sweep.analysis.claims.plans import CLAIMS, count_needed
from sweep.analysis.comparable import ComparableTrials, select_comparable
from sweep.analysis.documents import to_document
from sweep.analysis.statistics import (
    NOTHING,
    SIGNIFICANT,
    Estimate,
    Region,
    Verdict,
    assess_region,
    confidence_interval,
    correct_holm,
)  # fmt: skip
from sweep.records.frames.study_frames import Frames

_ACCURACY_UNIT = "fraction difference"
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


class Assessment(NamedTuple):
    """A claim measured on the records of one study, before p is corrected; ``lack`` is why it could not be."""

    claim: Claim
    records: ComparableTrials
    measurement: Measurement
    lack: str

    @property
    def region(self) -> Region:
        """What the claim allows."""
        return self.measurement.region or self.claim.region

    @property
    def is_tested(self) -> bool:
        """Whether there is an effect with an error."""
        return self.measurement.estimate.degrees > 0


def evaluate_claims(frames: Frames) -> list[Finding]:
    """Every claim in a fixed order; what the records do not show is undecided or not tested, with what would settle
    it."""
    records = select_comparable(frames)
    return find_verdicts([assess_claim(claim, records) for claim in CLAIMS])


def assess_claim(claim: Claim, records: ComparableTrials) -> Assessment:
    """The claim measured on the records, without a verdict."""
    lack = claim.find_lack(records)
    measurement = not_tested(lack) if lack else claim.measure(records)
    if claim.unit == _ACCURACY_UNIT:
        measurement = measurement._replace(estimate=_add_rounding(measurement.estimate, records.images.num_images))
    return Assessment(claim, records, measurement, lack)


def _add_rounding(estimate: Estimate, num_images: int | None) -> Estimate:
    # An accuracy is rounded to one of the images, so that a few equal differences do not show that there is no scatter:
    # the error of their mean is at least that of roundings, 1 / (12 images^2) for each of the two accuracies.
    if not num_images or not estimate.degrees > 0:
        return estimate
    return estimate._replace(error=max(estimate.error, 1 / (num_images * math.sqrt(6 * estimate.n))))


def find_verdicts(assessments: Sequence[Assessment]) -> list[Finding]:
    """The verdicts on claims whose records may be of several studies, corrected for all that are tested."""
    judged = [assess_region(each.measurement.estimate, each.region) for each in assessments]
    tested = np.array([each.is_tested for each in assessments], dtype=np.bool_)
    corrected = np.ones(len(assessments))
    corrected[tested] = correct_holm(np.array([p for _, p in judged])[tested])
    return [
        _make_finding(each, leaning if p <= SIGNIFICANT else "undecided", p, int(tested.sum()))
        for each, (leaning, _), p in zip(assessments, judged, corrected.tolist(), strict=True)
    ]


def _make_finding(assessment: Assessment, verdict: Verdict, p: float, num_tested: int) -> Finding:
    claim, records, measurement, lack = assessment
    if not assessment.is_tested:
        verdict = "not measured" if lack else "not tested"
    effect, low, high = confidence_interval(measurement.estimate if assessment.is_tested else NOTHING)
    step = claim.settle(records) if verdict in UNSETTLED else None
    return Finding(
        name=claim.name,
        statement=claim.statement,
        effect=effect,
        low=low,
        high=high,
        unit=claim.unit,
        claimed=assessment.region,
        n=measurement.estimate.n,
        verdict=verdict,
        settle=(step.command or command_plan(records, claim.name)) if step else "",
        published=claim.published,
        detail=measurement.detail,
        p=p,
        reason="" if assessment.is_tested else measurement.reason or _TOO_LITTLE,
        remark=step.remark if step else "",
        matters=claim.matters,
        trainings=count_needed(claim, measurement.estimate, assessment.region, len(records.done), num_tested),
    )


def findings_document(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings for a JSON document; what is not known is null."""
    return [to_document(item) for item in found]
