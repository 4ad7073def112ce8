"""The tables of the page: uses, Pareto front, and claims with the numbers of their forest plot."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from reports.evidence import Evidence, describe_value, read_measurement, train_commands
from reports.labels import (
    TOO_UNCERTAIN,
    describe_range,
    format_bound,
    format_estimate,
    format_interval,
    format_setting,
    format_value,
    is_too_uncertain,
    metric_label,
)
from reports.layout import Json
from reports.texts import Card, define_terms, describe_use_price, describe_use_setting, list_leading
from sweep.analysis.answer import Recommendation
from sweep.analysis.comparable import USUAL_METRICS
from sweep.analysis.findings import UNSETTLED, Finding
from sweep.analysis.statistics import Interval, plain_value, read_numbers, scale_of
from sweep.config.metrics import Quality, find_unit, format_probability
from sweep.config.trial import key_label

MAX_ROWS = 200
_BATCH = "batch.global"


class _Cell(NamedTuple):
    """What a cell shows, a smaller second line, what it sorts by. Where it has an interval: the interval, and the bar:
    where the bar begins, how wide it is and where the value lies, in percent of the column's scale."""

    text: str
    note: str = ""
    key: float | str = ""
    is_number: bool = True
    interval: str = ""
    bar: tuple[float, float, float] | None = None


def split_columns(
    labels: Sequence[str], columns: Sequence[Sequence[str]], num_kept: int
) -> tuple[list[int], list[str]]:
    """Which of ``columns`` to show: the first ``num_kept``, and those that differ between the rows; and label and text
    of the others, which are the same in all rows and stated once."""
    constant = [i for i, texts in enumerate(columns) if i >= num_kept and len(texts) > 1 and len(set(texts)) == 1]
    shown = [i for i in range(len(columns)) if i not in constant]
    return shown, [f"{labels[i].lower()} {columns[i][0]}" for i in constant]


def make_uses_table(evidence: Evidence, cards: Sequence[Card]) -> Json:
    """A row for each configuration that a use of the answer names, equal ones merged; ``cards`` are the texts of the
    uses in their order. ``common`` names the settings that are the same in all rows."""
    named = {item.number: item for item in evidence.answer.uses.values() if item.number is not None}
    items = list(named.values())
    known = dict.fromkeys(name for item in items for name in item.values)
    quality, leading = evidence.answer.quality, list_leading(evidence.answer.quality)
    metrics = [*(name for name in leading if name in known), *(name for name in known if name not in leading)]
    keys = list(dict.fromkeys(key for item in items for key in item.settings if key != _BATCH))
    varied = [key for key in keys if len({describe_use_setting(item, key) for item in items}) > 1]
    columns = [_make_use_cells([item.values.get(name) for item in items], name, quality) for name in metrics]
    trials, numbers = evidence.trials, read_numbers(evidence.trials, "number")

    def list_settings(item: Recommendation, keys: Sequence[str]) -> str:
        return ", ".join(describe_use_setting(item, key) for key in keys)

    rows = [
        {
            "cards": [card for card in cards if card.trial == number],
            "trial": number,
            "batch": str(item.global_batch_size),
            "cells": [column[row] for column in columns],
            "settings": list_settings(item, varied or keys) + describe_use_price(item),
            "command": train_commands(trials[numbers == number].head(1), evidence.frames)[0],
        }
        for row, (number, item) in enumerate(named.items())
    ]
    common = [key for key in keys if key not in varied] if varied else []
    return {
        "heads": [metric_label(name, quality) for name in metrics],
        "rows": rows,
        "common": f"All rows: {list_settings(items[0], common)}." if common else "",
        "terms": define_terms(evidence.answer),
    }


def _make_use_cells(values: Sequence[Interval | None], name: str, quality: Quality) -> list[_Cell]:
    """The cells of a column, whose bars share one scale."""
    is_log = name != quality.column and scale_of(name).is_ratio
    scaled = [[_transform(bound, is_log=is_log) for bound in value[:3]] if value else [] for value in values]
    finite = [bound for bounds in scaled for bound in bounds if math.isfinite(bound)]
    least, width = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    cells = []
    for value, bounds in zip(values, scaled, strict=True):
        if value is None:
            cells.append(_Cell("–"))
            continue
        text, interval = format_estimate(name, *value, quality)
        bar = None
        if all(map(math.isfinite, bounds)) and value.high > value.low and width > 0:
            middle, left, right = (round(100 * (bound - least) / width, 2) for bound in bounds)
            bar = left, round(right - left, 2), middle
        cells.append(_Cell(text, f"n = {value.n}", interval=interval, bar=bar))
    return cells


def make_front_table(evidence: Evidence) -> Json:
    """Confirmed configurations and the search front; the answer's front comes first. ``num_left_out`` rows were too
    many; ``common`` is what all rows share; ``trial`` of a row is the first that its values rest on."""
    frame = evidence.configurations
    confirmed, search_front = (frame[name].to_numpy(dtype=bool) for name in ("confirmed", "on_search_front"))
    shown = frame[confirmed | search_front].sort_values(
        ["confirmed", "on_front", "number"], ascending=[False, False, True], kind="stable"
    )
    first = shown.head(MAX_ROWS)
    measured = (name for name in USUAL_METRICS if np.isfinite(read_numbers(shown, name)).any())
    metrics = list(dict.fromkeys((*evidence.objectives, *measured)))
    leading = list_leading(evidence.answer.quality)
    metrics.sort(key=lambda name: leading.index(name) if name in leading else len(leading))
    table = [list(_list_front_cells(evidence, row, metrics)) for _, row in first.iterrows()]
    labels = [label for label, _ in table[0]] if table else []
    columns = [[f"{cell.text} {cell.note}".strip() for _, cell in column] for column in zip(*table, strict=True)]
    places, common = split_columns(labels, columns, 2 + len({*metrics} & {*leading}))
    rows = [
        {
            "cells": [cells[place][1] for place in places],
            "command": command,
            "confirmed": bool(row["confirmed"]),
            "trial": row["numbers"][0],
        }
        for cells, command, (_, row) in zip(
            table, train_commands(first, evidence.frames), first.iterrows(), strict=True
        )
    ]
    return {
        "heads": [labels[place] for place in places],
        "rows": rows,
        "num_left_out": max(0, len(shown) - MAX_ROWS),
        "common": ", ".join(common),
    }


def _list_front_cells(evidence: Evidence, row: pd.Series, metrics: Sequence[str]) -> Iterator[tuple[str, _Cell]]:
    yield "Trial", _Cell(str(row["number"]), key=float(row["number"]))
    yield "Effective batch size", _make_setting(plain_value(row["global_batch_size"]))
    quality, leading = evidence.answer.quality, list_leading(evidence.answer.quality)
    measured = [(name, metric_label(name, quality), _make_measured(row, name, quality)) for name in metrics]
    yield from ((label, cell) for name, label, cell in measured if name in leading)
    p_front = read_measurement(row, "p_front")
    words = "yes" if row["on_front"] else "search only" if row["on_search_front"] else "no"
    note = "" if math.isnan(p_front) else f"{format_probability(p_front)} probability"
    yield "On the Pareto front", _Cell(words, note, -1.0 if math.isnan(p_front) else p_front, is_number=False)
    failed = f"{row['num_failed_seeds']} failed" if row["num_failed_seeds"] else ""
    seeds = f"{row['num_seeds']} fresh" if row["confirmed"] else "1 (search)"
    yield "Seeds", _Cell(seeds, failed, float(row["num_seeds"]) if row["confirmed"] else 0.0)
    for key in evidence.swept:
        if key != _BATCH:
            yield key_label(key).capitalize(), _make_setting(plain_value(row[f"config.{key}"]))
    yield from ((label, cell) for name, label, cell in measured if name not in leading)


def _make_measured(row: pd.Series, name: str, quality: Quality) -> _Cell:
    value = read_measurement(row, name)
    return _Cell(*describe_value(row, name, quality), key=value if math.isfinite(value) else "")


def _make_setting(value: object) -> _Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _Cell(format_setting(value), key=float(value))
    return _Cell(format_setting(value), key=str(value), is_number=False)


WIDTH = 230.0  # pixels of a row
_EDGE = 12.0  # pixels at both ends, beyond which an arrow marks an interval that is longer
_LETTER = 6.0  # pixels
# How far the axis may go beyond the claimed range, the neutral value and the effect, in multiples of their span.
_ROOM, _ROOM_UNCERTAIN = 3.0, 0.75


class _ClaimPicture(NamedTuple):
    """A row of the forest plot: the measured effect with its interval, over the range that the claim states. Pixels are
    from the left. ``claimed`` is the range of the claim, ``interval`` the measured one with ``is_cut`` at the
    ends that lie beyond the axis; ``effect`` is None where it is too uncertain to state. ``lines`` mark the ends of the
    range ("bound") and the value of no effect ("neutral"); ``numbers`` below them do not overlap."""

    name: str
    claimed: tuple[float, float]
    interval: tuple[float, float]
    is_cut: tuple[bool, bool]
    effect: float | None
    is_open: bool
    lines: tuple[tuple[float, str], ...]
    numbers: tuple[tuple[float, str], ...]


def list_claims(claims: Sequence[Finding]) -> list[Json]:
    """A row for each of ``claims``, in their order: the ``effect`` with its ``interval`` as texts, and the picture;
    none of them where it was not tested."""
    rows: list[Json] = []
    for item in claims:
        effect = interval = ""
        if not item.reason:
            effect = TOO_UNCERTAIN
        if not item.reason and _is_effect_stated(item):
            effect = format_value(item.unit, item.effect)
            interval = format_interval(item.unit, item.low, item.high, item.effect)
        picture = None if item.reason else draw_claim(item, f"{effect} ({interval})" if interval else effect)
        rows.append({"finding": item, "effect": effect, "interval": interval, "picture": picture})
    return rows


def _is_effect_stated(claim: Finding) -> bool:
    """Whether the effect of a tested claim is known well enough to print it."""
    return math.isfinite(claim.effect) and not is_too_uncertain(claim.unit, claim.low, claim.high)


class _ClaimAxis(NamedTuple):
    """Values from ``low`` to ``high`` of an effect; for ratios and numbers of samples their logarithms."""

    low: float
    high: float
    is_log: bool

    def locate(self, value: float) -> float:
        """The pixel of ``value``; of one outside the axis the nearer end."""
        inside = min(max(_transform(value, is_log=self.is_log), self.low), self.high)
        return round(_EDGE + (inside - self.low) / (self.high - self.low) * (WIDTH - 2 * _EDGE), 2)

    def is_beyond(self, value: float) -> bool:
        """Whether ``value`` lies outside the axis."""
        room = 1e-9 * (self.high - self.low)
        return not self.low - room <= _transform(value, is_log=self.is_log) <= self.high + room


def make_claim_axis(claim: Finding) -> _ClaimAxis:
    """The axis holds the claimed range, the neutral value and the effect, and of the interval what is not too wide for
    the distance between the ends of the range and the neutral value."""
    is_log = find_unit(claim.unit).scale == "log"
    marks = [_transform(value, is_log=is_log) for value in (*claim.claimed, *_list_neutral(claim.unit))]
    marks = [mark for mark in marks if math.isfinite(mark)]
    span = max(marks, default=0.0) - min(marks, default=0.0)
    if not _is_effect_stated(claim):
        room = _ROOM_UNCERTAIN * (span or 1.0)
        return _ClaimAxis(low=min(marks, default=0.0) - room, high=max(marks, default=0.0) + room, is_log=is_log)
    effect, low, high = (_transform(value, is_log=is_log) for value in (claim.effect, claim.low, claim.high))
    first, last = min(*marks, effect), max(*marks, effect)
    room = _ROOM * span or math.inf
    start, end = min(first, max(low, first - room)), max(last, min(high, last + room))
    if end <= start:
        start, end = start - 1.0, start + 1.0
    return _ClaimAxis(low=start, high=end, is_log=is_log)


def draw_claim(claim: Finding, text: str) -> _ClaimPicture:
    """The row of a tested claim; ``text`` is the measured effect in words."""
    axis, is_log = make_claim_axis(claim), find_unit(claim.unit).scale == "log"
    low, high = claim.claimed
    bounds = [bound for bound in claim.claimed if math.isfinite(_transform(bound, is_log=is_log))]
    neutral = _list_neutral(claim.unit)
    lines, numbers, taken = [], [], list[float]()
    for value in dict.fromkeys((*bounds, *neutral)):
        x, label = axis.locate(value), format_bound(claim.unit, value)
        lines.append((x, "neutral" if value in neutral else "bound"))
        half = _LETTER * len(label) / 2
        at = min(max(x, half), WIDTH - half)
        if all(abs(at - other) > 2 * half for other in taken):
            numbers.append((at, label))
            taken.append(at)
    is_cut = tuple(not math.isfinite(bound) or axis.is_beyond(bound) for bound in (claim.low, claim.high))
    return _ClaimPicture(
        name=f"Claimed: {describe_range(claim.unit, *claim.claimed)}. Measured: {text}. {claim.verdict.capitalize()}.",
        claimed=(
            axis.locate(low) if math.isfinite(_transform(low, is_log=is_log)) else 0.0,
            axis.locate(high) if math.isfinite(high) else WIDTH,
        ),
        interval=(2.0 if is_cut[0] else axis.locate(claim.low), WIDTH - 2.0 if is_cut[1] else axis.locate(claim.high)),
        is_cut=(is_cut[0], is_cut[1]),
        effect=axis.locate(claim.effect) if _is_effect_stated(claim) else None,
        is_open=claim.verdict in UNSETTLED,
        lines=tuple(lines),
        numbers=tuple(numbers),
    )


def _transform(value: float, *, is_log: bool) -> float:
    if not is_log:
        return value
    return math.log(value) if value > 0 else -math.inf


def _list_neutral(unit: str) -> tuple[float, ...]:
    # the effect that is none; a number of samples has none
    if unit == "ratio":
        return (1.0,)
    return () if find_unit(unit).scale == "log" else (0.0,)
