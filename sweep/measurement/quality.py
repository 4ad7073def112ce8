"""Quality flags of a measurement by name. Imports no torch."""

from collections.abc import Collection, Sequence

import numpy as np

MIN_STEPS = 20
MIN_WINDOWS = 3
_MIN_DRIFT_WINDOWS = 9  # three for each third
_MIN_REFERENCES = 5
_MUCH = 0.1  # of the median

PACKED = "packed"
# Every quality flag and its meaning.
MEANINGS = {
    "few_steps": f"fewer than {MIN_STEPS} steps or {MIN_WINDOWS} windows were timed",
    "spread": f"the interquartile range of the step times is {_MUCH:.0%} of their median, or more",
    "drift": f"steps of the first and of the last third differ by {_MUCH:.0%} of the median, or more",
    "allocator_retries": "the device's memory was so full that the allocator had to release its cache",
    "other_process": "another process was on the device",
    "throttled": "the device slowed down because of heat or lack of power",
    "clock_drift": "the device's clock changed, or was far below its maximum without a reason that the device reports",
    "busy_host": f"other programs used {_MUCH:.0%} of the cores, or more",
    "reference_drift": f"a fixed piece of work took {_MUCH:.0%} more or less time than before the study's other trials",
    "micro_batch_changed": "the micro batch was changed during the trial, so times are of several sizes",
    PACKED: "the trial shared its device: its times and memory are those of probes that ran alone",
    "global_batch_larger_than_train_split": "a step holds the whole training split, which is smaller than configured",
    "micro_batch_larger_than_train_split": "a micro batch holds the whole training split, which is smaller",
}
# These do not affect times.
CONFIGURATION_FLAGS = frozenset({"global_batch_larger_than_train_split", "micro_batch_larger_than_train_split"})
# These follow from the configuration: a repeated measurement would have them again.
INHERENT = frozenset({"few_steps", "allocator_retries", "micro_batch_changed"}) | CONFIGURATION_FLAGS
# On a shared machine a measurement is repeated for a few seconds, but not a training: it would be disturbed again.
_OF_THE_MACHINE = frozenset({"spread", "drift", "busy_host", "reference_drift"})


def find_timing_flags(step_seconds: Sequence[float], num_steps: int, num_alloc_retries: int = 0) -> tuple[str, ...]:
    """The flags of a timing, by their names in :data:`MEANINGS`. ``step_seconds`` are those of one step in each window,
    in the order of time, without warm-up; ``num_steps`` is over all windows."""
    raised = {
        "few_steps": num_steps < MIN_STEPS or len(step_seconds) < MIN_WINDOWS,
        "spread": len(step_seconds) >= MIN_WINDOWS and measure_relative_spread(step_seconds) >= _MUCH,
        "drift": len(step_seconds) >= _MIN_DRIFT_WINDOWS and measure_relative_drift(step_seconds) >= _MUCH,
        "allocator_retries": num_alloc_retries > 0,
    }
    return tuple(name for name, is_raised in raised.items() if is_raised)


def find_reference_flags(seconds: float, others: Sequence[float]) -> tuple[str, ...]:
    """Whether the reference work before a trial took a different time than before the ``others`` of its study."""
    if len(others) < _MIN_REFERENCES:
        return ()
    usual = float(np.median(others))
    return ("reference_drift",) if abs(seconds - usual) >= _MUCH * usual else ()


def is_worth_repeating(flags: Collection[str]) -> bool:
    """Whether a repeated measurement may be free of one of ``flags``."""
    return not INHERENT.issuperset(flags)


def is_disturbed(flags: Collection[str]) -> bool:
    """Whether one of ``flags`` means that the device itself was disturbed, so that the training is worth repeating."""
    return not (INHERENT | _OF_THE_MACHINE).issuperset(flags)


def measure_relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median, which single outliers do not affect."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle) if middle > 0 else 0.0


def measure_relative_drift(values: Sequence[float]) -> float:
    """Difference of the medians of the first and the last third, over the median of all."""
    third = len(values) // 3
    middle = float(np.median(values))
    apart = abs(float(np.median(values[-third:])) - float(np.median(values[:third])))
    return apart / middle if middle > 0 else 0.0
