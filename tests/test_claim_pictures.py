"""The claims as a forest plot: where an effect, its interval and the claimed range lie, and what is too uncertain."""

import math

import pytest
from frames_factory import make_frames

from reports.labels import TOO_UNCERTAIN, describe_range
from reports.page.tables import WIDTH, draw_claim, list_claims, make_claim_axis
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.findings import Finding, evaluate_claims
from sweep.analysis.statistics import Region

OPEN = math.inf


def make_finding(unit="ratio", effect=1.3, low=0.9, high=1.9, claimed=(1.5, 2.0), verdict="undecided", reason=""):
    return Finding(
        name="made", statement="A claim.", effect=effect, low=low, high=high, unit=unit, claimed=Region(*claimed), n=4,
        verdict=verdict, settle="", published="", detail="", p=1.0, reason=reason,
    )  # fmt: skip


def test_a_ratio_lies_on_a_logarithmic_scale_between_the_bounds_of_the_claim():
    found = make_finding(effect=math.sqrt(3.0))  # the middle of 1.5 and 2 by their logarithms
    picture, axis = draw_claim(found, "text"), make_claim_axis(found)
    left, right = picture.claimed
    assert picture.is_open
    assert picture.effect == pytest.approx((left + right) / 2, abs=0.02)
    (neutral,) = (x for x, kind in picture.lines if kind == "neutral")
    assert (left - neutral) / (right - left) == pytest.approx(math.log(1.5) / math.log(2 / 1.5), abs=0.01)
    assert [text for _, text in picture.numbers] == ["1.5", "2", "1"]
    assert picture.interval == (axis.locate(0.9), axis.locate(1.9))
    assert picture.is_cut == (False, False)


@pytest.mark.parametrize(("low", "high", "is_so"), [(0.1, 10.0, False), (0.1, 10.1, True), (0.5, OPEN, True)])
def test_an_effect_that_is_too_uncertain_is_not_printed(low, high, is_so):
    (row,) = list_claims([make_finding("ratio", 0.641, low, high, (0.5, 1.0))])
    assert (row["effect"] == TOO_UNCERTAIN) is (row["picture"].effect is None) is is_so
    if is_so:
        assert row["interval"] == ""
        assert f"Measured: {TOO_UNCERTAIN}." in row["picture"].name


@pytest.mark.parametrize(
    ("low", "high", "num_arrows"), [(6.69e-05, 6_133.0, 2), (math.nan, math.nan, 2), (0.9, 900.0, 1)]
)
def test_an_interval_without_meaning_has_no_effect_over_the_claimed_range(low, high, num_arrows):
    picture = draw_claim(make_finding(effect=0.641, low=low, high=high), "text")
    assert (picture.effect, sum(picture.is_cut)) == (None, num_arrows)
    assert picture.interval[1] == WIDTH - 2.0
    assert 30 < picture.claimed[1] - picture.claimed[0] < WIDTH / 2


def test_each_tested_claim_has_one_picture_with_its_numbers():
    rows = list_claims(evaluate_claims(make_frames(60, confirm=3)))
    assert len(rows) == len(CLAIMS)
    tested = [row for row in rows if row["picture"]]
    assert tested
    for row in tested:
        item, whole = row["finding"], row["effect"] + (f" ({row['interval']})" if row["interval"] else "")
        name = f"Claimed: {describe_range(item.unit, *item.claimed)}. Measured: {whole}. {item.verdict.capitalize()}."
        assert row["picture"].name == name
    assert all(row["finding"].reason for row in rows if not row["picture"])
