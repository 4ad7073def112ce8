"""A choice in words: the configuration that is named, and what limits do to the statements."""

import math

from sweep.analysis.answer import Limits, Recommendation
from sweep.analysis.candidates import Candidates
from sweep.analysis.comparable import ACCURACY, MEMORY, SECONDS
from sweep.config.units import format_count

_FEW_STEPS = 100  # of a training: the order of the batch sizes may be another after more
OUTSIDE = "The limits do not apply to this statement."


def describe_use(named: Recommendation) -> str:
    """The effective batch size to use with its micro batch, learning rate and model, as the begin of a sentence."""
    # records of another program may lack each of the settings
    micro, model = (named.config.get(key) for key in ("batch.micro", "model.name"))
    settings = ("" if micro is None else f"micro batch {micro}", describe_learning_rate(named), str(model or ""))
    return f"Use an effective batch size of {named.global_batch_size} ({', '.join(filter(None, settings))})"


def describe_learning_rate(named: Recommendation) -> str:
    """The learning rate of the training, and what a scaling rule made it from; "" where it is not on record."""
    given, used = named.config.get("optimizer.lr"), named.learning_rate
    if given is None or used is None:
        return "" if given is None else f"learning rate {given:.3g}"
    source = "" if f"{used:.3g}" == f"{given:.3g}" else f" scaled from {given:.3g}"
    return f"learning rate {used:.3g}{source}"


def describe_length(named: Recommendation, num_steps: float) -> str:
    """How long it was trained, as a sentence behind others, because another batch size may be the one to use
    for another length; "" where that is not on record. ``num_steps`` may be NaN."""
    parts = []
    if named.num_epochs is not None:
        parts.append("1 epoch" if named.num_epochs == 1 else f"{round(named.num_epochs, 2):,g} epochs")
    if num_steps < _FEW_STEPS:  # also false where the steps are not on record
        steps = format_count(round(num_steps), "optimizer step")
        parts.append(f"{steps} only: after longer trainings another batch size may be the one to use")
    return f" The configuration was trained for {', '.join(parts)}." if parts else ""


def has_limits(limits: Limits) -> bool:
    """Whether anything is limited."""
    return any(value is not None for value in vars(limits).values())


def describe_eligible(candidates: Candidates, points: str) -> str:
    """The configurations among which the fastest is named; ``points`` is the tolerance of accuracy in words."""
    limits = candidates.limits
    if limits.min_accuracy is not None:
        text = f"with an accuracy of at least {_percent(limits.min_accuracy)}"
    else:
        text = f"that lose at most {points} against the best"
    return text if limits.max_seconds is None and limits.max_memory_bytes is None else f"{text} within the limits"


def explain_exclusion(candidates: Candidates) -> str:
    """Which limit no configuration that was tried keeps to, by the estimates; "" where one keeps to all of them."""
    if candidates.within_limits().any():
        return ""
    limits, parts = candidates.limits, []
    best = float(candidates.values(ACCURACY).max())
    if limits.min_accuracy is not None and best < limits.min_accuracy:
        parts.append(f"the most accurate one reaches {_percent(best)}, {_percent(limits.min_accuracy)} is required")
    for name, limit, word, unit, scale in (
        (SECONDS, limits.max_seconds, "fastest one takes", "s", 1.0),
        (MEMORY, limits.max_memory_bytes, "smallest one requires", "MiB", 2.0**20),
    ):
        known = [value for value in candidates.values(name).tolist() if math.isfinite(value)]
        if limit is not None and not known:
            parts.append(f"{name} is on record for none of them")
        elif limit is not None and min(known) > limit:
            parts.append(f"the {word} {min(known) / scale:.3g} {unit}, the limit is {limit / scale:.3g} {unit}")
    reason = "; ".join(parts) or "each limit can be kept, but not all at once"
    return f"No configuration that was tried keeps to the limits: {reason}."


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.4g} %"
