"""The queue of hand-made trials: points that a run of the study trains before its own proposals.

Whoever enqueues does not require the lock of the supervisor. The supervisor takes a point in the transaction that adds
its trial, so that a kill at any moment leaves the point either waiting or with its trial.
"""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, select, update

from sweep.config.errors import InputError, StoreError, describe_unknown
from sweep.config.space import describe_outside
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig, config_keys, flatten_config
from sweep.records.database import Database
from sweep.records.schema import QUEUE, TRIALS
from sweep.records.store.store import Store
from sweep.records.trial_record import TrialRecord

_NOTHING_LEARNED = frozenset({"crashed", "cancelled", "not_fitting"})  # outcomes after which a trial may be made again


@dataclass(frozen=True, kw_only=True)
class EnqueuedPoint:
    """Values for keys of the space; keys that it lacks are chosen by the sampler when the trial begins. ``position``
    counts from 1 within the study."""

    position: int
    point: dict[str, Any]
    created_at: datetime


def enqueue_point(store: Store, study: str, point: dict[str, Any]) -> EnqueuedPoint:
    """Adds ``point`` to the queue of a study on record.

    Raises:
        InputError: a key does not vary, a value is outside of its range, the configuration is none, it waits already,
            or a trial of the study has it.
    """
    spec = store.load_spec(study)
    if spec is None:
        raise InputError(f"study {study!r}: it is not on record; run it, or enqueue by its file.")
    config = check_point(spec, point)
    if config is not None:
        _refuse_known(store.trial_records(study), config)
    for waiting in list_waiting(store.database, study):
        if waiting.point == point:
            raise InputError(f"this point waits already, as number {waiting.position} of the queue.")
    created_at = datetime.now(UTC)
    row = {"study": study, "point": json.dumps(point), "created_at": created_at}

    def add(connection: Connection) -> int:
        newest = connection.execute(select(func.max(QUEUE.c.position)).where(QUEUE.c.study == study)).scalar() or 0
        connection.execute(QUEUE.insert(), row | {"position": newest + 1})
        return int(newest) + 1

    position = store.database.write(add)
    return EnqueuedPoint(position=position, point=point, created_at=created_at)


def check_point(spec: StudySpec, point: dict[str, Any]) -> TrialConfig | None:
    """The configuration at ``point``; None where it lacks keys of the space, which are chosen later. Errors as
    :func:`enqueue_point`."""
    if not point:
        raise InputError(f"the point is empty; give a value for one or more of {', '.join(spec.space)}.")
    for key in point:
        if key not in config_keys():
            raise InputError(f"--set: {describe_unknown('key', key, config_keys())}")
    if fixed := [key for key in point if key not in spec.space]:
        raise InputError(
            f"{', '.join(fixed)} does not vary in this study; leave it out, or run a study of another name that varies "
            "it. A hand-made trial belongs to the space; `sweep train` trains anything else."
        )
    if outside := describe_outside(point, spec.space):
        raise InputError(
            f"{outside}. The space of a study with records stays as it is: change the value, or run a study of another "
            "name with a wider range; `sweep train` trains anything else."
        )
    config = spec.corners.at(point)
    return config if point.keys() == spec.space.keys() else None


def _refuse_known(records: list[TrialRecord], config: TrialConfig) -> None:
    values = flatten_config(config)
    for record in records:
        if record.values == values and record.outcome not in _NOTHING_LEARNED:
            raise InputError(
                f"trial {record.number} has this configuration and seed already ({record.outcome or 'running'}); "
                "a second training would give the same. More seeds are the task of confirming trials."
            )


def list_waiting(database: Database, study: str) -> list[EnqueuedPoint]:
    """The points of the queue that no trial has yet, the oldest first."""
    query = select(QUEUE.c.position, QUEUE.c.point, QUEUE.c.created_at).where(
        QUEUE.c.study == study, QUEUE.c.number.is_(None)
    )
    rows = database.read(lambda connection: list(connection.execute(query.order_by(QUEUE.c.position))))
    return [EnqueuedPoint(position=place, point=_read_point(text), created_at=made) for place, text, made in rows]


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
        raise InputError(f"the queue of study {study} has no waiting point {position}; `sweep enqueue` lists them.")


def _read_point(text: str) -> dict[str, Any]:
    try:
        point = json.loads(text)
    except (ValueError, RecursionError):
        point = None
    if not isinstance(point, dict):
        raise InputError("a point of the queue is no JSON object; the record is damaged.")
    return point
