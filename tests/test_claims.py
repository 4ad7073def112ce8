"""Every claim on the records of its own planned study: true, false, and not measured; how many trainings it takes."""

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from frames_factory import frames_of, make_spec
from scipy import stats
from test_findings import row

from benchmarks.claims_truth import find_effect, make_records
from sweep.analysis.claim_measures import expect_best
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import Claim
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import (
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
