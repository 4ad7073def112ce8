"""The table of the claims: those that the records test, each with its row of the forest plot, and the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reports.labels import TOO_UNCERTAIN, format_interval, format_value
from reports.page.claim_pictures import draw_claim, is_effect_stated
from sweep.analysis.findings import Finding


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim; ``settle`` is the command that would settle it, "" where it is settled, and ``remark`` what the command
    requires or what else would. Of a claim that is not tested ``reason`` names why, and there is no effect and no
    picture."""

    statement: str
    detail: str
    verdict: str
    effect: str
    interval: str
    n: int
    picture: Markup
    published: str
    settle: str
    remark: str
    reason: str


def list_claims(claims: Sequence[Finding]) -> tuple[ClaimRow, ...]:
    """A row for each of ``claims``, in their order."""
    return tuple(_row(item) for item in claims)


def _row(item: Finding) -> ClaimRow:
    effect, interval = format_value(item.unit, item.effect), ""
    if not item.reason:
        interval = format_interval(item.unit, item.low, item.high, item.effect)
        effect, interval = (effect, interval) if is_effect_stated(item) else (TOO_UNCERTAIN, "")
    whole = f"{effect} ({interval})" if interval else effect
    return ClaimRow(
        statement=item.statement,
        detail=item.detail,
        verdict=item.verdict,
        effect=effect,
        interval=interval,
        n=item.n,
        picture=Markup("") if item.reason else draw_claim(item, whole),
        published=item.published,
        settle=item.settle,
        remark=item.remark,
        reason=item.reason,
    )
