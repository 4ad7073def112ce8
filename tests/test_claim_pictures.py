"""The claims as a forest plot: where an effect, its interval and the claimed range lie, and what is too uncertain."""

import math
import re
from xml.etree import ElementTree as ET

import pytest
from frames_factory import make_frames

from reports.evidence import gather_evidence
from reports.labels import TOO_UNCERTAIN, describe_range, format_bound, is_too_uncertain
from reports.page.answer_texts import describe_answers
from reports.page.claim_pictures import WIDTH, draw_claim, make_claim_axis
from reports.page.claims_table import list_claims
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.findings import Finding, evaluate_claims
from sweep.analysis.statistics import Region

OPEN = math.inf


def make_finding(unit="ratio", effect=1.3, low=0.9, high=1.9, claimed=(1.5, 2.0), verdict="undecided", reason=""):
    return Finding(
        name="made", statement="A claim.", effect=effect, low=low, high=high, unit=unit, claimed=Region(*claimed), n=4,
        verdict=verdict, settle="", published="", detail="", p=1.0, reason=reason,
    )  # fmt: skip


def parts_of(found):
    drawn = ET.fromstring(str(draw_claim(found, "text")))
    return {part.get("class"): part for part in drawn}, drawn


def ends_of(part):
    return [float(x) for x in re.findall(r"[ML]([\d.]+),", part.get("d"))]


def test_a_ratio_lies_on_a_logarithmic_scale_between_the_bounds_of_the_claim():
    found = make_finding(effect=math.sqrt(3.0))  # the middle of 1.5 and 2 by their logarithms
    parts, drawn = parts_of(found)
    left, width = float(parts["claimed"].get("x")), float(parts["claimed"].get("width"))
    assert float(parts["open-dot"].get("cx")) == pytest.approx(left + width / 2, abs=0.02)
    neutral, _ = ends_of(parts["neutral"])
    assert (left - neutral) / width == pytest.approx(math.log(1.5) / math.log(2 / 1.5), abs=0.01)
    assert [part.text for part in drawn if part.get("class") == "tick"] == ["1.5", "2", "1"]
    first, last = ends_of(parts["interval"])
    axis = make_claim_axis(found)
    assert (first, last) == (pytest.approx(axis.place(0.9), abs=0.02), pytest.approx(axis.place(1.9), abs=0.02))
    assert "arrow" not in parts


@pytest.mark.parametrize(("low", "high", "num_arrows"), [(0.9, 1.9, 0), (0.02, 1.9, 1), (1.2, 19.0, 1)])
def test_a_wide_interval_ends_in_an_arrow_at_the_edge(low, high, num_arrows):
    parts, drawn = parts_of(make_finding(low=low, high=high))
    assert sum(part.get("class") == "arrow" for part in drawn) == num_arrows
    first, last = ends_of(parts["interval"])
    assert (first == 2.0, last == WIDTH - 2.0) == (low < 0.1, high > 10)
    assert 0 <= float(parts["claimed"].get("x")) < WIDTH


def test_an_open_range_is_shaded_to_the_edge():
    parts, _ = parts_of(make_finding("fraction", 0.0, -0.01, 0.02, (0.005, OPEN), "supported"))
    shade = parts["claimed"]
    assert float(shade.get("x")) + float(shade.get("width")) == pytest.approx(WIDTH)
    assert float(shade.get("x")) > WIDTH / 3
    below, _ = parts_of(make_finding("ratio", 0.5, 0.4, 0.7, (0.0, 1.0), "supported"))
    assert float(below["claimed"].get("x")) == 0.0
    assert "dot" in below
    assert "bound" not in below  # 1 is both: the neutral value and the end of the range
    assert "neutral" in below


@pytest.mark.parametrize(
    ("unit", "low", "high", "is_so"),
    [
        ("ratio", 6.69e-05, 6_133.0, True),
        ("ratio", 0.1, 10.0, False),
        ("ratio", 0.1, 10.1, True),
        ("samples", 10.0, 999.0, False),
        ("samples", 10.0, 1_001.0, True),
        ("exponent", -0.9, 1.0, False),
        ("exponent", -1.1, 1.0, True),
        ("fraction", -0.3, 0.6, False),
        ("fraction", -0.6, 0.6, True),
        ("fraction/doubling", -0.6, 0.6, True),
        ("ratio", 0.5, OPEN, True),
        ("exponent", math.nan, math.nan, True),
    ],
)
def test_an_effect_that_is_too_uncertain_is_not_printed(unit, low, high, is_so):
    assert is_too_uncertain(unit, low, high) is is_so
    found = make_finding(unit, 0.641, low, high, (0.5, 1.0))
    (row,) = list_claims([found])
    assert (row.effect == TOO_UNCERTAIN) is is_so
    parts, _ = parts_of(found)
    assert ("open-dot" in parts, "interval uncertain" in parts) == (not is_so, is_so)
    if is_so:
        assert row.interval == ""
        assert f"Measured: {TOO_UNCERTAIN}." in row.picture


@pytest.mark.parametrize(
    ("unit", "claimed", "words"),
    [
        ("ratio", (1.5, 2.0), "1.5 to 2 times"),
        ("ratio", (1.05, OPEN), "1.05 times or more"),
        ("ratio", (0.0, 1.0), "1 times or less"),
        ("fraction", (0.005, OPEN), "0.5 % or more"),
        ("fraction/doubling", (-OPEN, -0.001), "-0.1 points per doubling or less"),
        ("exponent", (0.9, 1.1), "0.9 to 1.1"),
        ("samples", (16.0, 1024.0), "16 to 1024 samples"),
    ],
)
def test_a_claimed_range_in_words(unit, claimed, words):
    assert describe_range(unit, *claimed) == words
    assert format_bound("fraction", 0.005) == "0.5 %"


@pytest.mark.parametrize(
    ("low", "high", "num_arrows"), [(6.69e-05, 6_133.0, 2), (math.nan, math.nan, 2), (0.9, 900.0, 1)]
)
def test_an_interval_without_meaning_is_dashed_over_the_claimed_range(low, high, num_arrows):
    parts, drawn = parts_of(make_finding(effect=0.641, low=low, high=high))
    assert sum(part.get("class") == "arrow" for part in drawn) == num_arrows
    assert ends_of(parts["interval uncertain"])[1] == WIDTH - 2.0
    assert 30 < float(parts["claimed"].get("width")) < WIDTH / 2


def test_each_tested_claim_has_one_picture_with_its_numbers():
    frames = make_frames(60, confirm=3)
    shown, found = describe_answers(gather_evidence(frames)), {item.statement: item for item in evaluate_claims(frames)}
    assert len(found) == len(CLAIMS)
    assert shown.tested
    for row in shown.tested:
        item = found[row.statement]
        whole = f"{row.effect} ({row.interval})" if row.interval else row.effect
        name = f"Claimed: {describe_range(item.unit, *item.claimed)}. Measured: {whole}. {row.verdict.capitalize()}."
        assert ET.fromstring(str(row.picture)).get("aria-label") == name
    assert not any(row.picture for row in shown.untested)
