"""Every sentence of the page, the command line, notebooks and the LaTeX table: the answer and its uses, batch sizes,
the first screen, what to be careful about, and the method."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reports.evidence import Evidence, keep_finite
from reports.labels import (
    OUTCOME_NAMES,
    describe_price,
    format_difference,
    format_effect,
    format_estimate,
    format_interval,
    format_price,
    format_probability,
    format_setting,
    format_value,
    list_notes,
    metric_label,
)
from sweep.analysis.answer import (
    USE_MEANINGS,
    Answer,
    BatchAnswer,
    NextBest,
    Recommendation,
    Statement,
    TunedBatch,
    TunedModel,
)
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.shortfalls import explain_confirmation
from sweep.analysis.statements import describe_learning_rate, describe_use
from sweep.analysis.statistics import Interval, read_numbers, read_text
from sweep.config.metrics import METRICS, find_unit, format_count, format_share
from sweep.config.study import FEWEST_SEEDS
from sweep.config.trial import key_label
from sweep.records.messages import INFEASIBLE
from sweep.records.quality import (
    MAX_TIME_ERROR,
    MAX_WAIT_SLOWDOWN,
    PACKED,
    SLOWED_BY_OTHERS,
    UNCERTAIN_TIME,
    find_time_doubts,
)

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
        "only where it loses less than half of the tolerance. Probabilities cover the configurations that were tried, "
        "no others. Search trials share one seed; its common effect is counted as if each trial had its own.",
    ),
    (
        "Time and memory",
        "Trials of equal cost are pooled, unless they scatter too much to have one cost.",
    ),
)

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
    a label, a text and a note. ``missing`` is the command that provides the missing data or increases confidence."""

    title: str
    meaning: str
    trial: int | None
    measured: tuple[tuple[str, str, str], ...]
    sure: str  # in short
    confidence: str
    comparison: str
    evidence: tuple[str, ...]
    missing: str


def describe_uses(answer: Answer) -> list[Card]:
    """The recommendation for each use as texts."""
    return [
        Card(
            title=USE_TITLES[item.use],
            meaning=USE_MEANINGS[item.use],
            trial=item.number,
            measured=tuple(
                (metric_label(name), shown, ", ".join(filter(None, (interval, f"n = {value.n}"))))
                for name, value in item.measured.items()
                for shown, interval in [format_estimate(name, *value)]
            ),
            sure=f"{format_probability(item.probability)}, {'settled' if item.is_settled else 'not settled'}",
            confidence=_describe_confidence(item) if item.number is not None else "",
            comparison=_compare_next(item.next_best) if item.next_best else "",
            evidence=tuple(f"{line[:1].upper()}{line[1:]}." for line in item.evidence),
            missing=item.missing or "",
        )
        for item in answer.uses.values()
    ]


def _describe_confidence(item: Recommendation) -> str:
    state = "settled" if item.is_settled else "not settled"
    return (
        f"The probability that nothing tried is better by more than the tolerance is "
        f"{format_probability(item.probability)} ({state}); the probability of being on the Pareto front is "
        f"{format_probability(item.on_front)}."
    )


def _compare_next(following: NextBest) -> str:
    changes = [f"{key_label(key)} {format_setting(value)}" for key, value in following.changes.items()]
    parts = [
        f"{metric_label(name).lower()} {format_difference(following.units[name], *value)}"
        for name, value in following.differences.items()
    ]
    others = f" ({', '.join(changes)})" if changes else ""
    return f"Compared with the next best, trial {following.number}{others}: {'; '.join(parts)}."


def describe_use_price(item: Recommendation) -> str:
    """The price of a training as the end of a list; "" without one."""
    return f"; price of a training {describe_price(**vars(item.price))}" if item.price else ""


def define_terms(answer: Answer) -> str:
    """What tolerance, "settled" and a useful accuracy are."""
    tolerance = answer.tolerance
    parts = [f"accuracy {format_points(tolerance.accuracy)}"]
    parts += [f"{name} {format_share(getattr(tolerance, name))}" for name in ("time", "memory")]
    return (
        f"Tolerance: {', '.join(parts)}. Settled: {format_probability(answer.confidence)} or more. Useful accuracy: at "
        f"most {format_points(ACCURACY_MARGIN)} below the best."
    )


def format_points(share: float) -> str:
    """0.005 as "0.5 points"."""
    shown = f"{100 * share:.2g}"
    return f"{shown} {'point' if shown == '1' else 'points'}"


# The batch size.

CURVE_HEADS = (
    "Model", "Effective batch size", "Tuned accuracy", "Training time", "Memory", "Learning rate", "Fresh seeds",
    "Without loss",
)  # fmt: skip
COST_HEADS = (
    "Model", "Effective batch size", "Steps", "Samples", "Images per second", "Steps to the target",
    "Samples to the target", "Time to the target",
)  # fmt: skip
# What the probability of a statement covers that leaves some batch sizes open.
_COVERED = {
    "equally_good": "for the batch sizes named as good or worse; the others are not known yet",
    "largest_without_loss": "for {batch}; larger ones are not known yet",
}


@dataclass(frozen=True, kw_only=True)
class _BatchTexts:
    """``statements``, each with its certainty and what would settle it. ``command`` settles more, ``other_command``
    what the first does not, "" without one. ``rows`` of the curve have the columns CURVE_HEADS, ``costs`` the columns
    COST_HEADS; a cell is a value and a note. ``models`` has a sentence for each model, ``remarks`` are about rows."""

    statements: tuple[Cell, ...]
    command: str
    other_command: str
    rows: tuple[tuple[Cell, ...], ...]
    costs: tuple[tuple[Cell, ...], ...]
    models: tuple[str, ...]
    remarks: tuple[str, ...]


def describe_batch_answer(answer: BatchAnswer) -> _BatchTexts:
    """The answer about the batch size as texts."""
    commands = [*dict.fromkeys(statement.missing for statement in answer.statements if statement.missing), "", ""]
    num_batches = Counter(point.model for point in answer.curve)
    return _BatchTexts(
        statements=tuple((statement.text, _describe_certainty(statement)) for statement in answer.statements),
        command=commands[0],
        other_command=commands[1],
        rows=tuple(_describe_point(point, is_alone=num_batches[point.model] == 1) for point in answer.curve),
        costs=tuple(_describe_costs(point) for point in answer.curve),
        models=tuple(map(_describe_model, answer.models)),
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
    if not statement.batches:
        return f"not settled{needed}"
    sure = f"{format_probability(statement.probability)} probability"
    if not statement.is_settled and statement.name in _COVERED:
        return f"{sure} {_COVERED[statement.name].format(batch=statement.batches[0])}{needed}"
    return f"{sure}, {'settled' if statement.is_settled else 'not settled'}{needed}"


def _describe_point(point: TunedBatch, *, is_alone: bool) -> tuple[Cell, ...]:
    seconds, interval = format_estimate("train_seconds", *point.seconds)
    price = f"price {format_price(point.price.median, point.price.currency)}" if point.price else ""
    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        format_estimate("val_accuracy", *point.accuracy),
        (seconds, "; ".join(filter(None, (interval, price)))),
        format_estimate("peak_memory_bytes", *point.memory_bytes),
        (format_setting(point.learning_rate), format_count(point.num_configurations, "configuration")),
        (str(point.num_seeds), ""),
        ("", "the only one tried") if is_alone else (format_probability(point.p_without_loss), ""),
    )


def _describe_costs(point: TunedBatch) -> tuple[Cell, ...]:
    def describe(name: str, value: Interval) -> Cell:
        unit = "count" if name == "num_samples" else METRICS[name].unit
        is_count = not find_unit(unit).measures
        median, low, high = (round(bound) if is_count and math.isfinite(bound) else bound for bound in value[:3])
        shown = format_value(unit, median)
        if not value.n or not math.isfinite(value.median):
            return shown, ""
        interval = format_interval(unit, low, high, median, value.n)
        return shown, ", ".join(filter(None, (interval, f"n = {value.n}")))

    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        describe("num_steps", point.num_steps),
        describe("num_samples", point.num_samples),
        describe("images_per_second", point.images_per_second),
        describe("steps_to_target", point.steps_to_target),
        describe("num_samples", point.samples_to_target),
        describe("seconds_to_target", point.seconds_to_target),
    )


def _describe_model(model: TunedModel) -> str:
    if model.rate_lack:
        rate = f"how the best learning rate changes with the batch size is not known ({model.rate_lack})"
    else:
        power = format_effect("exponent", *model.rate_power[:3])
        rate = f"the best learning rate grows as the power {power} of the batch size ({model.rate_detail})"
    target = format_value("fraction", model.target_accuracy)
    return f"{model.model}: steps, samples and time to the target are those to {target} validation accuracy; {rate}."


# The answer as a LaTeX table.

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
        "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': "''", "–": "--", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$",
        "≥": r"$\geq$", "·": r"\textperiodcentered{}", "−": "$-$", "\u00a0": "~", "[": "{[}", "]": "{]}",
    }
)  # fmt: skip


def escape_latex(text: str) -> str:
    """``text`` in one line, printed by LaTeX as it is; a "?" in position of control characters."""
    shown = "".join(each if each.isprintable() or each == "\u00a0" else "?" for each in " ".join(text.split()))
    return shown.translate(_ESCAPES)


def write_latex_table(answer: BatchAnswer, study: str, images: str) -> Iterator[str]:
    """The lines of a ``table`` environment that requires the package booktabs: a row for each tuned batch size, the
    recommended one in bold. ``images`` is the sentence about the validation images and what intervals cover."""
    texts = describe_batch_answer(answer)
    statement, certainty = texts.statements[0]
    columns = [position for position, _ in enumerate(CURVE_HEADS) if any(_shown(row[position]) for row in texts.rows)]
    yield r"% requires \usepackage{booktabs}"
    yield r"\begin{table}"
    yield r"\centering"
    certain = f" Certainty: {certainty}." if certainty else ""
    counted = format_count(len(texts.rows), "tuned batch size")
    kinds = "with 95 % intervals; without loss: against the best batch size of the model"
    caption = f"{statement}{certain} Study {study}: {counted}, {kinds}. {images}"
    yield rf"\caption{{{escape_latex(caption)}}}"
    yield rf"\label{{tab:{_make_label(study)}}}"
    yield rf"\begin{{tabular}}{{{''.join('l' if position == 0 else 'r' for position in columns)}}}"
    yield r"\toprule"
    yield _join_cells(escape_latex(CURVE_HEADS[position]) for position in columns)
    yield r"\midrule"
    for point, row in zip(answer.curve, texts.rows, strict=True):
        is_named = (point.model, point.batch) == (answer.model, answer.named.global_batch_size)
        cells = (escape_latex(_cell(position, row[position])) for position in columns)
        yield _join_cells(rf"\textbf{{{cell}}}" if is_named else cell for cell in cells)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def _cell(position: int, cell: tuple[str, str]) -> str:
    # the notes of batch size and learning rate are numbers of trials, which only the records explain
    value, note = cell
    if CURVE_HEADS[position] in ("Effective batch size", "Learning rate"):
        return value
    return f"{value} ({note})" if value and note else value or note


def _shown(cell: tuple[str, str]) -> bool:
    return any(part not in ("", "–") for part in cell)


def _make_label(study: str) -> str:
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in study)


def _join_cells(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


# The first screen.

_LEADING = ("val_accuracy", "train_seconds", "peak_memory_bytes")
_DOUBTS = {
    UNCERTAIN_TIME: f"the mean step time is known to no better than ±{format_share(MAX_TIME_ERROR)}",
    SLOWED_BY_OTHERS: f"other programs slowed the training by over {format_share(MAX_WAIT_SLOWDOWN)}",
    PACKED: "trials shared the device",
}


@dataclass(frozen=True, kw_only=True)
class _Chip:
    """One metric of the recommended configuration: ``value`` with its ``interval``, how ``sure`` it is, and a
    ``doubt`` about it in words, "" without one."""

    label: str
    value: str
    interval: str
    sure: str
    doubt: str = ""


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
            reason = "no trial is complete" if answer.no_complete_trial else "no trial has completed with an accuracy"
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
    tolerance = answer.tolerance
    return _FirstTexts(
        provenance=evidence.provenance,
        headline=f"{describe_use(batch.named)}.",
        comparison=texts.get("next_smaller") or texts.get("next_larger") or "No other batch size was tried.",
        certainty=f"{batch.named.global_batch_size} is the fastest, to within {format_share(tolerance.time)}, of the "
        f"configurations within {format_points(tolerance.accuracy)} of the best accuracy: "
        f"{_describe_certainty(batch.statements[0])}.",
        command=batch.statements[0].missing or "",
        chips=tuple(_make_chips(evidence, batch)),
    )


def _make_chips(evidence: Evidence, batch: BatchAnswer) -> Iterator[_Chip]:
    answer, named = evidence.answer, batch.named
    num_seeds = named.values["val_accuracy"].n
    for name in (name for name in _LEADING if name in named.values):
        shown, interval = format_estimate(name, *named.values[name])
        # time and memory are pooled with trainings of other learning rates; unreliable times are left out
        n = named.values[name].n
        which = "with fresh seeds" if n == num_seeds else "of equal cost" if n > num_seeds else "with a reliable value"
        count = f"{'95 % interval, ' if interval else ''}n = {format_count(n, 'training')} {which}"
        grounds = _list_grounds(answer, batch) if name == "val_accuracy" else []
        doubt = _describe_doubt(evidence, named) if name == "train_seconds" else ""
        sure = "; ".join([count, *grounds])
        yield _Chip(label=metric_label(name), value=shown, interval=interval, sure=sure, doubt=doubt)
    if named.price is not None and answer.price_per_hour is not None:
        price, per_hour = named.price, format_price(answer.price_per_hour, named.price.currency)
        yield _Chip(
            label="Price of a training",
            value=format_price(price.median, price.currency),
            interval=f"{format_price(price.low, '')} to {format_price(price.high, price.currency)}",
            sure=f"the training time at {per_hour} an hour, without set-up and evaluations",
        )


def _list_grounds(answer: Answer, batch: BatchAnswer) -> Iterator[str]:
    for point in batch.curve:
        if (point.model, point.batch) == (batch.model, batch.named.global_batch_size):
            yield (
                f"{format_probability(point.p_without_loss)} probability that tuned training at this batch size loses "
                f"at most {format_points(answer.tolerance.accuracy)} against the best batch size"
            )
    if answer.validation.accuracy_per_image:
        yield f"one validation image is {format_points(answer.validation.accuracy_per_image)}"


def _describe_doubt(evidence: Evidence, named: Recommendation) -> str:
    """Why some times of the recommended configuration are not used; "" where all are."""
    trials = evidence.trials
    family = trials.loc[trials["number"] == named.number, "family"].to_numpy()[0]
    complete = trials[(trials["family"] == family) & (trials["outcome"] == "complete")]
    doubtful = complete[read_text(complete, "time_source") == ""]
    if doubtful.empty:
        return ""
    doubts = [find_time_doubts(str(text).split(",")) for text in read_text(doubtful, "quality_flags")]
    reasons = ", ".join(dict.fromkeys(_DOUBTS.get(flag, flag) for flags in doubts for flag in sorted(flags)))
    trainings = format_count(len(complete), "training")
    return f"Doubtful: the times of {len(doubtful)} of {trainings} are unreliable ({reasons})."


# What to be careful about.

_FEW_TRIALS = 10
_MUCH = 0.3  # of the trials
_COMMAND = re.compile(r"(?<=\s)sweep (?:run|check) \S.*\Z")


def list_reservations(evidence: Evidence) -> list[Cell]:
    """Reservations about the records, the most serious first, and the notes of the answer; each a text and the command
    at its end, "" without one."""
    data = evidence.frames.data
    about_data = [f"Data: {note}." for note in list_notes(data)] if data else []
    sentences = [*_list_serious(evidence), *about_data, *evidence.answer.notes, *_list_others(evidence)]
    matches = [(sentence, _COMMAND.search(sentence)) for sentence in sentences]
    return [(text[: match.start()].rstrip(), match[0]) if match else (text, "") for text, match in matches]


def _list_serious(evidence: Evidence) -> Iterator[str]:
    counts, frame = evidence.count_outcomes(), evidence.configurations
    if len(frame) and not evidence.num_confirmed:
        text = "Nothing is confirmed: every value is from one seed, and the best of many noisy trials looks too good."
        remedy = "Finish the study or raise confirm.share: then it trains its best configurations again."
        if evidence.frames.source is not None:
            remedy = "No configuration has runs with several seeds that can be told apart."
        yield text if explain_confirmation(evidence.frames) else f"{text} {remedy}"
    devices = sorted(set(read_text(evidence.trials, "device")) - {""})
    if len(devices) > 1:
        yield (
            f"Trials ran on different devices ({'; '.join(devices[:5])}), whose times and memory are not comparable: "
            "the recommendations use the most common device only."
        )
    crashed = evidence.trials[(evidence.trials["outcome"] == "crashed").to_numpy(dtype=bool)]
    if len(crashed):
        errors = [str(line) for line in read_text(crashed, "error") if line]
        last = f" The last error: {errors[-1].strip().splitlines()[-1][:300]}" if errors else ""
        yield (
            f"{format_count(len(crashed), 'trial')} crashed. A crash says nothing about the configuration: repair the "
            f"cause and run the study again.{last}"
        )
    infeasible = {name: count for name, count in counts.items() if name in INFEASIBLE}
    num_ended = len(evidence.trials) - counts.get("", 0)
    if num_ended and sum(infeasible.values()) >= _MUCH * num_ended:
        parts = ", ".join(f"{count} {OUTCOME_NAMES[name]}" for name, count in infeasible.items())
        share = f"{100 * sum(infeasible.values()) / num_ended:.0f} %"
        text = f"{share} of the trials gave no result ({parts}): narrow the search space to avoid this."
        yield evidence.answer.no_complete_trial or text
    failed = frame[frame["num_failed_seeds"].to_numpy() > 0]
    if len(failed):
        numbers = ", ".join(str(number) for number in failed["number"].head(5))
        yield (
            f"Some fresh seeds of {format_count(len(failed), 'configuration')} (of trial {numbers}) did not complete: "
            "the estimates rest on the others. The table of trials has the outcomes."
        )


def _list_others(evidence: Evidence) -> Iterator[str]:
    frame, num_open = evidence.configurations, evidence.count_outcomes().get("", 0)
    alone = int((frame["on_search_front"].to_numpy(dtype=bool) & ~frame["confirmed"].to_numpy(dtype=bool)).sum())
    if evidence.num_confirmed and alone:
        has = f"{format_count(alone, 'configuration')} on the front of the search {'has' if alone == 1 else 'have'}"
        yield f"{has} only one seed: the measured values may be optimistic until fresh seeds confirm them."
    if num_open:
        yield (
            f"{format_count(num_open, 'trial')} had no result when this page was written, because they were running "
            "or interrupted. Run the study again to continue them, then write the page again."
        )
    done = len(evidence.search) or evidence.num_confirmed
    if done < _FEW_TRIALS and not evidence.answer.no_complete_trial:
        completed = format_count(done, "search trial" if len(evidence.search) else "configuration")
        yield f"Only {completed} completed, so the front may still change much: run more trials."
    environments = set(read_text(evidence.trials, "environment_digest")) - {""}
    if len(environments) > 1:
        yield (
            f"Trials ran in {len(environments)} environments. Other versions or settings can change times and "
            "accuracies: compare them in the table at the end."
        )
    if len(frame) and not len(keep_finite(read_numbers(frame, "test_accuracy"))):
        yield (
            "The test split was not used. All accuracies are of the validation split, which also selected the front. "
            "Confirming trials measure the test accuracy."
        )
