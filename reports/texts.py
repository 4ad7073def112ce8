"""Every sentence of the page, the command line and notebooks: the answer and its uses, batch sizes, the first screen,
what to be careful about, and the method."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reports.evidence import Evidence
from reports.labels import (
    OUTCOME_NAMES,
    describe_price,
    format_difference,
    format_effect,
    format_estimate,
    format_interval,
    format_metric,
    format_price,
    format_setting,
    format_value,
    list_notes,
    metric_label,
    name_samples,
)
from sweep.analysis.answer import (
    Answer,
    BatchAnswer,
    NextBest,
    Recommendation,
    Statement,
    TunedBatch,
    TunedModel,
    explain_use,
)
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.statements import describe_learning_rate, describe_use
from sweep.analysis.statistics import Interval, read_numbers, read_text
from sweep.config.metrics import (
    IMAGES,
    METRICS,
    Quality,
    find_metric,
    find_unit,
    format_count,
    format_points,
    format_probability,
    format_share,
)
from sweep.config.study import FEWEST_SEEDS
from sweep.config.trial import key_label
from sweep.records.messages import INFEASIBLE

Cell = tuple[str, str]  # a value, and a note that is set smaller

METHOD: tuple[tuple[str, str], ...] = (
    (
        "Estimates of accuracy",
        "A validation accuracy is an estimate, not the result of one training. A response surface is fitted to all "
        "trainings of a model with six or more configurations within 15 points of its best: a polynomial of the second "
        "degree in batch size, learning rate and whatever else was swept, a Gaussian process, and deviations that "
        "close neighbors share. Values and 95 % intervals are medians and quantiles of joint draws from it.",
    ),
    (
        "Intervals",
        "An interval of accuracy covers the spread between seeds (in the region, at least the one pooled over all "
        "confirmed configurations) and the sampling error of the validation images: crossed random effects of seeds "
        "and images. All other intervals use Student's t distribution.",
    ),
    (
        "Comparisons",
        "Two configurations are compared on the same images, so most of the sampling error cancels: the interval of "
        "their difference is narrower than their own intervals suggest.",
    ),
    (
        "Probabilities",
        "A probability is the share of 1,000 joint draws in which the statement is right within the study's tolerance. "
        "A configuration with one seed has the same spread, shrunk towards the others. A rival makes a statement wrong "
        "only where it loses at most half of the tolerance. Probabilities cover the whole space of the study, tried or "
        "not. Search trials share one seed; its common effect is counted as if each trial had its own.",
    ),
    ("Time and memory", "Trials of equal cost are pooled, unless they scatter too much to have one cost."),
)


def describe_method(quality: Quality) -> tuple[tuple[str, str], ...]:
    """The method, a title and a text for each part, for a study of that ``quality``."""
    if quality == IMAGES:
        return METHOD
    reach = "15 points" if quality.unit == "fraction" else "30 tolerances"
    words = (
        ("A validation accuracy", f"A result of {quality.noun}"), ("15 points of its best", f"{reach} of its best"),
        ("validation images", f"validation {quality.sample}"), ("images", quality.sample), ("accuracy", quality.noun),
    )  # fmt: skip
    parts = []
    for title, text in METHOD:
        for old, new in words:
            title, text = title.replace(old, new), text.replace(old, new)
        parts.append((title, text))
    return tuple(parts)


# A recommended configuration.


def describe_use_setting(item: Recommendation, key: str) -> str:
    """A setting of a recommended configuration; the learning rate is the one of the training."""
    rate = describe_learning_rate(item) if key == "optimizer.lr" else ""
    return rate or f"{key_label(key)} {format_setting(item.config.get(key))}"


USE_TITLES = {
    "accuracy": "Best accuracy",
    "speed": "Fastest",
    "memory": "Lowest memory",
    "balanced": "Balanced",
    "fine_tune": "Fine-tuning",
    "distributed": "On several devices",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """The recommendation for one use; ``trial`` is None without enough data. ``measured`` are values as measured, each
    a label, a text and a note. ``missing`` is the command that provides the data where there is no trial."""

    title: str
    meaning: str
    trial: int | None
    measured: tuple[tuple[str, str, str], ...]
    sure: str  # in short
    confidence: str
    comparison: str
    evidence: tuple[str, ...]
    missing: str


def name_use(use: str, quality: Quality) -> str:
    """The title of a use."""
    return USE_TITLES[use].replace("accuracy", quality.noun)


def describe_recommendation(item: Recommendation, quality: Quality = IMAGES) -> Card:
    """The recommendation for a use as texts."""
    return Card(
        title=name_use(item.use, quality),
        meaning=explain_use(item.use, quality),
        trial=item.number,
        measured=tuple(
            (metric_label(name), shown, ", ".join(filter(None, (interval, f"n = {value.n}"))))
            for name, value in item.measured.items()
            for shown, interval in [format_estimate(name, *value)]
        ),
        sure=_describe_sure(item),
        confidence=_describe_confidence(item, quality) if item.number is not None else "",
        comparison=_compare_next(item.next_best, quality) if item.next_best else "",
        evidence=tuple(f"{line[:1].upper()}{line[1:]}." for line in item.evidence),
        missing=item.missing or "",
    )


def _describe_sure(item: Recommendation | Statement) -> str:
    return f"{format_probability(item.probability)}, {'settled' if item.is_settled else 'not settled'}"


def _describe_confidence(item: Recommendation, quality: Quality) -> str:
    sure = (
        "The probability that it is eligible and that no configuration, tried or not, is better by more than the "
        f"tolerance is {_describe_sure(item)}; the probability of being on the Pareto front is "
        f"{format_probability(item.on_front)}."
    )
    if item.regret_metric not in item.values or not math.isfinite(item.regret):
        return sure
    unit = find_metric(item.regret_metric, quality).unit
    lost = format_value("fraction difference" if unit == "fraction" else unit, item.regret)
    lost = quality.format_size(item.regret) if unit == "number" else lost
    return f"{sure} Expected regret where it is eligible (how much the truly best one is better, on average): {lost}."


def _compare_next(following: NextBest, quality: Quality) -> str:
    changes = [f"{key_label(key)} {format_setting(value)}" for key, value in following.changes.items()]
    parts = [
        f"{metric_label(name, quality).lower()} {format_difference(following.units[name], *value)}"
        for name, value in following.differences.items()
    ]
    others = f" ({', '.join(changes)})" if changes else ""
    return f"Compared with the next best, trial {following.number}{others}: {'; '.join(parts)}."


def describe_use_price(item: Recommendation) -> str:
    """The price of a training as the end of a list; "" without one."""
    return f"; price of a training {describe_price(**vars(item.price))}" if item.price else ""


def define_terms(answer: Answer) -> str:
    """What tolerance, "settled" and a useful accuracy are."""
    tolerance, quality, size = answer.tolerance, answer.quality, answer.tolerated
    tolerated, margin = map(quality.format_size, (size, quality.resize(ACCURACY_MARGIN, size)))
    parts = [f"{quality.noun} {tolerated}"]
    parts += [f"{name} {format_share(getattr(tolerance, name))}" for name in ("time", "memory")]
    return (
        f"Tolerance: {', '.join(parts)}. Settled: {format_probability(answer.confidence)} or more. Useful "
        f"{quality.noun}: at most {margin} {'below' if quality.sign > 0 else 'above'} the best."
    )


# The batch size.

CURVE_HEADS = (
    "Model", "Effective batch size", "Accuracy", "Training time", "Memory", "Learning rate", "Fresh seeds",
    "Without loss",
)  # fmt: skip
COST_HEADS = (
    "Model", "Effective batch size", "Steps", "Samples", "Images per second", "Steps to the target",
    "Samples to the target", "Time to the target",
)  # fmt: skip
# What the probability of a statement covers that leaves some batch sizes open.
_COVERED = {
    "equally_good": "for the batch sizes named as good or worse; not settled",
    "largest_without_loss": "for {batch}; larger ones are not known yet",
}


@dataclass(frozen=True, kw_only=True)
class BatchTexts:
    """``statements``, each with its certainty and what would settle it. ``command`` is the next step, "" without one.
    ``rows`` of the curve have the columns CURVE_HEADS, ``costs`` the columns COST_HEADS; a cell is a value and a note.
    ``models`` has a sentence for each model, ``remarks`` are about rows."""

    statements: tuple[Cell, ...]
    command: str
    rows: tuple[tuple[Cell, ...], ...]
    costs: tuple[tuple[Cell, ...], ...]
    models: tuple[str, ...]
    remarks: tuple[str, ...]


def head_curve(quality: Quality) -> tuple[str, ...]:
    """CURVE_HEADS of a study of that ``quality``."""
    return tuple(quality.label if head == "Accuracy" and quality.noun != "accuracy" else head for head in CURVE_HEADS)


def head_costs(quality: Quality) -> tuple[str, ...]:
    """COST_HEADS of a study of that ``quality``."""
    return tuple(head.replace("Images", quality.sample.capitalize()) for head in COST_HEADS)


def describe_batch_answer(answer: BatchAnswer, quality: Quality = IMAGES) -> BatchTexts:
    """The answer about the batch size as texts."""
    num_batches = Counter(point.model for point in answer.curve)
    return BatchTexts(
        statements=tuple((statement.text, _describe_certainty(statement)) for statement in answer.statements),
        command=answer.next_step or "",
        rows=tuple(_describe_point(point, quality, is_alone=num_batches[point.model] == 1) for point in answer.curve),
        costs=tuple(_describe_costs(point, quality) for point in answer.curve),
        models=tuple(_describe_model(model, quality) for model in answer.models),
        remarks=tuple(
            f"{point.model}, effective batch size {point.batch}: {remark}."
            for point in answer.curve
            for remark in point.remarks
        ),
    )


def _describe_certainty(statement: Statement) -> str:
    """How sure a statement is and what would settle it, as a clause; "" for an estimate."""
    if statement.is_estimate:
        return ""
    needed = f"; {statement.needed}" if statement.needed else ""
    if not (statement.batches and statement.probability):  # it names no batch size, or there is no other
        return f"not settled{needed}"
    if not statement.is_settled and statement.name in _COVERED:
        covered = _COVERED[statement.name].format(batch=statement.batches[0])
        return f"{format_probability(statement.probability)} probability {covered}{needed}"
    return f"{_describe_sure(statement).replace(',', ' probability,')}{needed}"


def _describe_point(point: TunedBatch, quality: Quality, *, is_alone: bool) -> tuple[Cell, ...]:
    accuracy, spread = format_estimate(quality.column, *point.accuracy, quality)
    seconds, interval = format_estimate("train_seconds", *point.seconds)
    price = f"price {format_price(point.price.median, point.price.currency)}" if point.price else ""
    doubt = "not reliable" if point.is_time_doubtful else ""
    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        (accuracy, "; ".join(filter(None, (spread, _explain_expected(point, quality))))),
        (seconds, "; ".join(filter(None, (interval, price, doubt)))),
        format_estimate("peak_memory_bytes", *point.memory_bytes),
        (format_setting(point.learning_rate), format_count(point.num_configurations, "configuration")),
        (str(point.num_seeds), ""),
        ("", "the only one tried") if is_alone else (format_probability(point.p_without_loss), ""),
    )


def is_expected(point: TunedBatch, quality: Quality) -> bool:
    """Whether the estimate of a batch size is better than every training at it."""
    return quality.sign * point.accuracy.median > quality.sign * point.best_measured


def _explain_expected(point: TunedBatch, quality: Quality) -> str:
    best = format_metric(quality.column, point.best_measured, quality)
    return f"expected, best measured {best}" if is_expected(point, quality) else ""


def _describe_costs(point: TunedBatch, quality: Quality) -> tuple[Cell, ...]:
    def count_tokens(cell: Cell, samples: Interval, unit: str) -> Cell:
        tokens = samples.median * point.tokens_per_sample
        return (cell[0], "; ".join(filter(None, (cell[1], f"{tokens:,.0f} {unit}")))) if math.isfinite(tokens) else cell

    def describe(name: str, value: Interval) -> Cell:
        unit = "count" if name == "num_samples" else METRICS[name].unit
        is_count = not find_unit(unit).measures
        median, low, high = (round(bound) if is_count and math.isfinite(bound) else bound for bound in value[:3])
        shown = name_samples(format_value(unit, median), quality)
        if not value.n or not math.isfinite(value.median):
            return shown, ""
        interval = name_samples(format_interval(unit, low, high, median, value.n), quality)
        return shown, ", ".join(filter(None, (interval, f"n = {value.n}")))

    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        describe("num_steps", point.num_steps),
        describe("num_samples", point.num_samples),
        count_tokens(describe("images_per_second", point.images_per_second), point.images_per_second, "tokens/s"),
        describe("steps_to_target", point.steps_to_target),
        count_tokens(describe("num_samples", point.samples_to_target), point.samples_to_target, "tokens"),
        describe("seconds_to_target", point.seconds_to_target),
    )


def _describe_model(model: TunedModel, quality: Quality) -> str:
    if model.rate_lack:
        rate = f"how the best learning rate changes with the batch size is not known ({model.rate_lack})"
    else:
        power = format_effect("exponent", *model.rate_power[:3])
        rate = f"the best learning rate grows as the power {power} of the batch size ({model.rate_detail})"
    target = format_metric(quality.column, model.target_accuracy, quality)
    label = "validation accuracy" if quality.noun == "accuracy" else quality.noun
    return f"{model.model}: steps, samples and time to the target are those to {target} {label}; {rate}."


# The first screen.


def list_leading(quality: Quality) -> tuple[str, ...]:
    """The metrics that stand first, in this order behind the effective batch size."""
    return quality.column, "train_seconds", "peak_memory_bytes"


@dataclass(frozen=True, kw_only=True)
class _Chip:
    """One metric of the recommended configuration: ``value`` with its ``interval``, and how ``sure`` it is."""

    label: str
    value: str
    interval: str
    sure: str


@dataclass(frozen=True, kw_only=True)
class _FirstTexts:
    """``headline`` is the answer, ``comparison`` the cost of a neighboring batch size, ``certainty`` how sure the
    answer is. ``command`` would settle it or make it possible, "" where it is settled."""

    provenance: tuple[str, ...]
    headline: str
    comparison: str
    certainty: str
    command: str
    chips: tuple[_Chip, ...]


def describe_first(evidence: Evidence) -> _FirstTexts:
    """The texts of the first screen, with the numbers of ``evidence.answer``."""
    answer, batch = evidence.answer, evidence.answer.batch_size
    if batch is None or batch.named.number is None:
        reason = f"no eligible configuration has {FEWEST_SEEDS} fresh seeds yet"
        if batch is None:
            noun = f"{'an' if answer.quality.noun == 'accuracy' else 'a'} {answer.quality.noun}"
            reason = "no trial is complete" if answer.no_complete_trial else f"no trial has completed with {noun}"
        commands = [batch.named.missing] if batch else [use.missing for use in answer.uses.values()]
        return _FirstTexts(
            provenance=evidence.provenance,
            headline=f"A batch size cannot be recommended yet: {reason}.",
            comparison="",
            certainty=answer.no_complete_trial or "",
            command=next(filter(None, commands), ""),
            chips=(),
        )
    # the smaller neighbor, because the question is what a larger batch gives; the larger one where there is none
    texts = {statement.name: statement.text for statement in batch.statements}
    headline = describe_use(batch.named)
    reasons = (
        f"{text[:1].upper()}{text[1:].removesuffix('.')} ({_describe_certainty(statement)})."
        for statement in batch.statements
        if statement.name in ("use", "configuration")
        for text in [statement.text.removeprefix(f"{headline}: ")]
    )
    return _FirstTexts(
        provenance=evidence.provenance,
        headline=f"{headline}.",
        comparison=texts.get("next_smaller") or texts.get("next_larger") or "No other batch size was tried.",
        certainty=" ".join(reasons),
        command=batch.next_step or "",
        chips=tuple(_make_chips(evidence, batch)),
    )


def _make_chips(evidence: Evidence, batch: BatchAnswer) -> Iterator[_Chip]:
    answer, named, quality = evidence.answer, batch.named, evidence.answer.quality
    num_seeds = named.values[quality.column].n
    point = next(point for point in batch.curve if point.number == named.number)
    image, grounds = answer.validation.accuracy_per_image, {quality.column: [_explain_expected(point, quality)]}
    one = "one validation image" if quality == IMAGES else f"one of the {quality.sample}"
    grounds[quality.column] += [f"{one} is {format_points(image)}"] if image else []
    grounds["train_seconds"] = ["not reliable"] if point.is_time_doubtful else []
    for name in (name for name in list_leading(quality) if name in named.values):
        shown, interval = format_estimate(name, *named.values[name], quality)
        # time and memory are pooled with trainings of other learning rates; a time counts where no better one does
        n = named.values[name].n
        fewer = "that counts" if "not reliable" in grounds.get(name, []) else "with a reliable value"
        which = "with fresh seeds" if n == num_seeds else "of equal cost" if n > num_seeds else fewer
        count = f"{'95 % interval, ' if interval else ''}n = {format_count(n, 'training')} {which}"
        sure = "; ".join(filter(None, [count, *grounds.get(name, [])]))
        yield _Chip(label=metric_label(name, quality), value=shown, interval=interval, sure=sure)
    if named.price is not None and answer.price_per_hour is not None:
        price, per_hour = named.price, format_price(answer.price_per_hour, named.price.currency)
        yield _Chip(
            label="Price of a training",
            value=format_price(price.median, price.currency),
            interval=f"{format_price(price.low, '')} to {format_price(price.high, price.currency)}",
            sure=f"the training time at {per_hour} an hour, without set-up and evaluations",
        )


# What to be careful about.

_FEW_TRIALS = 10
_MUCH = 0.3  # of the trials
_COMMAND = re.compile(r"(?<=\s)sweep (?:run|check) \S.*\Z")


def list_reservations(evidence: Evidence) -> list[Cell]:
    """Reservations about the records, the most serious first, and the notes of the answer; each a text and the command
    at its end, "" without one."""
    data = evidence.frames.data
    about_data = [f"Data: {note}." for note in list_notes(data)] if data else []
    sentences = [*_list_doubts(evidence), *about_data, *evidence.answer.notes]
    matches = [(sentence, _COMMAND.search(sentence)) for sentence in sentences]
    return [(text[: match.start()].rstrip(), match[0]) if match else (text, "") for text, match in matches]


def _list_doubts(evidence: Evidence) -> Iterator[str]:
    frame = evidence.configurations
    if len(frame) and not evidence.num_confirmed:
        yield "Every value is from one seed, and the best of many noisy trials looks too good."
    devices = sorted(set(read_text(evidence.trials, "device")) - {""})
    if len(devices) > 1:
        yield (
            f"Trials ran on different devices ({'; '.join(devices[:5])}), whose times and memory are not comparable: "
            "the recommendations use the most common device only."
        )
    is_image = evidence.answer.quality == IMAGES
    if is_image and len(frame) and not np.isfinite(read_numbers(frame, "test_accuracy")).any():
        yield "The test split was not used: all accuracies are of the validation split, which also selected the front."
    crashed = evidence.trials[(evidence.trials["outcome"] == "crashed").to_numpy(dtype=bool)]
    if len(crashed):
        errors = [str(line) for line in read_text(crashed, "error") if line]
        last = f" The last error: {errors[-1].strip().splitlines()[-1][:300]}" if errors else ""
        yield (
            f"{format_count(len(crashed), 'trial')} crashed. A crash says nothing about the configuration: repair the "
            f"cause and run the study again.{last}"
        )
    counts = evidence.count_outcomes()
    infeasible = {name: count for name, count in counts.items() if name in INFEASIBLE}
    num_ended = len(evidence.trials) - counts.get("", 0)
    if num_ended and sum(infeasible.values()) >= _MUCH * num_ended:
        parts = ", ".join(f"{count} {OUTCOME_NAMES[name]}" for name, count in infeasible.items())
        share = f"{100 * sum(infeasible.values()) / num_ended:.0f} %"
        text = f"{share} of the trials gave no result ({parts}): narrow the search space to avoid this."
        yield evidence.answer.no_complete_trial or text
    done = len(evidence.search) or evidence.num_confirmed
    if done < _FEW_TRIALS and not evidence.answer.no_complete_trial:
        completed = format_count(done, "search trial" if len(evidence.search) else "configuration")
        yield f"Only {completed} completed, so the front may still change much: run more trials."
    environments = set(read_text(evidence.trials, "environment_digest")) - {""}
    if len(environments) > 1:
        yield (
            f"Trials ran in {len(environments)} environments. Other versions or settings can change times and "
            f"{'accuracies' if is_image else 'results'}: compare them in the table at the end."
        )
