"""``recommend``: the computation behind the report's recommendation, ``sweep recommend`` and the Python function."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sweep.analysis.answer import USES, Answer, Fact, Limits, Recommendation, TrainingPrice, ValidationSize, to_document
from sweep.analysis.candidates import USE_TABLE, Candidates, choose_for, list_estimates, select_candidates
from sweep.analysis.comparable import ComparableTrials, find_main_recipe, select_comparable
from sweep.analysis.costs import find_longest_curve, parse_shapes, ran_micro_batches
from sweep.analysis.critical_batch import read_noise_scales
from sweep.analysis.shortfalls import (
    count_missing_objectives,
    describe_missing_objectives,
    explain_confirmation,
    explain_no_complete_trial,
    explain_search,
)
from sweep.analysis.statements import answer_batch_size, drop_doubtful_times
from sweep.analysis.statistics import Interval, read_numbers, read_text
from sweep.analysis.tuned_batches import list_models
from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import Quality, find_metric, format_count, join_words
from sweep.config.study import FEWEST_SEEDS, AnswerRules, Price, Tolerance
from sweep.records.frames import Frames
from sweep.records.loading import load_frames

_DID_NOT_FIT = ("out_of_memory", "not_fitting")
_NOT_CRITICAL = (
    "it is not the critical batch, which follows from steps to a target, but was of its order in McCandlish et al. 2018"
)
_SMOOTHED = "An estimate rests on similar configurations too, so it may lie outside of what its own trainings reached."
# The value of a fact, how many trials it rests on and what it holds for; or the command that would add what is missing.
_Measured = tuple[float, int, str] | str


def recommend(
    records: Frames | str | Path,
    *,
    max_memory_bytes: float | None = None,
    max_seconds: float | None = None,
    min_accuracy: float | None = None,
    uses: Sequence[str] = USES,
    given_batch: int | None = None,
) -> Answer:
    """For each use the configuration to take, from the records of one study.

    Args:
        records: frames of :func:`sweep.records.loading.load_frames`, or the path or URL to load them from.
        max_memory_bytes, max_seconds, min_accuracy: limits of a configuration (``peak_memory_bytes``,
            ``train_seconds``, ``val_accuracy``).
        uses: which uses to answer for.
        given_batch: an effective batch size that one of the statements compares with the one to use.

    Raises:
        InputError: an unknown use, an impossible limit, studies on different data, or no records at the path.
    """
    limits = Limits(max_memory_bytes=max_memory_bytes, max_seconds=max_seconds, min_accuracy=min_accuracy)
    return recommend_within(records, limits, uses, given_batch)


def recommend_within(
    records: Frames | str | Path, limits: Limits, uses: Sequence[str] = USES, given_batch: int | None = None
) -> Answer:
    """The same within any ``limits``, that of what a script reports instead of the accuracy too."""
    _check(limits, uses)
    loaded: Frames = load_frames(records, evaluations=True) if isinstance(records, str | Path) else records
    comparable = select_comparable(loaded)
    _check_quality(limits, comparable.quality)
    candidates = select_candidates(comparable, limits)
    return make_answer(loaded, comparable, candidates, limits, uses, given_batch)


def make_answer(
    loaded: Frames,
    comparable: ComparableTrials,
    candidates: Candidates | None,
    limits: Limits,
    uses: Sequence[str] = USES,
    given_batch: int | None = None,
) -> Answer:
    """The answer of :func:`recommend` from the ``comparable`` trials of ``loaded`` and their ``candidates`` within
    ``limits``, which are None without a complete trial."""
    diagnosis, asked = explain_no_complete_trial(loaded), dict(_FACTS)
    if comparable.until_target and uses == USES:  # all are equally accurate
        uses = [use for use in uses if use != "accuracy"]
    if comparable.spec and comparable.spec.script:  # the weights that it starts from and its noise are not known
        uses = [use for use in uses if not USE_TABLE[use].requires]
        del asked["noise_scale"]
    if candidates is None:
        num_open = sum(not outcome for outcome in read_text(loaded.trials, "outcome"))
        has_ended = num_open < len(loaded.trials)
        missing = None if diagnosis and has_ended else comparable.commands.run_more(comparable.planned_trials)
        chosen, batch_size = {use: Recommendation(use=use, missing=missing) for use in uses}, None
        facts, notes = {name: _state_fact(name, missing or "") for name in asked}, comparable.notes
    else:
        chosen = {use: drop_doubtful_times(candidates, choose_for(candidates, USE_TABLE[use], use)) for use in uses}
        batch_size = answer_batch_size(candidates, given_batch)
        model = list_models(candidates)[0]  # facts are about the model of the most accurate candidate
        facts = {name: _state_fact(name, measure(candidates, model)) for name, (measure, _, _) in asked.items()}
        notes = (*comparable.notes, *_list_assumptions(candidates))
    rules = comparable.spec.answer if comparable.spec else AnswerRules()
    shortfalls = (explain_search(loaded), explain_confirmation(loaded))
    price = comparable.spec.price if comparable.spec else None
    if price is not None:
        chosen = {use: _price_configuration(item, price) for use, item in chosen.items()}
        if batch_size is not None:
            curve = tuple(replace(point, price=_price_training(point.seconds, price)) for point in batch_size.curve)
            batch_size = replace(batch_size, named=_price_configuration(batch_size.named, price), curve=curve)
    return Answer(
        study=comparable.study,
        limits=limits,
        quality=comparable.quality,
        validation=_describe_validation(comparable, candidates),
        tolerance=_list_tolerances(comparable),
        confidence=rules.confidence,
        batch_size=batch_size,
        uses=chosen,
        configurations=list_estimates(candidates) if candidates else (),
        facts=facts,
        notes=(*describe_missing_objectives(loaded), *notes, *filter(None, shortfalls)),
        missing_objectives=count_missing_objectives(loaded),
        no_complete_trial=diagnosis or None,
        price_per_hour=price.per_hour if price else None,
        currency=price.currency if price else "",
    )


def as_document(answer: Answer) -> dict[str, Any]:
    """The answer as the JSON document of ``sweep recommend --json``; what is not known is null."""
    document: dict[str, Any] = to_document(answer)
    if answer.tolerance.quality is None:
        del document["quality"], document["tolerance"]["quality"], document["limits"]["limit_quality"]
    else:
        _rename_accuracies(document, answer.quality.column)
    for item in document["configurations"]:
        item["as_measured"] = list(item["measured"])
        item.update(item.pop("values"), **item.pop("measured"))
    for fact in document["facts"].values():
        del fact["name"]
    named = [document["batch_size"]["named"]] if document["batch_size"] else []
    for use in (*document["uses"].values(), *named):
        del use["use"], use["settings"]
        use["as_measured"] = list(use["measured"])
        use.update(
            use.pop("values"),
            **use.pop("measured"),
            settled=use.pop("is_settled"),
            front_probability=use.pop("on_front"),
        )
    return document


def _rename_accuracies(document: dict[str, Any], column: str) -> None:
    # of a script that reports another quality
    del document["quality"]["sample"], document["tolerance"]["accuracy"]
    del document["limits"]["limit_quality" if column == "val_accuracy" else "min_accuracy"]
    for point in document["batch_size"]["curve"] if document["batch_size"] else ():
        point[column] = point.pop("accuracy")
    for model in document["batch_size"]["models"] if document["batch_size"] else ():
        model["target"] = model.pop("target_accuracy")


def _list_tolerances(records: ComparableTrials) -> Tolerance:
    # as they were used
    declared = records.spec.answer.tolerance if records.spec else AnswerRules().tolerance
    return declared.model_copy(update={"quality": records.tolerance if records.is_script else None})


def _price_configuration(item: Recommendation, price: Price) -> Recommendation:
    seconds = item.values.get("train_seconds")
    return item if seconds is None else replace(item, price=_price_training(seconds, price))


def _price_training(seconds: Interval, price: Price) -> TrainingPrice:
    median, low, high = (price.of(part) for part in seconds[:3])
    return TrainingPrice(median=median, low=low, high=high, currency=price.currency)


def _check(limits: Limits, uses: Sequence[str]) -> None:
    for use in uses:
        if use not in USES:
            raise InputError(describe_unknown("use", use, USES))
    for name, value in vars(limits).items():
        least = -math.inf if name == "limit_quality" else 0.0
        if value is not None and not (value > least and math.isfinite(value)):
            raise InputError(f"{name} = {value}: must be {'finite' if least else 'above 0'}.")
    if limits.min_accuracy is not None and limits.min_accuracy > 1:
        raise InputError(f"min_accuracy = {limits.min_accuracy}: accuracies are fractions; give 0.93 for 93 %.")


def _check_quality(limits: Limits, quality: Quality) -> None:
    is_accuracy = quality.column == "val_accuracy"
    if limits.min_accuracy is not None and not is_accuracy:
        raise InputError(f"min_accuracy: the study is about {quality.name}; give limit_quality (--limit-quality).")
    if limits.limit_quality is not None and is_accuracy:
        raise InputError("limit_quality: the study is about accuracy; give min_accuracy (--min-accuracy).")


def _describe_validation(records: ComparableTrials, candidates: Candidates | None) -> ValidationSize:
    num_images = records.images.num_images
    if records.is_script:
        return _describe_samples(records, num_images)
    if num_images is None:
        statement = (
            "The number of validation images is not on record: intervals of accuracy are for other seeds on the same "
            "images, not for new images."
        )
        statement = _describe_target(records) if records.until_target else statement
        return ValidationSize(num_images=None, accuracy_per_image=None, statement=statement)
    size = f"{format_count(num_images, 'validation image')}; one is {100 / num_images:.2g} points of accuracy."
    covered = " Intervals and probabilities of accuracy are for new images."
    if records.until_target:
        covered = f" {_describe_target(records)}"
    rows = np.arange(0) if candidates is None else candidates.rows
    if num_unknown := int(np.sum(~records.images.are_known(rows))):
        covered += (
            f" For {num_unknown} of {format_count(len(rows), 'configuration')} it is not on record which images they "
            "got right: their errors count as independent, so the intervals of their differences are too wide."
        )
    statement = f"{size}{covered} {_SMOOTHED}"
    return ValidationSize(num_images=num_images, accuracy_per_image=1 / num_images, statement=statement)


def _describe_samples(records: ComparableTrials, num_samples: int | None) -> ValidationSize:
    # of a script's data
    quality, are_sampled = records.quality, records.images.are_sampled
    unknown = "The number of validation samples is not on record"
    size = unknown if num_samples is None else f"{num_samples:,} validation {quality.sample}"
    covered = "are for" if are_sampled else "are for other seeds on these validation data, not for"
    each = 1 / num_samples if num_samples and quality.unit == "fraction" else None
    about = f"Intervals and probabilities of {quality.noun} {covered} new {quality.sample}."
    statement = f"{size}. {_describe_target(records) if records.until_target else about} {_SMOOTHED}"
    return ValidationSize(num_images=num_samples, accuracy_per_image=each, statement=statement)


def _describe_target(records: ComparableTrials) -> str:
    return f"The trainings that count ended at {records.target_text}; what they reached beyond it does not count."


def _list_assumptions(candidates: Candidates) -> list[str]:
    notes, records = [], candidates.records
    if records.failed.any():
        numbers = read_numbers(records.done, "number")[records.failed].astype(int).tolist()
        worse = "below" if records.quality.sign > 0 else "above"
        notes.append(
            f"{len(numbers)} of {int(records.grouping.is_confirm.sum())} trainings with fresh seeds ended with their "
            f"{records.quality.noun} far {worse} the other seeds of their configuration, and are in no estimate. "
            f"Trials: {', '.join(map(str, numbers))}."
        )
    if records.spec and records.spec.tolerance is None and not records.until_target:
        shown = records.quality.format_amount(records.tolerance)
        is_assumed = records.posterior(records.quality.column).is_assumed
        how = "an assumed spread" if is_assumed else "the standard deviation"
        notes.append(f"The tolerance, {shown}, is {how} between seeds: answer.tolerance.quality sets another.")
    if not candidates.nameable.all():
        notes.append(
            f"{int(candidates.nameable.sum())} of {format_count(len(candidates.rows), 'configuration')} "
            f"{'has' if len(candidates.rows) == 1 else 'have'} at least {FEWEST_SEEDS} fresh seeds, and "
            "only those can be recommended."
        )
    assumed = [name for name in candidates.names if candidates.records.posterior(name).is_assumed]
    if assumed:
        names = join_words([find_metric(name, records.quality).label.lower() for name in assumed])
        notes.append(f"The spread of {names} between seeds is assumed: no configuration has several usable values.")
    return notes


# --- facts


def _largest_micro_batch(candidates: Candidates, model: str) -> _Measured:
    # the largest that a trial or a probe ran, and the smallest that did not fit
    records = candidates.records
    trials = _of_model(records.trials, model)
    sizes, outcomes = ran_micro_batches(trials), read_text(trials, "outcome")
    probes, devices = records.frames.probes, {"", *read_text(records.done, "device")}
    is_of_model = [shape.get("model.name", model) == model for shape in parse_shapes(probes)]
    is_here = [device in devices for device in read_text(probes, "device")]
    probes = probes[np.array(is_of_model, dtype=np.bool_) & np.array(is_here, dtype=np.bool_)]
    probed, probe_outcomes = read_numbers(probes, "micro_batch"), read_text(probes, "outcome")
    ran = np.concatenate([sizes[outcomes == "complete"], probed[probe_outcomes == "complete"]])
    failed = np.concatenate([sizes[np.isin(outcomes, _DID_NOT_FIT)], probed[np.isin(probe_outcomes, _DID_NOT_FIT)]])
    ran, failed = ran[np.isfinite(ran)], failed[np.isfinite(failed)]
    if not len(ran):
        return records.commands.probe_shapes()
    beyond = failed[failed > ran.max()]
    detail = f"{model}; {int(beyond.min())} did not fit" if len(beyond) else f"{model}; nothing larger was tried"
    return float(ran.max()), int(np.sum(ran == ran.max())), detail


def _throughput_knee(candidates: Candidates, model: str) -> _Measured:
    # by the median throughput at each micro batch
    trials = _of_model(candidates.records.done, model)
    curve = find_longest_curve(trials, ran_micro_batches(trials), read_numbers(trials, "images_per_second"))
    if curve is None or len(curve.sizes) < 2:
        records, spec = candidates.records, candidates.records.commands.spec
        is_one = (
            spec is not None and len(spec.space["batch.micro"].extremes() if "batch.micro" in spec.space else ()) < 2
        )
        # more trainings at one micro batch show no knee
        return records.commands.widen("batch.micro") if is_one else records.command_for_more
    detail = f"{curve.name}; the best throughput was at {int(curve.sizes[np.argmax(curve.rates)])}"
    if curve.knee == len(curve.sizes) - 1:
        detail += ", the largest that ran, so the knee may be larger"
    if curve.num_others:
        others = format_count(curve.num_others, "other combination")
        detail += f"; {others} of normalization, precision and optimizer left out"
    return float(curve.sizes[curve.knee]), curve.num_trials, detail


def _noise_scale(candidates: Candidates, model: str) -> _Measured:
    # B_simple is an average over each training; configurations differ, so that their median has no interval
    records = candidates.records
    frame, scales = records.frame, read_noise_scales(records)
    useful = records.grouping.medians(read_numbers(records.done, records.quality.column))[0] >= candidates.floor
    is_of_model = np.asarray(read_text(frame, "config.model.name") == model, dtype=np.bool_)
    chosen, recipe = find_main_recipe(frame, is_of_model & useful & (scales.values > 0))
    if not chosen.any():
        return records.commands.run_variant("noise", {"diagnostics.noise_scale": True})
    known = scales.values[chosen]
    detail = f"{recipe}: median over {format_count(len(known), 'configuration')} of a useful {records.quality.noun}"
    detail += f", {known.min():,.0f} to {known.max():,.0f}" if len(known) > 1 else ""
    detail += f"{scales.describe_missing(is_of_model & useful)}; {_NOT_CRITICAL}"
    return float(np.median(known)), len(known), detail


def _of_model(trials: pd.DataFrame, model: str) -> pd.DataFrame:
    return trials[np.asarray(read_text(trials, "config.model.name") == model, dtype=np.bool_)]


# How each fact is measured, its statement and unit.
_FACTS: dict[str, tuple[Callable[[Candidates, str], _Measured], str, str]] = {
    "largest_micro_batch": (_largest_micro_batch, "Largest micro batch that ran", "samples"),
    "throughput_knee": (
        _throughput_knee, "Throughput knee: the smallest micro batch within 5 % of the best throughput", "samples"
    ),
    "noise_scale": (
        _noise_scale,
        "Gradient noise scale B_simple = tr(S) / |G|^2: variance of the gradient over its squared norm, both averaged "
        "over the training",
        "samples",
    ),
}  # fmt: skip


def _state_fact(name: str, measured: _Measured) -> Fact:
    _, statement, unit = _FACTS[name]
    if isinstance(measured, str):
        return Fact(name=name, statement=statement, value=np.nan, unit=unit, n=0, missing=measured or None)
    value, n, detail = measured
    detail = detail.removeprefix("; ")  # of records without the name of a model
    return Fact(name=name, statement=statement, value=value, unit=unit, n=n, detail=detail)
