"""A table of recorded trainings of a whole grid, with learning curves, on which searches are replayed.

It is any set of records of one study, as ``sweep export`` writes it: a row for each training, several seeds for each
configuration, the evaluations, and which validation images the trainings got right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sweep.analysis.statistics import Mask, Values, hypervolume, non_dominated, reference_point
from sweep.config.errors import InputError, hide_credentials
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter, Space
from sweep.config.study import Confirm, StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial_config import Scalar, TrialConfig, flatten_config
from sweep.records.frames.frames import curves_of_frame, load_frames, records_of_frame
from sweep.records.messages import Ending
from sweep.records.trial_record import ReusableTrial

Point = tuple[Scalar, ...]  # values in the order of the space


@dataclass(frozen=True)
class RecordedTable:
    """Recorded trainings by point of the space and by seed, see :func:`read_table`."""

    spec: StudySpec
    curves: dict[Point, dict[int, ReusableTrial]]

    @cached_property
    def points(self) -> list[Point]:
        """Every recorded point, in a fixed order."""
        return sorted(self.curves, key=repr)

    @cached_property
    def row_of(self) -> dict[Point, int]:
        """The index of each point among :attr:`points`."""
        return {point: row for row, point in enumerate(self.points)}

    @cached_property
    def space(self) -> Space:
        """The study's space as a grid; a continuous parameter has the values that were recorded."""
        recorded = {path: {point[i] for point in self.points} for i, path in enumerate(self.spec.space)}
        return {path: _gridded(parameter, recorded[path]) for path, parameter in self.spec.space.items()}

    @cached_property
    def means(self) -> Values:
        """Each point's mean over its seeds of every objective, shape ``[points, m]``; NaN where a seed has none."""
        endings = [[trial.ending for trial in self.curves[point].values()] for point in self.points]
        names = self.spec.objectives
        rows = [[np.mean([_objective(each, name) for each in seeds]) for name in names] for seeds in endings]
        return np.array(rows, dtype=np.float64)

    @cached_property
    def num_fresh_seeds(self) -> int:
        """How many trainings every point has besides the one that a search sees."""
        return min(len(seeds) for seeds in self.curves.values()) - 1

    @cached_property
    def confirm(self) -> dict[str, Any]:
        """The limits of a replayed study's confirming trials: the recorded study's own, or the usual ones where it
        confirmed nothing, as a study that only recorded a grid."""
        own = self.spec.confirm
        return (own if own.most_trials else Confirm()).model_dump()

    @cached_property
    def on_front(self) -> Mask:
        """Which points are on the front of the means, shape ``[points]``."""
        return non_dominated(self.means, self.signs)

    @cached_property
    def signs(self) -> Values:
        """-1 for an objective to be maximized; shape ``[m]``."""
        return np.array([METRICS[name].sign for name in self.spec.objectives])

    @cached_property
    def reference(self) -> Values:
        """The reference point of hypervolumes, a tenth of the range beyond the worst mean; shape ``[m]``."""
        return reference_point(self.means, self.signs)

    def share(self, rows: Sequence[int]) -> float:
        """The hypervolume of these points' means over that of all."""
        whole = hypervolume(self.means[self.on_front], self.reference, self.signs)
        return hypervolume(self.means[list(rows)], self.reference, self.signs) / whole if rows else 0.0

    def point_of(self, config: TrialConfig) -> Point:
        flat = flatten_config(config)
        return tuple(flat[path] for path in self.spec.space)

    def training(self, config: TrialConfig) -> ReusableTrial:
        """The recorded training at the configuration's point; its seed selects one of the recorded seeds, another one
        for each of as many consecutive seeds as were recorded.

        Raises:
            KeyError: nothing was recorded there.
        """
        seeds = self.curves[self.point_of(config)]
        return seeds[sorted(seeds)[config.seed % len(seeds)]]


def _objective(ending: Ending, name: str) -> float:
    return float(ending.measurements.get(name, np.nan)) if ending.outcome == "complete" else np.nan


def _gridded(parameter: Parameter, recorded: set[Scalar]) -> Parameter:
    if parameter.grid_values is not None and recorded <= set(parameter.grid_values):
        return parameter
    return Parameter(choice=tuple(sorted(recorded, key=lambda value: (str(type(value)), value))))


def read_table(place: str | Path) -> RecordedTable:
    """The table in ``place``: a folder that ``sweep export`` wrote, a study's folder or a database URL.

    Raises:
        InputError: no records, several studies, a study without a space, or no training that is complete.
    """
    frames = load_frames(place, evaluations=True, correct_images=True)
    if len(frames.specs) != 1:
        raise InputError(
            f"{hide_credentials(place)}: a table is one study, and here are {len(frames.specs)}; export one alone."
        )
    assert frames.evaluations is not None
    assert frames.correct_images is not None
    spec = next(iter(frames.specs.values()))
    if not spec.space:
        raise InputError(
            f"{hide_credentials(place)}: the study {spec.name!r} varies nothing, so there is nothing to search."
        )
    curves = curves_of_frame(frames.evaluations)
    correct = dict(zip(frames.correct_images["number"], frames.correct_images["correct_images"], strict=True))
    table = RecordedTable(spec, {})
    for record in records_of_frame(frames.trials):
        if record.outcome in (None, "cancelled", "crashed", "pruned"):
            continue  # not the whole training
        curve = curves.get((spec.name, record.number), ())
        ending = replace(record.ending, correct_images=correct.get(record.number, ""))
        trial = ReusableTrial(origin=f"{spec.name}/{record.number}", ending=ending, evaluations=curve)
        point = tuple(record.values[path] for path in spec.space)
        table.curves.setdefault(point, {})[int(str(record.values["seed"]))] = trial
    if not np.isfinite(table.means).all(axis=1).any():
        missing = ", ".join(spec.objectives)
        raise InputError(
            f"{hide_credentials(place)}: no configuration has every objective ({missing}) in all its trainings."
        )
    return table


def make_replay_study(table: RecordedTable, name: str, **changes: Any) -> StudySpec:
    """The table's study over the recorded grid, with other values of its plain keys.

    ``confirm.seeds`` is at most :attr:`RecordedTable.num_fresh_seeds`, so that the search trial of a configuration and
    its confirming trials, whose seeds follow the study's, are different recorded trainings whatever the study's seed.

    Raises:
        InputError: a value that a study refuses.
    """
    # another sampler has a usual pruner of its own
    left_out = {"space", "first", "search_timeout", *(["pruner"] if "sampler" in changes else [])}
    plain = table.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)
    space = {path: item.model_dump(mode="json", by_alias=True, exclude_none=True) for path, item in table.space.items()}
    values = {**plain, "space": space, "name": name, "timeout": None, "trial_timeout": None, **changes}
    spec = build_study(values, name)
    confirm = spec.confirm.model_copy(update={"seeds": min(spec.confirm.seeds, table.num_fresh_seeds)})
    return spec.model_copy(update={"confirm": confirm})
