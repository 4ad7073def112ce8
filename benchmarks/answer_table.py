"""A recorded table, on which searches are replayed and studies answered: its trainings as records and frames, the truth
about them, and what the answer costs without a search.

The truth is that of the means over the recorded seeds. A configuration is right when it loses at most the tolerance of
accuracy against the best mean, and none that loses at most half of it is faster by more than the tolerance of time
(:mod:`benchmarks.answer_truth` judges by the same rule).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sweep.analysis.comparable import ACCURACY, SECONDS
from sweep.analysis.statistics import Values
from sweep.config.errors import InputError
from sweep.config.space import Parameter, Space
from sweep.config.study import FEWEST_SEEDS, StudySpec, Tolerance
from sweep.config.study_file import build_study
from sweep.config.trial import Scalar, TrialConfig, flatten_config
from sweep.records.files import cells_of
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.messages import Evaluation, Phase
from sweep.records.reading import make_evaluation, records_of_columns
from sweep.records.records import EVALUATION_KINDS, Correct, ReusableTrial, TrialRecord, decode_correct

Point = tuple[Scalar, ...]  # values in the order of the space
_CONFIGURATIONS = 16  # of confirming, the usual number
CONFIRM_SHARE = 4.0  # of the search's seconds: so much that the recorded seeds end the confirming, and seldom the time
_CUT_SHORT = (None, "cancelled", "crashed", "pruned")


@dataclass(frozen=True)
class RecordedTable:
    """Recorded trainings of a whole grid: any records of one study, as ``sweep export`` writes them, with several seeds
    for each configuration, the evaluations, and which validation images the trainings got right."""

    spec: StudySpec
    frames: Frames

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def _records(self) -> list[TrialRecord]:
        trials = self.frames.trials
        return records_of_columns({str(name): cells_of(trials[name]) for name in trials})

    @property
    def _keys(self) -> tuple[str, ...]:
        # of the space; a grid may have its seeds in it
        return tuple(path for path in self.spec.space if path != "seed")

    @cached_property
    def _rows(self) -> dict[Point, list[int]]:
        # of the frame, by point, in the order of the seeds
        found: dict[Point, dict[int, int]] = {}
        for row, record in enumerate(self._records):
            if record.outcome not in _CUT_SHORT:
                point = tuple(record.values[path] for path in self._keys)
                found.setdefault(point, {})[int(str(record.values["seed"]))] = row
        return {point: [rows[seed] for seed in sorted(rows)] for point, rows in found.items()}

    @cached_property
    def points(self) -> list[Point]:
        return sorted(self._rows, key=repr)

    @cached_property
    def _place_of(self) -> dict[Point, int]:
        return {point: place for place, point in enumerate(self.points)}

    @cached_property
    def space(self) -> Space:
        """The study's space as a grid; a continuous parameter has the values that were recorded."""
        recorded = {path: {point[i] for point in self.points} for i, path in enumerate(self._keys)}
        return {path: _gridded(self.spec.space[path], recorded[path]) for path in self._keys}

    @cached_property
    def num_seeds(self) -> int:
        return min(map(len, self._rows.values()))

    def point_of(self, config: TrialConfig) -> Point:
        flat = flatten_config(config)
        return tuple(flat[path] for path in self._keys)

    def find_point(self, record: TrialRecord) -> int:
        return self._place_of[self.point_of(record.config)]

    def _row(self, config: TrialConfig) -> int:
        # consecutive seeds select different trainings
        rows = self._rows[self.point_of(config)]
        return rows[config.seed % len(rows)]

    @cached_property
    def _curves(self) -> dict[tuple[str, int], tuple[Evaluation, ...]]:
        evaluations = self.frames.evaluations
        assert evaluations is not None
        curves: dict[tuple[str, int], list[Evaluation]] = defaultdict(list)
        keys = zip(evaluations["study"], evaluations["number"].tolist(), strict=True)
        rows = zip(*(cells_of(evaluations[name]) for name in EVALUATION_KINDS), strict=True)
        for key, row in zip(keys, rows, strict=True):
            curves[key].append(make_evaluation(dict(zip(EVALUATION_KINDS, row, strict=True))))
        return {key: tuple(curve) for key, curve in curves.items()}

    def training(self, config: TrialConfig) -> ReusableTrial:
        """The recorded training of ``config``; its seed selects one of the recorded seeds."""
        record = self._records[self._row(config)]
        ending = replace(record.ending, correct_images=self._texts.get(record.number, ""))
        curve = self._curves.get((self.name, record.number), ())
        return ReusableTrial(origin=f"{self.name}/{record.number}", ending=ending, evaluations=curve)

    def train(self, config: TrialConfig, number: int, phase: Phase) -> TrialRecord:
        """The record of the same training, as trial ``number``."""
        recorded = self._records[self._row(config)]
        values = {**recorded.values, "seed": config.seed}
        return replace(recorded, number=number, phase=phase, values=values, made_from=config, reused_from="")

    def make_frames(self, records: Sequence[TrialRecord], spec: StudySpec) -> Frames:
        """The frames of a study that has these ``records``. The table's times are those of the replayed world, whatever
        disturbed their recording, so that no quality flag casts a doubt on them."""
        rows, seeds = [self._row(record.config) for record in records], [record.config.seed for record in records]
        own = {
            "number": [record.number for record in records], "phase": [record.phase for record in records],
            "outcome": [record.outcome for record in records], "seed": seeds, "config.seed": seeds,
            "reused_from": [""] * len(records), "quality_flags": [""] * len(records),
        }  # fmt: skip
        trials = self.frames.trials.iloc[rows].reset_index(drop=True)
        is_whole = np.array([record.outcome != "pruned" for record in records])
        trials = trials.assign(**{name: trials[name].where(is_whole) for name in (ACCURACY, SECONDS)})
        cells = {name: pd.Series(column, dtype=trials[name].dtype) for name, column in own.items()}
        sources = {record.number: int(self._records[row].number) for record, row in zip(records, rows, strict=True)}

        def find_correct(_study: str, numbers: Sequence[int]) -> dict[int, Correct]:
            known = self._correct
            return {number: known[sources[number]] for number in numbers if sources[number] in known}

        return replace(
            self.frames, trials=trials.assign(**cells),
            studies=self.frames.studies.assign(spec=spec.model_dump_json(by_alias=True)), evaluations=None,
            correct_images=None, find_correct=find_correct,
        )  # fmt: skip

    @cached_property
    def _texts(self) -> dict[int, str]:
        rows = self.frames.correct_images
        return {} if rows is None else dict(zip(rows["number"].tolist(), rows["correct_images"].tolist(), strict=True))

    @cached_property
    def _correct(self) -> dict[int, Correct]:
        return {number: decode_correct(text) for number, text in self._texts.items()}

    def make_study(self, seed: int, **changes: Any) -> StudySpec:
        """The table's study over the recorded grid, searched as ``changes`` state and confirmed with all other seeds of
        the table: with as many consecutive seeds, the trials of a configuration are different recorded trainings.

        Raises:
            InputError: a value that a study refuses.
        """
        # another sampler has a usual pruner of its own
        left_out = {"first", "search_timeout", *(["pruner"] if "sampler" in changes else [])}
        gridded = self.spec.model_copy(update={"space": self.space})
        plain = gridded.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)
        confirm = {"max_configurations": _CONFIGURATIONS, "seeds": self.num_seeds - 1, "share": CONFIRM_SHARE}
        usual = {"seed": seed, "trials": len(self.points), "confirm": confirm}
        return build_study({**plain, "timeout": None, "trial_timeout": None, **usual, **changes}, self.name)

    def mean(self, name: str) -> Values:
        """The mean over the seeds of a measurement of each point, shape ``[points]``; NaN where a training of it is not
        complete."""
        of_points = (self._rows[point] for point in self.points)
        return np.array([np.mean([self._measured(row, name) for row in rows]) for rows in of_points])

    def _measured(self, row: int, name: str) -> float:
        record = self._records[row]
        return float(record.measurements.get(name, np.nan)) if record.outcome == "complete" else np.nan

    @cached_property
    def right(self) -> frozenset[int]:
        """The places of the configurations that are right."""
        margins = find_margins(self.mean(ACCURACY), self.mean(SECONDS), self.spec.answer.tolerance)
        return frozenset(np.flatnonzero(margins >= 0).tolist())

    def config_of(self, place: int) -> TrialConfig:
        return self._records[self._rows[self.points[place]][0]].config

    def price(self, place: int) -> float:
        """The mean seconds of the trainings of a point, whole ones and others."""
        trainings = (self._records[row] for row in self._rows[self.points[place]])
        return float(np.mean([record.measurements["total_seconds"] for record in trainings]))

    @cached_property
    def grid_seconds(self) -> float:
        return sum(self.price(place) for place in range(len(self.points)))


def _gridded(parameter: Parameter, recorded: set[Scalar]) -> Parameter:
    if parameter.grid_values is not None and recorded <= set(parameter.grid_values):
        return parameter
    return Parameter(choice=tuple(sorted(recorded, key=lambda value: (str(type(value)), value))))


def find_margins(accuracies: Values, seconds: Values, tolerance: Tolerance) -> Values:
    """The accuracy by which each configuration is right, negative where it is wrong; shape ``[points]``. Those without
    an accuracy or a time (NaN) are wrong by infinity and no rivals."""
    best = np.nanmax(accuracies)
    is_known = np.isfinite(accuracies) & np.isfinite(seconds)
    margins = np.where(is_known, accuracies - (best - tolerance.accuracy), -np.inf)
    is_faster = seconds[None, :] < seconds[:, None] / (1 + tolerance.time)  # [one, rival]
    rivals = np.where(is_faster & np.isfinite(accuracies)[None, :], accuracies[None, :], -np.inf).max(axis=1)
    return np.asarray(np.minimum(margins, best - tolerance.accuracy / 2 - rivals))


def read_table(folder: str | Path) -> RecordedTable:
    """The table in a folder that ``sweep export`` wrote, or in a study's folder."""
    frames = load_frames(folder, evaluations=True, correct_images=True)
    if frames.spec is None or not frames.spec.space:
        raise InputError(f"{folder}: a table is one study of which something varies.")
    table = RecordedTable(frames.spec, frames)
    if not table.points or table.num_seeds <= FEWEST_SEEDS:
        raise InputError(
            f"{folder}: nothing is named without {FEWEST_SEEDS} fresh seeds beside the seed of the search; record "
            f"{FEWEST_SEEDS + 1} or more."
        )
    return table


def price_oracle(table: RecordedTable) -> float:
    """The seconds of what one who knows the truth would train, with every recorded seed: the fastest right
    configuration, the most accurate one, and of the faster ones that lose more than the tolerance the most accurate. A
    search has to find these first; it may settle with fewer seeds of them."""
    accuracies, seconds = table.mean(ACCURACY), table.mean(SECONDS)
    limit = float(np.nanmax(accuracies)) - table.spec.answer.tolerance.accuracy
    one = min((row for row in range(len(seconds)) if accuracies[row] >= limit), key=lambda row: float(seconds[row]))
    chosen = {one, int(np.nanargmax(accuracies))}
    faster = np.flatnonzero((seconds < seconds[one]) & (accuracies < limit))
    if len(faster):
        chosen.add(int(faster[np.argmax(accuracies[faster])]))
    return sum(table.price(row) for row in chosen) * table.num_seeds


def price_naive(table: RecordedTable) -> float:
    """The seconds of a full design: every model and effective batch size, six learning rates spread evenly over those
    of the table, three seeds; of several points that have these in common the cheapest."""
    configs = [table.config_of(row) for row in range(len(table.points))]
    rates = sorted({config.optimizer.lr for config in configs})
    chosen = {rates[round(place)] for place in np.linspace(0, len(rates) - 1, min(6, len(rates)))}
    cheapest: dict[tuple[str, int, float], float] = {}
    for row, config in enumerate(configs):
        if config.optimizer.lr in chosen:
            key = (config.model.name, config.global_batch_size, config.optimizer.lr)
            cheapest[key] = min(table.price(row), cheapest.get(key, np.inf))
    return 3 * sum(cheapest.values())
