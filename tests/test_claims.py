"""Every claim on the records of its own planned study: true, false, and not measured; how many trainings it takes."""

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from frames_factory import frames_of, make_frames, make_spec
from scipy import stats
from test_findings import row

from benchmarks.claims_truth import find_effect, make_records
from reports.labels import TOO_UNCERTAIN, describe_range
from reports.page.tables import WIDTH, draw_claim, list_claims, make_claim_axis
from sweep.analysis.claim_measures import expect_best
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import Claim
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import (
    Finding,
    assess_claim,
    count_needed,
    count_planned,
    count_tested,
    evaluate_claims,
    find_claim,
    find_verdicts,
    write_plan,
)
from sweep.analysis.statistics import Estimate, Region, assess_region, count_repetitions
from sweep.config.space import count_grid_points
from sweep.config.study_file import build_study

NAMES = [claim.name for claim in CLAIMS]


def claim_of(name: str) -> Claim:
    claim = find_claim(name)
    assert claim is not None
    return claim


@pytest.mark.parametrize("is_true", [True, False], ids=["true", "false"])
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_truth_is_found_by_the_planned_study(name: str, is_true: bool) -> None:
    claim = claim_of(name)
    effect = find_effect(claim, is_true=is_true, times=2.0)
    records = select_comparable(make_records(claim, effect, np.random.default_rng(1)))
    assert claim.find_lack(records) == ""
    found = claim.measure(records)
    verdict, p = assess_region(found.estimate, found.region or claim.region)
    assert (found.reason, verdict) == ("", "supported" if is_true else "contradicted")
    assert p < 0.05
    wanted = math.log(effect) if claim.is_ratio else effect
    assert abs(found.estimate.value - wanted) < 5 * found.estimate.error


def test_what_a_study_did_not_vary_is_not_measured_with_what_would() -> None:
    rows = [row(number, number, measured={"peak_memory_bytes": 1e6 + number}) for number in range(4)]
    found = {item.name: item for item in evaluate_claims(frames_of(make_spec(), rows))}
    assert list(found) == NAMES
    for claim in CLAIMS:
        item = found[claim.name]
        assert (item.verdict, item.n, math.isnan(item.effect)) == ("not measured", 0, True)
        assert item.reason.startswith("not measured by this study: to test it, a study has to ")
        assert item.trainings == claim.design.count_trainings(count_planned(claim)) > 0
    assert found["warmup_needed"].reason.endswith("has to vary warm-up (schedule.warmup)")
    assert found["ema_follows_batch"].reason.endswith(
        "has to vary EMA rule (rules.ema), and set ema decay (regularization.ema_decay)"
    )
    assert found["large_batches_sharp"].reason.endswith(" or sharpness (Keskar) (sharpness_keskar)")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_a_study_that_tests_its_claim(name: str) -> None:
    claim = claim_of(name)
    spec = build_study(tomllib.loads(write_plan(claim)), name)
    trainings = claim.design.count_trainings(count_planned(claim))
    assert (spec.trials, count_grid_points(spec.space), spec.confirm.most_trials) == (trainings, trainings, 0)
    # two hours of a CPU that takes 4 s for each
    assert trainings <= 1800
    assert {key for key in claim.varies if "." in key} <= {*spec.space, "batch.accumulation"}
    assert set(claim.sets) <= set(spec.base)


def test_repetitions_have_the_power_that_is_stated() -> None:
    distance, spread = 0.005, 0.01
    count = count_repetitions([(distance, 0.8)], spread, lost=1, alpha=0.05, fewest=2)

    def power(n: int) -> float:
        return float(stats.nct.sf(stats.t.isf(0.05, n - 1), n - 1, distance * math.sqrt(n) / spread))

    assert power(count - 1) < 0.8 <= power(count)
    assert count_repetitions([(distance, 0.8)], spread / 100, lost=1, alpha=0.05, fewest=7) == 7
    # beyond a thousand by the normal distribution: (1.645 + 0.842)^2 times the squared ratio
    assert count_repetitions([(distance, 0.8)], 0.5, lost=1, alpha=0.05, fewest=2) == pytest.approx(61_826, abs=5)
    # more claims in the same study require more trainings
    assert count_repetitions([(distance, 0.8)], spread, lost=1, alpha=0.005, fewest=2) > count


def test_the_records_own_spread_replaces_the_assumed_one() -> None:
    claim = claim_of("warmup_needed")
    assert count_tested(claim) == 1
    few = count_needed(claim, Estimate(0.006, 0.001, 19, 20), claim.region, 40, 1)
    many = count_needed(claim, Estimate(0.006, 0.004, 19, 20), claim.region, 40, 1)
    assert few < claim.design.count_trainings(count_planned(claim)) < many
    # pairs of two trainings that scatter by 0.001 * sqrt(20)
    pairs = count_repetitions([(claim.matters, 0.8)], 0.001 * math.sqrt(20), 1, 0.05, 2)
    assert few == 2 * pairs
    assert count_needed(claim, Estimate(math.nan, math.nan, 0, 0), Region(0, 1), 7, 1) == 52


def test_the_best_of_fewer_tries_is_lower() -> None:
    values = np.array([0.3, 0.9, 0.5])
    assert expect_best(values, 3) == pytest.approx(0.9)
    assert expect_best(values, 1) == pytest.approx(values.mean())
    assert expect_best(values, 2) == pytest.approx((0.9 + 0.9 + 0.5) / 3)  # of the three pairs


def test_equal_accuracies_of_a_few_images_have_the_error_of_their_rounding() -> None:
    claim = claim_of("ema_follows_batch")
    made = make_records(claim, 0.0, np.random.default_rng(1))
    trials = made.trials.assign(val_accuracy=0.875).query("seed < 4")
    spec = make_spec(name=str(trials["study"].iloc[0]))
    records = replace(made, spec=spec, trials=trials, num_images=504)
    (finding,) = find_verdicts([assess_claim(claim, select_comparable(records))])
    error = 1 / (504 * math.sqrt(6 * 4))
    assert (finding.n, finding.effect) == (4, 0.0)
    assert finding.high == pytest.approx(stats.t.ppf(0.975, 3) * error)
    assert finding.p == pytest.approx(stats.t.sf(0.005 / error, 3))
    assert finding.verdict == "contradicted"


# --- as a forest plot


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


@pytest.mark.parametrize(("low", "high", "is_so"), [(0.1, 10.0, False), (0.1, 10.1, True), (0.5, math.inf, True)])
def test_an_effect_that_is_too_uncertain_is_not_printed(low, high, is_so):
    (each,) = list_claims([make_finding("ratio", 0.641, low, high, (0.5, 1.0))])
    assert (each.effect == TOO_UNCERTAIN) is (each.picture.effect is None) is is_so
    if is_so:
        assert each.interval == ""
        assert f"Measured: {TOO_UNCERTAIN}." in each.picture.name


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
    tested = [each for each in rows if each.picture]
    assert tested
    for each in tested:
        item, whole = each.finding, f"{each.effect} ({each.interval})" if each.interval else each.effect
        name = f"Claimed: {describe_range(item.unit, *item.claimed)}. Measured: {whole}. {item.verdict.capitalize()}."
        assert each.picture.name == name
    assert all(each.finding.reason for each in rows if not each.picture)
