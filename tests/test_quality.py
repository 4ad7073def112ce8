"""Quality flags of a timing: which times are in doubt."""

import numpy as np
import pytest

from sweep.measurement.quality import (
    find_reference_flags,
    find_timing_flags,
    measure_relative_drift,
    measure_relative_spread,
    measure_slowdown,
    measure_time_error,
)
from sweep.records.quality import MEANINGS, find_time_doubts, name_flags

Windows = tuple[list[float], list[int], list[float | None]]  # seconds, steps and seconds of waiting of each window


def steps(noise: float, count: int = 30, seed: int = 0) -> list[float]:
    """Step times around 10 ms with a relative deviation of ``noise``."""
    return list(0.01 * (1 + noise * np.random.default_rng(seed).standard_normal(count)))


def flags(seconds: list[float], num_steps: int = 300) -> tuple[str, ...]:
    """The flags of windows of one step each."""
    return find_timing_flags(seconds, [1] * len(seconds), [0.0] * len(seconds), num_steps)


def simulate(
    seed: int, count: int, slowdown: float = 1.0, jitter: float = 0.0, *, is_waiting_known: bool = True
) -> Windows:
    """Windows of a trial on a shared machine: step times of 5 ms with autocorrelated noise, ``jitter`` of the single
    windows and rare hiccups; half of the windows, in one phase, take ``slowdown`` times as long, by waiting for a
    processor."""
    draws = np.random.default_rng(seed)
    noise, level = np.empty(count), 0.0
    for index in range(count):
        level = 0.6 * level + 0.02 * draws.standard_normal()
        noise[index] = level
    noise += jitter * draws.standard_normal(count)
    numbers = draws.integers(5, 21, count)
    each = 0.005 * np.exp(noise) * np.where(draws.random(count) < 0.02, 1.3, 1.0)
    length = count // 2
    begin = int(draws.integers(0, count - length + 1))
    waits = np.zeros(count)
    waits[begin : begin + length] = (slowdown - 1) * each[begin : begin + length]
    waited = list(waits * numbers) if is_waiting_known else [None] * count
    return list((each + waits) * numbers), [int(number) for number in numbers], waited


@pytest.mark.parametrize("count", [25, 50, 200, 2000])
def test_of_twenty_idle_trials_one_at_most_is_in_doubt_and_of_twenty_disturbed_ones_nineteen_are(count: int) -> None:
    def num_flagged(slowdown: float, first_seed: int, jitter: float = 0.0, *, is_waiting_known: bool = True) -> int:
        seeds = range(first_seed, first_seed + 200)
        windows = (simulate(seed, count, slowdown, jitter, is_waiting_known=is_waiting_known) for seed in seeds)
        return sum(bool(find_time_doubts(find_timing_flags(*each, num_steps=1000))) for each in windows)

    for jitter in (0.0, 0.08):  # single windows differ widely, but the mean of many is known
        assert num_flagged(1.0, 0, jitter) <= 200 / 20
    for slowdown in (1.3, 1.5, 2.0):
        assert num_flagged(slowdown, 1000) >= 200 * 19 / 20, slowdown
    for slowdown in (1.5, 2.0):  # of another cause
        assert num_flagged(slowdown, 1000, is_waiting_known=False) >= 200 * 19 / 20, slowdown


def test_the_time_of_a_disturbed_trial_is_that_of_its_undisturbed_steps() -> None:
    ratios, inside = [], 0
    for seed in range(200):
        seconds, numbers, waited = simulate(seed, 100, slowdown=1.6)
        truth = (sum(seconds) - sum(each or 0.0 for each in waited)) / sum(numbers)
        slowdown, error = measure_slowdown(seconds, numbers, waited), measure_time_error(seconds, numbers, waited)
        assert slowdown is not None
        assert error is not None
        found = sum(seconds) / sum(numbers) / (1 + slowdown)
        ratios.append(found / truth)
        inside += abs(found - truth) <= error * found
    assert np.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.percentile(np.abs(np.array(ratios) - 1), 95) < 0.05
    assert inside >= 0.92 * 200  # the interval is that of the undisturbed steps


def test_a_slowdown_is_known_only_from_windows_with_and_without_waiting() -> None:
    seconds, steps = [0.1] * 20 + [0.2] * 20, [10] * 40
    waits = [0.001] * 20 + [0.1] * 20
    assert measure_slowdown(seconds, steps, waits) == pytest.approx(0.5)
    assert "slowed_by_others" in find_timing_flags(seconds, steps, waits, 400)
    assert measure_time_error(seconds, steps, waits) == pytest.approx(0.0, abs=1e-9)  # of the undisturbed steps
    assert measure_slowdown(seconds, steps, [None] * 40) is None  # a kernel without statistics
    assert measure_slowdown(seconds, steps, [0.001] * 7 + [0.1] * 33) is None  # too few to compare with
    assert measure_slowdown(seconds, steps, [0.001] * 40) == 0.0  # slower for another reason
    # a GPU's step does not take longer because the host waited
    assert measure_slowdown([0.1] * 40, steps, waits) == pytest.approx(0.0)
    assert "slowed_by_others" not in find_timing_flags([0.1] * 40, steps, waits, 400)


def test_waiting_in_every_window_is_named_although_there_is_nothing_to_compare_with() -> None:
    seconds, steps = [1.2] * 7, [1] * 7
    assert "processor_wait" in find_timing_flags(seconds, steps, [0.6] * 7, 7)
    assert "processor_wait" in find_timing_flags(seconds, steps, [0.0] * 5 + [0.6] * 2, 7)
    assert "processor_wait" not in find_timing_flags(seconds, steps, [0.1] * 7, 7)
    assert "processor_wait" not in find_timing_flags(seconds, steps, [None] * 7, 7)
    # with windows to compare with, these show what the waiting cost
    flags = find_timing_flags([1.2] * 40, [1] * 40, [0.0] * 20 + [0.6] * 20, 40)
    assert "processor_wait" not in flags
    assert "slowed_by_others" not in flags


def test_the_interval_of_the_mean_holds_the_truth_although_windows_are_correlated() -> None:
    inside = 0
    for seed in range(400):
        seconds, numbers, waited = simulate(seed, 100)
        mean, error = sum(seconds) / sum(numbers), measure_time_error(seconds, numbers, waited)
        assert error is not None
        # E[exp(noise)] of a stationary variance of 0.02^2 / (1 - 0.6^2), and the hiccups
        truth = 0.005 * np.exp(0.02**2 / (1 - 0.6**2) / 2) * (1 + 0.02 * 0.3)
        inside += abs(mean - truth) <= error * mean
    assert inside >= 0.92 * 400


def test_a_wide_spread_of_many_windows_is_no_doubt_about_their_mean() -> None:
    wide = steps(0.1, 200)
    assert flags(wide, 2000) == ("spread",)
    assert not find_time_doubts(("spread", "drift", "busy_host", "reference_drift", "throttled", "few_steps"))
    assert measure_time_error(wide, [1] * 200, [None] * 200) == pytest.approx(2 * 0.1 / 200**0.5, rel=0.5)


def test_windows_count_by_their_steps() -> None:
    # the mean over all steps: windows of many steps weigh more than those of few
    assert measure_time_error([1.0, 2.0, 3.0, 4.0], [10, 20, 30, 40], [None] * 4) == pytest.approx(0.0, abs=1e-12)
    few, many = (
        measure_time_error([1.0] * 20 + [1.5 * count], [10] * 20 + [10 * count], [None] * 21) for count in (1, 20)
    )
    assert few is not None
    assert many is not None
    assert many > 3 * few
    assert measure_time_error([1.0, 1.0], [1, 1], [0.0, 0.0]) is None


def test_a_steady_timing_raises_no_doubt_unless_it_is_short() -> None:
    assert {flags(steps(0.02, seed=seed)) for seed in range(20)} == {()}
    for count, num_steps in ((30, 19), (2, 300), (0, 0)):
        assert flags(steps(0.01, count), num_steps) == ("few_steps",)


def test_spread_is_the_middle_half_over_the_median() -> None:
    assert measure_relative_spread([9.0, 10.0, 11.0, 12.0, 13.0]) == pytest.approx(2 / 11)
    assert flags([0.95, 1.0, 1.05, 0.94, 1.0, 1.05] * 2) == ("spread",)
    lonely = [*steps(0.01), 0.02, 0.03]  # two windows out of 32 move no median, but the mean
    assert flags(lonely) == ("uncertain_time",)


def test_drift_is_flagged_in_either_direction_and_needs_thirds() -> None:
    slower = [1.0, 1.01, 0.99] * 3 + [1.05] * 3 + [1.12, 1.11, 1.13] * 3
    assert (
        measure_relative_drift(slower[::-1])
        == pytest.approx(measure_relative_drift(slower))
        == pytest.approx(0.12 / 1.05, abs=0.02)
    )
    assert "drift" in flags(slower)
    assert "drift" in flags(slower[::-1])
    assert "drift" not in flags([1.0, 1.05, 1.12, 1.2])


def test_reference_work_is_compared_with_that_of_the_other_trials() -> None:
    others = [0.010, 0.0101, 0.0099, 0.0102, 0.010]
    assert find_reference_flags(0.0105, others) == ()
    assert find_reference_flags(0.0111, others) == ("reference_drift",)
    assert find_reference_flags(0.0089, others) == ("reference_drift",)
    assert find_reference_flags(0.02, others[:4]) == ()  # too few to say what is usual


def test_only_a_doubt_about_the_figure_is_one_about_the_time() -> None:
    doubts = {flag for flag in MEANINGS if find_time_doubts((flag,))}
    assert doubts == {"uncertain_time", "slowed_by_others", "packed"}
    assert find_time_doubts(("spread", "a doubt of another version", "")) == {"a doubt of another version"}


def test_every_flag_has_a_short_name_of_its_own() -> None:
    assert len(set(map(name_flags, MEANINGS))) == len(MEANINGS)
    assert name_flags("busy_host,spread,unheard_of") == (
        "other programs used the cores, step times scatter, unheard_of"
    )
