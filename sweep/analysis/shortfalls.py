"""What a study asked for and its records lack: objectives of complete trials, and confirming trials."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from sweep.analysis.comparable import ComparableTrials
from sweep.analysis.statistics import Numbers, configuration_groups, most_common, read_numbers, read_text
from sweep.config.metrics import METRICS, format_count
from sweep.config.study import FEWEST_SEEDS, TRIAL_SECONDS, StudySpec
from sweep.config.trial import Scalar
from sweep.records.frames import Frames
from sweep.records.messages import NOT_COUNTED

# What to do where most trials ended in this way and none is complete.
_OUTCOME_REMEDIES = {
    "target_missed": "lower budget.target_accuracy, or raise budget.max_epochs",
    "diverged": "lower optimizer.lr, or lengthen schedule.warmup",
    "out_of_memory": "lower batch.micro, or choose a smaller model",
    "not_fitting": "lower batch.micro, or choose a smaller model",
    "timed_out": "raise trial_timeout, or lower the budget",
    "crashed": "repair what the error of the trials names, and run the study again",
    "cancelled": "run the study again",
}
_OTHER_REMEDY = "the report has the reason of each trial"
# What each bottleneck means.
BOTTLENECK_MEANINGS = {
    "data_bound": "steps on a batch that was ready took much less time: the data loader is the bottleneck",
    "launch_bound": "most of a step takes the same time for a smaller micro batch: launching operations, not computing",
    "compute_bound": "the device is busy with the arithmetic itself",
    "thrashing": "the device's memory was so full that its allocator freed its cache again and again",
}


def count_missing_objectives(frames: Frames) -> dict[str, int]:
    """The number of complete trials that lack an objective, by its name; empty where all are there, and without the
    specification of one study."""
    if frames.spec is None:
        return {}
    done = _of_outcome(frames.trials, "complete")
    counts = {name: int((~np.isfinite(read_numbers(done, name))).sum()) for name in frames.spec.objectives}
    return {name: count for name, count in counts.items() if count}


def describe_missing_objectives(frames: Frames) -> list[str]:
    """A sentence for each of :func:`count_missing_objectives`."""
    num_done = format_count(len(_of_outcome(frames.trials, "complete")), "complete trial")
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
    if spec is None or explain_no_complete_trial(frames):
        return ""
    confirm = spec.confirm
    if not confirm.most_trials:
        zeros = [key for key in ("max_configurations", "seeds") if not getattr(confirm, key)]
        which = " and ".join(f"confirm.{key} = 0" for key in zeros)
        return f"Nothing is confirmed: {which}. Raise {'both' if len(zeros) > 1 else 'it'}, and run the study again."
    confirming = _of_phase(trials, "confirm")
    ended = confirming[read_text(confirming, "outcome") != ""]
    searched = _of_outcome(_of_phase(trials, "search"), "complete")
    if not len(searched):
        reasons = ["no search trial is complete"]
    elif not np.isfinite(read_numbers(searched, "val_accuracy")).any():
        reasons = ["no complete trial has a validation accuracy"]
    else:
        reasons = [stopped.rstrip(".")] if stopped else list(_list_reasons(spec, trials, ended))
    if not reasons:
        return ""
    num_complete = len(_of_outcome(ended, "complete"))
    return f"{format_count(num_complete, 'confirming trial')} completed: {'; '.join(reasons)}."


def explain_left_out_seeds(records: ComparableTrials) -> str:
    """How many complete confirming trials are left out because they ran on another device than the trials that are
    compared, and what to do; empty where none is."""
    device = most_common(read_text(records.done, "device"))[0]
    confirming = _of_outcome(_of_phase(records.frames.trials, "confirm"), "complete")
    others = Counter(str(each) for each in read_text(confirming, "device") if each != device)
    if not others or not device:
        return ""
    names = ", ".join(repr(name) for name in sorted(others))
    return (
        f"{format_count(others.total(), 'confirming trial')} left out: run on the device {names}, while the trials "
        f"that are compared ran on {device!r}. The limits of confirm count such trials. For fresh seeds in their "
        f"place, continue on {device!r}: {records.command_for_more_seeds}"
    )


def explain_few_seeds(records: ComparableTrials) -> str:
    """Which configurations have some fresh seeds and too few to be named, and why, as a sentence; empty where there is
    none, while trials are open, and without the specification of one study."""
    spec, trials = records.spec, records.frames.trials
    few = np.flatnonzero((records.num_seeds > 0) & (records.num_seeds < FEWEST_SEEDS))
    if spec is None or not len(few) or len(_of_outcome(trials, "")):
        return ""
    numbers = read_numbers(records.frame, "number")[few].astype(int)
    named = ", ".join(f"trial {number}: {records.num_seeds[row]}" for number, row in zip(numbers, few, strict=True))
    which = "1 configuration has" if len(few) == 1 else f"{len(few)} configurations have"
    return (
        f"{which} fresh seeds, but fewer than the {FEWEST_SEEDS} with which a configuration is named ({named}): "
        f"{_explain_few(spec, trials, records.num_seeds[few], numbers)}. For more, run {records.command_for_more_seeds}"
    )


def _explain_few(spec: StudySpec, trials: pd.DataFrame, counts: Numbers, numbers: Numbers) -> str:
    if spec.confirm.seeds < FEWEST_SEEDS:
        return f"confirm.seeds is {spec.confirm.seeds}"
    numbers_of_all, (first, second) = (
        read_numbers(trials, "number"),
        (read_numbers(trials, name) for name in TRIAL_SECONDS),
    )
    seconds = np.where(np.isfinite(first), first, second)
    phases, groups = read_text(trials, "phase").tolist(), configuration_groups(trials).tolist()
    time = spec.confirm.measure_time(list(zip(phases, groups, seconds.tolist(), strict=True)))
    own = np.array([seconds[numbers_of_all == number][0] for number in numbers])
    if time.left < np.nanmin((FEWEST_SEEDS - counts) * own):
        return (
            f"the time for fresh seeds does not suffice ({time.used:.3g} of {time.in_all:.3g} s are used; "
            f"confirm.share is {spec.confirm.share:g} of the search's time)"
        )
    return "after those seeds others were worth more, or the run ended before"


def explain_search(frames: Frames) -> str:
    """Why the search has fewer trials than were planned, although its best were confirmed; empty where it has all."""
    spec, num_counted = frames.spec, _count_searched(frames.trials)
    if spec is None or not len(_of_phase(frames.trials, "confirm")) or num_counted >= spec.trials:
        return ""
    limit = "when its search_timeout has passed, " if spec.search_timeout else ""
    return (
        f"The search had {num_counted} of {format_count(spec.trials, 'planned trial')}: it ends {limit}when everything "
        "is settled and another trial is not expected to matter, or when no point is left."
    )


def _count_searched(trials: pd.DataFrame) -> int:
    outcomes = read_text(_of_phase(trials, "search"), "outcome").tolist()
    return sum(outcome not in {"", *NOT_COUNTED} for outcome in outcomes)


def _of_outcome(trials: pd.DataFrame, outcome: str) -> pd.DataFrame:
    chosen: pd.DataFrame = trials[read_text(trials, "outcome") == outcome]
    return chosen


def _list_reasons(spec: StudySpec, trials: pd.DataFrame, ended: pd.DataFrame) -> Iterator[str]:
    num_counted = _count_searched(trials)
    if num_open := len(_of_outcome(trials, "")):
        yield f"{format_count(num_open, 'trial')} had no result when the records were read: running, or interrupted"
        return
    if not len(ended):
        is_searching = num_counted < spec.trials
        search_state = f"only {num_counted} of {format_count(spec.trials, 'search trial')} ended, and it follows them"
        yield search_state if is_searching else "the run ended before it"
        return
    if num_failed := len(ended) - len(_of_outcome(ended, "complete")):
        yield f"{format_count(num_failed, 'confirming trial')} did not complete"


def _of_phase(trials: pd.DataFrame, phase: str) -> pd.DataFrame:
    chosen: pd.DataFrame = trials[read_text(trials, "phase") == phase]
    return chosen


def suggest_remedy(bottleneck: str, values: Mapping[str, Scalar], num_processors: int) -> str:
    """What to change about a configuration of dotted ``values`` on a machine with that many processors."""
    micro, accumulation = values.get("batch.micro"), values.get("batch.accumulation")
    if bottleneck == "data_bound":
        return _suggest_data(values, num_processors)
    if bottleneck == "launch_bound":
        parts = [f"raise batch.micro ({micro})"]
        if isinstance(accumulation, int) and accumulation > 1:
            parts[0] += f" and lower batch.accumulation ({accumulation})"
        parts += ["precision.compile = true"] * (not values.get("precision.compile"))
        return ", or ".join([*parts, "precision.cuda_graphs = true on a GPU"])
    if bottleneck == "compute_bound":
        is_full = values.get("precision.dtype") in ("fp32", "fp64")
        parts = ["precision.dtype = 'bf16' where the device is fast at it"] * is_full
        parts += [f"{key} = true" for key in ("precision.channels_last", "precision.compile") if not values.get(key)]
        return "nothing to fix; faster: " + ", ".join([*parts, "a smaller model"])
    if bottleneck == "thrashing":
        parts = [f"lower batch.micro ({micro}) and raise batch.accumulation"]
        return ", or ".join(parts + ["precision.checkpointing = true"] * (not values.get("precision.checkpointing")))
    return ""


def _suggest_data(values: Mapping[str, Scalar], num_processors: int) -> str:
    workers = int(values.get("data.workers") or 0)
    if values.get("data.placement") == "host":
        more = f"raise data.workers ({workers} of {num_processors} processors)" if workers < num_processors else ""
        ahead = f"raise data.prefetch ({values['data.prefetch']})" if workers and "data.prefetch" in values else ""
        return " or ".join(filter(None, ("data.placement = 'device' where the images fit", more, ahead)))
    augment, most = values.get("data.augment"), f"data.workers up to {num_processors}"
    if augment not in (None, "none"):
        return f"a cheaper data.augment than {augment!r}, or data.placement = 'host' with {most}"
    return f"images were streamed, or other processes used the host: {most}"
