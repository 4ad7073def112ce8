"""Quality flags of a timing: which times are in doubt."""

from collections.abc import Sequence

import numpy as np
import pytest

from sweep.measurement.quality import (
    StepWindow,
    find_reference_flags,
    find_timing_flags,
    measure_slowdown,
    measure_time_error,
)
from sweep.records.quality import MEANINGS, find_time_doubts, name_flags


def windows_of(
    seconds: Sequence[float], waited: Sequence[float | None] | None = None, steps: Sequence[int] | None = None
) -> list[StepWindow]:
    """Windows of one step each, without waiting, where nothing else is given."""
    parts = zip(seconds, steps or [1] * len(seconds), waited or [0.0] * len(seconds), strict=True)
    return [StepWindow(took, count, 64 * count, True, wait) for took, count, wait in parts]


def flags(seconds: list[float], num_steps: int = 300, waited: Sequence[float | None] | None = None) -> tuple[str, ...]:
    return find_timing_flags(windows_of(seconds, waited), num_steps)


def steps(noise: float, count: int = 30, seed: int = 0) -> list[float]:
    """Step times around 10 ms with a relative deviation of ``noise``."""
    return list(0.01 * (1 + noise * np.random.default_rng(seed).standard_normal(count)))


def simulate(
    seed: int, count: int, slowdown: float = 1.0, jitter: float = 0.0, *, is_waiting_known: bool = True
) -> list[StepWindow]:
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
    waited = (waits * numbers).tolist() if is_waiting_known else [None] * count
    return windows_of(((each + waits) * numbers).tolist(), waited, numbers.tolist())


def mean_of(windows: list[StepWindow]) -> float:
    return sum(window.seconds for window in windows) / sum(window.num_steps for window in windows)


@pytest.mark.parametrize("count", [25, 50, 200, 2000])
def test_of_twenty_idle_trials_one_at_most_is_in_doubt_and_of_twenty_disturbed_ones_nineteen_are(count: int) -> None:
    num = 200 if count < 2000 else 100

    def num_flagged(slowdown: float, first_seed: int, jitter: float = 0.0, *, is_waiting_known: bool = True) -> int:
        seeds = range(first_seed, first_seed + num)
        windows = (simulate(seed, count, slowdown, jitter, is_waiting_known=is_waiting_known) for seed in seeds)
        return sum(bool(find_time_doubts(find_timing_flags(each, num_steps=1000))) for each in windows)

    for jitter in (0.0, 0.08):  # single windows differ widely, but the mean of many is known
        assert num_flagged(1.0, 0, jitter) <= num / 20
    for slowdown, is_waiting_known in ((1.3, True), (1.5, True), (2.0, True), (1.5, False), (2.0, False)):
        assert num_flagged(slowdown, 1000, is_waiting_known=is_waiting_known) >= num * 19 / 20, slowdown


def test_the_time_of_a_disturbed_trial_is_that_of_its_undisturbed_steps() -> None:
    ratios, inside = [], 0
    for seed in range(200):
        windows = simulate(seed, 100, slowdown=1.6)
        waited = sum(window.waited or 0.0 for window in windows) / sum(window.num_steps for window in windows)
        truth = mean_of(windows) - waited
        slowdown, error = measure_slowdown(windows), measure_time_error(windows)
        assert slowdown is not None
        assert error is not None
        found = mean_of(windows) / (1 + slowdown)
        ratios.append(found / truth)
        inside += abs(found - truth) <= error * found
    assert np.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.percentile(np.abs(np.array(ratios) - 1), 95) < 0.05
    assert inside >= 0.92 * 200  # the interval is that of the undisturbed steps


def test_the_interval_of_the_mean_holds_the_truth_although_windows_are_correlated() -> None:
    inside = 0
    for seed in range(400):
        windows = simulate(seed, 100)
        error = measure_time_error(windows)
        assert error is not None
        # E[exp(noise)] of a stationary variance of 0.02^2 / (1 - 0.6^2), and the hiccups
        truth = 0.005 * np.exp(0.02**2 / (1 - 0.6**2) / 2) * (1 + 0.02 * 0.3)
        inside += abs(mean_of(windows) - truth) <= error * mean_of(windows)
    assert inside >= 0.92 * 400


def test_a_slowdown_is_known_only_from_windows_with_and_without_waiting() -> None:
    seconds, waits = [0.1] * 20 + [0.2] * 20, [0.001] * 20 + [0.1] * 20
    slowed = windows_of(seconds, waits)
    assert measure_slowdown(slowed) == pytest.approx(0.5)
    assert "slowed_by_others" in find_timing_flags(slowed, 400)
    assert measure_time_error(slowed) == pytest.approx(0.0, abs=1e-9)  # of the undisturbed steps
    assert measure_slowdown(windows_of(seconds, [None] * 40)) is None  # a kernel without statistics
    assert measure_slowdown(windows_of(seconds, [0.001] * 7 + [0.1] * 33)) is None  # too few to compare with
    assert measure_slowdown(windows_of(seconds, [0.001] * 40)) == 0.0  # slower for another reason
    # a GPU's step does not take longer because the host waited
    assert measure_slowdown(windows_of([0.1] * 40, waits)) == pytest.approx(0.0)
    assert "slowed_by_others" not in flags([0.1] * 40, 400, waits)


@pytest.mark.parametrize(("waited", "is_named"), [
    ([0.6] * 7, True), ([0.0] * 5 + [0.6] * 2, True), ([0.1] * 7, False), ([None] * 7, False),
    ([0.0] * 20 + [0.6] * 20, False),  # windows to compare with show what the waiting cost
])  # fmt: skip
def test_waiting_in_every_window_is_named_where_there_is_nothing_to_compare_with(
    waited: list[float | None], is_named: bool
) -> None:
    found = flags([1.2] * len(waited), len(waited), waited)
    assert ("processor_wait" in found, "slowed_by_others" in found) == (is_named, False)


def test_a_wide_spread_of_many_windows_is_no_doubt_about_their_mean() -> None:
    wide = steps(0.1, 200)
    assert flags(wide, 2000) == ("spread",)
    assert measure_time_error(windows_of(wide)) == pytest.approx(2 * 0.1 / 200**0.5, rel=0.5)


def test_windows_count_by_their_steps() -> None:
    # the mean over all steps: windows of many steps weigh more than those of few
    even = windows_of([1.0, 2.0, 3.0, 4.0], steps=[10, 20, 30, 40])
    assert measure_time_error(even) == pytest.approx(0.0, abs=1e-12)
    few, many = (
        measure_time_error(windows_of([1.0] * 20 + [1.5 * count], steps=[10] * 20 + [10 * count])) for count in (1, 20)
    )
    assert few is not None
    assert many is not None
    assert many > 3 * few
    assert measure_time_error(windows_of([1.0, 1.0])) is None


SLOWER = [1.0, 1.01, 0.99] * 3 + [1.05] * 3 + [1.12, 1.11, 1.13] * 3


@pytest.mark.parametrize(("seconds", "num_steps", "expected"), [
    (steps(0.02), 300, ()), (steps(0.01), 19, ("few_steps",)), (steps(0.01, 2), 300, ("few_steps",)),
    ([], 0, ("few_steps",)), ([0.95, 1.0, 1.05, 0.94, 1.0, 1.05] * 2, 300, ("spread",)),
    ([*steps(0.01), 0.02, 0.03], 300, ("uncertain_time",)),  # two windows out of 32 move no median, but the mean
    (SLOWER, 300, ("spread", "drift")), (SLOWER[::-1], 300, ("spread", "drift")),
    ([1.0, 1.02, 1.04, 1.06, 1.1, 1.12], 300, ()),  # no thirds
])  # fmt: skip
def test_the_flags_of_a_timing(seconds: list[float], num_steps: int, expected: tuple[str, ...]) -> None:
    assert flags(seconds, num_steps) == expected


def test_reference_work_is_compared_with_that_of_the_other_trials() -> None:
    others = [0.010, 0.0101, 0.0099, 0.0102, 0.010]
    found = [bool(find_reference_flags(seconds, others)) for seconds in (0.0105, 0.0111, 0.0089)]
    assert found == [False, True, True]
    assert find_reference_flags(0.0111, others[:4]) == ()


def test_doubts_are_three_flags_and_those_of_another_version_and_every_flag_has_a_name_of_its_own() -> None:
    assert find_time_doubts(("spread", "a doubt of another version", "")) == {"a doubt of another version"}
    assert not find_time_doubts(("spread", "drift", "busy_host", "reference_drift", "throttled", "few_steps"))
    assert len(set(map(name_flags, MEANINGS))) == len(MEANINGS)
    assert name_flags("busy_host,unheard_of") == "other programs used the cores, unheard_of"
