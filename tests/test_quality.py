"""Quality flags of a timing."""

import numpy as np
import pytest

from sweep.measurement.quality import (
    INHERENT,
    MEANINGS,
    find_reference_flags,
    find_timing_flags,
    is_disturbed,
    is_worth_repeating,
    measure_relative_drift,
    measure_relative_spread,
)


def steps(noise: float, count: int = 30, seed: int = 0) -> list[float]:
    """Step times around 10 ms with a relative deviation of ``noise``."""
    return list(0.01 * (1 + noise * np.random.default_rng(seed).standard_normal(count)))


def test_a_steady_timing_raises_no_doubt() -> None:
    for seed in range(20):
        assert find_timing_flags(steps(0.02, seed=seed), 300) == ()


@pytest.mark.parametrize(("count", "num_steps"), [(30, 19), (2, 300)])
def test_few_steps_or_windows_are_flagged(count: int, num_steps: int) -> None:
    assert find_timing_flags(steps(0.01, count), num_steps) == ("few_steps",)
    assert find_timing_flags((), 0) == ("few_steps",)


def test_spread_is_the_middle_half_over_the_median() -> None:
    assert measure_relative_spread([9.0, 10.0, 11.0, 12.0, 13.0]) == pytest.approx(2 / 11)
    assert find_timing_flags([0.95, 1.0, 1.05, 0.94, 1.0, 1.05] * 2, 300) == ("spread",)
    lonely = [*steps(0.01), 1.0, 2.0]  # two windows out of 32 move no median
    assert find_timing_flags(lonely, 300) == ()


def test_drift_is_flagged_in_either_direction_and_needs_thirds() -> None:
    slower = [1.0, 1.01, 0.99] * 3 + [1.05] * 3 + [1.12, 1.11, 1.13] * 3
    assert (
        measure_relative_drift(slower[::-1])
        == pytest.approx(measure_relative_drift(slower))
        == pytest.approx(0.12 / 1.05, abs=0.02)
    )
    assert "drift" in find_timing_flags(slower, 300)
    assert "drift" in find_timing_flags(slower[::-1], 300)
    assert "drift" not in find_timing_flags([1.0, 1.05, 1.12, 1.2], 300)


def test_allocator_retries_are_flagged() -> None:
    assert find_timing_flags(steps(0.01), 300, num_alloc_retries=1) == ("allocator_retries",)


def test_reference_work_is_compared_with_that_of_the_other_trials() -> None:
    others = [0.010, 0.0101, 0.0099, 0.0102, 0.010]
    assert find_reference_flags(0.0105, others) == ()
    assert find_reference_flags(0.0111, others) == ("reference_drift",)
    assert find_reference_flags(0.0089, others) == ("reference_drift",)
    assert find_reference_flags(0.02, others[:4]) == ()  # too few to say what is usual


def test_flags_that_would_come_again_are_not_worth_repeating() -> None:
    assert MEANINGS.keys() >= INHERENT
    assert not is_worth_repeating(())
    assert not is_worth_repeating(("few_steps", "allocator_retries"))
    assert is_worth_repeating(("few_steps", "spread"))
    assert is_worth_repeating(("few_steps", "busy_host"))
    assert is_worth_repeating(("a doubt of another version",))


def test_another_training_is_for_what_falsified_the_times_alone() -> None:
    assert not is_disturbed(("few_steps", "spread", "drift", "busy_host", "reference_drift"))
    assert not is_disturbed(())
    for flag in ("throttled", "other_process", "clock_drift", "unheard of"):
        assert is_disturbed(("spread", flag)), flag
