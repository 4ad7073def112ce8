"""The answer about the batch size as texts, for the page and the command line."""

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
    return BatchTexts(
        statements=tuple((each.text, describe_certainty(each)) for each in found.statements),
        command=next((each.missing for each in found.statements if each.missing), ""),
        rows=tuple(_row(point) for point in found.curve),
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
    state = "settled" if statement.is_settled else "not settled"
    needed = f"; {statement.needed}" if statement.needed else ""
    return f"{statement.probability:.0%} probability, {state}{needed}"


def _row(point: TunedBatch) -> tuple[tuple[str, str], ...]:
    return (
        (point.model, ""),
        (str(point.batch), f"trial {point.number}"),
        _value("val_accuracy", point.accuracy),
        _value("train_seconds", point.seconds),
        _value("peak_memory_bytes", point.memory_bytes),
        (format_setting(point.learning_rate), format_count(point.num_configurations, "configuration")),
        (str(point.num_seeds), ""),
        (f"{point.p_without_loss:.0%}", ""),
    )


def _value(name: str, value: Interval) -> tuple[str, str]:
    interval = format_interval(METRICS[name].unit, value.low, value.high, value.median)
    shown = format_metric(name, value.median)
    return shown, "" if value.low == value.high else interval
