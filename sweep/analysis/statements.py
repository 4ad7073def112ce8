"""What the records state about the batch size: each statement with the probability that it is right, and what would
settle those that are not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sweep.analysis.answer import BatchAnswer, Limits, Recommendation, Statement
from sweep.analysis.candidates import BATCH_SIZE, Candidates, choose_for, compare_candidates
from sweep.analysis.comparable import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics import Mask, read_numbers
from sweep.analysis.tuned_batches import (
    BatchDraws,
    describe_model,
    describe_thin_batches,
    describe_tuned,
    draw_batches,
    find_thin_batches,
    fix_batch,
    list_models,
)
from sweep.config.metrics import format_count, format_points, format_share

_FEW_STEPS = 100  # of a training: the order of the batch sizes may be another after more
_MOST_TRAININGS = 1000  # more than a study of this kind would train
_OUTSIDE = "The limits do not apply to this statement."


def answer_batch_size(candidates: Candidates, given: int | None = None) -> BatchAnswer:
    """Which batch size to use, the curve of every model, and the statements about the model that is named; where none
    is, about the most accurate one. One of them compares the effective batch size ``given`` with the named one."""
    named = choose_for(candidates, BATCH_SIZE, "batch_size")
    models = list_models(candidates)
    chosen = str(named.config.get("model.name") or "") if named.number is not None else models[0]
    draws = {model: draw_batches(candidates, model) for model in models}
    curve = [point for model in models for point in describe_tuned(candidates, draws[model])]
    batches = draws[chosen]
    statements = [_state_use(candidates, named)]
    if len(batches.batches) > 1:
        statements += _state_batches(candidates, batches)
        statements += _state_neighbors(candidates, batches, named)
    if given is not None:
        statements.append(_state_given(candidates, batches, named, given))
    return BatchAnswer(
        named=named,
        model=chosen,
        curve=tuple(curve),
        models=tuple(describe_model(candidates, draws[model]) for model in models),
        statements=tuple(statements),
    )


@dataclass(frozen=True)
class _Split:
    """The batches that are known to lose no more than the tolerance, those that are known to lose more than half of it,
    and the others; each of shape ``[b]``."""

    inside: Mask
    outside: Mask

    @property
    def unknown(self) -> Mask:
        return ~(self.inside | self.outside)


def split_batches(candidates: Candidates, draws: BatchDraws) -> _Split:
    """Which batches are as good as the best. Only a batch with enough fresh seeds is known to be; between half the
    tolerance and the whole of it both statements are right, so that each can be decided about."""
    rules = candidates.rules
    within, near = draws.find_within(rules.tolerance.accuracy), draws.find_within(rules.tolerance.accuracy / 2)
    inside = (within.mean(axis=0) >= rules.confidence) & candidates.nameable[draws.places]
    return _Split(inside, ~inside & (near.mean(axis=0) <= 1 - rules.confidence))


def _state_use(candidates: Candidates, named: Recommendation) -> Statement:
    tolerance = candidates.rules.tolerance
    if named.number is None:
        unknown = "Which batch size to use is not known yet: no eligible configuration has enough fresh seeds."
        return Statement(name="use", text=_explain_exclusion(candidates) or unknown, batches=(), missing=named.missing)
    needed, by_images = _estimate_needed(candidates, named)
    return Statement(
        name="use",
        text=f"{describe_use(named)}: it is the fastest, to within {format_share(tolerance.time)}, of the "
        f"configurations {_describe_eligible(candidates)}.{_describe_length(candidates, named)}"
        + ("" if named.is_settled else " This is not settled yet."),
        batches=(int(named.global_batch_size or 0),),
        probability=named.probability,
        is_settled=named.is_settled,
        needed=needed,
        missing=None if by_images else named.missing,  # which adds seeds
    )


def _estimate_needed(candidates: Candidates, named: Recommendation) -> tuple[str, bool]:
    """What would raise the probability of ``named`` against its closest rival to the study's confidence, as a clause,
    "" where nothing is known to; and whether the validation set is too small for it.

    As if the difference were normal: with z(p) standard deviations between it and the limit, its variance must shrink
    by (z(p) / z(confidence))^2. Only the seeds' part of the variance shrinks with the number of seeds.
    """
    if named.is_settled or named.number is None or named.next_best is None:
        return "", False
    too_many = f"more than {_MOST_TRAININGS:,} trainings would be required"
    if named.probability <= 0.5:
        return too_many, False
    pair = [_find_candidate(candidates, number) for number in (named.number, named.next_best.number)]
    posterior, rows = candidates.records.posterior(ACCURACY), candidates.rows[pair]
    error, _ = posterior.compare(int(rows[0]), rows[1:])
    of_seeds = posterior.spread.sd**2 * float(np.sum(posterior.errors[rows] ** 2))
    share_of_images = 1.0 - min(of_seeds / max(float(error[0]) ** 2, 1e-300), 1.0)
    shrunk = float(ndtri(named.probability) / ndtri(candidates.rules.confidence)) ** 2
    if shrunk <= share_of_images:
        return (
            "no number of seeds would settle it on these validation images; more images (data.validation_share) or a "
            "wider answer.tolerance.accuracy would"
        ), True
    num_seeds = int(candidates.num_seeds[pair[0]] + max(candidates.num_seeds[pair[1]], 1))
    num_more = math.ceil(num_seeds * ((1.0 - share_of_images) / (shrunk - share_of_images) - 1.0))
    enough = f"about {format_count(num_more, 'more training')} would settle it"
    return enough if num_more <= _MOST_TRAININGS else too_many, False


def _state_batches(candidates: Candidates, draws: BatchDraws) -> list[Statement]:
    """Which batch sizes are equally good, and the largest without a loss."""
    split, points = split_batches(candidates, draws), _points(candidates.rules.tolerance.accuracy)
    # tuning makes no batch size worse, so that one which is as good as the best already is known to be
    good = set(draws.batches[split.inside].tolist())
    thin = {batch: count for batch, count in find_thin_batches(candidates, draws).items() if batch not in good}
    is_tuned = ~np.isin(draws.batches, list(thin))
    # that the only one which is tuned is as good as the best is certain, and states nothing
    is_alone = (split.inside | is_tuned).sum() < 2
    equally_good = _state_equally_good(candidates, draws, split, thin)
    if is_alone:
        lack = f"{draws.model} has fewer than two that count as tuned.{_add_remarks(candidates, thin)}"
        text = f"Which effective batch sizes are equally good is not known yet: {lack}"
        missing = candidates.records.command_for_more
        equally_good = Statement(name="equally_good", text=text, batches=(), missing=missing)
    if is_alone or not split.inside.any():
        text = f"The largest effective batch size that loses no more than {points} is not known yet."
        text += _add_remarks(candidates, {})
        missing = candidates.records.command_for_more if is_alone else candidates.records.command_for_more_seeds
        return [equally_good, Statement(name="largest_without_loss", text=text, batches=(), missing=missing)]
    return [equally_good, _state_largest(candidates, draws, split, thin)]


def _state_equally_good(candidates: Candidates, draws: BatchDraws, split: _Split, thin: Mapping[int, int]) -> Statement:
    tolerance, is_tuned = candidates.rules.tolerance.accuracy, ~np.isin(draws.batches, list(thin))
    within, near = draws.find_within(tolerance), draws.find_within(tolerance / 2)
    worse, unknown = split.outside & is_tuned, split.unknown & is_tuned
    is_right = np.all(within[:, split.inside], axis=1) & ~np.any(near[:, worse], axis=1)
    parts = [
        f"{_list(draws, mask)} {one if mask.sum() == 1 else several}"
        for mask, one, several in (
            (split.inside, "is as good as the best", "are equally good"),
            (worse, "is worse", "are worse"),
            (unknown, "is not known yet to be as good or worse", "are not known yet to be as good or worse"),
        )
        if mask.any()
    ]  # fmt: skip
    tried = f" of the effective batch sizes that were tried, {'; '.join(parts)}." if parts else ""
    unseeded = unknown & ~candidates.nameable[draws.places]
    seeds = f" Too few fresh seeds to tell: {_list(draws, unseeded)}." if unseeded.any() else ""
    return Statement(
        name="equally_good",
        text=f"Within {_points(tolerance)}, {draws.model}:{tried}{seeds}{_add_remarks(candidates, thin)}",
        batches=tuple(int(batch) for batch in draws.batches[split.inside]),
        probability=float(is_right.mean()) if (split.inside | worse).any() else 0.0,
        is_settled=not unknown.any() and not thin,
        missing=_find_missing(candidates, thin, unknown),
    )


def _state_largest(candidates: Candidates, draws: BatchDraws, split: _Split, thin: Mapping[int, int]) -> Statement:
    tolerance = candidates.rules.tolerance.accuracy
    largest = int(np.flatnonzero(split.inside)[-1])
    batch, points = int(draws.batches[largest]), _points(tolerance)
    unknown = (split.unknown & ~np.isin(draws.batches, list(thin)))[largest + 1 :]
    thin = {size: count for size, count in thin.items() if size > batch}  # a smaller one changes nothing here
    is_settled = not unknown.any() and not thin
    text = f"An effective batch size of {batch} loses no more than {points}; for larger ones this is not known yet."
    if largest == len(draws.batches) - 1:
        text = f"The largest effective batch size that was tried, {batch}, loses no more than {points}."
    elif is_settled:
        text = f"Of the effective batch sizes that were tried, the largest that loses no more than {points} is {batch}."
    return Statement(
        name="largest_without_loss",
        text=text + _add_remarks(candidates, thin),
        batches=(batch,),
        probability=float(draws.find_within(tolerance)[:, largest].mean()),
        is_settled=is_settled,
        missing=_find_missing(candidates, thin, unknown),
    )


def _find_missing(candidates: Candidates, thin: Mapping[int, int], unknown: Mask) -> str | None:
    # batch sizes that are not tuned require more configurations first; seeds tell about those that are
    if thin:
        return candidates.records.command_for_more
    return candidates.records.command_for_more_seeds if unknown.any() else None


def _state_neighbors(candidates: Candidates, draws: BatchDraws, named: Recommendation) -> list[Statement]:
    if named.number is None:
        return []
    position = int(np.flatnonzero(draws.batches == named.global_batch_size)[0])
    candidate, statements = _find_candidate(candidates, named.number), []
    for name, kind, neighbor in (("next_larger", "larger", position + 1), ("next_smaller", "smaller", position - 1)):
        if 0 <= neighbor < len(draws.batches):
            batch = int(draws.batches[neighbor])
            costs = _compare(candidates, candidate, int(draws.places[neighbor]))
            text = f"The next {kind} one, {batch}{costs}"
            statements.append(Statement(name=name, text=text, batches=(batch,), is_estimate=True))
    return statements


def _state_given(candidates: Candidates, draws: BatchDraws, named: Recommendation, given: int) -> Statement:
    where = np.flatnonzero(draws.batches == given)
    if not len(where):
        beside = candidates.records.commands.run_variant(f"batch_{given}", fix_batch(candidates, given))
        text = (
            f"What an effective batch size of {given} costs is not known: {draws.model} completed no training at it. "
            f"A study of this batch size alone, for `sweep compare`: {beside}"
        )
    elif named.number is None:
        text = f"What an effective batch size of {given} costs is not known yet: there is none to compare it with."
    elif given == named.global_batch_size:
        text = f"The given effective batch size, {given}, is the one to use."
    else:
        costs = _compare(candidates, _find_candidate(candidates, named.number), int(draws.places[where[0]]))
        points = _points(candidates.rules.tolerance.accuracy)
        within = draws.find_within(candidates.rules.tolerance.accuracy)[:, where[0]].mean()
        text = (
            f"The given effective batch size, {given}, against {named.global_batch_size}{costs} The probability that, "
            f"tuned, it loses no more than {points} against the best is {100 * within:.0f} %."
        )
    return Statement(name="given", text=text, batches=(given,), is_estimate=True)


def _find_candidate(candidates: Candidates, number: int) -> int:
    return [candidates.number(index) for index in range(len(candidates.rows))].index(number)


def _compare(candidates: Candidates, candidate: int, other: int) -> str:
    # what ``other`` costs against ``candidate``, as the end of a sentence
    differences = compare_candidates(candidates, other, candidate)
    parts = []
    for metric, words in ((SECONDS, "the training time"), (MEMORY, "the memory")):
        if ratio := differences.get(metric):
            parts.append(f"{ratio.median:.2f} times {words}{_range(f'{ratio.low:.2f}', f'{ratio.high:.2f}')}")
    middle, low, high = (f"{round(100 * value, 2) + 0.0:+.2f}" for value in differences[ACCURACY][:3])
    parts.append(f"{middle} points of accuracy{_range(low, high)}")
    is_doubtful = candidates.is_time_doubtful(candidate) or candidates.is_time_doubtful(other)
    doubt = " The ratio of the times is doubtful: one of the two has no reliable time." if is_doubtful else ""
    is_confirmed = bool(candidates.num_seeds[[candidate, other]].all())
    return f"{'' if is_confirmed else ' (not confirmed)'}: {', '.join(parts)}.{doubt}"


def _range(low: str, high: str) -> str:
    return f" ({low} to {high})" if low != high else ""


def _add_remarks(candidates: Candidates, thin: Mapping[int, int]) -> str:
    remarks = (describe_thin_batches(thin), _OUTSIDE if candidates.limits != Limits() else "")
    return "".join(f" {sentence}" for sentence in remarks if sentence)


def _points(accuracy: float) -> str:
    return f"{format_points(accuracy)} of accuracy"


def _list(draws: BatchDraws, mask: Mask) -> str:
    return ", ".join(str(batch) for batch in draws.batches[mask])


# --- sentences


def describe_use(named: Recommendation) -> str:
    """The effective batch size to use with its micro batch, learning rate and model, as the beginning of a sentence."""
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


def _describe_length(candidates: Candidates, named: Recommendation) -> str:
    """How long it was trained, as a sentence behind others, because another batch size may be the one to use
    for another length; "" where that is not on record."""
    rows = candidates.basis_of(_find_candidate(candidates, int(named.number or 0)))
    steps = read_numbers(candidates.records.done, "num_steps")[rows]
    num_steps = float(np.nanmedian(steps)) if np.isfinite(steps).any() else np.nan
    parts = []
    if named.num_epochs is not None:
        parts.append("1 epoch" if named.num_epochs == 1 else f"{round(named.num_epochs, 2):,g} epochs")
    if num_steps < _FEW_STEPS:  # also false where the steps are not on record
        shown = format_count(round(num_steps), "optimizer step")
        parts.append(f"{shown} only: after longer trainings another batch size may be the one to use")
    return f" The configuration was trained for {', '.join(parts)}." if parts else ""


def _describe_eligible(candidates: Candidates) -> str:
    # the configurations among which the fastest is named
    limits = candidates.limits
    if limits.min_accuracy is not None:
        text = f"with an accuracy of at least {_percent(limits.min_accuracy)}"
    else:
        text = f"that lose at most {_points(candidates.rules.tolerance.accuracy)} against the best"
    return text if limits.max_seconds is None and limits.max_memory_bytes is None else f"{text} within the limits"


def _explain_exclusion(candidates: Candidates) -> str:
    """That no configuration that was tried keeps to the limits, with what the best one reaches in each, by the
    estimates; "" where one keeps to all of them."""
    if candidates.within_limits().any():
        return ""
    limits, parts = candidates.limits, []
    if limits.min_accuracy is not None:
        best = float(candidates.values(ACCURACY).max())
        parts.append(f"the most accurate one reaches {_percent(best)}, {_percent(limits.min_accuracy)} is required")
    for name, limit, word, unit, scale in (
        (SECONDS, limits.max_seconds, "fastest one takes", "s", 1.0),
        (MEMORY, limits.max_memory_bytes, "smallest one requires", "MiB", 2.0**20),
    ):
        if limit is not None:
            least = min(filter(math.isfinite, candidates.values(name).tolist()), default=math.nan) / scale
            parts.append(f"the {word} {least:.3g} {unit}, the limit is {limit / scale:.3g} {unit}")
    return f"No configuration that was tried keeps to the limits: {'; '.join(parts)}."


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.4g} %"
