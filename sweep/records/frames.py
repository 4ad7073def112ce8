"""Records as pandas frames: declared columns and dtypes, units in the names, the configuration as ``config.*``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
from sqlalchemy import Table

from sweep.config.commands import StudyCommands, StudyOrigin, find_study_commands
from sweep.config.errors import InputError, describe_unknown, shorten_text
from sweep.config.metrics import format_count
from sweep.config.study import StudySpec
from sweep.config.tables import resolve
from sweep.config.trial import Scalar, default_settings, flatten_table
from sweep.records.inputs import DataSummary, StudyInputs
from sweep.records.messages import OUTCOMES, Phase
from sweep.records.reading import Repeated, spec_from_json
from sweep.records.records import (
    CONFIG_COLUMNS,
    CONFIG_PREFIX,
    EVALUATION_KINDS,
    METRIC_KINDS,
    OPTIONAL_OF_EVALUATION,
    SCRIPT_COLUMN,
    FindCorrect,
    Kind,
    decode_correct,
    open_script_values,
)
from sweep.records.schema import (
    ATTEMPTS,
    CORRECT_IMAGES,
    ENVIRONMENTS,
    EVALUATIONS,
    PROBES,
    QUEUE,
    STUDIES,
    TRIALS,
    kind_of,
)


class FrameColumn(NamedTuple):
    """A column of a frame. ``nullable``: a cell may be missing; a float's missing cell is NaN in any case. ``default``
    is the cell of each row of an export that is older than the column."""

    name: str
    kind: Kind
    nullable: bool = False
    default: Scalar = None

    @property
    def dtype(self) -> str:
        """The pandas dtype, the same for an empty frame and a full one."""
        return _NULLABLE[self.kind] if self.nullable and self.kind in _NULLABLE else _PLAIN[self.kind]


_PLAIN: dict[str, str] = {
    "int": "int64", "float": "float64", "bool": "bool", "text": "str", "time": "datetime64[us, UTC]",
}  # fmt: skip
_NULLABLE: dict[str, str] = {"int": "Int64", "bool": "boolean"}

_MAX_NAMED = 40  # ignored columns in a description
_OF_TRIAL = (FrameColumn("study", "text"), FrameColumn("number", "int"))


TRIAL_COLUMNS = (
    *_OF_TRIAL,
    FrameColumn("phase", "text"),
    FrameColumn("outcome", "text", nullable=True),  # missing while the trial runs
    FrameColumn("seed", "int"),
    *(
        FrameColumn(column.name, column.kind, not column.always_set, column.to_cell(default_settings()[column.path]))
        for column in CONFIG_COLUMNS
    ),
    FrameColumn("global_batch_size", "int"),
    *(FrameColumn(name, kind, nullable=True) for name, kind in METRIC_KINDS.items()),
    FrameColumn("device", "text"),
    FrameColumn("environment_digest", "text", nullable=True),
    FrameColumn("trial_key", "text"),
    FrameColumn("shape_digest", "text", default=""),
    FrameColumn("reused_from", "text"),
    FrameColumn("is_enqueued", "bool", default=False),
    FrameColumn("quality_flags", "text"),
    FrameColumn("bottleneck", "text", nullable=True),
    FrameColumn("error", "text"),
)
EVALUATION_COLUMNS = (
    *_OF_TRIAL,
    *(FrameColumn(name, kind, name in OPTIONAL_OF_EVALUATION) for name, kind in EVALUATION_KINDS.items()),
    FrameColumn("attempt", "int"),
)


def _columns_of(table: Table) -> tuple[FrameColumn, ...]:
    """The columns of a frame that has all columns of its table."""
    defaults = {column.name: "" for column in table.c if column.server_default is not None}
    return tuple(
        FrameColumn(column.name, kind_of(column), bool(column.nullable), defaults.get(column.name))
        for column in table.c
    )


class FramePart(NamedTuple):
    """One of the frames of :class:`Frames`, and the table that it is read from."""

    field: str  # of Frames
    columns: tuple[FrameColumn, ...]
    table: Table
    file: str  # of an export, without its ending


# In the order in which rows can be put into the tables.
FRAME_PARTS = (
    FramePart("studies", _columns_of(STUDIES), STUDIES, "studies"),
    FramePart("environment_rows", _columns_of(ENVIRONMENTS), ENVIRONMENTS, "environments"),
    FramePart("trials", TRIAL_COLUMNS, TRIALS, "trials"),
    FramePart("attempts", _columns_of(ATTEMPTS), ATTEMPTS, "attempts"),
    FramePart("evaluations", EVALUATION_COLUMNS, EVALUATIONS, "evaluations"),
    FramePart("correct_images", _columns_of(CORRECT_IMAGES), CORRECT_IMAGES, "correct_images"),
    FramePart("probes", _columns_of(PROBES), PROBES, "probes"),
    FramePart("queue", _columns_of(QUEUE), QUEUE, "queue"),
)


def build_frame(declared: Sequence[FrameColumn], cells: Mapping[str, Sequence[Any]], num_rows: int) -> pd.DataFrame:
    """A frame of the declared columns and dtypes from ``cells`` by column name; None and a column that is not there are
    missing cells. Raises ``ValueError`` or ``TypeError``: a cell that its column cannot hold."""
    arrays = {column.name: _array(column, cells.get(column.name), num_rows) for column in declared}
    return pd.DataFrame(arrays, columns=[column.name for column in declared], copy=False)


def open_script_columns(trials: pd.DataFrame) -> pd.DataFrame:
    """``trials`` with a column ``config.script.NAME`` for each value of a script's own. Raises ``InputError``: they are
    damaged."""
    texts = trials[SCRIPT_COLUMN]
    if not texts.notna().any():
        return trials
    opened = {text: open_script_values(text) for text in texts.dropna().unique()}
    names = dict.fromkeys(name for values in opened.values() for name in values)
    rows = [opened.get(text, {}) for text in texts]
    new = {f"{CONFIG_PREFIX}{name}": pd.Series([row.get(name) for row in rows], index=trials.index) for name in names}
    return trials.assign(**{name: column.convert_dtypes() for name, column in new.items()})


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
        dtype = "boolean" if None in cells else dtype  # of trials that were not given the key
        return pd.array([None if cell is None else bool(cell) for cell in cells], dtype=dtype)
    return pd.array(cells, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class RecordSource:
    """Where records are from that another program wrote."""

    program: str
    file: str
    digest: str  # SHA-256 of the content
    num_runs: int
    columns: tuple[tuple[str, str], ...]  # name and meaning
    constants: tuple[tuple[str, str], ...] = ()  # key and value, which the map states for all runs
    ignored: tuple[str, ...] = ()  # names of columns that were not read
    map_file: str = ""
    limits: tuple[str, ...] = ()  # sentences on what these columns cannot show

    @property
    def statement(self) -> str:
        """The origin in one sentence."""
        runs = "1 run" if self.num_runs == 1 else f"{self.num_runs:,} runs"
        return f"These records are from elsewhere: {self.program}, {self.file}, {runs}, SHA-256 {self.digest}."

    def describe(self) -> list[str]:
        """The origin, the columns that were used and ignored, and the limits, a sentence each."""
        used = ", ".join(f"{name} as {meaning}" for name, meaning in self.columns)
        lines = [self.statement, f"Columns used: {used}."]
        if self.constants:
            lines.append(f"Stated for all runs by the map: {', '.join(f'{k} = {v}' for k, v in self.constants)}.")
        num_more = len(self.ignored) - _MAX_NAMED
        ignored = ", ".join(self.ignored[:_MAX_NAMED]) + (f" and {num_more} more" if num_more > 0 else "")
        return [*lines, f"Columns ignored: {ignored or 'none'}.", *self.limits]

    def to_document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "program": self.program, "file": self.file, "sha256": self.digest, "num_runs": self.num_runs,
            "map": self.map_file or None, "columns": dict(self.columns), "constants": dict(self.constants),
            "ignored": list(self.ignored), "limits": list(self.limits),
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Frames:
    """The records of one study or several."""

    trials: pd.DataFrame
    attempts: pd.DataFrame
    probes: pd.DataFrame
    studies: pd.DataFrame  # study, created_at, spec and inputs as JSON
    environment_rows: pd.DataFrame  # study, environment_digest, environment as JSON
    queue: pd.DataFrame = field(default_factory=partial(build_frame, _columns_of(QUEUE), {}, 0))
    evaluations: pd.DataFrame | None = None  # None unless requested
    correct_images: pd.DataFrame | None = None  # study, number, correct_images as text; None unless requested
    find_correct: FindCorrect | None = field(default=None, repr=False, compare=False)  # reads them for given trials
    place: str = ""  # the source, without a password
    is_exported: bool = False  # files that `sweep export` wrote, in which no study can continue
    source: RecordSource | None = None  # where another program wrote the records

    @cached_property
    def specs(self) -> dict[str, StudySpec]:
        """The recorded specification of each study. Raises ``InputError`` when this version cannot read one."""
        rows = zip(self.studies["study"], self.studies["spec"], strict=True)
        return {name: spec_from_json(spec, f"study {name}") for name, spec in rows}

    @property
    def spec(self) -> StudySpec | None:
        """The specification where there is exactly one study."""
        return next(iter(self.specs.values())) if len(self.specs) == 1 else None

    @cached_property
    def inputs(self) -> dict[str, StudyInputs]:
        """The images and the plug-in that the trials of each study read.

        Raises ``InputError`` where that is damaged."""
        rows = zip(self.studies["study"], self.studies["inputs"], strict=True)
        return {name: StudyInputs.from_json(text, f"study {name}") for name, text in rows}

    @property
    def data(self) -> DataSummary | None:
        """The images as they were counted, where there is exactly one study and its run counted them."""
        return self._only_inputs.data

    @property
    def plugin(self) -> str:
        """The plug-in's file as the user gave it, otherwise its name; "" where no study has one, or several
        studies have several."""
        files = {each.plugin_file for each in self.inputs.values() if each.plugin_file}
        return files.pop() if len(files) == 1 else ""

    @property
    def origin(self) -> StudyOrigin:
        """What the user typed to run the study, where there is exactly one and that is on record."""
        return self._only_inputs.origin

    @property
    def _only_inputs(self) -> StudyInputs:
        return next(iter(self.inputs.values())) if len(self.inputs) == 1 else StudyInputs()

    def find_commands(self, name: str) -> StudyCommands:
        """Commands about the study ``name`` of these records."""
        commands = find_study_commands(name, self.place, self.origin, self.plugin, self.spec)
        export = str(Path(self.place).resolve()) if self.is_exported else ""
        commands = commands.find_absent() if export else commands
        return replace(commands, export=export, is_foreign=self.source is not None)

    @cached_property
    def environments(self) -> pd.DataFrame:
        """``study``, ``environment_digest`` and a column of text for every fact recorded, by dotted name."""
        contents = [flatten_table(json.loads(content)) for content in self.environment_rows["environment"]]
        texts = [{name: str(fact) for name, fact in content.items()} for content in contents]
        facts = pd.DataFrame(texts, columns=sorted(set().union(*texts)), dtype="str")
        facts = facts.set_index(self.environment_rows.index)
        return pd.concat([self.environment_rows.drop(columns="environment"), facts], axis=1)

    def __repr__(self) -> str:
        return f"Frames({', '.join(self.studies['study'])}: {format_count(len(self.trials), 'trial')})"

    def _repr_html_(self) -> str:
        return str(resolve("reports.notebook:render_frames")(self))  # a notebook shows it


# ---------------------------------------------------------------------- checks: anybody may have written the records

MAX_ROWS = 10_000_000
MAX_CELLS = 150_000_000  # a million trials, or the curves of as many
MAX_CELL_CHARACTERS = 8_000_000  # the counts of 50,000 classes with long names
MAX_FILE_BYTES = 2**30  # unpacked; 100,000 trials with their curves are a fifth of it


def check_frames(frames: Frames, where: str) -> None:
    """Raises ``InputError`` for an outcome or phase that is none, a fraction that is none, an environment that is no
    JSON object, inputs of a study that are none, or images that were got right and cannot be read."""
    _check_names(frames.trials, "outcome", OUTCOMES, where)
    _check_names(frames.trials, "phase", get_args(Phase), where)
    for frame in (frames.trials, frames.evaluations):
        if frame is not None and not frame["val_accuracy"].dropna().between(0.0, 1.0).all():
            raise InputError(f"{where}: a val_accuracy is no fraction; the records are damaged.")
    try:
        for content in frames.environment_rows["environment"]:
            flatten_table(json.loads(content))
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"{where}: an environment is no JSON object of a few levels.") from None
    for text in frames.studies["inputs"]:
        StudyInputs.from_json(text, where)
    try:
        for text in () if frames.correct_images is None else frames.correct_images["correct_images"]:
            decode_correct(text)
    except ValueError as error:
        raise InputError(f"{where}: correct_images: {error}.") from None


def _check_names(trials: pd.DataFrame, column: str, known: tuple[str, ...], where: str) -> None:
    unknown = set(trials[column].dropna().unique()) - set(known)
    if unknown:
        raise InputError(f"{where}: {describe_unknown(column, shorten_text(min(unknown)), known)}")


def refuse_oversized(path: Path) -> None:
    """Raises ``InputError`` for what is no file, or too large a one to be a table of trials."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: it is no file.")
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, at most {MAX_FILE_BYTES} are taken.")


def refuse_too_many(path: Path, num_rows: int, num_columns: int, num_bytes: int = 0) -> None:
    """Raises ``InputError`` for more rows, cells or unpacked bytes than are taken."""
    if num_rows > MAX_ROWS or num_rows * num_columns > MAX_CELLS:
        raise InputError(f"{path}: more than {MAX_ROWS} rows, or more than {MAX_CELLS} cells.")
    if num_bytes > MAX_FILE_BYTES:
        raise InputError(f"{path}: {num_bytes} bytes unpacked, at most {MAX_FILE_BYTES} are taken.")
