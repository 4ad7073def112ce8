"""The windows of a timing and their quality flags: how well the mean step time is known. Imports no torch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sweep.records.quality import (
    FEW_STEPS,
    MAX_TIME_ERROR,
    MAX_WAIT_SLOWDOWN,
    MIN_STEPS,
    MIN_WINDOWS,
    MUCH,
    PROCESSOR_WAIT,
    SLOWED_BY_OTHERS,
    UNCERTAIN_TIME,
)

_MIN_DRIFT_WINDOWS = 9  # three for each third
_MIN_REFERENCES = 5
_QUIET_WAIT = 0.05  # of a window's seconds; below it the window counts as undisturbed
_MIN_QUIET_WINDOWS = 8
_NUM_BLOCKS = 8  # so that a phase of an eighth of the training, or longer, counts as one observation
# Student's quantiles of a 95 % interval for 2, 3 ... 14 degrees of freedom.
_T_QUANTILES = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class StepWindow(NamedTuple):
    """Several optimizer steps between two synchronizations of the device."""

    seconds: float
    num_steps: int
    samples: int
    is_full: bool  # every step took a whole global batch
    waited: float | None = None  # seconds without a processor; None where they are not known

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.num_steps

    @property
    def is_quiet(self) -> bool:
        """Whether it is known that it has hardly waited."""
        return self.waited is not None and self.waited <= _QUIET_WAIT * self.seconds


def find_timing_flags(windows: Sequence[StepWindow], num_steps: int) -> tuple[str, ...]:
    """The flags of a timing, by their names in :data:`sweep.records.quality.MEANINGS`, from ``windows`` of steps of one
    size, in the order of time, without warm-up; ``num_steps`` is over all windows."""
    step_seconds = [window.step_seconds for window in windows]
    error = measure_time_error(windows)
    raised = {
        FEW_STEPS: num_steps < MIN_STEPS or len(windows) < MIN_WINDOWS,
        SLOWED_BY_OTHERS: (measure_slowdown(windows) or 0.0) > MAX_WAIT_SLOWDOWN,
        PROCESSOR_WAIT: _has_waited_throughout(windows),
        UNCERTAIN_TIME: error is not None and error > MAX_TIME_ERROR,
        "spread": len(windows) >= MIN_WINDOWS and _measure_relative_spread(step_seconds) >= MUCH,
        "drift": len(windows) >= _MIN_DRIFT_WINDOWS and _measure_relative_drift(step_seconds) >= MUCH,
    }
    return tuple(name for name, is_raised in raised.items() if is_raised)


def _has_waited_throughout(windows: Sequence[StepWindow]) -> bool:
    known = [(window.seconds, window.waited) for window in windows if window.waited is not None]
    if not known or measure_slowdown(windows) is not None:
        return False  # the windows without waiting show what it cost
    return sum(wait for _, wait in known) > MUCH * sum(took for took, _ in known)


def measure_slowdown(windows: Sequence[StepWindow]) -> float | None:
    """The share by which the mean step time over all windows exceeds the mean over windows without waiting for
    processors that others used. None where the waiting is not known, or where fewer than eight windows had none."""
    is_quiet = np.array([window.is_quiet for window in windows], dtype=np.bool_)
    took, counts = _read_times(windows)
    if is_quiet.sum() < _MIN_QUIET_WINDOWS or not took.sum() > 0:
        return None
    quiet = took[is_quiet].sum() / counts[is_quiet].sum()
    return float(took.sum() / counts.sum() / quiet - 1.0)


def _read_times(windows: Sequence[StepWindow]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    # seconds and steps, shape [2, windows]
    return np.array([(window.seconds, window.num_steps) for window in windows], dtype=np.float64).reshape(-1, 2).T


def select_undisturbed(windows: Sequence[StepWindow]) -> list[StepWindow]:
    """The windows that a step's time is taken from: the ones without waiting where waiting has lengthened the mean by
    over the limit, otherwise all."""
    is_slowed = (measure_slowdown(windows) or 0.0) > MAX_WAIT_SLOWDOWN
    return [window for window in windows if window.is_quiet or not is_slowed]


def measure_time_error(windows: Sequence[StepWindow]) -> float | None:
    """Half the width of the 95 % interval of the mean step time, as a share of it: the mean over all steps (of
    :func:`select_undisturbed`), which a sum of seconds depends on. None for fewer windows than three.

    The variance is by the circular block bootstrap over the windows (Politis and Romano 1992), in closed form, so that
    equal windows have equal errors. Blocks are an eighth of the windows long: the load of a machine comes in phases,
    and windows of one phase are one observation. With so few blocks the quantile is Student's.
    """
    took, counts = _read_times(select_undisturbed(windows))
    if (num := len(took)) < MIN_WINDOWS or not took.sum() > 0:
        return None
    deviations = took - took.sum() / counts.sum() * counts  # from the mean; their sum is 0
    length = max(1, num // _NUM_BLOCKS)
    num_blocks = num / length
    sums = np.cumsum(np.concatenate(([0.0], deviations, deviations[: length - 1])))
    blocks = sums[length:] - sums[:-length]
    variance = num_blocks * float(np.mean(blocks**2)) * num_blocks / (num_blocks - 1)
    return _T_QUANTILES[int(num_blocks) - 3] * float(np.sqrt(variance)) / float(took.sum())


def find_reference_flags(seconds: float, others: Sequence[float], *, is_probe: bool = False) -> tuple[str, ...]:
    """Whether the reference work took a different time than before the ``others`` of its study, of a probe a longer."""
    if len(others) < _MIN_REFERENCES:
        return ()
    change = seconds / float(np.median(others)) - 1
    return ("reference_drift",) if (change if is_probe else abs(change)) >= MUCH else ()


def _measure_relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median, which single outliers do not affect."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle) if middle > 0 else 0.0


def _measure_relative_drift(values: Sequence[float]) -> float:
    """Difference of the medians of the first and the last third, over the median of all."""
    third = len(values) // 3
    middle = float(np.median(values))
    change = abs(float(np.median(values[-third:])) - float(np.median(values[:third])))
    return change / middle if middle > 0 else 0.0
