"""What the records state about the batch size: each statement with the probability that it is right, and what would
settle those that are not."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from sweep.analysis.answer import BatchAnswer, Limits, Recommendation, Statement, TunedBatch
from sweep.analysis.candidates import BATCH_SIZE, Candidates, choose_for, compare_candidates, find_right_batches
from sweep.analysis.comparable import MEMORY, SECONDS
from sweep.analysis.costs import num_accumulation
from sweep.analysis.rate_powers import MICRO_KEYS
from sweep.analysis.response import list_batches
from sweep.analysis.statistics import (
    CONFIDENCE,
    Interval,
    Mask,
    configuration_groups,
    read_numbers,
    read_text,
    t_quantile,
)
from sweep.analysis.tuned_batches import (
    RATE,
    BatchDraws,
    describe_model,
    describe_thin_batches,
    describe_tuned,
    draw_batches,
    find_thin_batches,
    fix_batch,
    list_models,
)
from sweep.config.metrics import format_count, format_probability, format_share, join_words

_FEW_STEPS = 100  # of a training: the order of the batch sizes may be another after more
_MOST_FAILED = 0.25  # of the fresh seeds of what is called settled
_MOST_TRAININGS = 1000  # more than a study of this kind would train
_OUTSIDE = "The limits do not apply to this statement."


def answer_batch_size(candidates: Candidates, given: int | None = None) -> BatchAnswer:
    """Which batch size to use, the curve of every model, and the statements about the model that is named; where none
    is, about the most accurate one. One of them compares the effective batch size ``given`` with the named one."""
    named = drop_doubtful_times(candidates, choose_for(candidates, BATCH_SIZE, "batch_size"))
    models = list_models(candidates)
    chosen = str(named.config.get("model.name") or "") if named.number is not None else models[0]
    draws = {model: draw_batches(candidates, model) for model in models}
    batches = draws[chosen]
    if named.number is not None:  # it stands for its batch size, so that the curve and the headline have one number
        places = np.where(batches.batches == named.global_batch_size, _find(candidates, named.number), batches.places)
        draws[chosen] = batches = replace(batches, places=places)
    curve = {model: describe_tuned(candidates, draws[model]) for model in models}
    thin = find_thin_batches(candidates, batches)
    statements = _state_use(candidates, batches, named, thin, curve[chosen])
    if len(batches.batches) > 1:
        if not candidates.records.until_target:  # all of them reach it
            statements += _state_batches(candidates, batches, thin)
        statements += _state_neighbors(candidates, batches, named)
    if given is not None:
        statements.append(_state_given(candidates, batches, named, given))
    statements += _state_accumulation(candidates, named)
    return BatchAnswer(
        named=named,
        model=chosen,
        curve=tuple(point for points in curve.values() for point in points),
        models=tuple(describe_model(candidates, draws[model]) for model in models),
        statements=tuple(statements),
        next_step=next((statement.missing for statement in statements if statement.missing), None),
    )


def drop_doubtful_times(candidates: Candidates, item: Recommendation) -> Recommendation:
    """The recommendation without what times say that are not used: the ratio to the next best, and that a choice is
    settled that rests on them."""
    if item.number is None or item.next_best is None:
        return item
    following, evidence = item.next_best, list(item.evidence)
    places = {f"trial {number}": _find(candidates, number) for number in (item.number, following.number)}
    if not candidates.nameable[places[f"trial {following.number}"]]:
        evidence.append(f"the next best, trial {following.number}, has too few fresh seeds to be named")
    if doubt := _describe_doubt(candidates, places):
        evidence.append(doubt)
        differences = {name: value for name, value in following.differences.items() if name != SECONDS}
        following = replace(following, differences=differences)
    if doubt and item.regret_metric in (SECONDS, ""):
        item = replace(item, is_settled=False, regret=math.nan)
    return replace(item, next_best=following, evidence=tuple(evidence))


def _describe_doubt(candidates: Candidates, places: Mapping[str, int]) -> str:
    # which of the named candidates have no time that can be used; "" where all have one
    names = [name for name, place in places.items() if candidates.is_time_doubtful(place)]
    return f"{join_words(names)} {'has' if len(names) == 1 else 'have'} no reliable training time" if names else ""


class _Split(NamedTuple):
    """The batches that are known to lose no more than the tolerance, those that are known to lose more, and the others;
    each of shape ``[b]``."""

    inside: Mask
    outside: Mask
    unknown: Mask


def split_batches(candidates: Candidates, draws: BatchDraws) -> _Split:
    """Which batches are as good as the best. Only a batch with enough fresh seeds is known to be."""
    rules, within = candidates.rules, draws.find_within(candidates.tolerance).mean(axis=0)
    inside = (within >= rules.confidence) & candidates.nameable[draws.places]
    outside = within <= 1 - rules.confidence
    return _Split(inside, outside, ~(inside | outside))


def _state_use(
    candidates: Candidates, draws: BatchDraws, named: Recommendation, thin: Mapping[int, int], curve: list[TunedBatch]
) -> list[Statement]:
    """First the batch size, with the probability that it is right whatever the rate; then the rest of what is named."""
    if named.number is None:
        unknown = "Which batch size to use is not known yet: no eligible configuration has enough fresh seeds."
        if not np.isfinite(candidates.values(SECONDS)).any():
            unknown = (
                "Which batch size to use is not known: that is the fastest one, and no training time is on record."
            )
        text = _explain_exclusion(candidates) or unknown
        return [Statement(name="use", text=text, batches=(), missing=named.missing)]
    own, position = _find(candidates, named.number), int(np.searchsorted(draws.batches, named.global_batch_size or 0))
    groups, split = find_right_batches(candidates), split_batches(candidates, draws)
    weights = groups.right.mean(axis=0)[groups.of_candidates[draws.places]]
    others = np.arange(len(weights)) != position
    rival, probability = int(np.argmax(np.where(others, weights, -1.0))), float(weights[position])
    outside = weights <= 1 - candidates.rules.confidence if candidates.records.until_target else split.outside
    serious = np.flatnonzero(~(others & outside))
    # the only one that is not worse is the one to use, whatever it takes
    doubt = _describe_doubt(candidates, _name_places(draws, serious)) if len(serious) > 1 else ""
    num_failed = int(candidates.num_failed_seeds[own])
    is_unstable = num_failed > _MOST_FAILED * (num_failed + int(candidates.num_seeds[own]))
    is_certain = probability >= candidates.rules.confidence
    is_settled = bool(others.any()) and not doubt and is_certain and not is_unstable
    needed, by_images = "trainings on an undisturbed machine would help" if doubt else "", False
    open_ones = {size: thin[size] for size in thin if size not in draws.batches[~split.unknown]}
    missing = candidates.records.command_for_more_seeds
    if doubt and open_ones:
        missing = candidates.records.command_for_more
    if others.any() and is_unstable and is_certain and not doubt:
        needed, missing = "settings whose seeds complete are required", candidates.records.command_for_more
    elif others.any() and not (is_settled or doubt):
        tried = find_right_batches(candidates.leave_out_untried())
        gained = float(tried.right[:, tried.of_candidates[own]].mean()) - probability
        is_thin = not thin.keys().isdisjoint(draws.batches[[position, rival]].tolist())
        if is_thin or gained > (1 - probability) / 2:
            needed, missing = "settings that were not tried may be better", candidates.records.command_for_more
        else:
            needed, by_images = _estimate_needed(candidates, [own, int(draws.places[rival])], probability)
    what = f"the fastest, to within {_describe_slack(candidates)}, of the batch sizes {_describe_eligible(candidates)}"
    reason = f"it {'is' if is_settled else 'is probably' if probability >= 0.5 else 'may be'} {what}"
    if doubt:
        reason = f"whether it is {what}, is not known, because {doubt}"
    parts = [f"{describe_use(named)}: {reason if others.any() else 'no other effective batch size was tried'}."]
    if weights[rival] > probability and not is_settled:
        why = "" if candidates.nameable[draws.places[rival]] else ", but has too few fresh seeds to be named"
        likelier = f"{draws.batches[rival]} is more probable ({format_probability(float(weights[rival]))}){why}."
        parts.append(f"By these times {likelier}" if doubt else likelier)
    parts += _list_caveats(candidates, named, curve[position])
    if not is_settled:
        parts += [describe_thin_batches(open_ones)]
    use = Statement(
        name="use",
        text=" ".join(filter(None, parts)),
        batches=(int(draws.batches[position]),),
        probability=max(probability, 0.5 / len(candidates.draws)) if others.any() else 0.0,  # 0: of nothing
        is_settled=is_settled,
        needed=needed,
        missing=missing if needed and not by_images else None,
    )
    how = "" if named.is_settled else "probably " if named.probability >= 0.5 else "possibly "
    rest = Statement(
        name="configuration",
        text=f"Its configuration, trial {named.number}: {how}no other setting is better by more than the tolerance.",
        batches=use.batches,
        probability=named.probability,
        is_settled=named.is_settled,
        missing=None if by_images else named.missing,
    )
    return [use, rest] if (groups.of_candidates == groups.of_candidates[own]).sum() > 1 else [use]


def _list_caveats(candidates: Candidates, named: Recommendation, point: TunedBatch) -> list[str]:
    # what lessens the trust in the named configuration, and how long it was trained, as sentences
    caveats = [f"{remark[:1].upper()}{remark[1:]}." for remark in point.remarks if RATE in remark]
    caveats += _describe_end(candidates, named)
    chance, parts = candidates.records.images.chance, list[str]()
    if chance is not None and named.values[candidates.quality].low <= chance + candidates.tolerance:
        shown = candidates.records.quality.format_value(chance)
        caveats.append(f"Its accuracy is near chance, {shown}: longer trainings may decide otherwise.")
    place = _find(candidates, int(named.number or 0))
    if num_lost := int(candidates.num_failed_seeds[place]):
        whole = num_lost + int(candidates.num_seeds[place])
        caveats.append(f"{num_lost} of its {whole} trainings with fresh seeds did not complete.")
    if missed := _list_missed(candidates, named):
        caveats.append(f"No training reached the target at {missed}.")
    of_named = candidates.records.grouping.members == candidates.rows[place]
    if num_failed := int(candidates.records.failed[of_named].sum()):
        caveats.append(
            f"{num_failed} of its {int(of_named.sum())} trainings ended far "
            f"{'below' if candidates.records.quality.sign > 0 else 'above'} the others."
        )
    if named.num_epochs is not None:
        parts.append("1 epoch" if named.num_epochs == 1 else f"{round(named.num_epochs, 2):,g} epochs")
    is_short = point.num_steps.median < _FEW_STEPS  # also false where the steps are not on record
    if is_short and not candidates.records.until_target:
        shown = format_count(round(point.num_steps.median), "optimizer step")
        parts.append(f"{shown} only: after longer trainings another batch size may be the one to use")
    return [*caveats, f"The configuration was trained for {', '.join(parts)}."] if parts else caveats


def _describe_end(candidates: Candidates, named: Recommendation) -> list[str]:
    # where the range of batch sizes ends at the named one: of all that were planned or tried, also without success
    records, model = candidates.records, str(named.config.get("model.name"))
    of_model = records.trials[read_text(records.trials, "config.model.name") == model]
    tried = read_numbers(of_model, "global_batch_size")
    sizes = {
        *tried[np.isfinite(tried)].astype(int).tolist(),
        *(list_batches(records.spec, model) if records.spec else []),
    }
    if len(sizes) < 2 or min(sizes) < named.global_batch_size < max(sizes) or named.global_batch_size == 1:
        return []
    end, other = ("smallest", "smaller") if named.global_batch_size == min(sizes) else ("largest", "larger")
    return [f"It is the {end} batch size that was tried: a {other} one may be better."]


def _list_missed(candidates: Candidates, named: Recommendation) -> str:
    # the effective batch sizes with the named model at which every training missed the target of the others
    records, size = candidates.records, "global_batch_size"
    if not records.until_target:
        return ""
    of_model = records.trials[read_text(records.trials, "config.model.name") == named.config.get("model.name")]
    missed = of_model[read_text(of_model, "outcome") == "target_missed"]
    lost = set(read_numbers(missed, size).tolist()) - set(read_numbers(records.done, size).tolist())
    return ", ".join(f"{batch:.0f}" for batch in sorted(lost))


def _estimate_needed(candidates: Candidates, pair: list[int], probability: float) -> tuple[str, bool]:
    """What would raise the ``probability`` of the first candidate of ``pair`` against the second to the study's
    confidence, as a clause; and whether the validation set is too small for it.

    As if the difference were normal: with z(p) standard deviations between it and the limit, its variance must shrink
    by (z(p) / z(confidence))^2. Only the seeds' part of the variance shrinks with the number of seeds. Where that takes
    more trainings than any study has, the two are so close that the next seeds change the difference, and it is not
    known.
    """
    unknown = "how many trainings would settle it is not known"
    if probability <= 0.5:
        return unknown, False
    posterior, rows = candidates.records.posterior(candidates.records.judged[0]), candidates.rows[pair]
    error, _ = posterior.compare(int(rows[0]), rows[1:])
    of_seeds = posterior.spread.sd**2 * float(np.sum(posterior.errors[rows] ** 2))
    share_of_images = 1.0 - min(of_seeds / max(float(error[0]) ** 2, 1e-300), 1.0)
    shrunk = float(ndtri(probability) / ndtri(candidates.rules.confidence)) ** 2
    if shrunk <= share_of_images:
        sample, key = candidates.records.quality.sample, "quality" if candidates.records.is_script else "accuracy"
        where = "" if candidates.records.is_script else " (data.validation_share)"
        return (
            f"no number of seeds would settle it on these validation {sample}; more {sample}{where} or a wider "
            f"answer.tolerance.{key} would"
        ), True
    num_seeds = int(candidates.num_seeds[pair[0]] + max(candidates.num_seeds[pair[1]], 1))
    num_more = math.ceil(num_seeds * ((1.0 - share_of_images) / (shrunk - share_of_images) - 1.0))
    enough = f"about {format_count(num_more, 'more training')} would settle it"
    return enough if num_more <= _MOST_TRAININGS else unknown, False


def _state_batches(candidates: Candidates, draws: BatchDraws, few: Mapping[int, int]) -> list[Statement]:
    """Which batch sizes are equally good, and the largest without a loss."""
    split, points = split_batches(candidates, draws), candidates.records.tolerance_text
    # tuning makes no batch size worse, so that one which is as good as the best already is known to be
    good = set(draws.batches[split.inside].tolist())
    known = good | set(draws.batches[split.outside].tolist())  # what was not tried there is in the probability
    thin = {batch: count for batch, count in few.items() if batch not in known}
    is_tuned = ~np.isin(draws.batches, list(thin))
    # that the only one which is tuned is as good as the best is certain, and states nothing
    is_alone = (split.inside | is_tuned).sum() < 2
    equally_good = _state_equally_good(candidates, draws, split, thin, sorted(good & few.keys()))
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


def _state_equally_good(
    candidates: Candidates, draws: BatchDraws, split: _Split, thin: Mapping[int, int], early: Sequence[int]
) -> Statement:
    tolerance, is_tuned = candidates.tolerance, ~np.isin(draws.batches, list(thin))
    within, worse, unknown = draws.find_within(tolerance), split.outside & is_tuned, split.unknown & is_tuned
    is_right = np.all(within[:, split.inside], axis=1) & ~np.any(within[:, worse], axis=1)
    probability = float(is_right.mean()) if (split.inside | worse).any() else 0.0
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
    tried = f"Within {candidates.records.tolerance_text}, {draws.model}:{tried}"
    unseeded = unknown & ~candidates.nameable[draws.places]
    seeds = f" Too few fresh seeds to tell: {_list(draws, unseeded)}." if unseeded.any() else ""
    if early:
        names = ", ".join(map(str, early))
        seeds += f" As good already, although too few configurations were tried to count as tuned: {names}."
    is_settled = not unknown.any() and not thin and probability >= candidates.rules.confidence
    return Statement(
        name="equally_good",
        text=f"{tried}{seeds}{_add_remarks(candidates, thin)}",
        batches=tuple(int(batch) for batch in draws.batches[split.inside]),
        probability=probability,
        is_settled=is_settled,
        missing=_find_missing(candidates, thin, is_settled=is_settled),
    )


def _state_largest(candidates: Candidates, draws: BatchDraws, split: _Split, thin: Mapping[int, int]) -> Statement:
    tolerance = candidates.tolerance
    largest = int(np.flatnonzero(split.inside)[-1])
    batch, points = int(draws.batches[largest]), candidates.records.tolerance_text
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
        missing=_find_missing(candidates, thin, is_settled=is_settled),
    )


def _find_missing(candidates: Candidates, thin: Mapping[int, int], *, is_settled: bool) -> str | None:
    # batch sizes that are not tuned require more configurations first; seeds tell about those that are
    if thin:
        return candidates.records.command_for_more
    return None if is_settled else candidates.records.command_for_more_seeds


def _state_neighbors(candidates: Candidates, draws: BatchDraws, named: Recommendation) -> list[Statement]:
    if named.number is None:
        return []
    position, statements = int(np.searchsorted(draws.batches, named.global_batch_size or 0)), []
    for name, kind, neighbor in (("next_larger", "larger", position + 1), ("next_smaller", "smaller", position - 1)):
        if 0 <= neighbor < len(draws.batches):
            costs = _compare(candidates, _name_places(draws, [position, neighbor]))
            batch = int(draws.batches[neighbor])
            text = f"The next {kind} one, {costs}"
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
        text = f"Your effective batch size, {given}, is the one that is named."
    else:
        position = int(np.searchsorted(draws.batches, named.global_batch_size or 0))
        costs = _compare(candidates, _name_places(draws, [position, int(where[0])]), ", against")
        points = candidates.records.tolerance_text
        within = float(draws.find_within(candidates.tolerance)[:, where[0]].mean())
        loses = f"The probability that, tuned, it loses no more than {points} against the best is"
        text = f"Your effective batch size, {costs}"
        text += "" if candidates.records.until_target else f" {loses} {format_probability(within)}."
    return Statement(name="given", text=text, batches=(given,), is_estimate=True)


def _state_accumulation(candidates: Candidates, named: Recommendation) -> list[Statement]:
    """What accumulation costs, by two configurations that differ in the micro batch alone: with times that are used, at
    the batch size that is named and with fresh seeds, where there are such."""
    frame = candidates.records.frame.iloc[candidates.rows]
    settings, sizes = configuration_groups(frame, MICRO_KEYS), read_numbers(frame, "global_batch_size")
    counts = num_accumulation(frame)  # in records of another program the micro batch may be unknown
    counts = np.where(np.isfinite(counts), counts, read_numbers(frame, "config.batch.accumulation"))
    are_equal = (settings[:, None] == settings) & (sizes[:, None] == sizes) & (counts[:, None] < counts)
    if not are_equal.any():
        return []
    pairs, accuracies = np.argwhere(are_equal), candidates.values(candidates.quality)
    is_timed = np.array([not candidates.is_time_doubtful(place) for place in range(len(frame))])
    is_named, shares = sizes[pairs[:, 0]] == named.global_batch_size, counts[pairs[:, 1]] / counts[pairs[:, 0]]
    num_seeds, are_timed = candidates.num_seeds[pairs].min(axis=1), is_timed[pairs].all(axis=1)
    order = np.lexsort((accuracies[pairs].max(axis=1), shares, num_seeds, is_named, are_timed))  # the last counts first
    pair = pairs[order[-1]].tolist()
    batch = int(sizes[pair[0]])
    names = [f"{batch // int(counts[place])} x {int(counts[place])}" for place in pair]
    costs = _compare(candidates, dict(zip(names, pair, strict=True)), " instead of", _compare_own(candidates, *pair))
    text = f"Accumulation, {batch} as {costs}"
    return [Statement(name="accumulation", text=text, batches=(batch,), is_estimate=True)]


def _find(candidates: Candidates, number: int) -> int:
    return [candidates.number(index) for index in range(len(candidates.rows))].index(number)


def _name_places(draws: BatchDraws, indices: Iterable[int]) -> dict[str, int]:
    return {str(draws.batches[index]): int(draws.places[index]) for index in indices}


def _compare_own(candidates: Candidates, first: int, second: int) -> Interval | None:
    """The accuracy of the candidate ``second`` minus the accuracy of ``first`` by their own trainings: the response
    assumes that equal configurations with other micro batches are equally accurate. NaN with ``n`` = 0 without a spread
    between seeds; None where all reached their target."""
    records = candidates.records
    if records.until_target:
        return None
    posterior, rows = records.posterior(candidates.quality), candidates.rows[[second, first]]
    if posterior.is_assumed:
        return Interval(math.nan, math.nan, math.nan, 0)
    (error,), (degrees,) = posterior.compare(int(rows[0]), rows[1:])
    one, other = posterior.centers[rows]
    half = t_quantile(CONFIDENCE, float(degrees)) * float(error)
    halves = (one - other + np.array([0.0, -half, half])) / 2
    middle = (one + other) / 2
    values = posterior.scale.backward(middle + halves) - posterior.scale.backward(middle - halves)
    gap, low, high = values.tolist()
    n = min(len(candidates.basis_of(place)) for place in (first, second))
    return records.show(candidates.quality, Interval(gap, low, high, n))


def _compare(
    candidates: Candidates, places: Mapping[str, int], word: str = "", accuracy: Interval | None = None
) -> str:
    """What the second of two named candidates costs against the first, as the end of a sentence, which begins with the
    name of the second, and after a ``word`` the name of the first. The difference in ``accuracy`` is by the draws where
    it is not given."""
    base, name = (name if candidates.num_seeds[place] else f"{name} (not confirmed)" for name, place in places.items())
    first, second = places.values()
    differences, doubt, parts = compare_candidates(candidates, second, first), _describe_doubt(candidates, places), []
    for metric, words in ((SECONDS, "the training time"), (MEMORY, "the memory")):
        ratio = differences.get(metric)
        if ratio and not (metric == SECONDS and doubt):
            parts.append(f"{ratio.median:.2f} times {words}{_range(f'{ratio.low:.2f}', f'{ratio.high:.2f}')}")
    quality = candidates.records.quality
    difference = accuracy or differences.get(quality.column)  # None: all reached their target
    if difference and difference.n:
        middle, low, high = map(quality.format_difference, difference[:3])
        parts.append(f"{middle} {quality.difference_words}{_range(low, high)}")
    costs = f"{name}{word}{f' {base}' if word else ''}: {', '.join(parts) or 'nothing that was measured'}."
    if difference and not difference.n:
        costs += f" The {quality.noun} is not compared: no configuration has several seeds."
    return f"{costs} The training times are not compared: {doubt}." if doubt else costs


def _range(low: str, high: str) -> str:
    return f" ({low} to {high})" if low != high else ""


def _add_remarks(candidates: Candidates, thin: Mapping[int, int]) -> str:
    remarks = (describe_thin_batches(thin), _OUTSIDE if candidates.limits != Limits() else "")
    return "".join(f" {sentence}" for sentence in remarks if sentence)


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


def _describe_slack(candidates: Candidates) -> str:
    # a rival makes the choice wrong if it is faster by more than this, and inside of the tolerated loss by this much
    records, share = candidates.records, format_share(candidates.rules.tolerance.time)
    if records.until_target or candidates.required is not None:
        return share
    return f"{share} of the time and {records.quality.format_amount(candidates.tolerance / 2)}"


def _describe_eligible(candidates: Candidates) -> str:
    # the batch sizes among which the fastest is named
    limits, records = candidates.limits, candidates.records
    text = f"that lose at most {records.tolerance_text} against the best"
    if records.until_target:
        text = f"that reach {records.target_text}{records.data_text}"
    if candidates.required is not None:
        text = f"with {_describe_required(candidates)}{records.data_text}"
    return text if limits.max_seconds is None and limits.max_memory_bytes is None else f"{text} within the limits"


def _explain_exclusion(candidates: Candidates) -> str:
    """That no configuration that was tried keeps to the limits, with what the best one reaches in each, by the
    estimates; "" where one keeps to all of them."""
    if candidates.within_limits().any():
        return ""
    limits, parts = candidates.limits, []
    if candidates.required is not None:
        quality, gains = candidates.records.quality, (candidates.values(candidates.quality).max(), candidates.required)
        reached, asked = (quality.format_value(quality.sign * float(gain)) for gain in gains)
        first = "most accurate" if quality.noun == "accuracy" else "best"
        reached += ", where every training ended (budget.target)" if candidates.records.until_target else ""
        parts.append(f"the {first} one reaches {reached}, {asked} is required")
    for name, limit, word, unit, scale in (
        (SECONDS, limits.max_seconds, "fastest one takes", "s", 1.0),
        (MEMORY, limits.max_memory_bytes, "smallest one requires", "MiB", 2.0**20),
    ):
        if limit is not None:
            least = min(filter(math.isfinite, candidates.values(name).tolist()), default=math.nan) / scale
            parts.append(f"the {word} {least:.3g} {unit}, the limit is {limit / scale:.3g} {unit}")
    return f"No configuration that was tried keeps to the limits: {'; '.join(parts)}."


def _describe_required(candidates: Candidates) -> str:
    quality, gain = candidates.records.quality, candidates.required or 0.0
    least = f"at {'least' if quality.sign > 0 else 'most'} {quality.format_value(quality.sign * gain)}"
    return f"{'an' if quality.noun == 'accuracy' else 'a'} {quality.noun} of {least}"
