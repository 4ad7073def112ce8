"""The tables of a study's records. Their names have a prefix, because Optuna's mirror is in the same database.

Stores with another number in ``sweep_version`` or other columns are refused.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    Text,
)

from sweep.records.records import CONFIG_COLUMNS, EVALUATION_KINDS, METRIC_KINDS, PROBE_KINDS, Kind

VERSION = "0001"
METADATA = MetaData()

_TYPES: dict[Kind, Any] = {
    "int": BigInteger,
    "float": Double,
    "bool": Boolean,
    "text": Text,
    "time": DateTime(timezone=True),
}


def kind_of(column: Column[Any]) -> Kind:
    kinds = {type(given() if isinstance(given, type) else given): kind for kind, given in _TYPES.items()}
    return kinds[type(column.type)]


def _key(name: str, kind: Kind = "int") -> Column[Any]:
    return Column(name, _TYPES[kind], primary_key=True, autoincrement=False)


def _columns(kinds: dict[str, Kind]) -> list[Column[Any]]:
    return [Column(name, _TYPES[kind]) for name, kind in kinds.items()]


def _text(name: str) -> Column[Any]:
    return Column(name, Text, nullable=False, server_default="")


def _of_trial() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["study", "number"], ["sweep_trials.study", "sweep_trials.number"])


STUDIES = Table(
    "sweep_studies",
    METADATA,
    _key("study", "text"),
    Column("created_at", _TYPES["time"], nullable=False),
    Column("spec", Text, nullable=False),
    _text("inputs"),  # JSON of the images and the plug-in that its trials read
)
TRIALS = Table(
    "sweep_trials",
    METADATA,
    _key("study", "text"),
    _key("number"),
    Column("phase", Text, nullable=False),
    Column("outcome", Text),  # NULL while the trial runs
    *_columns({column.name: column.kind for column in CONFIG_COLUMNS}),
    *_columns(METRIC_KINDS),
    _text("device"),
    Column("environment_digest", Text),
    _text("trial_key"),
    _text("shape_digest"),  # empty where the steps of a trial have several shapes
    _text("reused_from"),
    Column("is_enqueued", Boolean),  # made by hand; NULL where it was not
    _text("quality_flags"),  # names with commas between them
    Column("bottleneck", Text),  # NULL where it was not looked for
    _text("error"),
    ForeignKeyConstraint(["study"], ["sweep_studies.study"]),
    Index("sweep_trials_by_key", "trial_key"),
)
ATTEMPTS = Table(
    "sweep_attempts",
    METADATA,
    _key("study", "text"),
    _key("number"),
    _key("attempt"),
    Column("cause", Text),  # NULL while the attempt runs, empty when it ended by itself
    Column("started_at", _TYPES["time"], nullable=False),
    Column("busy_seconds", Double),
    _of_trial(),
)
EVALUATIONS = Table(
    "sweep_evaluations",
    METADATA,
    _key("study", "text"),
    _key("number"),
    _key("attempt"),  # 0 where the evaluations were taken from another trial
    _key("step"),
    *_columns({name: kind for name, kind in EVALUATION_KINDS.items() if name != "step"}),
    _of_trial(),
)
CORRECT_IMAGES = Table(  # apart from the trials, which are read whole
    "sweep_correct_images",
    METADATA,
    _key("study", "text"),
    _key("number"),
    Column("correct_images", Text, nullable=False),  # of the validation split (sweep.records.records)
    _of_trial(),
)
PROBES = Table(
    "sweep_probes",
    METADATA,
    _key("study", "text"),
    _key("shape_key", "text"),
    _key("device", "text"),
    Column("shape", Text, nullable=False, server_default="{}"),
    _text("shape_digest"),
    *_columns(PROBE_KINDS),
    _text("outcome"),
    _text("quality_flags"),
    ForeignKeyConstraint(["study"], ["sweep_studies.study"]),
)
ENVIRONMENTS = Table(
    "sweep_environments",
    METADATA,
    _key("study", "text"),
    _key("environment_digest", "text"),
    Column("environment", Text, nullable=False),  # JSON
    ForeignKeyConstraint(["study"], ["sweep_studies.study"]),
)
QUEUE = Table(
    "sweep_queue",
    METADATA,
    _key("study", "text"),
    _key("position"),  # within the study, from 1
    Column("point", Text, nullable=False),  # JSON: values by key of the space
    Column("created_at", _TYPES["time"], nullable=False),
    Column("number", BigInteger),  # of its trial; NULL while it waits
    ForeignKeyConstraint(["study"], ["sweep_studies.study"]),
)
VERSIONS = Table("sweep_version", METADATA, Column("version_num", String(32), primary_key=True))
