"""Columns of a table that have the same text in all rows: they are stated once and not shown."""

from collections.abc import Sequence
from typing import NamedTuple

from reports.describe import format_column
from reports.evidence import Evidence
from reports.labels import key_label

LEADING = ("val_accuracy", "train_seconds", "peak_memory_bytes")  # in this order behind the effective batch size
_USUAL_KEYS = ("model.name", "optimizer.name")


class SplitColumns(NamedTuple):
    """Places of the columns that are ``shown``, and label and text of the ``constant`` ones."""

    shown: tuple[int, ...]
    constant: tuple[str, ...]


def split_columns(labels: Sequence[str], columns: Sequence[Sequence[str]], num_kept: int) -> SplitColumns:
    """Which of ``columns`` to show: the first ``num_kept``, and those that differ between the rows."""
    constant = [
        place for place, texts in enumerate(columns) if place >= num_kept and len(texts) > 1 and len(set(texts)) == 1
    ]
    return SplitColumns(
        tuple(place for place in range(len(columns)) if place not in constant),
        tuple(f"{labels[place].lower()} {columns[place][0]}" for place in constant),
    )


def list_common_settings(evidence: Evidence) -> list[str]:
    """Model and optimizer, where the study tries only one of them."""
    common = []
    for key in _USUAL_KEYS:
        values = set(format_column(evidence.trials, key)) if key not in evidence.swept else set()
        if len(values) == 1 and values != {"none"}:
            common.append(f"{key_label(key)} {values.pop()}")
    return common
