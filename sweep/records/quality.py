"""The quality flags of a record by name, and which of them are doubts about a measured time.

Three flags are doubts about the time: ``uncertain_time``, ``slowed_by_others`` and ``packed``, and of few steps also
``processor_wait``. All others are information: on the configuration, the spread of the steps or the machine.
:mod:`sweep.analysis.costs` decides what a doubtful time is worth.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

MIN_STEPS = 20
MIN_WINDOWS = 3
MUCH = 0.1  # of a median
# Of the mean step time, as half the width of its 95 % interval. Windows of a shared machine come in faster and slower
# phases, so that the mean of an undisturbed trial of a few seconds is known to a few percent only.
MAX_TIME_ERROR = 0.1
# By the waiting for processors that others used: the difference between windows with and without it.
MAX_WAIT_SLOWDOWN = 0.05

FEW_STEPS, PROCESSOR_WAIT, BUSY_HOST = "few_steps", "processor_wait", "busy_host"
ALLOCATOR_RETRIES = "allocator_retries"
# of scripts, which may do something else than they are asked
BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED, DECAY_NOT_FOLLOWED = (
    "batch_not_followed", "rate_not_followed", "decay_not_followed",
)  # fmt: skip
SEED_NOT_FOLLOWED, MEMORY_RECOVERED, NOT_OBSERVED = "seed_not_followed", "memory_recovered", "not_observed"
LEFTOVER_GRADIENTS, EVALUATION_IN_WINDOW = "leftover_gradients", "evaluation_in_window"
UNCERTAIN_TIME, SLOWED_BY_OTHERS, PACKED = "uncertain_time", "slowed_by_others", "packed"


class _Flag(NamedTuple):
    words: str  # for people, where there is little room
    meaning: str


_FLAGS = {
    UNCERTAIN_TIME: _Flag("step time uncertain",
        f"the mean step time is known to +-{MAX_TIME_ERROR:.0%} only (95 % interval), or less well"),
    SLOWED_BY_OTHERS: _Flag("slowed by other programs",
        "waiting for processors that other programs used lengthened the training by over "
        f"{MAX_WAIT_SLOWDOWN:.0%}, or was much of every timed window beside them"),
    PACKED: _Flag("shared its device", "the trial shared its device with others of its study"),
    FEW_STEPS: _Flag("few steps timed", f"fewer than {MIN_STEPS} steps or {MIN_WINDOWS} windows were timed"),
    "spread": _Flag("step times scatter",
        f"the interquartile range of the step times is {MUCH:.0%} of their median, or more"),
    "drift": _Flag("step times drift",
        f"steps of the first and of the last third differ by {MUCH:.0%} of the median, or more"),
    ALLOCATOR_RETRIES: _Flag("device memory nearly full",
        "the device's memory was so full that the allocator had to release its cache"),
    "other_process": _Flag("another process on the device", "another process was on the device"),
    "throttled": _Flag("device throttled", "the device slowed down because of heat or lack of power"),
    PROCESSOR_WAIT: _Flag("waited for processors",
        f"it waited for a processor for over {MUCH:.0%} of the time, in nearly every timed window"),
    BUSY_HOST: _Flag("other programs used the cores", f"other programs used {MUCH:.0%} of the cores, or more"),
    "reference_drift": _Flag("machine faster or slower than before",
        f"a fixed piece of work took {MUCH:.0%} more or less time than before the study's other trials"),
    "micro_batch_changed": _Flag("micro batch changed",
        "the micro batch was changed during the trial, so times are of several sizes"),
    "global_batch_larger_than_train_split": _Flag("step larger than the training split",
        "a step holds the whole training split, which is smaller than configured"),
    BATCH_NOT_FOLLOWED: _Flag("another batch size than asked",
        "most steps of the script had another number of samples than it was asked for, or several in a row had"),
    RATE_NOT_FOLLOWED: _Flag("another learning rate than asked",
        "the highest learning rate of the script's largest parameter group is another one than it was asked for"),
    DECAY_NOT_FOLLOWED: _Flag("another weight decay than asked",
        "the weight decay of the script's largest parameter group is another one than it was asked for"),
    "schedule_not_followed": _Flag("schedule stepped too often",
        "the learning-rate schedule took more steps than the optimizer, as one that follows every micro batch does"),
    SEED_NOT_FOLLOWED: _Flag("equal for two seeds",
        "a training with another seed gave the same result to the last digit, so the script does not use its seed"),
    EVALUATION_IN_WINDOW: _Flag("evaluates within its time",
        "over a tenth of the timed seconds were without gradients; put the evaluation into trial.paused()"),
    MEMORY_RECOVERED: _Flag("went on after out of memory",
        "the device was out of memory, and the script went on, probably with a smaller batch"),
    LEFTOVER_GRADIENTS: _Flag("gradients left over",
        "gradients of the last samples of a pass were still there in the first step of the next one"),
    NOT_OBSERVED: _Flag("steps not observed",
        "no optimizer of torch took a step that was seen, so neither batch size nor times are known"),
    "micro_batch_larger_than_train_split": _Flag("micro batch larger than the training split",
        "a micro batch holds the whole training split, which is smaller"),
}  # fmt: skip
MEANINGS = {name: flag.meaning for name, flag in _FLAGS.items()}
# A time that was measured with one of these is not used as it is.
TIME_DOUBTS = frozenset({UNCERTAIN_TIME, SLOWED_BY_OTHERS, PACKED})
# Another load ran beside the trial: its time is compared with a solo probe.
LOADS_BESIDE = frozenset({"other_process", "throttled", BUSY_HOST})


def find_time_doubts(flags: Collection[str]) -> frozenset[str]:
    """The doubts about a measured time among ``flags``. A flag of another version counts as one, and waiting for
    processors where too few steps were timed to tell what it cost."""
    doubts = TIME_DOUBTS | {PROCESSOR_WAIT} if FEW_STEPS in flags else TIME_DOUBTS
    return frozenset(flag for flag in flags if flag and (flag in doubts or flag not in MEANINGS))


def is_only_slowed(flags: Collection[str]) -> bool:
    """Whether the only doubt about a measured time is that other processes slowed it."""
    return find_time_doubts(flags) == {SLOWED_BY_OTHERS}


def has_undisturbed_windows(flags: Collection[str], measurements: Mapping[str, Any]) -> bool:
    """Whether a measured time is only slowed, by how much is on record."""
    return is_only_slowed(flags) and "slowdown_by_others" in measurements


def name_flags(flags: str) -> str:
    """The flags of a record, separated by commas, in words; an unknown flag by its name."""
    return ", ".join(_FLAGS[flag].words if flag in _FLAGS else flag for flag in flags.split(","))
