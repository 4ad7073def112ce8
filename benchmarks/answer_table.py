"""A recorded table from which a study can be answered: its trainings as records and frames, the truth about them, and
what the answer costs without a search.

The truth is that of the means over the recorded seeds. A configuration is right when it loses at most the tolerance of
accuracy against the best mean, and none that loses at most half of it is faster by more than the tolerance of time
(:mod:`benchmarks.answer_truth` judges by the same rule).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.replay import Point, RecordedTable, make_replay_study, read_table
from sweep.analysis.comparable import ACCURACY, SECONDS
from sweep.analysis.statistics import Values
from sweep.config.errors import InputError
from sweep.config.study import FEWEST_SEEDS, StudySpec, Tolerance
from sweep.config.trial import TrialConfig
from sweep.records.frames import Frames
from sweep.records.loading import load_frames, records_of_frame
from sweep.records.messages import Phase
from sweep.records.records import Correct, TrialRecord, decode_correct

_CONFIGURATIONS = 16  # of confirming, the usual number
CONFIRM_SHARE = 4.0  # of the search's seconds: so much that the recorded seeds end the confirming, and seldom the time


@dataclass(frozen=True)
class AnswerTable:
    """A table with all that its records hold, see :func:`read_answer_table`."""

    recorded: RecordedTable
    frames: Frames
    _correct: dict[int, Correct] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        return self.recorded.spec.name

    @property
    def num_seeds(self) -> int:
        return min(len(seeds) for seeds in self.recorded.curves.values())

    @cached_property
    def _records(self) -> list[TrialRecord]:
        return records_of_frame(self.frames.trials)

    @cached_property
    def _rows(self) -> dict[Point, list[int]]:
        # of the frame, by point, in the order of the seeds
        found: dict[Point, dict[int, int]] = {}
        for row, record in enumerate(self._records):
            point = tuple(record.values[path] for path in self.recorded.spec.space)
            seed = int(str(record.values["seed"]))
            if seed in self.recorded.curves.get(point, {}):
                found.setdefault(point, {})[seed] = row
        return {point: [rows[seed] for seed in sorted(rows)] for point, rows in found.items()}

    def _row(self, config: TrialConfig) -> int:
        rows = self._rows[self.recorded.point_of(config)]
        return rows[config.seed % len(rows)]

    def train(self, config: TrialConfig, number: int, phase: Phase) -> TrialRecord:
        """The recorded training of ``config`` as trial ``number``; its seed selects one of the recorded seeds."""
        recorded = self._records[self._row(config)]
        values = {**recorded.values, "seed": config.seed}
        return replace(recorded, number=number, phase=phase, values=values, made_from=config, reused_from="")

    def find_point(self, record: TrialRecord) -> int:
        return self.recorded.row_of[self.recorded.point_of(record.config)]

    def make_frames(self, records: Sequence[TrialRecord], spec: StudySpec) -> Frames:
        """The frames of a study that has these ``records``; those that were stopped early are left out."""
        kept = [record for record in records if record.outcome != "pruned"]
        rows = [self._row(record.config) for record in kept]
        seeds = [record.config.seed for record in kept]
        own = {
            "number": [record.number for record in kept], "phase": [record.phase for record in kept], "seed": seeds,
            "config.seed": seeds, "reused_from": [""] * len(kept),
        }  # fmt: skip
        trials = self.frames.trials.iloc[rows].reset_index(drop=True)
        cells = {name: pd.Series(column, dtype=trials[name].dtype) for name, column in own.items()}
        sources = {record.number: int(self._records[row].number) for record, row in zip(kept, rows, strict=True)}
        return replace(
            self.frames, trials=trials.assign(**cells),
            studies=self.frames.studies.assign(spec=spec.model_dump_json(by_alias=True)), evaluations=None,
            correct_images=None, find_correct=lambda _study, numbers: self._find_correct(sources, numbers),
        )  # fmt: skip

    def _find_correct(self, sources: dict[int, int], numbers: Sequence[int]) -> dict[int, Correct]:
        known = [number for number in numbers if sources[number] in self._texts]
        for source in {sources[number] for number in known} - self._correct.keys():
            self._correct[source] = decode_correct(self._texts[source])
        return {number: self._correct[sources[number]] for number in known}

    @cached_property
    def _texts(self) -> dict[int, str]:
        rows = self.frames.correct_images
        return {} if rows is None else dict(zip(rows["number"].tolist(), rows["correct_images"].tolist(), strict=True))

    def make_study(self, seed: int, **changes: Any) -> StudySpec:
        """A study of the whole grid, searched as ``changes`` state and confirmed with all other seeds of the table."""
        confirm = {"max_configurations": _CONFIGURATIONS, "seeds": self.num_seeds - 1, "share": CONFIRM_SHARE}
        plain = {"seed": seed, "trials": len(self.recorded.points), "confirm": confirm}
        return make_replay_study(self.recorded, self.name, **{**plain, **changes})

    def mean(self, name: str) -> Values:
        """The mean over the seeds of a measurement of each point, shape ``[points]``; NaN where a training of it is not
        complete."""
        of_points = (self._rows[point] for point in self.recorded.points)
        return np.array([np.mean([self._measured(row, name) for row in rows]) for rows in of_points])

    def _measured(self, row: int, name: str) -> float:
        record = self._records[row]
        return float(record.measurements.get(name, np.nan)) if record.outcome == "complete" else np.nan

    @cached_property
    def right(self) -> frozenset[int]:
        tolerance = self.recorded.spec.answer.tolerance
        margins = find_margins(self.mean(ACCURACY), self.mean(SECONDS), tolerance)
        return frozenset(np.flatnonzero(margins >= 0).tolist())

    def config_of(self, row: int) -> TrialConfig:
        return self._records[self._rows[self.recorded.points[row]][0]].config

    def price(self, row: int) -> float:
        """The mean seconds of the trainings of a point, whole ones and others."""
        trainings = (self._records[each] for each in self._rows[self.recorded.points[row]])
        return float(np.mean([record.measurements["total_seconds"] for record in trainings]))

    @cached_property
    def grid_seconds(self) -> float:
        return sum(self.price(row) for row in range(len(self.recorded.points)))


def find_margins(accuracies: Values, seconds: Values, tolerance: Tolerance) -> Values:
    """The accuracy by which each configuration is right, negative where it is wrong; shape ``[points]``. Those without
    an accuracy or a time (NaN) are wrong by infinity and no rivals."""
    best = np.nanmax(accuracies)
    is_known = np.isfinite(accuracies) & np.isfinite(seconds)
    margins = np.where(is_known, accuracies - (best - tolerance.accuracy), -np.inf)
    is_faster = seconds[None, :] < seconds[:, None] / (1 + tolerance.time)  # [one, rival]
    rivals = np.where(is_faster & np.isfinite(accuracies)[None, :], accuracies[None, :], -np.inf).max(axis=1)
    return np.asarray(np.minimum(margins, best - tolerance.accuracy / 2 - rivals))


def read_answer_table(folder: str | Path) -> AnswerTable:
    recorded = read_table(folder)
    table = AnswerTable(recorded, load_frames(folder, correct_images=True))
    if table.num_seeds <= FEWEST_SEEDS:
        raise InputError(
            f"{folder}: {table.num_seeds} seeds; nothing is named without {FEWEST_SEEDS} fresh ones beside that of the "
            f"search, so record {FEWEST_SEEDS + 1} or more."
        )
    return table


def price_oracle(table: AnswerTable) -> tuple[float, float]:
    """The seconds of what one who knows the truth would train, with every recorded seed, and with one, which is the
    search alone: the fastest right configuration, the most accurate one, and of the faster ones that lose more than the
    tolerance the most accurate. A search has to find these first; it may settle with fewer seeds of them."""
    accuracies, seconds = table.mean(ACCURACY), table.mean(SECONDS)
    limit = float(np.nanmax(accuracies)) - table.recorded.spec.answer.tolerance.accuracy
    one = min((row for row in range(len(seconds)) if accuracies[row] >= limit), key=lambda row: float(seconds[row]))
    chosen = {one, int(np.nanargmax(accuracies))}
    faster = np.flatnonzero((seconds < seconds[one]) & (accuracies < limit))
    if len(faster):
        chosen.add(int(faster[np.argmax(accuracies[faster])]))
    search = sum(table.price(row) for row in chosen)
    return search * table.num_seeds, search


def price_naive(table: AnswerTable) -> float:
    """The seconds of a full design: every model and effective batch size, six learning rates spread evenly over those
    of the table, three seeds; of several points that have these in common the cheapest."""
    configs = [table.config_of(row) for row in range(len(table.recorded.points))]
    rates = sorted({config.optimizer.lr for config in configs})
    chosen = {rates[round(place)] for place in np.linspace(0, len(rates) - 1, min(6, len(rates)))}
    cheapest: dict[tuple[str, int, float], float] = {}
    for row, config in enumerate(configs):
        if config.optimizer.lr in chosen:
            key = (config.model.name, config.global_batch_size, config.optimizer.lr)
            cheapest[key] = min(table.price(row), cheapest.get(key, np.inf))
    return 3 * sum(cheapest.values())
