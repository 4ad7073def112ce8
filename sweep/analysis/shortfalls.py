"""What a study asked for and its records lack: objectives of complete trials, and confirming trials."""

from collections import Counter

import numpy as np
import pandas as pd

from sweep.analysis.statistics import configuration_groups, find_fresh, read_numbers, read_text
from sweep.config.metrics import METRICS, format_count
from sweep.records.frames import Frames
from sweep.records.messages import NOT_COUNTED

# What to do where most trials ended in this way and none is complete.
_OUTCOME_REMEDIES = {
    "target_missed": "choose an easier budget.target, or a longer training (budget.max_epochs)",
    "diverged": "lower optimizer.lr, or lengthen schedule.warmup",
    "out_of_memory": "lower batch.micro, or choose a smaller model",
    "not_fitting": "lower batch.micro, or choose a smaller model",
    "timed_out": "raise trial_timeout, or lower the budget",
    "crashed": "repair what the error of the trials names, and run the study again",
    "cancelled": "run the study again",
}
_OTHER_REMEDY = "the report has the reason of each trial"
# What each bottleneck means, and what to change.
BOTTLENECKS = {
    "data_bound": (
        "steps on a batch that was ready took much less time: the data loader is the bottleneck",
        "data.placement = 'device' where the images fit; otherwise raise data.workers and data.prefetch, or choose a "
        "cheaper data.augment",
    ),
    "launch_bound": (
        "most of a step takes the same time for a smaller micro batch: launching operations, not computing",
        "raise batch.micro and lower batch.accumulation, or precision.compile = true, or precision.cuda_graphs = true "
        "on a GPU",
    ),
    "compute_bound": (
        "the device is busy with the arithmetic itself",
        "nothing to fix; faster: precision.dtype = 'bf16' where the device is fast at it, precision.channels_last or "
        "precision.compile = true, a smaller model",
    ),
    "thrashing": (
        "the device's memory was so full that its allocator freed its cache again and again",
        "lower batch.micro and raise batch.accumulation, or precision.checkpointing = true",
    ),
}


def count_missing_objectives(frames: Frames) -> dict[str, int]:
    """The number of complete trials that lack an objective, by its name; empty where all are there, and without the
    specification of one study."""
    if frames.spec is None:
        return {}
    done = _of(frames.trials, "outcome", "complete")
    counts = {name: int((~np.isfinite(read_numbers(done, name))).sum()) for name in frames.spec.objectives}
    return {name: count for name, count in counts.items() if count}


def describe_missing_objectives(frames: Frames) -> list[str]:
    """A sentence for each of :func:`count_missing_objectives`."""
    num_done = format_count(len(_of(frames.trials, "outcome", "complete")), "complete trial")
    return [
        f"{METRICS[name].label} is missing in {count:,} of {num_done}, which therefore cannot be on a front."
        for name, count in count_missing_objectives(frames).items()
    ]


def explain_no_complete_trial(frames: Frames) -> str:
    """That no trial is complete, how the trials ended and what to do, as a sentence; empty where one is complete. No
    other text has a diagnosis of such a study."""
    counts = Counter(str(outcome) for outcome in read_text(frames.trials, "outcome") if outcome)
    if counts["complete"]:
        return ""
    if not counts:
        remedy = "if the study does not run, run it again, with a longer timeout"
        return f"No trial is complete, because none has ended: {remedy}."
    ended = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    (most, _), *_ = counts.most_common()
    return f"No trial is complete ({ended}): {_OUTCOME_REMEDIES.get(most, _OTHER_REMEDY)}."


def explain_confirmation(frames: Frames, stopped: str = "") -> str:
    """Why there are fewer confirming trials than the rule takes, or none, as a sentence: a limit of zero, nothing
    to confirm, a run that was cut short, trials that did not complete. Empty where there is no such reason, where no
    trial is complete, which is explained by :func:`explain_no_complete_trial`, and without the specification of one
    study.

    ``stopped`` is why the run ended before it had confirmed what it would have, where that is known.
    """
    spec, trials = frames.spec, frames.trials
    confirming, is_fresh = _of(trials, "phase", "confirm"), find_fresh(trials, configuration_groups(trials))
    if spec is None or explain_no_complete_trial(frames) or (is_fresh.any() and not len(confirming)):
        return ""  # a search of several seeds requires no others
    confirm = spec.confirm
    if not confirm.most_trials:
        zeros = [key for key in ("max_configurations", "seeds") if not getattr(confirm, key)]
        which = " and ".join(f"confirm.{key} = 0" for key in zeros)
        return f"Nothing is confirmed: {which}. Raise {'both' if len(zeros) > 1 else 'it'}, and run the study again."
    num_open = len(_of(trials, "outcome", ""))
    ended = confirming[read_text(confirming, "outcome") != ""]
    searched = _of(_of(trials, "phase", "search"), "outcome", "complete")
    num_complete, num_counted = len(_of(ended, "outcome", "complete")), count_searched(trials)
    if not len(searched):
        reason = "no search trial is complete"
    elif not np.isfinite(read_numbers(searched, spec.quality.column)).any():
        reason = f"no complete trial has a {spec.quality.label.lower()}"
    elif stopped:
        reason = stopped.rstrip(".")
    elif num_open:
        reason = f"{format_count(num_open, 'trial')} had no result when the records were read: running, or interrupted"
    elif not len(ended) and num_counted < spec.trials:
        reason = f"only {num_counted} of {format_count(spec.trials, 'search trial')} ended, and it follows them"
    elif not len(ended):
        reason = "the run ended before it"
    elif num_failed := len(ended) - num_complete:
        reason = f"{format_count(num_failed, 'confirming trial')} did not complete"
    else:
        return ""
    return f"{format_count(num_complete, 'confirming trial')} completed: {reason}."


def explain_search(frames: Frames) -> str:
    """Why the search has fewer trials than were planned, although its best were confirmed; empty where it has all."""
    spec, num_counted = frames.spec, count_searched(frames.trials)
    if spec is None or not len(_of(frames.trials, "phase", "confirm")) or num_counted >= spec.trials:
        return ""
    limit = "when its search_timeout has passed, " if spec.search_timeout else ""
    return (
        f"The search had {num_counted} of {format_count(spec.trials, 'planned trial')}: it ends {limit}when everything "
        "is settled and another trial is not expected to matter, or when no point is left."
    )


def count_searched(trials: pd.DataFrame) -> int:
    """The search trials that have ended and count towards the planned number."""
    outcomes = read_text(_of(trials, "phase", "search"), "outcome").tolist()
    return sum(outcome not in {"", *NOT_COUNTED} for outcome in outcomes)


def _of(trials: pd.DataFrame, column: str, value: str) -> pd.DataFrame:
    chosen: pd.DataFrame = trials[read_text(trials, column) == value]
    return chosen
