"""The time of a trial that other programs slowed down for a part of it: that of its undisturbed steps."""

from collections.abc import Mapping
from dataclasses import replace

from sweep.config.trial_config import TrialConfig
from sweep.executors.packed.packed_executor import replace_train_seconds
from sweep.records.messages import Ending
from sweep.records.quality_flags import SLOWED_BY_OTHERS, TIME_DOUBTS, UNDISTURBED_TIME


def take_undisturbed_time(config: TrialConfig, ending: Ending) -> Ending:
    """``ending`` with the training time by the steps that did not wait for processors, where the waiting of the others
    makes the measured time no evidence and that of the undisturbed steps is certain."""
    measured, flags = ending.measurements, ending.quality_flags
    # not on record where it was not finite, or where the flag is that of an earlier attempt
    slowdown = measured.get("slowdown_by_others")
    is_only_doubt = TIME_DOUBTS.intersection(flags) == {SLOWED_BY_OTHERS}
    if slowdown is None or not is_only_doubt or not is_replaceable(config, ending):
        return ending
    seconds = measured["train_seconds"] / (1.0 + slowdown)
    # the times of single steps and their uncertainty are those of the undisturbed steps already
    return replace_time(ending, seconds, {}, UNDISTURBED_TIME)


def is_replaceable(config: TrialConfig, ending: Ending) -> bool:
    """Whether another training time may take the place of the measured one: not with a budget in seconds, which is what
    was to be spent."""
    return ending.outcome == "complete" and "train_seconds" in ending.measurements and config.budget.seconds is None


def replace_time(ending: Ending, seconds: float, steps: Mapping[str, float | int], flag: str) -> Ending:
    """``ending`` with a training time of ``seconds``, what follows from it, and the times of a step in ``steps``; the
    measured time is kept beside."""
    measured = ending.measurements
    replaced: dict[str, float | int] = {**replace_train_seconds(measured, seconds), **steps}
    replaced["measured_train_seconds"] = measured["train_seconds"]
    return replace(ending, measurements=measured | replaced, quality_flags=(*ending.quality_flags, flag))
