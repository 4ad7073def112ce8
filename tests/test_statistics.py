"""Fronts against their definition; medians, intervals, estimates and verdicts against SciPy and by hand."""

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from frames_factory import frames_of, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from sweep.analysis.comparable import summarize_configurations
from sweep.analysis.costs import equal_cost_groups
from sweep.analysis.statistics import (
    Estimate,
    Grouping,
    Region,
    Spread,
    assess_region,
    confidence_interval,
    configuration_groups,
    correct_holm,
    find_failed,
    front_probabilities,
    front_rank,
    group_configurations,
    hypervolume,
    mean_estimate,
    median_errors,
    non_dominated,
    pooled_spread,
    reference_point,
    seed_interval,
    slope_estimate,
    t_density,
    t_quantile,
    t_upper_tail,
)


def test_few_seeds_get_an_interval_that_is_wide_enough():
    own = seed_interval([0.90, 0.94, 0.91])
    assert (own.median, own.n) == (0.91, 3)
    # t(2) = 4.303, standard deviation 0.02082, error of a median of three 0.6698
    assert own.high - own.median == pytest.approx(4.303 * 0.02082 * 0.6698, rel=1e-3)
    pooled = seed_interval([0.90, 0.94, 0.91], Spread(0.01, 20))
    assert pooled.high - pooled.median == pytest.approx(2.086 * 0.01 * 0.6698, rel=1e-3)
    assert seed_interval([0.5], Spread(0.01, 20)).low == pytest.approx(0.5 - 2.086 * 0.01, rel=1e-3)
    assert math.isnan(seed_interval([0.5]).low)
    assert seed_interval([]).n == 0


def test_errors_of_medians():
    draws = np.median(np.random.default_rng(0).standard_normal((40_000, 25)), axis=1).std()
    one, three, many = median_errors(np.array([1, 3, 25]))
    assert (one, three) == (1.0, pytest.approx(0.6698))
    assert many == pytest.approx(draws, rel=0.03)
    assert math.isnan(median_errors(np.array([0]))[0])


def test_spread_is_pooled_within_groups():
    values = np.array([1.0, 3.0, 10.0, 12.0, 14.0, 99.0, np.nan])
    spread = pooled_spread(values, np.array([0, 0, 1, 1, 1, 2, 2]))
    assert spread.degrees == 3
    assert spread.sd == pytest.approx(math.sqrt((2 + 8) / 3))
    assert pooled_spread(values[-2:], np.array([0, 0])).degrees == 0


def test_shares_of_the_front():
    draws = np.array([[[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]])
    assert front_probabilities(draws, [1, 1]).tolist() == [1.0, 0.5, 0.0]
    assert front_probabilities(draws, [-1, -1]).tolist() == [0.0, 0.0, 1.0]


def test_trials_cost_the_same_where_a_switch_is_on_in_all_of_them_or_in_none():
    trials = pd.DataFrame(
        {
            "config.optimizer.momentum": [0.0, 0.9, 0.95, 0.9],
            "config.regularization.grad_clip": [np.nan, 1.0, 2.0, np.nan],
            "config.diagnostics.noise_scale": [False, False, False, False],
            "config.optimizer.lr": [0.1, 0.2, 0.3, 0.4],
            "config.data.root": ["here", "here", "there", "here"],
            "config.batch.micro": [32, 32, 32, 32],
        }
    )
    assert equal_cost_groups(trials).tolist() == [0, 1, 1, 2]
    assert equal_cost_groups(trials, ["optimizer.momentum"]).tolist() == [0, 1, 1, 0]
    assert configuration_groups(trials).tolist() == [0, 1, 2, 3]


# --- Student's t, without waiting for scipy.stats


@pytest.mark.parametrize("degrees", [0, 1, 2, 3, 9, 400])
def test_the_same_as_scipys_distribution(degrees: int) -> None:
    values = np.linspace(-30.0, 30.0, 13)
    truth = stats.t(degrees) if degrees else stats.norm
    np.testing.assert_allclose(t_density(values, degrees), truth.pdf(values), rtol=1e-9)
    if degrees:
        np.testing.assert_allclose(t_upper_tail(values, degrees), truth.sf(values), rtol=1e-9)
        assert t_quantile(0.95, degrees) == pytest.approx(truth.ppf(0.975))


def test_a_report_waits_for_no_statistics_package() -> None:
    code = "import sys, reports.page.page, reports.figures.all_figures; "
    code += "print([m for m in ('scipy.stats', 'scipy.optimize', 'torch')"
    code += " if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- estimates and verdicts


def test_holm_as_in_the_definition() -> None:
    assert correct_holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert correct_holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert correct_holm([]).tolist() == []


def test_a_verdict_needs_the_interval_on_one_side() -> None:
    region = Region(0.75, 1.25)
    inside, outside, between = (Estimate(value, 0.05, 50, 60) for value in (1.0, 0.3, 0.8))
    assert assess_region(inside, region) == ("supported", pytest.approx(stats.t.sf(5, 50)))
    assert assess_region(outside, region) == ("contradicted", pytest.approx(stats.t.sf(9, 50)))
    assert assess_region(between, region)[1] > 0.05
    assert assess_region(Estimate(1.0, math.nan, 0, 1), region) == ("undecided", 1.0)
    assert assess_region(Estimate(5.0, 1.0, 9, 10), Region(0.0, math.inf))[0] == "supported"
    ratio = Estimate(math.log(1.3), 0.01, 9, 10, is_ratio=True)
    assert assess_region(ratio, Region(1.2, 1.4))[0] == "supported"
    assert confidence_interval(ratio)[0] == pytest.approx(1.3)


def test_estimates_as_scipy_has_them() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.3, 1.0, 12)
    mean = mean_estimate(values)
    test = stats.ttest_1samp(values, 0.0)
    assert mean.value / mean.error == pytest.approx(test.statistic)
    assert confidence_interval(mean)[1:] == pytest.approx(tuple(test.confidence_interval()))
    x = rng.normal(size=20)
    y = 2 * x + rng.normal(size=20)
    slope, line = slope_estimate(x, y), stats.linregress(x, y)
    assert (slope.value, slope.error) == pytest.approx((line.slope, line.stderr))
    assert mean_estimate([0.1]).degrees == 0
    assert slope_estimate(x[:2], y[:2]).degrees == 0


# --- fronts


def by_definition(values):
    better = [
        [np.all(a <= b) and np.any(a < b) for a in values]  # a dominates b
        for b in values
    ]
    return ~np.array(better, dtype=bool).reshape(len(values), len(values)).any(axis=1)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(-3, 3).map(float)))
def test_front_is_the_definition(values):
    assert np.array_equal(non_dominated(values), by_definition(values))
    assert np.array_equal(front_rank(values) == 0, by_definition(values))


def test_duplicates_stay_together_and_missing_values_never_win():
    values = np.array([[1.0, 2.0], [1.0, 2.0], [np.nan, 0.0], [0.0, -np.inf], [3.0, 3.0]])
    assert non_dominated(values).tolist() == [True, True, False, False, False]
    assert front_rank(values).tolist() == [0, 0, -1, -1, 1]


def test_hypervolume_of_two_boxes():
    # boxes 2x1 and 1x2 from the corner (2, 2), overlapping in 1x1
    values = np.array([[0.0, 1.0], [1.0, 0.0], [5.0, 5.0], [np.nan, 0.0]])
    assert hypervolume(values, [2.0, 2.0]) == pytest.approx(3.0)
    assert hypervolume(values * [-1, 1], [-2.0, 2.0], [-1, 1]) == pytest.approx(3.0)
    assert hypervolume(values, [-1.0, -1.0]) == 0.0


def test_reference_point_lies_beyond_the_worst():
    values = np.array([[0.5, 10.0], [0.9, 30.0], [np.nan, 99.0]])
    assert reference_point(values, [-1, 1]) == pytest.approx([0.46, 32.0])
    with pytest.raises(ValueError, match="one row"):
        reference_point(np.array([[np.nan]]))


# --- one row per configuration

OBJECTIVES = ("val_accuracy", "train_seconds")


def trial(number, accuracy, seconds, lr=0.1, **rest):
    values = {"number": number, "config.optimizer.lr": lr, "val_accuracy": accuracy, "train_seconds": seconds}
    return values | {"global_batch_size": 64} | rest


def confirm(number, accuracy, seconds, seed, lr=0.1, **rest):
    return trial(number, accuracy, seconds, lr, phase="confirm", seed=seed, **{"config.seed": seed}, **rest)


def table(*rows):
    return summarize_configurations(frames_of(make_spec(), list(rows)).trials, OBJECTIVES)


def test_search_only():
    frame = table(trial(0, 0.9, 10.0, 0.1), trial(1, 0.8, 5.0, 0.2), trial(2, 0.7, 6.0, 0.3))
    assert frame["on_front"].tolist() == [True, True, False]
    assert frame["confirmed"].tolist() == [False] * 3
    assert frame["val_accuracy_low"].isna().all()
    assert frame["numbers"].tolist() == [(0,), (1,), (2,)]


def test_confirmed_median_leaves_out_the_seed_that_was_picked():
    frame = table(
        trial(0, 0.99, 10.0), trial(1, 0.8, 5.0, 0.2), confirm(2, 0.90, 11.0, 1), confirm(3, 0.93, 12.0, 2),
        confirm(4, 0.91, 13.0, 3),
    )  # fmt: skip
    first = frame.iloc[0]
    assert first["val_accuracy"] == 0.91
    # three seeds say little of their own spread, so the interval is wider than their range
    assert 0.85 < first["val_accuracy_low"] < 0.90
    assert 0.93 < first["val_accuracy_high"] < 0.96
    assert (first["val_accuracy_search"], first["num_seeds"]) == (0.99, 3)
    assert first["seeds"] == (1, 2, 3)
    assert frame["on_front"].tolist() == [True, False]  # only confirmed rows compete once there are any
    assert frame["on_search_front"].tolist() == [True, True]


def test_every_seed_of_a_search_counts_where_nothing_was_trained_again():
    seeded = [trial(n, value, 10.0, lr, seed=n % 3) for n, (value, lr) in enumerate(
        [(0.90, 0.1), (0.93, 0.1), (0.91, 0.1), (0.8, 0.2), (0.6, 0.2), (0.7, 0.3)]
    )]  # fmt: skip
    frame = table(*seeded)
    assert frame["val_accuracy"].tolist() == pytest.approx([0.91, 0.7, 0.7])
    assert frame["num_seeds"].tolist() == [3, 2, 1]
    assert frame["confirmed"].tolist() == [True, True, False]
    assert (frame["number"].tolist(), frame["val_accuracy_search"].tolist()) == ([0, 3, 5], [0.9, 0.8, 0.7])
    # a search whose best was trained again picked it by its first result
    again = table(*seeded, confirm(6, 0.89, 10.0, 5))
    assert again["val_accuracy"].tolist() == pytest.approx([0.89, 0.8, 0.7])
    assert again["confirmed"].tolist() == [True, False, False]


def test_one_confirming_seed_has_no_interval_and_failed_seeds_are_counted():
    frame = table(
        trial(0, 0.9, 10.0), confirm(1, 0.8, 11.0, 1), confirm(2, None, None, 2, outcome="diverged"),
        confirm(3, None, None, 3, outcome=None),
    )  # fmt: skip
    row = frame.iloc[0]
    assert (row["val_accuracy"], row["num_seeds"], row["num_failed_seeds"]) == (0.8, 1, 1)
    assert math.isnan(row["val_accuracy_low"])


def test_missing_values_and_no_rows():
    frame = table(trial(0, None, 10.0), trial(1, 0.5, 20.0, 0.2))
    assert frame["on_front"].tolist() == [False, True]
    nothing = table()
    assert len(nothing) == 0
    assert {"on_front", "val_accuracy_low", "num_failed_seeds"} <= set(nothing.columns)
    assert len(table(trial(0, None, None, outcome="crashed"))) == 0


# --- spreads that differ, and trainings that failed


def grouping_of(members: list[int]) -> Grouping:
    trials = pd.DataFrame({"phase": ["confirm"] * len(members)})
    return group_configurations(trials, np.array(members))


def scatter(spreads: list[float], num_seeds: int, seed: int = 0) -> tuple[np.ndarray, Grouping]:
    rng = np.random.default_rng(seed)
    values = np.concatenate([spread * rng.standard_normal(num_seeds) for spread in spreads])
    return values, grouping_of(np.repeat(np.arange(len(spreads)), num_seeds).tolist())


def test_equal_spreads_are_pooled_and_different_ones_kept_apart() -> None:
    equal, groups = scatter([1.0] * 40, 4)
    deviations, degrees = groups.moderate_spread(equal)
    own = equal.reshape(40, 4).std(axis=1, ddof=1)
    assert np.std(deviations) < 0.5 * np.std(own)
    assert np.median(degrees) > 10
    different, groups = scatter([0.1, 10.0] * 20, 4)
    deviations, degrees = groups.moderate_spread(different)
    assert np.median(deviations[1::2]) > 3 * np.median(deviations[::2])
    assert np.median(degrees) < 10


def test_moderated_spreads_are_nearer_to_the_truth_than_own_and_pooled_ones() -> None:
    truth = np.exp(np.random.default_rng(1).normal(0.0, 0.5, 60))
    values, groups = scatter(truth.tolist(), 4, seed=2)
    own = values.reshape(60, 4).std(axis=1, ddof=1)
    pooled = np.full(60, pooled_spread(values, groups.members).sd)
    errors = [np.mean(np.log(each / truth) ** 2) for each in (groups.moderate_spread(values)[0], own, pooled)]
    assert errors[0] < 0.8 * min(errors[1:])


def test_without_repeats_there_is_no_spread_and_equal_values_have_none() -> None:
    deviations, degrees = grouping_of([0, 1, 2]).moderate_spread(np.array([1.0, 2.0, 3.0]))
    assert np.isnan(deviations).all()
    assert not degrees.any()
    deviations, degrees = grouping_of([0, 0, 1, 1]).moderate_spread(np.array([1.0, 1.0, 2.0, 2.0]))
    assert not deviations.any()
    assert (degrees == 2).all()


STEADY = [90.0, 90.2, 90.1, 89.9]


@pytest.mark.parametrize(("values", "failed"), [
    ([90.1, 90.2, 82.0, 90.0], [2]),  # far below the others, which are close together
    ([90.1, 90.2, 97.0, 90.0], []),  # far above: no failure
    ([75.0, 82.0, 90.0, 86.0], []),  # all are far apart: an unstable rate
    ([90.1, 82.0], []),  # of two nobody knows which
    ([90.1, 90.2, 82.0, float("nan")], [2]),
    ([82.0, 82.1, 90.0, 90.2], []),  # as many low ones as high ones
])  # fmt: skip
def test_a_training_far_below_others_of_its_configuration_failed(values: list[float], failed: list[int]) -> None:
    groups = grouping_of([0] * len(values) + [1] * len(STEADY) + [2] * len(STEADY))
    found = find_failed(np.array([*values, *STEADY, *STEADY]), groups)
    assert np.flatnonzero(found).tolist() == failed
