"""Remarks of people on trials: notes and tags. They are no part of the record of a trial, which never changes.

Each write is a transaction of its own and does not require the lock of the supervisor, so that a trial can be remarked
on while its study runs.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from sqlalchemy import Connection, func, select

from sweep.config.errors import InputError, shorten_text
from sweep.records.database import Database
from sweep.records.schema import REMARKS, TRIALS

RemarkKind = Literal["note", "tag"]
REMARK_KINDS: tuple[RemarkKind, ...] = get_args(RemarkKind)
MAX_NOTE = 10_000  # characters
_TAG = re.compile(r"\w[\w.:/+-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class Remark:
    """``position`` counts from 1 within the trial; the number of a remark that was removed is not given again unless it
    was the last."""

    number: int
    position: int
    kind: RemarkKind
    text: str
    created_at: datetime


def add_note(database: Database, study: str, number: int, text: str) -> int:
    """Adds a note to trial ``number`` and returns its position.

    Raises:
        InputError: there is no such trial, or the text is empty or too long.
    """
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\\0").strip()
    if not clean:
        raise InputError("a note is empty; give its text.")
    if len(clean) > MAX_NOTE:
        raise InputError(f"a note has {len(clean):,} characters, at most {MAX_NOTE:,} are kept; shorten it.")
    return database.write(lambda connection: _add(connection, study, number, "note", clean))


def add_tags(database: Database, study: str, number: int, tags: list[str]) -> None:
    """Adds tags to trial ``number``; one that it has already is added once.

    Raises:
        InputError: there is no such trial, or a tag is none.
    """
    for tag in tags:
        check_tag(tag)

    def add(connection: Connection) -> None:
        _check_trial(connection, study, number)
        of_trial = (REMARKS.c.study == study, REMARKS.c.number == number, REMARKS.c.kind == "tag")
        known = set(connection.execute(select(REMARKS.c.text).where(*of_trial)).scalars())
        for tag in dict.fromkeys(tags):
            if tag not in known:
                _add(connection, study, number, "tag", tag)

    database.write(add)


def check_tag(tag: str) -> None:
    """Raises ``InputError`` for a text that is no tag."""
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"tag {shorten_text(tag)!r}: a tag has up to 64 letters, digits and . : / + - _, and begins with a letter "
            "or digit; write longer remarks with `sweep note`."
        )


def remove_remarks(database: Database, study: str, number: int, kind: RemarkKind, keys: list[str]) -> None:
    """Removes notes by their position, or tags by their text, all of ``keys`` or none.

    Raises:
        InputError: the trial has no such remark.
    """
    of_trial = (REMARKS.c.study == study, REMARKS.c.number == number, REMARKS.c.kind == kind)
    column: Any = REMARKS.c.text if kind == "tag" else REMARKS.c.position

    def remove(connection: Connection) -> None:
        for key in keys:
            value = key if kind == "tag" else _position(key)
            if connection.execute(REMARKS.delete().where(*of_trial, column == value)).rowcount != 1:
                raise InputError(
                    f"trial {number} has no {kind} {shorten_text(key)!r}; `sweep trials` lists what it has."
                )

    database.write(remove)


def list_remarks(database: Database, study: str) -> list[Remark]:
    """All remarks of a study by trial and position."""
    query = select(REMARKS).where(REMARKS.c.study == study).order_by(REMARKS.c.number, REMARKS.c.position)
    rows = database.read(lambda connection: list(connection.execute(query).mappings()))
    return [Remark(**{name: value for name, value in row.items() if name != "study"}) for row in rows]


def _add(connection: Connection, study: str, number: int, kind: RemarkKind, text: str) -> int:
    _check_trial(connection, study, number)
    of_trial = (REMARKS.c.study == study, REMARKS.c.number == number)
    position = (connection.execute(select(func.max(REMARKS.c.position)).where(*of_trial)).scalar() or 0) + 1
    row = {"study": study, "number": number, "position": position, "kind": kind, "text": text}
    connection.execute(REMARKS.insert(), row | {"created_at": datetime.now(UTC)})
    return int(position)


def _check_trial(connection: Connection, study: str, number: int) -> None:
    found = select(TRIALS.c.number).where(TRIALS.c.study == study, TRIALS.c.number == number)
    if connection.execute(found).first() is None:
        newest = connection.execute(select(func.max(TRIALS.c.number)).where(TRIALS.c.study == study)).scalar()
        known = "it has none yet" if newest is None else f"its trials are 0 to {newest}"
        raise InputError(f"study {study}: there is no trial {number}; {known}.")


def _position(key: str) -> int:
    return int(key) if key.isdecimal() and len(key) < 10 else -1
