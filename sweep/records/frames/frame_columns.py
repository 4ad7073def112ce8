"""The declared columns of every frame, and the one function that builds a frame from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sqlalchemy import Table

from sweep.records.columns import (
    CONFIG_COLUMNS,
    EVALUATION_KINDS,
    METRIC_KINDS,
    OPTIONAL_OF_EVALUATION,
    Kind,
)
from sweep.records.probe_record import PROBE_KINDS
from sweep.records.schema import (
    ATTEMPTS,
    CORRECT_IMAGES,
    ENVIRONMENTS,
    EVALUATIONS,
    PROBES,
    QUEUE,
    STUDIES,
    TRIALS,
)
from sweep.records.store.reading import Repeated


@dataclass(frozen=True)
class FrameColumn:
    """A column of a frame. ``nullable``: a cell may be missing; a float's missing cell is NaN in any case."""

    name: str
    kind: Kind
    nullable: bool = False

    @property
    def dtype(self) -> str:
        """The pandas dtype, the same for an empty frame and a full one."""
        return _NULLABLE[self.kind] if self.nullable and self.kind in _NULLABLE else _PLAIN[self.kind]


_PLAIN: dict[str, str] = {
    "int": "int64",
    "float": "float64",
    "bool": "bool",
    "text": "str",
    "time": "datetime64[us, UTC]",
}
_NULLABLE: dict[str, str] = {"int": "Int64", "bool": "boolean"}

_OF_TRIAL = (FrameColumn("study", "text"), FrameColumn("number", "int"))

TRIAL_COLUMNS = (
    *_OF_TRIAL,
    FrameColumn("phase", "text"),
    FrameColumn("outcome", "text", nullable=True),  # missing while the trial runs
    FrameColumn("seed", "int"),
    *(FrameColumn(column.name, column.kind, not column.always_set) for column in CONFIG_COLUMNS),
    FrameColumn("global_batch_size", "int"),
    *(FrameColumn(name, kind, nullable=True) for name, kind in METRIC_KINDS.items()),
    FrameColumn("device", "text"),
    FrameColumn("environment_digest", "text", nullable=True),
    FrameColumn("trial_key", "text"),
    FrameColumn("shape_digest", "text"),
    FrameColumn("reused_from", "text"),
    FrameColumn("is_enqueued", "bool"),
    FrameColumn("quality_flags", "text"),
    FrameColumn("bottleneck", "text", nullable=True),
    FrameColumn("error", "text"),
)
ATTEMPT_COLUMNS = (
    *_OF_TRIAL,
    FrameColumn("attempt", "int"),
    FrameColumn("cause", "text", nullable=True),  # missing while the attempt runs, empty when it ended by itself
    FrameColumn("started_at", "time"),
    FrameColumn("busy_seconds", "float", nullable=True),
)
EVALUATION_COLUMNS = (
    *_OF_TRIAL,
    *(FrameColumn(name, kind, name in OPTIONAL_OF_EVALUATION) for name, kind in EVALUATION_KINDS.items()),
    FrameColumn("attempt", "int"),
)
CORRECT_COLUMNS = (*_OF_TRIAL, FrameColumn("correct_images", "text"))
QUEUE_COLUMNS = (
    FrameColumn("study", "text"),
    FrameColumn("position", "int"),
    FrameColumn("point", "text"),
    FrameColumn("created_at", "time"),
    FrameColumn("number", "int", nullable=True),
)
PROBE_COLUMNS = (
    *(FrameColumn(name, "text") for name in ("study", "shape_key", "device", "shape", "shape_digest")),
    *(FrameColumn(name, kind, nullable=True) for name, kind in PROBE_KINDS.items()),
    *(FrameColumn(name, "text") for name in ("outcome", "quality_flags")),
)
ENVIRONMENT_COLUMNS = tuple(FrameColumn(name, "text") for name in ("study", "environment_digest", "environment"))
STUDY_COLUMNS = (
    FrameColumn("study", "text"),
    FrameColumn("created_at", "time"),
    FrameColumn("spec", "text"),
    FrameColumn("inputs", "text"),  # JSON; empty where they are not on record
)

assert {column.name for column in PROBE_COLUMNS} == set(PROBES.c.keys())


class FramePart(NamedTuple):
    """One of the frames of :class:`sweep.records.frames.study_frames.Frames`, and the table that it is read from."""

    field: str  # of Frames
    columns: tuple[FrameColumn, ...]
    table: Table
    file: str  # of an export, without its ending


# In the order in which rows can be put into the tables.
FRAME_PARTS = (
    FramePart("studies", STUDY_COLUMNS, STUDIES, "studies"),
    FramePart("environment_rows", ENVIRONMENT_COLUMNS, ENVIRONMENTS, "environments"),
    FramePart("trials", TRIAL_COLUMNS, TRIALS, "trials"),
    FramePart("attempts", ATTEMPT_COLUMNS, ATTEMPTS, "attempts"),
    FramePart("evaluations", EVALUATION_COLUMNS, EVALUATIONS, "evaluations"),
    FramePart("correct_images", CORRECT_COLUMNS, CORRECT_IMAGES, "correct_images"),
    FramePart("probes", PROBE_COLUMNS, PROBES, "probes"),
    FramePart("queue", QUEUE_COLUMNS, QUEUE, "queue"),
)
LATER_PARTS = frozenset({"correct_images", "queue"})  # files that an export of before lacks


def build_frame(declared: Sequence[FrameColumn], cells: Mapping[str, Sequence[Any]], num_rows: int) -> pd.DataFrame:
    """A frame of the declared columns and dtypes from ``cells`` by column name; None and a column that is not there
    are missing cells.

    Raises:
        ValueError, TypeError: a cell that its column cannot hold.
    """
    arrays = {column.name: _array(column, cells.get(column.name), num_rows) for column in declared}
    return pd.DataFrame(arrays, columns=[column.name for column in declared], copy=False)


def _array(column: FrameColumn, given: Sequence[Any] | None, num_rows: int) -> Any:
    # an array of numpy's or of pandas'
    if given is None or isinstance(given, Repeated):
        value = None if given is None else given.value
        return _array(column, (value,), 1).repeat(num_rows)
    cells: Any = given
    dtype: Any = column.dtype
    if column.kind == "float":
        return np.array(cells, dtype=np.float64)
    if column.kind == "int" and None in cells:
        return pd.array(cells, dtype="Int64")
    if column.kind == "int":
        return pd.array(np.array(cells, dtype=np.int64), dtype=dtype)
    if column.kind == "time":
        if any(isinstance(cell, int | float) for cell in cells):
            raise ValueError(f"column {column.name} holds a number where a time belongs")
        return pd.to_datetime(pd.Series(cells, dtype="object"), utc=True, format="ISO8601").astype(dtype).array
    if column.kind == "bool":
        return pd.array([None if cell is None else bool(cell) for cell in cells], dtype=dtype)
    return pd.array(cells, dtype=dtype)
