"""The tables of a study's records. Optuna's mirror stands in the same database, so every name here has a prefix.

A column that a newer version added is added to an older store when it is opened for writing; everything else changes
under a new number in ``sweep_version``, by a script in ``migrations``.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    text,
)

from sweep.config.errors import InputError
from sweep.records.columns import CONFIG_COLUMNS, CONFIG_PREFIX, EVALUATION_KINDS, METRIC_KINDS, PROBE_KINDS, Kind

KNOWN_VERSIONS = ("0001", "0002")  # those that can be read; what is written has the last
VERSION = KNOWN_VERSIONS[-1]
METADATA = MetaData()

_TYPES: dict[Kind, Any] = {
    "int": BigInteger,
    "float": Double,
    "bool": Boolean,
    "text": Text,
    "time": DateTime(timezone=True),
}


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
    _text("reused_from"),
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
PROBES = Table(
    "sweep_probes",
    METADATA,
    _key("study", "text"),
    _key("shape_key", "text"),
    _key("device", "text"),
    Column("shape", Text, nullable=False, server_default="{}"),
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
SUPERVISORS = Table(  # of studies on a server; a file's has its lock beside it
    "sweep_supervisors",
    METADATA,
    _key("study", "text"),
    Column("session", Text, nullable=False),
    Column("num_writes", BigInteger, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("since", _TYPES["time"], nullable=False),
)
VERSIONS = Table("sweep_version", METADATA, Column("version_num", String(32), primary_key=True))


def create_tables(connection: Connection) -> None:
    """All tables, in a database that has none of them."""
    METADATA.create_all(connection)
    connection.execute(VERSIONS.insert().values(version_num=VERSION))


def check_version(connection: Connection, where: str) -> str:
    """The version of a store that this program can read.

    Raises:
        InputError: a newer version wrote it, naming both.
    """
    found = connection.execute(VERSIONS.select()).scalars().all()
    if len(found) != 1 or found[0] not in KNOWN_VERSIONS:
        raise InputError(
            f"{where}: its schema is version {', '.join(map(str, found))[:100] or 'unknown'}, this program knows "
            f"{VERSION}; use the version of batch-sweep that wrote it."
        )
    return str(found[0])


def present_columns(connection: Connection, where: str) -> dict[str, frozenset[str]]:
    """The columns that each of our tables has in this database; none where an older version had no such table.

    Raises:
        InputError: when a configuration key is recorded that this version does not know: what ran could not be said.
    """
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    found = {
        table.name: frozenset(column["name"] for column in inspector.get_columns(table.name))
        if table.name in there
        else frozenset[str]()
        for table in METADATA.sorted_tables
    }
    unknown = {name for name in found[TRIALS.name] - set(TRIALS.c.keys()) if name.startswith(CONFIG_PREFIX)}
    if unknown:
        raise InputError(
            f"{where}: it records {', '.join(sorted(unknown))}, which this version does not know; "
            "use the version of batch-sweep that wrote it."
        )
    return found


def add_missing_columns(connection: Connection, present: dict[str, frozenset[str]]) -> None:
    """Brings the tables of an older store up to this version's columns."""
    for table in METADATA.sorted_tables:
        for column in table.c:
            if column.name not in present[table.name]:
                _add_column(connection, table, column)


def _add_column(connection: Connection, table: Table, column: Column[Any]) -> None:
    quote = connection.dialect.identifier_preparer.quote
    kind = column.type.compile(connection.dialect)
    rule = " NOT NULL DEFAULT ''" if not column.nullable else ""
    connection.execute(text(f"ALTER TABLE {quote(table.name)} ADD COLUMN {quote(column.name)} {kind}{rule}"))
    for item in CONFIG_COLUMNS:
        # where NULL has a meaning of its own, older rows get the default in writing
        if table is TRIALS and item.name == column.name and item.to_cell(item.default) is not None:
            connection.execute(table.update().values({column: item.default}))
