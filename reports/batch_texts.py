"""The answer about the batch size as texts, for the page and the command line."""

import math
from collections import Counter
from dataclasses import dataclass

from reports.labels import (
    format_effect,
    format_estimate,
    format_interval,
    format_price,
    format_probability,
    format_setting,
    format_value,
)
from sweep.analysis.answer import BatchAnswer, Statement, TunedBatch, TunedModel
from sweep.analysis.statistics import Interval
from sweep.config.metrics import METRICS
from sweep.config.units import find_unit, format_count

CURVE_HEADS = (
    "Model", "Effective batch size", "Tuned accuracy", "Training time", "Memory", "Learning rate", "Fresh seeds",
    "Without loss",
)  # fmt: skip

COST_HEADS = (
    "Model", "Effective batch size", "Steps", "Samples", "Images per second", "Steps to the target",
    "Samples to the target", "Time to the target",
)  # fmt: skip

# Statements that name what is known and leave open the rest: what the probability is about, and the rest.
_IN_PARTS = {
    "equally_good": "for the batch sizes named as good or worse; the others are not known yet",
    "largest_without_loss": "for {batch}; larger ones are not known yet",
}


@dataclass(frozen=True, kw_only=True)
class BatchTexts:
    """``statements`` with how sure each is and what would settle it; ``command`` settles more, and ``other_command``
    what it does not, "" where there is none; ``rows`` of the curve, each cell a value and a note, with the
    ``remarks`` about each row."""

    statements: tuple[tuple[str, str], ...]
    command: str
    other_command: str
    rows: tuple[tuple[tuple[str, str], ...], ...]
    costs: tuple[tuple[tuple[str, str], ...], ...]  # a row for each batch too, by COST_HEADS
    models: tuple[str, ...]  # a sentence or two about each model
    remarks: tuple[str, ...]


def describe_batch_answer(found: BatchAnswer) -> BatchTexts:
    """``found`` as texts."""
    commands = [*dict.fromkeys(each.missing for each in found.statements if each.missing), "", ""]
    num_batches = Counter(point.model for point in found.curve)
    return BatchTexts(
        statements=tuple((each.text, describe_certainty(each)) for each in found.statements),
        command=commands[0],
        other_command=commands[1],
        rows=tuple(_row(point, is_alone=num_batches[point.model] == 1) for point in found.curve),
        costs=tuple(_cost_row(point) for point in found.curve),
        models=tuple(_describe_model(each) for each in found.models),
        remarks=tuple(
            f"{point.model}, effective batch size {point.batch}: {remark}."
            for point in found.curve
            for remark in point.remarks
        ),
    )


def _cost_row(point: TunedBatch) -> tuple[tuple[str, str], ...]:
    cells = (
        ("num_steps", point.num_steps),
        ("num_samples", point.num_samples),
        ("images_per_second", point.images_per_second),
        ("steps_to_target", point.steps_to_target),
        ("num_samples", point.samples_to_target),
        ("seconds_to_target", point.seconds_to_target),
    )
    return ((point.model, ""), (str(point.batch), f"trial {point.number}"), *(_cost(*cell) for cell in cells))


def _cost(name: str, value: Interval) -> tuple[str, str]:
    unit = "count" if name == "num_samples" else METRICS[name].unit
    numbers = value if find_unit(unit).measures else [round(part) if math.isfinite(part) else part for part in value]
    shown = format_value(unit, numbers[0])
    if not value.n or not math.isfinite(value.median):
        return shown, ""
    interval = format_interval(unit, numbers[1], numbers[2], numbers[0], value.n)
    return shown, ", ".join(filter(None, (interval, f"n = {value.n}")))


def _describe_model(found: TunedModel) -> str:
    power = found.rate_power
    if found.rate_lack:
        rate = f"how the best learning rate changes with the batch size is not known ({found.rate_lack})"
    else:
        rate = (
            f"the best learning rate grows as the power {format_effect('exponent', *power[:3])} of the batch size "
            f"({found.rate_detail})"
        )
    target = format_value("fraction", found.target_accuracy)
    return f"{found.model}: steps, samples and time to the target are those to {target} validation accuracy; {rate}."


def describe_certainty(statement: Statement) -> str:
    """How sure a statement is and what would settle it, as a clause; "" for an estimate."""
    if statement.is_estimate:
        return ""
    needed = f"; {statement.needed}" if statement.needed else ""
    if not statement.batches:
        return f"not settled{needed}"
    sure = f"{format_probability(statement.probability)} probability"
    if not statement.is_settled and statement.name in _IN_PARTS:
        return f"{sure} {_IN_PARTS[statement.name].format(batch=statement.batches[0])}{needed}"
    return f"{sure}, {'settled' if statement.is_settled else 'not settled'}{needed}"


def _price_note(point: TunedBatch, cell: tuple[str, str]) -> tuple[str, str]:
    shown, interval = cell
    price = format_price(point.price.median, point.price.currency) if point.price else ""
    return shown, "; ".join(filter(None, (interval, f"price {price}" if price else "")))


def _row(point: TunedBatch, *, is_alone: bool) -> tuple[tuple[str, str], ...]:
    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        format_estimate("val_accuracy", *point.accuracy),
        _price_note(point, format_estimate("train_seconds", *point.seconds)),
        format_estimate("peak_memory_bytes", *point.memory_bytes),
        (format_setting(point.learning_rate), format_count(point.num_configurations, "configuration")),
        (str(point.num_seeds), ""),
        ("", "the only one tried") if is_alone else (format_probability(point.p_without_loss), ""),
    )
