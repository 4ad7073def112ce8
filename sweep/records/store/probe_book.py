"""The probes on record: those of a study in its own store, and those that all studies of a root share in a file."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from sqlalchemy import ColumnElement, Connection

from sweep.config.errors import InputError, StoreError
from sweep.config.study import StudySpec
from sweep.records.probe_record import ProbeRecord
from sweep.records.schema import PROBES
from sweep.records.store.reading import read_columns
from sweep.records.store.store import Store, open_store

PROBES_FILE = "probes.sqlite"
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
    """The probes that all studies under ``root`` share; the file is made where there is none.

    Raises:
        InputError: it cannot be opened, or another version wrote it.
    """
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
