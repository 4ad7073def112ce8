"""The quality flags of a record by name, and the one rule for which times are evidence.

Only three flags make a time no evidence, because only they are about the figure: ``uncertain_time``,
``slowed_by_others`` and ``slower_than_alone``. All others are information: on the configuration, the spread of the
steps or the machine.
"""

from collections.abc import Collection

MIN_STEPS = 20
MIN_WINDOWS = 3
MUCH = 0.1  # of a median
# Of the mean step time, as half the width of its 95 % interval. Windows of a shared machine come in faster and slower
# phases, so that the mean of an undisturbed trial of a few seconds is known to a few percent only.
MAX_TIME_ERROR = 0.1
# By the waiting for processors that others used: the difference between windows with and without it.
MAX_WAIT_SLOWDOWN = 0.05
MAX_SLOWDOWN = 0.1  # against the solo probes of the shape

FEW_STEPS, PROCESSOR_WAIT, BUSY_HOST = "few_steps", "processor_wait", "busy_host"
BATCH_CHANGED = "micro_batch_changed"
UNCERTAIN_TIME, SLOWED_BY_OTHERS, SLOWER_THAN_ALONE = "uncertain_time", "slowed_by_others", "slower_than_alone"
UNDISTURBED_TIME, PROBED_TIME, PACKED = "undisturbed_time", "probed_time", "packed"
# Every quality flag and its meaning.
MEANINGS = {
    UNCERTAIN_TIME: f"the mean step time is known to +-{MAX_TIME_ERROR:.0%} only (95 % interval), or less well: its "
    "times are no evidence",
    SLOWED_BY_OTHERS: "waiting for processors that other programs used lengthened the training by over "
    f"{MAX_WAIT_SLOWDOWN:.0%}, or was much of every timed window beside them: its times are no evidence",
    SLOWER_THAN_ALONE: f"training took over {MAX_SLOWDOWN:.0%} longer than by solo probes of the same shape: its times "
    "are no evidence",
    UNDISTURBED_TIME: "the measured times were no evidence: those of the steps without such waiting are in their "
    "place, and measured_train_seconds is the measured one",
    PROBED_TIME: "the measured times were no evidence: those of solo probes of the same shape are in their place, and "
    "measured_train_seconds is the measured one",
    PACKED: "the trial shared its device: its times and memory are those of probes that ran alone",
    FEW_STEPS: f"fewer than {MIN_STEPS} steps or {MIN_WINDOWS} windows were timed",
    "spread": f"the interquartile range of the step times is {MUCH:.0%} of their median, or more",
    "drift": f"steps of the first and of the last third differ by {MUCH:.0%} of the median, or more",
    "allocator_retries": "the device's memory was so full that the allocator had to release its cache",
    "other_process": "another process was on the device",
    "throttled": "the device slowed down because of heat or lack of power",
    "clock_drift": "the device's clock changed, or was far below its maximum without a reason that the device reports",
    PROCESSOR_WAIT: f"it waited for a processor for over {MUCH:.0%} of the time, in nearly every timed window",
    BUSY_HOST: f"other programs used {MUCH:.0%} of the cores, or more",
    "reference_drift": f"a fixed piece of work took {MUCH:.0%} more or less time than before the study's other trials",
    BATCH_CHANGED: "the micro batch was changed during the trial, so times are of several sizes",
    "global_batch_larger_than_train_split": "a step holds the whole training split, which is smaller than configured",
    "micro_batch_larger_than_train_split": "a micro batch holds the whole training split, which is smaller",
}
# The same in a few words, for people; a flag that is not here is shown by its name.
SHORT_NAMES = {
    UNCERTAIN_TIME: "step time uncertain",
    SLOWED_BY_OTHERS: "slowed by other programs",
    SLOWER_THAN_ALONE: "slower than alone on the device",
    UNDISTURBED_TIME: "time of the undisturbed steps",
    PROBED_TIME: "time of solo probes",
    PACKED: "shared its device",
    FEW_STEPS: "few steps timed",
    "spread": "step times scatter",
    "drift": "step times drift",
    "allocator_retries": "device memory nearly full",
    "other_process": "another process on the device",
    "throttled": "device throttled",
    "clock_drift": "device clock changed",
    PROCESSOR_WAIT: "waited for processors",
    BUSY_HOST: "other programs used the cores",
    "reference_drift": "machine faster or slower than before",
    BATCH_CHANGED: "micro batch changed",
    "global_batch_larger_than_train_split": "step larger than the training split",
    "micro_batch_larger_than_train_split": "micro batch larger than the training split",
}
# A time with one of these is no evidence.
TIME_DOUBTS = frozenset({UNCERTAIN_TIME, SLOWED_BY_OTHERS, SLOWER_THAN_ALONE})
# With one of these a time that was no evidence has been replaced.
REPLACEMENTS = frozenset({UNDISTURBED_TIME, PROBED_TIME})
# Another load ran beside the trial: a reason to compare its time with a solo probe.
LOADS_BESIDE = frozenset({"other_process", "throttled", "clock_drift", BUSY_HOST})
# With one of these a probe is not taken for undisturbed.
SIGNS_OF_DISTURBANCE = LOADS_BESIDE | {"reference_drift"}
# These do not affect times.
CONFIGURATION_FLAGS = frozenset({"global_batch_larger_than_train_split", "micro_batch_larger_than_train_split"})


def is_time_evidence(flags: Collection[str]) -> bool:
    """Whether the times of a record with these ``flags`` count. A flag of another version counts as a doubt."""
    doubts = TIME_DOUBTS.union(flag for flag in flags if flag and flag not in MEANINGS)
    return not REPLACEMENTS.isdisjoint(flags) or doubts.isdisjoint(flags)


def name_flags(flags: str) -> str:
    """The flags of a record, which commas separate, in words."""
    return ", ".join(SHORT_NAMES.get(flag, flag) for flag in flags.split(","))
