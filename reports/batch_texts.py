"""The answer about the batch size as texts, for the page and the command line."""

from collections import Counter
from dataclasses import dataclass

from reports.labels import format_interval, format_metric, format_setting
from sweep.analysis.answer.answer import BatchAnswer, Statement, TunedBatch
from sweep.analysis.statistics.intervals import Interval
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

CURVE_HEADS = (
    "Model", "Effective batch size", "Tuned accuracy", "Training time", "Memory", "Learning rate", "Fresh seeds",
    "Without loss",
)  # fmt: skip

_IN_PARTS = ("equally_good", "largest_without_loss")  # statements that name what is known and leave open the rest


@dataclass(frozen=True, kw_only=True)
class BatchTexts:
    """``statements`` with how sure each is and what would settle it; ``command`` settles more, "" where all is settled;
    ``rows`` of the curve, each cell a value and a note, with the ``remarks`` about each row."""

    statements: tuple[tuple[str, str], ...]
    command: str
    rows: tuple[tuple[tuple[str, str], ...], ...]
    remarks: tuple[str, ...]


def describe_batch_answer(found: BatchAnswer) -> BatchTexts:
    """``found`` as texts."""
    num_batches = Counter(point.model for point in found.curve)
    return BatchTexts(
        statements=tuple((each.text, describe_certainty(each)) for each in found.statements),
        command=next((each.missing for each in found.statements if each.missing), ""),
        rows=tuple(_row(point, is_alone=num_batches[point.model] == 1) for point in found.curve),
        remarks=tuple(
            f"{point.model}, effective batch size {point.batch}: {remark}."
            for point in found.curve
            for remark in point.remarks
        ),
    )


def describe_certainty(statement: Statement) -> str:
    """How sure a statement is and what would settle it, as a clause; "" for an estimate."""
    if statement.is_estimate:
        return ""
    needed = f"; {statement.needed}" if statement.needed else ""
    if not statement.batches:
        return f"not settled{needed}"
    state = "settled" if statement.is_settled else "not settled"
    if not statement.is_settled and statement.name in _IN_PARTS:
        state = "the others are not settled"
    return f"{format_probability(statement.probability)} probability, {state}{needed}"


def format_probability(value: float) -> str:
    """``value`` in whole percent, never as certain."""
    shown = round(100 * value)
    return "over 99 %" if shown >= 100 else "under 1 %" if shown <= 0 else f"{shown} %"


def _row(point: TunedBatch, *, is_alone: bool) -> tuple[tuple[str, str], ...]:
    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        _value("val_accuracy", point.accuracy),
        _value("train_seconds", point.seconds),
        _value("peak_memory_bytes", point.memory_bytes),
        (format_setting(point.learning_rate), format_count(point.num_configurations, "configuration")),
        (str(point.num_seeds), ""),
        ("", "the only one tried") if is_alone else (format_probability(point.p_without_loss), ""),
    )


def _value(name: str, value: Interval) -> tuple[str, str]:
    interval = format_interval(METRICS[name].unit, value.low, value.high, value.median)
    is_exact = format_metric(name, value.low) == format_metric(name, value.high)
    return format_metric(name, value.median), "" if is_exact else interval
