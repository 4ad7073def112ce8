"""Probes on record: one row a shape and device, in the study that used it and in a file that all studies of a root
share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from sqlalchemy import ColumnElement, Connection

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.columns import FORECAST_KINDS, MEMORY_PARTS, PROBE_KINDS
from sweep.records.messages import Ending
from sweep.records.store.reading import read_columns
from sweep.records.store.schema import PROBES
from sweep.records.store.store import Store, StoreError, open_store

PROBES_FILE = "probes.sqlite"
_SHARED = "probes"  # the study in whose name the shared file holds them


@dataclass(frozen=True)
class ProbeRecord:
    """What one probe told; None where it was not measured. A step is one of ``shape``'s micro batches (at most two).

    ``update_seconds`` is the part of a step that every global batch pays once; ``launch_seconds`` what a process of its
    own cost beyond what went on in it. ``outcome`` is ``estimated`` where nothing was run and the forecast is all.
    """

    shape_key: str
    device: str
    shape: str = "{}"  # JSON
    outcome: str = "complete"
    micro_batch: int | None = None
    step_seconds_median: float | None = None
    step_seconds_p90: float | None = None
    step_seconds_mean: float | None = None
    update_seconds: float | None = None
    images_per_second: float | None = None
    data_images_per_second: float | None = None
    eval_images_per_second: float | None = None
    setup_seconds: float | None = None
    warmup_seconds: float | None = None
    memory_seconds: float | None = None
    launch_seconds: float | None = None
    peak_memory_bytes: int | None = None
    num_parameters: int | None = None
    num_train: int | None = None
    num_validation: int | None = None
    num_windows: int | None = None
    num_steps: int | None = None
    probed_at: datetime | None = None
    environment_digest: str | None = None
    quality_flags: tuple[str, ...] = ()
    error: str | None = None
    forecast_parameter_bytes: int | None = None
    forecast_gradient_bytes: int | None = None
    forecast_optimizer_bytes: int | None = None
    forecast_activation_bytes: int | None = None
    forecast_temporary_bytes: int | None = None
    forecast_scratch_bytes: int | None = None

    @property
    def forecast(self) -> dict[str, int]:
        """The estimated peak of a step by what it is for, by column; empty where it was not estimated."""
        parts = {name: getattr(self, name) for name in FORECAST_KINDS}
        return {} if None in parts.values() else parts

    def with_forecast_of(self, other: "ProbeRecord") -> "ProbeRecord":
        """This record with what was estimated in ``other``."""
        parts: dict[str, Any] = other.forecast
        return replace(self, **parts)

    @property
    def is_complete(self) -> bool:
        """Whether a step was taken and timed."""
        return self.outcome == "complete"


_MEASURED = frozenset(PROBE_KINDS) - {"micro_batch", "probed_at", "environment_digest", "error"}


def probe_record(shape_key: str, shape: str, micro_batch: int, ending: Ending, launch_seconds: float) -> ProbeRecord:
    """The record of a probe that ended so; ``launch_seconds`` as in :class:`ProbeRecord`."""
    known: dict[str, Any] = {
        name: round(value) if PROBE_KINDS[name] == "int" else float(value)
        for name, value in ending.measurements.items()
        if name in _MEASURED
    }
    return ProbeRecord(
        shape_key=shape_key,
        device=ending.device,
        shape=shape,
        outcome=ending.outcome,
        micro_batch=micro_batch,
        probed_at=datetime.now(UTC),
        quality_flags=ending.quality_flags,
        error=ending.error or None,
        **{**known, "launch_seconds": launch_seconds},
    )


def forecast_record(
    shape_key: str, device: str, shape: str, micro_batch: int, parts: Mapping[str, float]
) -> ProbeRecord:
    """The record of an estimate, whose ``parts`` are called ``parameter_bytes`` and so on."""
    named: dict[str, Any] = {f"forecast_{part}_bytes": round(parts[f"{part}_bytes"]) for part in MEMORY_PARTS}
    return ProbeRecord(shape_key, device, shape, "estimated", micro_batch, **named)


@final
class ProbeBook:
    """The probes of one study in a store."""

    def __init__(self, store: Store, study: str) -> None:
        self._store = store
        self._study = study

    def keep(self, probe: ProbeRecord, environment: dict[str, Any] | None = None) -> None:
        """Records ``probe`` in the place of an earlier one of the same shape and device."""
        if environment:
            digest = self._store.keep_environment(self._study, environment)
            probe = replace(probe, environment_digest=digest)
        row = {item.name: getattr(probe, item.name) for item in fields(probe)}
        row |= {"study": self._study, "quality_flags": ",".join(probe.quality_flags)}
        same = self._where((PROBES.c.shape_key == probe.shape_key) & (PROBES.c.device == probe.device))

        def put(connection: Connection) -> None:
            connection.execute(PROBES.delete().where(same))
            connection.execute(PROBES.insert(), row)

        self._store.database.write(put)

    def of_device(self, device: str) -> list[ProbeRecord]:
        """All probes made on a device class."""
        of_device = self._where(PROBES.c.device == device)
        columns = self._store.database.read(lambda connection: read_columns(connection, PROBES, of_device))
        names = [item.name for item in fields(ProbeRecord)]
        rows = zip(*(columns[name] for name in names), strict=True)
        return [_from_row(dict(zip(names, row, strict=True))) for row in rows]

    def close(self) -> None:
        """Closes the store."""
        self._store.close()

    def _where(self, more: ColumnElement[bool]) -> ColumnElement[bool]:
        return (PROBES.c.study == self._study) & more


def open_book(root: Path) -> ProbeBook:
    """The probes that all studies under ``root`` share; the file is made where there is none.

    Raises:
        InputError: it cannot be opened, or a newer version wrote it.
    """
    store = open_store(root / PROBES_FILE, create=True)
    try:
        if store.load_spec(_SHARED) is None:
            store.create_study(StudySpec(name=_SHARED, question="Time and memory by shape, for every study here."))
    except (InputError, StoreError):
        if store.load_spec(_SHARED) is None:  # otherwise another program was faster
            store.close()
            raise
    return ProbeBook(store, _SHARED)


def _from_row(cells: dict[str, Any]) -> ProbeRecord:
    flags = cells.pop("quality_flags")
    if isinstance(moment := cells.get("probed_at"), str):  # SQLite's driver hands out text
        cells["probed_at"] = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return ProbeRecord(**cells, quality_flags=tuple(flags.split(",")) if flags else ())
