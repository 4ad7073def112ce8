"""The findings: what is commonly said about batch sizes, tested on the user's own records."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep.analysis.claims import accumulation, accuracy, learning, learning_rates, step_costs
from sweep.analysis.claims.claim import Claim
from sweep.analysis.comparable_trials import Records, select_comparable
from sweep.analysis.statistics.estimates import SIGNIFICANT, Verdict, assess_region, confidence_interval, correct_holm


@dataclass(frozen=True)
class Finding:
    """One claim and what the records say of it.

    ``effect`` with its 95 % interval is in ``unit`` (a metric's unit, "ratio", "exponent", "fraction/doubling"); NaN
    where there is too little. ``n`` counts what the interval rests on, as ``detail`` says: pairs, batch sizes or
    trials. ``p`` is that of the test behind the verdict, corrected for the number of tests (Holm 1979); the verdict
    is undecided unless it is at most 0.05. ``settle`` says what would settle the claim ("" where it is settled),
    ``published`` what others measured.
    """

    name: str
    statement: str
    effect: float
    low: float
    high: float
    unit: str
    n: int
    verdict: Verdict
    settle: str
    published: str
    detail: str = ""
    p: float = 1.0


def evaluate_claims(records: Records) -> list[Finding]:
    """Every claim in a fixed order; what the records do not tell is undecided, with what would settle it."""
    ground = select_comparable(records)
    claims = [
        *learning_rates.claims(ground),
        *accuracy.claims(ground),
        *accumulation.claims(ground),
        *step_costs.claims(ground),
        *learning.claims(ground, records.evaluations),
    ]
    leanings = [assess_region(claim.estimate, claim.region) for claim in claims]
    tested = [claim.estimate.degrees > 0 for claim in claims]
    corrected = np.ones(len(claims))
    corrected[tested] = correct_holm([p for (_, p), is_tested in zip(leanings, tested, strict=True) if is_tested])
    return [
        _finding(claim, verdict, float(p)) for claim, (verdict, _), p in zip(claims, leanings, corrected, strict=True)
    ]


def _finding(claim: Claim, leaning: Verdict, p: float) -> Finding:
    effect, low, high = confidence_interval(claim.estimate)
    verdict: Verdict = leaning if p <= SIGNIFICANT else "undecided"
    return Finding(
        claim.name,
        claim.statement,
        effect,
        low,
        high,
        claim.unit,
        claim.estimate.n,
        verdict,
        claim.settle if verdict == "undecided" else "",
        claim.published,
        claim.detail,
        p,
    )


def findings_document(found: list[Finding]) -> list[dict[str, Any]]:
    """The findings for a JSON document; what is not known is null."""
    return [
        {
            key: None if isinstance(value, float) and not np.isfinite(value) else value
            for key, value in vars(item).items()
        }
        for item in found
    ]
