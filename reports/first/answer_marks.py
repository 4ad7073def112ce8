"""The configurations and tuned batch sizes of the answer, as the first screen draws them."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pandas as pd

from reports.evidence import Evidence
from reports.first.log_axis import error_of
from reports.labels import format_estimate
from sweep.analysis.answer import TunedBatch
from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.statistics import Interval, non_dominated, read_numbers
from sweep.config.units import format_count


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One configuration with its estimates; ``num_seeds`` are fresh ones, ``is_tuned`` that it stands for its batch."""

    number: int
    model: str
    batch: int
    num_seeds: int
    accuracy: Interval
    seconds: Interval
    is_front: bool
    is_tuned: bool
    is_named: bool

    @cached_property
    def words(self) -> str:
        """What it stands for, in every picture."""
        pairs = [format_estimate("val_accuracy", *self.accuracy), format_estimate("train_seconds", *self.seconds)]
        values = ", ".join(f"{value} ({interval})" if interval else value for value, interval in pairs)
        seeds = format_count(self.num_seeds, "fresh seed") if self.num_seeds else "one seed of the search"
        return f"Effective batch size {self.batch}, {self.model}, trial {self.number}: {values}, {seeds}"


@dataclass(frozen=True, kw_only=True)
class AnswerMarks:
    """``marks`` in the order of their numbers; ``curve`` of the tuned batches; ``models`` in the order of the curve;
    ``floor`` is the least useful accuracy; ``tolerance`` of accuracy; ``num_hidden`` configurations that could not win
    and have no estimate."""

    marks: tuple[Mark, ...]
    curve: tuple[TunedBatch, ...]
    models: tuple[str, ...]
    floor: float
    tolerance: float
    num_hidden: int

    @property
    def batches(self) -> list[float]:
        """All effective batch sizes in ascending order."""
        return sorted({float(mark.batch) for mark in self.marks} | {float(point.batch) for point in self.curve})

    @property
    def _accuracies(self) -> list[Interval]:
        return [*(mark.accuracy for mark in self.marks), *(point.accuracy for point in self.curve)]

    @cached_property
    def cut(self) -> float:
        """The least accuracy to draw: the lowest bound of what is useful."""
        return min(
            (known_bounds(value)[0] for value in self._accuracies if value.median >= self.floor), default=self.floor
        )

    @property
    def errors(self) -> list[float]:
        """The least and the largest error, 1 - accuracy, to draw."""
        highs = [known_bounds(value)[1] for value in self._accuracies]
        return [error_of(max(highs)), error_of(self.cut)]

    @property
    def shown(self) -> list[Mark]:
        """The marks that are not below the cut."""
        return [mark for mark in self.marks if mark.accuracy.median >= self.cut]

    @property
    def labeled(self) -> list[Mark]:
        """The marks that have their batch size beside them, the most important first."""
        chosen = [mark for mark in self.shown if mark.is_front or mark.is_tuned or mark.is_named]
        return sorted(chosen, key=lambda mark: (not mark.is_named, not mark.is_tuned, not mark.is_front))

    @property
    def front_line(self) -> list[tuple[float, float]]:
        """Corners of the front in seconds and accuracy: the most accurate within a time, level until the next mark."""
        front = sorted((mark for mark in self.shown if mark.is_front), key=lambda mark: mark.seconds.median)
        places = [(mark.seconds.median, mark.accuracy.median) for mark in front]
        corners = [(after[0], before[1]) for before, after in pairwise(places)]
        return [*(point for pair in zip(places, corners, strict=False) for point in pair), *places[-1:]]

    @property
    def below(self) -> list[Mark]:
        """The others, the most accurate first."""
        return sorted(
            (mark for mark in self.marks if mark.accuracy.median < self.cut), key=lambda m: -m.accuracy.median
        )


def collect_marks(evidence: Evidence) -> AnswerMarks | None:
    """What there is to draw; None without an estimate of accuracy and time."""
    found = evidence.answer.batch_size
    frame = evidence.configurations
    if found is None or "val_accuracy_n" not in frame.columns or "train_seconds_n" not in frame.columns:
        return None
    usable = np.isfinite(read_numbers(frame, "val_accuracy_n")) & (read_numbers(frame, "train_seconds") > 0)
    chosen = frame[usable].sort_values("number", kind="stable")
    curve = tuple(point for point in found.curve if point.seconds.median > 0)
    if not len(chosen) or not curve:
        return None
    families = dict(zip(evidence.trials["number"].tolist(), evidence.trials["family"].tolist(), strict=True))
    tuned = {families[point.number] for point in curve}
    named = {families[number] for number in (found.named.number,) if number is not None}
    marks = [
        _make_mark(row, is_front, families[row["number"]] in tuned, families[row["number"]] in named)
        for (_, row), is_front in zip(chosen.iterrows(), _find_front(chosen), strict=True)
    ]
    least, margin = evidence.answer.limits.min_accuracy, ACCURACY_MARGIN
    return AnswerMarks(
        marks=tuple(marks),
        curve=curve,
        models=tuple(dict.fromkeys([*(point.model for point in curve), *(mark.model for mark in marks)])),
        floor=least if least is not None else max(mark.accuracy.median for mark in marks) - margin,
        tolerance=evidence.answer.tolerance.accuracy,
        num_hidden=int((~usable).sum()),
    )


def known_bounds(value: Interval) -> tuple[float, float]:
    """The bounds of an interval; the value itself where there are none."""
    return value[1:3] if math.isfinite(value.low + value.high) else (value.median, value.median)


def label_of(mark: Mark) -> str:
    """The batch size as it stands beside its mark."""
    return f"batch {mark.batch}" if mark.is_named else str(mark.batch)


def time_bounds(mark: Mark) -> tuple[float, ...]:
    """What a time axis holds of a mark: an interval is drawn for fresh seeds only."""
    return known_bounds(mark.seconds) if mark.num_seeds else (mark.seconds.median,)


def _make_mark(row: pd.Series, is_front: bool, is_tuned: bool, is_named: bool) -> Mark:
    return Mark(
        number=int(row["number"]),
        model=str(row["config.model.name"]),
        batch=int(row["global_batch_size"]),
        num_seeds=int(row["num_seeds"]) if row["confirmed"] else 0,
        accuracy=_read_interval(row, "val_accuracy"),
        seconds=_read_interval(row, "train_seconds"),
        is_front=is_front,
        is_tuned=is_tuned,
        is_named=is_named,
    )


def _read_interval(row: pd.Series, name: str) -> Interval:
    value, low, high, n = (float(row[f"{name}{end}"]) for end in ("", "_low", "_high", "_n"))
    return Interval(value, low, high, int(n) if math.isfinite(n) else 0)


def _find_front(frame: pd.DataFrame) -> list[bool]:
    # among those with fresh seeds, where there are any: the best of many single trials is biased upward
    confirmed = frame["confirmed"].to_numpy(dtype=bool)
    table = np.stack([-read_numbers(frame, "val_accuracy"), read_numbers(frame, "train_seconds")], axis=1)
    among = confirmed if confirmed.any() else np.ones(len(frame), dtype=np.bool_)
    return [bool(each) for each in non_dominated(np.where(among[:, None], table, np.nan))]
