"""The table of the uses: a row for each configuration that a use names, equal ones merged, with the same columns and a
bar of each interval on the scale of its column."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.describe import describe_use_setting
from reports.first.first_texts import format_points
from reports.labels import (
    describe_price,
    format_estimate,
    format_probability,
    metric_label,
)
from reports.page.answer_texts import Card
from reports.page.constant_columns import LEADING
from sweep.analysis.answer import Answer, Recommendation
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.statistics import Interval, scale_of
from sweep.config.units import format_share

_BATCH = "batch.global"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Where an interval begins, how wide it is and where its value lies, in percent of the column's scale."""

    left: float
    width: float
    middle: float


@dataclass(frozen=True, kw_only=True)
class UseCell:
    """A value, its interval, its number of trainings, and its bar where it has an interval."""

    text: str
    interval: str = ""
    note: str = ""
    bar: Bar | None = None


@dataclass(frozen=True, kw_only=True)
class UseRow:
    """A configuration: the uses that name it, its effective batch size, a cell for each head, and the settings that
    differ between the rows."""

    cards: tuple[Card, ...]
    trial: int
    batch: str
    cells: tuple[UseCell, ...]
    settings: str


@dataclass(frozen=True, kw_only=True)
class UsesTable:
    """``common`` names the settings that are the same in all rows; ``terms`` defines what the uses rest on."""

    heads: tuple[str, ...]
    rows: tuple[UseRow, ...]
    common: str
    terms: str


def make_uses_table(answer: Answer, cards: Sequence[Card]) -> UsesTable:
    """The table of what ``answer`` names; ``cards`` are its texts in the order of the uses."""
    named = {item.number: item for item in answer.uses.values() if item.number is not None}
    items = list(named.values())
    metrics = _list_metrics(items)
    keys = list(dict.fromkeys(key for item in items for key in item.settings if key != _BATCH))
    varied = [key for key in keys if len({describe_use_setting(item, key) for item in items}) > 1]
    scales = {name: _span(name, [item.values[name] for item in items if name in item.values]) for name in metrics}
    rows = [
        UseRow(
            cards=tuple(card for card in cards if card.trial == number),
            trial=number,
            batch=str(item.global_batch_size),
            cells=tuple(_estimate_cell(item.values.get(name), name, scales[name]) for name in metrics),
            settings=_list_settings(item, varied or keys) + _describe_price(item),
        )
        for number, item in named.items()
    ]
    common = [key for key in keys if key not in varied] if varied else []
    return UsesTable(
        heads=tuple(map(metric_label, metrics)),
        rows=tuple(rows),
        terms=_define_terms(answer),
        common=f"All rows: {_list_settings(items[0], common)}." if common else "",
    )


def _describe_price(item: Recommendation) -> str:
    return f"; price of a training {describe_price(**vars(item.price))}" if item.price else ""


def _define_terms(answer: Answer) -> str:
    tolerance = answer.tolerance
    parts = [f"accuracy {format_points(tolerance.accuracy)}"]
    parts += [f"{name} {format_share(getattr(tolerance, name))}" for name in ("time", "memory")]
    return (
        f"Tolerance: {', '.join(parts)}. Settled: {format_probability(answer.confidence)} or more. Useful accuracy: at "
        f"most {format_points(ACCURACY_MARGIN)} below the best."
    )


def _list_settings(item: Recommendation, keys: Sequence[str]) -> str:
    return ", ".join(describe_use_setting(item, key) for key in keys)


def _list_metrics(items: Sequence[Recommendation]) -> list[str]:
    found = dict.fromkeys(name for item in items for name in item.values)
    return [*(name for name in LEADING if name in found), *(name for name in found if name not in LEADING)]


def _span(name: str, values: Sequence[Interval]) -> tuple[float, float]:
    # of a column, on the metric's scale
    bounds = [_place(name, bound) for value in values for bound in value[:3]]
    known = [bound for bound in bounds if math.isfinite(bound)]
    return (min(known), max(known)) if known else (math.nan, math.nan)


def _place(name: str, value: float) -> float:
    if not scale_of(name).is_ratio:
        return value
    return math.log(value) if value > 0 else math.nan


def _estimate_cell(value: Interval | None, name: str, span: tuple[float, float]) -> UseCell:
    if value is None:
        return UseCell(text="–")
    text, interval = format_estimate(name, *value)
    low, middle, high = (_place(name, part) for part in (value.low, value.median, value.high))
    width = span[1] - span[0]
    bar = None
    if math.isfinite(low + middle + high) and high > low and width > 0:
        left, at, right = (round(100 * (part - span[0]) / width, 2) for part in (low, middle, high))
        bar = Bar(left=left, width=round(right - left, 2), middle=at)
    return UseCell(text=text, interval=interval, note=f"n = {value.n}", bar=bar)
