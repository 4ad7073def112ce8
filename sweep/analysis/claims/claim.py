"""A claim beside what the records say of it, before the correction for many claims."""

from dataclasses import dataclass

from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region


@dataclass(frozen=True)
class Claim:
    """``estimate`` of the effect and the ``region`` that the claim allows; both in the unit that ``unit`` names, ratios
    as logarithms in the estimate and as ratios in the region. ``detail`` says what was compared."""

    name: str
    statement: str
    region: Region
    unit: str
    published: str
    settle: str
    estimate: Estimate = NOTHING
    detail: str = ""
