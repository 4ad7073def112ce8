"""The store: one database with the records of one study (a file) or of several (a server). One program writes it.

Every write is a transaction of its own, which is on the disk when the method returns.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from sqlalchemy import ColumnElement, Connection, Select, Table, func, select, update

from sweep.config.errors import InputError, StoreError
from sweep.config.space import describe_outside
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig, flatten_config
from sweep.records.database import Database, open_database
from sweep.records.inputs import StudyInputs, environment_digest
from sweep.records.messages import Ending, Evaluation, Phase
from sweep.records.reading import (
    evaluations_of,
    find_correct_texts,
    find_reusable,
    read_columns,
    spec_from_json,
    trial_records,
)
from sweep.records.records import METRIC_KINDS, ProbeRecord, ReusableTrial, TrialRecord, make_config_cells
from sweep.records.schema import ATTEMPTS, CORRECT_IMAGES, ENVIRONMENTS, EVALUATIONS, PROBES, QUEUE, STUDIES, TRIALS

_MAX_TEXT = 20_000  # characters of an error that are kept, half from each end


def open_store(target: str | Path, *, create: bool = False, read_only: bool = False) -> "Store":
    """The store at ``target``: an SQLite file, a study's folder, or a URL such as ``postgresql+psycopg://...``. Raises
    ``InputError``: nothing there (without ``create``), not ours, written by a newer version, not reachable."""
    return Store(open_database(target, create=create, read_only=read_only))


@final
class Store:
    """Studies with their trials, attempts, evaluations and environments. Get one from :func:`open_store`.

    Every method raises :class:`StoreError` when the database fails or a rule of the records would be broken.
    """

    def __init__(self, database: Database) -> None:
        self.database = database  # for bulk reading and importing too
        self._kept: set[tuple[str, str]] = set()  # environments that are known to be on record

    def create_study(self, spec: StudySpec) -> None:
        """Records a new study. Raises ``InputError`` where the name is taken."""
        if self.load_spec(spec.name) is not None:
            raise InputError(f"{self.database.where}: it already holds a study {spec.name!r}; choose a new name.")
        row = {"study": spec.name, "created_at": datetime.now(UTC), "spec": spec.model_dump_json(by_alias=True)}
        self._insert(STUDIES, row)

    def study_names(self) -> list[str]:
        """The names of all studies, sorted."""
        return sorted(row[0] for row in self._rows(select(STUDIES.c.study)))

    def load_spec(self, study: str) -> StudySpec | None:
        """The study as it was recorded, or None."""
        rows = self._rows(select(STUDIES.c.spec).where(STUDIES.c.study == study))
        return spec_from_json(rows[0][0], self.database.where) if rows else None

    def update_spec(self, spec: StudySpec) -> None:
        """Replaces the recorded specification; the caller checks which keys may change."""
        change = update(STUDIES).where(STUDIES.c.study == spec.name).values(spec=spec.model_dump_json(by_alias=True))
        self._change_one(change, f"there is no study {spec.name!r}")

    def load_inputs(self, study: str) -> StudyInputs:
        """What the trials of the study read, as it was recorded. Raises ``InputError`` where that is damaged."""
        rows = self._rows(select(STUDIES.c.inputs).where(STUDIES.c.study == study))
        return StudyInputs.from_json(rows[0][0] if rows else "", self.database.where)

    def record_inputs(self, study: str, inputs: StudyInputs) -> None:
        """Replaces the recorded inputs; the caller checks whether they may change."""
        change = update(STUDIES).where(STUDIES.c.study == study).values(inputs=inputs.to_json())
        self._change_one(change, f"there is no study {study!r}")

    def add_trial(
        self,
        study: StudySpec | str,
        number: int,
        phase: Phase,
        config: TrialConfig,
        trial_key: str,
        reused_from: str = "",
    ) -> TrialRecord:
        """Opens the row of a trial and returns its record; the outcome is empty until :meth:`finish_trial`. A ``study``
        that is given whole decides which values of the configuration are recorded; by its name alone, all."""
        if isinstance(study, StudySpec):
            name, values = study.name, study.recorded_values(config)
        else:
            name, values = study, flatten_config(config)
        record = TrialRecord(
            number=number, phase=phase, values=values, trial_key=trial_key, reused_from=reused_from, made_from=config
        )  # fmt: skip
        row: dict[str, Any] = make_config_cells(record.values)
        row |= {"study": name, "number": number, "phase": phase, "trial_key": trial_key, "reused_from": reused_from}
        self._insert(TRIALS, row)
        return record

    def note_shape(self, study: str, record: TrialRecord, shape_digest: str) -> TrialRecord:
        """Adds the digest of the shape of its steps to a trial, which it is matched with probes by."""
        of_trial = (TRIALS.c.study == study, TRIALS.c.number == record.number)
        noted = update(TRIALS).where(*of_trial).values(shape_digest=shape_digest)
        self.database.write(lambda connection: connection.execute(noted))
        return replace(record, shape_digest=shape_digest)

    def start_attempt(self, study: str, number: int) -> int:
        """Opens the next attempt at a trial and returns its number, from 1.

        An attempt that is still open lost its supervisor, which alone could have closed it, and is closed with that
        cause; how long it was busy is unknown.
        """
        of_trial = (ATTEMPTS.c.study == study, ATTEMPTS.c.number == number)
        lost = update(ATTEMPTS).where(*of_trial, ATTEMPTS.c.cause.is_(None)).values(cause="supervisor_lost")
        row: dict[str, Any] = {"study": study, "number": number, "started_at": datetime.now(UTC)}

        def start(connection: Connection) -> int:
            newest = connection.execute(select(func.max(ATTEMPTS.c.attempt)).where(*of_trial)).scalar() or 0
            connection.execute(lost)
            connection.execute(ATTEMPTS.insert(), row | {"attempt": newest + 1})
            return int(newest) + 1

        return self.database.write(start)

    def end_attempt(self, study: str, number: int, attempt: int, cause: str, busy_seconds: float) -> None:
        """Closes an attempt, once. ``cause`` is empty where its trial ended."""
        change = (
            update(ATTEMPTS)
            .where(ATTEMPTS.c.study == study, ATTEMPTS.c.number == number, ATTEMPTS.c.attempt == attempt)
            .where(ATTEMPTS.c.cause.is_(None))
            .values(cause=cause, busy_seconds=busy_seconds)
        )
        self._change_one(change, f"study {study}, trial {number}: attempt {attempt} is not open")

    def attempts(self, study: str, number: int) -> list[tuple[str, float | None]]:
        """Cause and busy seconds of each attempt at a trial, in order; None where the time is unknown."""
        of_trial = (ATTEMPTS.c.study == study, ATTEMPTS.c.number == number)
        columns = select(ATTEMPTS.c.cause, ATTEMPTS.c.busy_seconds)
        rows = self._rows(columns.where(*of_trial).order_by(ATTEMPTS.c.attempt))
        return [(cause or "", busy_seconds) for cause, busy_seconds in rows]

    def add_evaluation(self, study: str, number: int, attempt: int, evaluation: Evaluation) -> None:
        """Records one evaluation. ``attempt`` is 0 for an evaluation of a reused trial."""
        # SQLite keeps no NaN; NULL means it in every database
        row = {name: None if value != value else value for name, value in vars(evaluation).items()}
        self._insert(EVALUATIONS, {"study": study, "number": number, "attempt": attempt, **row})

    def finish_trial(self, study: str, number: int, ending: Ending) -> None:
        """Closes the row of a trial, once; it never changes afterwards."""
        unknown = ending.measurements.keys() - METRIC_KINDS.keys()
        if unknown:
            raise StoreError(f"trial {number}: {', '.join(sorted(unknown))} is no metric; declare it in the table.")
        # no database stores half a surrogate pair, PostgreSQL no zero byte; a log of megabytes is shortened
        error = ending.error.encode("utf-8", "replace").decode().replace("\0", "\\0")
        if len(error) > _MAX_TEXT:
            error = f"{error[: _MAX_TEXT // 2]}\n...\n{error[-_MAX_TEXT // 2 :]}"
        row = {
            "outcome": ending.outcome,
            "device": ending.device,
            "quality_flags": ",".join(ending.quality_flags),
            "bottleneck": ending.bottleneck or None,
            "error": error,
            **{name: _measured(name, value) for name, value in ending.measurements.items()},
        }
        if ending.environment:
            row["environment_digest"] = self.keep_environment(study, ending.environment)
        change = (
            update(TRIALS)
            .where(TRIALS.c.study == study, TRIALS.c.number == number, TRIALS.c.outcome.is_(None))
            .values(row)
        )
        with self.database.transaction():
            self._change_one(change, f"study {study}: trial {number} is not open, its record cannot change")
            if ending.correct_images:
                row = {"study": study, "number": number, "correct_images": ending.correct_images}
                self._insert(CORRECT_IMAGES, row)

    def keep_environment(self, study: str, environment: dict[str, Any]) -> str:
        """Records ``environment`` once; returns its digest."""
        content = json.dumps(environment, sort_keys=True)
        digest = environment_digest(environment)
        if (study, digest) in self._kept:
            return digest
        known = select(ENVIRONMENTS.c.study).where(
            ENVIRONMENTS.c.study == study, ENVIRONMENTS.c.environment_digest == digest
        )
        row = {"study": study, "environment_digest": digest, "environment": content}

        def keep(connection: Connection) -> None:
            if connection.execute(known).first() is None:
                connection.execute(ENVIRONMENTS.insert(), row)

        self.database.write(keep)
        if not self.database.in_transaction:  # its transaction may yet be rolled back
            self._kept.add((study, digest))
        return digest

    def trial_records(self, study: str) -> list[TrialRecord]:
        """All trials of a study by number."""
        return self.database.read(lambda connection: trial_records(connection, TRIALS.c.study == study))

    def evaluations(self, study: str, number: int) -> list[Evaluation]:
        """The evaluations of a trial by step, of the latest attempt that made any."""
        return self.database.read(lambda connection: evaluations_of(connection, study, number))

    def find_by_key(self, key: str) -> ReusableTrial | None:
        """A complete trial of that content key, of any study; where possible one without a doubt about its times."""
        return self.database.read(lambda connection: find_reusable(connection, key))

    def correct_texts(self, study: str, numbers: Sequence[int]) -> dict[int, str]:
        """What the trials ``numbers`` got right, as it is recorded, by number."""
        return self.database.read(lambda connection: find_correct_texts(connection, study, numbers))

    def close(self) -> None:
        self.database.engine.dispose()

    def _insert(self, table: Table, row: dict[str, Any]) -> None:
        self.database.write(lambda connection: connection.execute(table.insert(), row))

    def _change_one(self, change: Any, otherwise: str) -> None:
        def apply(connection: Connection) -> None:
            if connection.execute(change).rowcount != 1:
                raise StoreError(f"{self.database.where}: {otherwise}.")

        self.database.write(apply)

    def _rows(self, query: Select[Any]) -> list[Any]:
        return self.database.read(lambda connection: list(connection.execute(query)))


def _measured(name: str, value: float) -> float | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) or METRIC_KINDS[name] == "int" else value
    return round(value) if METRIC_KINDS[name] == "int" else float(value)


# ---------------------------------------------------------------------- probes

PROBES_FILE = "probes.sqlite"  # of all studies under a root
_SHARED = "probes"  # the name of the study that holds the probes in the shared file


@final
class ProbeBook:
    """The probes of one study in a store."""

    def __init__(self, store: Store, study: str) -> None:
        self._store = store
        self._study = study

    def keep(self, probe: ProbeRecord, environment: dict[str, Any] | None = None) -> None:
        """Records ``probe``, which replaces an earlier one of the same shape and device."""
        if environment:
            digest = self._store.keep_environment(self._study, environment)
            probe = replace(probe, environment_digest=digest)
        row = {item.name: getattr(probe, item.name) for item in fields(probe)}
        row |= {
            "study": self._study,
            "shape_digest": probe.shape_digest,
            "quality_flags": ",".join(probe.quality_flags),
        }
        same = self._where((PROBES.c.shape_key == probe.shape_key) & (PROBES.c.device == probe.device))

        def put(connection: Connection) -> None:
            connection.execute(PROBES.delete().where(same))
            connection.execute(PROBES.insert(), row)

        self._store.database.write(put)

    def of_device(self, device: str) -> list[ProbeRecord]:
        of_device = self._where(PROBES.c.device == device)
        columns = self._store.database.read(lambda connection: read_columns(connection, PROBES, of_device))
        names = [item.name for item in fields(ProbeRecord)]
        rows = zip(*(columns[name] for name in names), strict=True)
        return [_from_row(dict(zip(names, row, strict=True))) for row in rows]

    def close(self) -> None:
        self._store.close()

    def _where(self, more: ColumnElement[bool]) -> ColumnElement[bool]:
        return (PROBES.c.study == self._study) & more


def open_book(root: Path) -> ProbeBook:
    """The probes that all studies under ``root`` share; the file is made where there is none. Raises ``InputError``: it
    cannot be opened, or another version wrote it."""
    store = open_store(root / PROBES_FILE, create=True)
    try:
        if store.load_spec(_SHARED) is None:
            store.create_study(StudySpec(name=_SHARED, question="Time and memory by shape, for every study here."))
    except (InputError, StoreError):
        if store.load_spec(_SHARED) is None:  # another process may have created it first
            store.close()
            raise
    return ProbeBook(store, _SHARED)


def _from_row(cells: dict[str, Any]) -> ProbeRecord:
    flags = cells.pop("quality_flags")
    if isinstance(moment := cells.get("probed_at"), str):  # SQLite's driver returns text
        cells["probed_at"] = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return ProbeRecord(**cells, quality_flags=tuple(flags.split(",")) if flags else ())


# ---------------------------------------------------------------------- the queue

NOTHING_LEARNED = frozenset({"crashed", "cancelled", "not_fitting"})  # after which a trial may be made again


@dataclass(frozen=True, kw_only=True)
class EnqueuedPoint:
    """A hand-made point, which a run trains before its own proposals. The sampler chooses the keys of the space that
    the point lacks. ``position`` counts from 1 within the study."""

    position: int
    point: dict[str, Any]


def enqueue_point(store: Store, study: str, point: dict[str, Any]) -> EnqueuedPoint:
    """Adds ``point`` to the queue of a study on record. Raises ``InputError``: a key does not vary, a value is outside
    of its range, the configuration is none, it waits already, or a trial of the study has it."""
    spec = store.load_spec(study)
    if spec is None:
        raise InputError(f"study {study!r}: it is not on record; run it, or enqueue by its file.")
    if fixed := [key for key in point if key not in spec.space]:
        raise InputError(
            f"{', '.join(fixed)} does not vary in this study, whose space is {', '.join(spec.space)}; "
            "`sweep train` trains anything else."
        )
    if outside := describe_outside(point, spec.space):
        raise InputError(
            f"{outside}. The space of a study with records stays as it is: change the value, or run a study of another "
            "name with a wider range; `sweep train` trains anything else."
        )
    values = flatten_config(spec.corners.at(point))
    is_whole = point.keys() == spec.space.keys()  # otherwise the sampler chooses the other keys later
    for record in store.trial_records(study) if is_whole else ():
        if record.values == values and record.outcome not in NOTHING_LEARNED:
            raise InputError(
                f"trial {record.number} has this configuration and seed already ({record.outcome or 'running'}); "
                "a second training would give the same. More seeds are the task of confirming trials."
            )
    for waiting in list_waiting(store.database, study):
        if waiting.point == point:
            raise InputError(f"this point waits already, as number {waiting.position} of the queue.")
    row = {"study": study, "point": json.dumps(point), "created_at": datetime.now(UTC)}

    def add(connection: Connection) -> int:
        newest = connection.execute(select(func.max(QUEUE.c.position)).where(QUEUE.c.study == study)).scalar() or 0
        connection.execute(QUEUE.insert(), row | {"position": newest + 1})
        return int(newest) + 1

    return EnqueuedPoint(position=store.database.write(add), point=point)


def list_waiting(database: Database, study: str) -> list[EnqueuedPoint]:
    """The points of the queue that no trial has yet, the oldest first."""
    query = select(QUEUE.c.position, QUEUE.c.point).where(QUEUE.c.study == study, QUEUE.c.number.is_(None))
    rows = database.read(lambda connection: list(connection.execute(query.order_by(QUEUE.c.position))))
    return [EnqueuedPoint(position=position, point=_read_point(text)) for position, text in rows]


def take_point(database: Database, study: str, position: int, record: TrialRecord) -> TrialRecord:
    """Gives the point to the trial of ``record``, which is marked as hand-made; to be called in the transaction that
    added it. Raises :class:`StoreError` where the point does not wait any more."""
    of_point = (QUEUE.c.study == study, QUEUE.c.position == position, QUEUE.c.number.is_(None))
    of_trial = (TRIALS.c.study == study, TRIALS.c.number == record.number)

    def take(connection: Connection) -> None:
        if connection.execute(update(QUEUE).where(*of_point).values(number=record.number)).rowcount != 1:
            raise StoreError(f"{database.where}: point {position} of the queue does not wait any more.")
        connection.execute(update(TRIALS).where(*of_trial).values(is_enqueued=True))

    database.write(take)
    return replace(record, is_enqueued=True)


def remove_point(database: Database, study: str, position: int) -> None:
    """Removes a waiting point from the queue. Raises ``InputError`` where there is none of that number."""
    waiting = (QUEUE.c.study == study, QUEUE.c.position == position, QUEUE.c.number.is_(None))
    if database.write(lambda connection: connection.execute(QUEUE.delete().where(*waiting)).rowcount) != 1:
        raise InputError(f"the queue of study {study} has no waiting point {position}; `sweep trials` lists them.")


def _read_point(text: str) -> dict[str, Any]:
    try:
        point = json.loads(text)
    except (ValueError, RecursionError):
        point = None
    if not isinstance(point, dict):
        raise InputError("a point of the queue is no JSON object; the record is damaged.")
    return point
