"""The record of one probe: step time and memory of one shape on one device."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, get_args

from sweep.records.columns import Kind
from sweep.records.messages import Ending

# What the memory of a training step consists of, with the words for it.
MEMORY_LABELS = {
    "parameter": "parameters", "gradient": "gradients", "optimizer": "optimizer state",
    "activation": "activations and images", "temporary": "temporary tensors", "scratch": "workspace of operations",
}  # fmt: skip
MEMORY_PARTS = tuple(MEMORY_LABELS)
_FORECASTS = {part: f"forecast_{part}_bytes" for part in MEMORY_PARTS}


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """The results of one probe; None where nothing was measured. A step has at most two micro batches of ``shape``.

    ``update_seconds`` is the part of a step that occurs once per global batch; ``launch_seconds`` is the time of
    starting and ending the process. ``outcome`` is ``estimated`` where nothing ran and only the forecast is known.
    """

    shape_key: str
    device: str
    shape: str = "{}"  # JSON
    outcome: str = "complete"
    micro_batch: int | None = None
    step_seconds_median: float | None = None
    step_seconds_mean: float | None = None
    step_time_error: float | None = None
    update_seconds: float | None = None
    images_per_second: float | None = None
    data_images_per_second: float | None = None
    eval_images_per_second: float | None = None
    setup_seconds: float | None = None
    warmup_seconds: float | None = None
    memory_seconds: float | None = None
    launch_seconds: float | None = None
    peak_memory_bytes: int | None = None
    eval_peak_memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None
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
        """The estimated peak memory of a step by category, by column; empty where it was not estimated."""
        parts = {name: getattr(self, name) for name in _FORECASTS.values()}
        return {} if None in parts.values() else parts

    def with_forecast_of(self, other: "ProbeRecord") -> "ProbeRecord":
        """This record with what was estimated in ``other``."""
        parts: dict[str, Any] = other.forecast
        return replace(self, **parts)

    @property
    def is_complete(self) -> bool:
        """Whether a step was taken and timed."""
        return self.outcome == "complete"

    @property
    def shape_digest(self) -> str:
        """The digest of the shape."""
        return digest_shape(self.shape)


def digest_shape(shape: str) -> str:
    """16 hexadecimal digits, in the rows of probes and trials: equal for equal shapes (JSON)."""
    return hashlib.sha256(shape.encode()).hexdigest()[:16]


# Columns of the results, by name; every cell may be missing.
_KIND_OF: dict[type, Kind] = {int: "int", float: "float", str: "text", datetime: "time"}
PROBE_KINDS: dict[str, Kind] = {
    item.name: _KIND_OF[get_args(item.type)[0]] for item in fields(ProbeRecord) if type(None) in get_args(item.type)
}
_MEASURED = frozenset(PROBE_KINDS) - {"micro_batch", "probed_at", "environment_digest", "error"}


def make_probe_record(
    shape_key: str, shape: str, micro_batch: int, ending: Ending, launch_seconds: float
) -> ProbeRecord:
    """The record of a probe with this ending; ``launch_seconds`` as in :class:`ProbeRecord`."""
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


def make_forecast_record(
    shape_key: str, device: str, shape: str, micro_batch: int, parts: Mapping[str, float]
) -> ProbeRecord:
    """The record of an estimate with ``parts`` in bytes by name: ``parameter_bytes`` and so on."""
    named: dict[str, Any] = {column: round(parts[f"{part}_bytes"]) for part, column in _FORECASTS.items()}
    return ProbeRecord(
        shape_key=shape_key, device=device, shape=shape, outcome="estimated", micro_batch=micro_batch, **named
    )
