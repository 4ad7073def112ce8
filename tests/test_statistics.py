"""Medians, intervals and the probability of being on the front."""

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sweep.analysis.costs import equal_cost_groups
from sweep.analysis.statistics import (
    Spread,
    configuration_groups,
    front_probabilities,
    median_errors,
    median_interval,
    pooled_spread,
    seed_interval,
    t_density,
    t_quantile,
    t_upper_tail,
)


def test_one_value_has_no_interval():
    interval = median_interval([3.0])
    assert (interval.median, interval.n) == (3.0, 1)
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert median_interval([np.nan]).n == 0


def test_three_values_span_their_range_and_repeat_exactly():
    interval = median_interval([0.90, 0.94, 0.91, np.nan])
    assert interval == (0.91, 0.90, 0.94, 3)
    assert interval == median_interval([0.90, 0.94, 0.91])


def test_interval_covers_the_true_median():
    generator = np.random.default_rng(1)
    covered = [median_interval(generator.normal(size=30), num_resamples=400) for _ in range(200)]
    share = np.mean([interval.low <= 0 <= interval.high for interval in covered])
    assert 0.88 <= share <= 0.99


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


# ------------------------------------------------------------------ Student's t, without waiting for scipy.stats


@pytest.mark.parametrize("degrees", [1, 2, 3, 9, 400])
def test_the_same_as_scipys_distribution(degrees: int) -> None:
    values = np.linspace(-30.0, 30.0, 13)
    np.testing.assert_allclose(t_upper_tail(values, degrees), stats.t.sf(values, degrees), rtol=1e-9)
    np.testing.assert_allclose(t_density(values, degrees), stats.t.pdf(values, degrees), rtol=1e-9)
    assert t_quantile(0.95, degrees) == pytest.approx(stats.t.ppf(0.975, degrees))


def test_without_degrees_the_density_is_the_normal_one() -> None:
    values = np.linspace(-4.0, 4.0, 9)
    np.testing.assert_allclose(t_density(values, 0), stats.norm.pdf(values), rtol=1e-12)


def test_a_report_waits_for_no_statistics_package() -> None:
    code = "import sys, reports.page.page, reports.figures.all_figures; "
    code += "print([m for m in ('scipy.stats', 'scipy.optimize', 'torch')"
    code += " if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
