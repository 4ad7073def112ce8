"""Numbers as a reader sees them: units, digits, intervals, and words where an interval says nothing."""

import math
from collections.abc import Callable

import pytest

from reports.labels import (
    describe_range,
    explain_no_interval,
    format_bound,
    format_difference,
    format_effect,
    format_interval,
    format_metric,
    format_setting,
    format_value,
    is_too_uncertain,
)

NAN, OPEN = math.nan, math.inf


@pytest.mark.parametrize(
    ("show", "arguments", "text"),
    [
        (format_value, ("fraction", 0.9725), "97.25 %"),
        (format_value, ("seconds", 0.0123), "12.3 ms"),
        (format_value, ("seconds", 7.5), "7.50 s"),
        (format_value, ("seconds", 245.0), "4 min 05 s"),
        (format_value, ("seconds", 7800.0), "2 h 10 min"),
        (format_value, ("bytes", 34.25 * 2**20), "34.2 MiB"),
        (format_value, ("bytes", 3.5 * 2**30), "3.50 GiB"),
        (format_value, ("bytes", 512.0), "512 B"),
        (format_value, ("count", 11_173_962), "11,173,962"),
        (format_value, ("count", 2.5), "2.50"),
        (format_value, ("count", 0.0), "0"),
        (format_value, ("hertz", 1.98e9), "1.98 GHz"),
        (format_value, ("images/second", 12345.0), "12,345 images/s"),
        (format_value, ("nats", NAN), "–"),
        (format_metric, ("peak_memory_bytes", None), "–"),
        (format_metric, ("scaled_beta2", 0.999**0.125), "0.999875"),
        (format_metric, ("scaled_weight_decay", 3e-5), "3e-05"),
        (format_setting, (True,), "yes"),
        (format_setting, (None,), "none"),
        (format_setting, (0.1,), "0.1"),
        (format_setting, (1e-5,), "1e-05"),
        (format_setting, (10.0,), "10"),
        (format_interval, ("fraction", 0.9, 0.95, 0.92), "90.00 to 95.00 %"),
        (format_interval, ("fraction", -0.0103, 0.0127, 0.001), "-1.03 to 1.27 %"),
        (format_interval, ("seconds", 1.0, 2.0, 1.5), "1.00 to 2.00 s"),
        (format_interval, ("seconds", 0.657, 1.22, 0.902), "657 to 1,220 ms"),
        (format_interval, ("seconds", 59.0, 130.0, 90.0), "59.0 s to 2 min 10 s"),
        (format_interval, ("seconds", 1.0, NAN, 1.0), ""),
        (format_interval, ("seconds", 1.0001, 1.0002, 1.0001), ""),  # it equals its value
        (format_effect, ("ratio", 1.5, 1.25, 1.75), "1.50 times (1.25 to 1.75 times)"),
        (format_effect, ("fraction", 0.02, 0.01, NAN), "2.00 %"),
        (format_value, ("samples", 64.0), "64 samples"),
        (format_effect, ("samples", 4096.0, 1024.0, 9000.0), "4,096 samples (1,024 to 9,000 samples)"),
        (format_effect, ("exponent", NAN, NAN, NAN), "unknown"),
        (format_difference, ("fraction", 0.012, 0.004, 0.02), "+1.20 (+0.40 to +2.00) points"),
        (format_difference, ("fraction", 0.01, 0.0, 0.02), "+1.00 (+0.00 to +2.00) points"),
        (format_difference, ("ratio", 0.83, 0.8, 0.86), "0.83 (0.8 to 0.86) times"),
        (format_difference, ("ratio", 1.54, 1.5401, 1.5402), "1.54 times"),
        (format_difference, ("ratio", 1.54, 1.5, NAN), "1.54 times"),
        (format_difference, ("ratio", 1.0, 1.0, 1.0), "the same"),
        (format_difference, ("watts", -3.0, NAN, NAN), "-3 W"),
        (describe_range, ("ratio", 1.5, 2.0), "1.5 to 2 times"),
        (describe_range, ("ratio", 1.05, OPEN), "1.05 times or more"),
        (describe_range, ("ratio", 0.0, 1.0), "1 times or less"),
        (describe_range, ("fraction", 0.005, OPEN), "0.5 % or more"),
        (describe_range, ("fraction/doubling", -OPEN, -0.001), "-0.1 points per doubling or less"),
        (describe_range, ("exponent", 0.9, 1.1), "0.9 to 1.1"),
        (describe_range, ("samples", 16.0, 1024.0), "16 to 1024 samples"),
        (format_bound, ("fraction", 0.005), "0.5 %"),
    ],
)
def test_values_read_well(show: Callable[..., str], arguments: tuple[object, ...], text: str) -> None:
    assert show(*arguments) == text


@pytest.mark.parametrize(
    ("unit", "low", "high", "num_seeds", "words"),
    [
        ("images/second", NAN, NAN, 1, "no interval: 1 seed"),
        ("images/second", 0.097, 33_973.0, 1, "1 seed: interval too wide to state"),
        ("images/second", 0.097, 33_973.0, 2, "2 seeds: interval too wide to state"),
        ("images/second", 0.097, 33_973.0, 3, ""),
        ("images/second", 90.0, 110.0, 2, ""),
        ("fraction", 0.3, 1.0, 2, "2 seeds: interval too wide to state"),
        ("fraction", -0.01, 0.02, 2, ""),
        ("nats", -0.5, 1.5, 2, "2 seeds: interval too wide to state"),
        ("samples", NAN, NAN, 0, ""),
        ("samples", 1.0, 33_973.0, 0, ""),
    ],
)
def test_an_interval_by_one_or_two_seeds_may_be_words(
    unit: str, low: float, high: float, num_seeds: int, words: str
) -> None:
    assert explain_no_interval(unit, low, high, num_seeds) == words
    if words:
        assert format_interval(unit, low, high, 0.5, num_seeds) == words
        assert format_effect(unit, 0.5, low, high, num_seeds) == f"{format_value(unit, 0.5)} ({words})"
        assert format_difference(unit, 0.5, low, high, num_seeds).endswith(f" ({words})")


@pytest.mark.parametrize(
    ("unit", "low", "high", "is_so"),
    [
        ("ratio", 6.69e-05, 6_133.0, True),
        ("ratio", 0.1, 10.0, False),
        ("ratio", 0.1, 10.1, True),
        ("ratio", 0.5, OPEN, True),
        ("samples", 10.0, 999.0, False),
        ("samples", 10.0, 1_001.0, True),
        ("exponent", -0.9, 1.0, False),
        ("exponent", -1.1, 1.0, True),
        ("exponent", NAN, NAN, True),
        ("fraction", -0.3, 0.6, False),
        ("fraction", -0.6, 0.6, True),
        ("fraction/doubling", -0.6, 0.6, True),
    ],
)
def test_an_interval_may_leave_the_size_of_an_effect_unknown(unit: str, low: float, high: float, is_so: bool) -> None:
    assert is_too_uncertain(unit, low, high) is is_so
