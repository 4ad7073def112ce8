"""What a record is: its columns, the records of trials and probes, the validation images that a trial got right."""

import base64
import binascii
import hashlib
import json
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt

from sweep.config.errors import InputError, shorten_text
from sweep.config.metrics import METRICS
from sweep.config.script import PREFIX
from sweep.config.trial import Scalar, TrialConfig, build_config, config_fields
from sweep.records.messages import Ending, Evaluation, Outcome, Phase

Kind = Literal["int", "float", "bool", "text", "time"]
CONFIG_PREFIX = "config."


@dataclass(frozen=True, kw_only=True)
class ConfigColumn:
    """The column of one configuration key. ``null_value`` is the meaning of NULL: None, or the one literal that a
    field of another scalar type accepts too ("auto"). A column of text that ``has_numbers`` holds them as text."""

    path: str
    kind: Kind
    null_value: Scalar
    always_set: bool  # the field is never NULL
    has_numbers: bool = False

    @property
    def name(self) -> str:
        """The column's name in the store and in the frame."""
        return CONFIG_PREFIX + self.path

    def to_cell(self, value: Scalar) -> Scalar:
        """The cell for ``value``."""
        if self.has_numbers:
            return None if value is None else str(value)
        return None if not self.always_set and value == self.null_value else value

    def from_cell(self, cell: Any) -> Scalar:
        """The inverse of :meth:`to_cell`; SQLite returns booleans as 0 and 1."""
        if cell is None:
            return self.null_value
        if self.has_numbers:
            try:
                return float(cell)
            except ValueError:
                return str(cell)
        return bool(cell) if self.kind == "bool" else cell


_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "text", datetime: "time"}


def config_column(path: str, annotation: Any) -> ConfigColumn:
    """The column for a field of that annotation. Raises ``TypeError``: the annotation is not one scalar type, alone or
    in a union with None or one literal, nor several literals with floats."""
    if path == "script":  # a table of a script's own values, as JSON
        return ConfigColumn(path=path, kind="text", null_value=None, always_set=False)
    kinds, literals = _parts(annotation)
    if set(kinds) == {"text", "float"} and not literals:
        return ConfigColumn(path=path, kind="text", null_value=None, always_set=True, has_numbers=True)
    if len(literals) == 1 and not kinds and literals != [None]:
        kinds, literals = [_KINDS[type(literals[0])]], []
    if len(set(kinds)) != 1 or len(literals) > 1:
        raise TypeError(f"{path}: {annotation} is not one scalar type, alone or with None or one literal")
    return ConfigColumn(path=path, kind=kinds[0], null_value=(literals or [None])[0], always_set=not literals)


def _parts(annotation: Any) -> tuple[list[Kind], list[Scalar]]:
    # the scalar kinds of an annotation, and the single values in a union with them
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_parts(part) for part in get_args(annotation)]
        return [kind for kinds, _ in parts for kind in kinds], [value for _, values in parts for value in values]
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return ([], list(values)) if len(values) == 1 else (list({_KINDS[type(value)] for value in values}), [])
    if annotation is type(None):
        return [], [None]
    return [_KINDS[annotation]] if annotation in _KINDS else [], []


SCRIPT_COLUMN = "config.script"
CONFIG_COLUMNS = tuple(config_column(path, field.annotation) for path, field in config_fields().items())

_ALWAYS_SET = frozenset(column.path for column in CONFIG_COLUMNS if column.always_set)

METRIC_KINDS: dict[str, Kind] = {name: "int" if item.unit_facts.is_whole else "float" for name, item in METRICS.items()}

# Cells of those with a default may be missing.
OPTIONAL_OF_EVALUATION = frozenset(item.name for item in fields(Evaluation) if item.default is None)
EVALUATION_KINDS: dict[str, Kind] = {item.name: "int" if item.type is int else "float" for item in fields(Evaluation)}


# Which images were right, or the score of each sample; shape [images], in the order of the validation split.
Correct = npt.NDArray[np.bool_ | np.floating[Any]]
# From a study and numbers of trials to the images that each trial got right; trials without a record are left out.
FindCorrect = Callable[[str, Sequence[int]], dict[int, Correct]]

# Of a larger split nothing is kept: its sampling error is a tenth of a point at most, and a record stays below 40 kB.
MAX_IMAGES = 200_000
_SCORES = "f16:"  # before the number of samples: 16-bit floats, not bits


def encode_correct(correct: Correct) -> str:
    """``correct``, of a trial's last evaluation, as ``"<images>:<base64>"``: one bit per image, packed and compressed;
    scores as 16-bit floats after ``"f16:"``. Empty for more than ``MAX_IMAGES``, and for no image."""
    if not 0 < len(correct) <= MAX_IMAGES:
        return ""
    if correct.dtype != np.bool_:
        with np.errstate(over="ignore"):  # what is too large for the format is infinite
            packed = zlib.compress(correct.astype("<f2").tobytes())
        return f"{_SCORES}{len(correct)}:{base64.b64encode(packed).decode()}"
    return f"{len(correct)}:{base64.b64encode(zlib.compress(np.packbits(correct.astype(np.bool_)).tobytes())).decode()}"


def decode_correct(text: str) -> Correct:
    """The inverse of :func:`encode_correct`. Raises ``ValueError``: ``text`` is anything else."""
    are_scores = text.startswith(_SCORES)
    count, _, packed = text.removeprefix(_SCORES).partition(":")
    num_images = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    if not 0 < num_images <= MAX_IMAGES:
        raise ValueError(f"{text[:50]!r} names no number of images from 1 to {MAX_IMAGES}")
    num_bytes = 2 * num_images if are_scores else -(-num_images // 8)
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), num_bytes + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the bits of {num_images} images are damaged: {error}") from None
    if len(unpacked) != num_bytes:
        raise ValueError(f"the bits of {num_images} images are damaged: {len(unpacked)} of {num_bytes} bytes")
    if are_scores:
        return np.frombuffer(unpacked, dtype="<f2").astype(np.float32)
    return np.unpackbits(np.frombuffer(unpacked, dtype=np.uint8), count=num_images).astype(np.bool_)


def make_config_cells(values: Mapping[str, Scalar]) -> dict[str, Any]:
    """The cells of a configuration, given by dotted key, by column; a script's own values are one text of JSON."""
    own = {key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX)}
    cells = {each.name: each.to_cell(values[each.path]) for each in CONFIG_COLUMNS if each.name != SCRIPT_COLUMN}
    return {**cells, SCRIPT_COLUMN: json.dumps(own, sort_keys=True) if own else None}


def open_script_values(text: Any) -> dict[str, Scalar]:
    """A script's own values by dotted key, from the cell of their column. Raises ``InputError``: it is damaged."""
    try:
        values = json.loads(text) if isinstance(text, str) and text else {}
        return {f"{PREFIX}{name}": value for name, value in values.items()}
    except (ValueError, AttributeError, RecursionError):
        raise InputError(
            f"config.script: {shorten_text(repr(text))} is no JSON table; the record is damaged."
        ) from None


def find_missing(values: Mapping[str, Scalar]) -> str:
    """The first configuration key that every training of this project has and ``values`` have not; "" without one."""
    return next((column.path for column in CONFIG_COLUMNS if column.always_set and values[column.path] is None), "")


def build_recorded(values: Mapping[str, Scalar], where: str) -> TrialConfig:
    """The configuration of a record; a key that a script was not given has its default. Raises ``InputError``."""
    own = open_script_values(values.get("script"))
    given = {key: value for key, value in values.items() if value is not None or key not in _ALWAYS_SET}
    given.pop("script", None)
    return build_config(given | own, where)


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial as it is recorded. ``values`` is its configuration by dotted path; ``measurements`` holds what was
    measured, by name of the metric table; ``errors`` the standard errors of those that were extrapolated instead."""

    number: int
    phase: Phase
    values: dict[str, Scalar]
    outcome: Outcome | None = None  # None while it runs
    measurements: dict[str, float | int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    trial_key: str = ""
    shape_digest: str = ""  # of the shape that its steps have, where they all have one
    reused_from: str = ""  # "study/number" of the trial that was taken instead of training
    is_enqueued: bool = False  # made by hand, with `sweep trials --enqueue`
    device: str = ""
    quality_flags: tuple[str, ...] = ()
    error: str = ""
    made_from: TrialConfig | None = field(default=None, repr=False, compare=False)  # None where it was read back

    @property
    def ending(self) -> Ending:
        """How the trial ended, without its environment and its bottleneck; only for a trial that has ended."""
        assert self.outcome is not None
        return Ending(
            outcome=self.outcome,
            measurements=dict(self.measurements),
            device=self.device,
            quality_flags=self.quality_flags,
            error=self.error,
        )

    def with_ending(self, ending: Ending) -> "TrialRecord":
        """This trial after ``ending``."""
        return replace(
            self,
            outcome=ending.outcome,
            measurements=dict(ending.measurements),
            device=ending.device,
            quality_flags=ending.quality_flags,
            error=ending.error,
        )

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration. It is validated here and not when the row is read: validation takes ten times as long, and
        the configuration of most rows is never used."""
        return self.made_from or build_recorded(self.values, f"record of trial {self.number}")


@dataclass(frozen=True, kw_only=True)
class ReusableTrial:
    """A complete trial that can stand for one of equal key. With a budget in seconds (``is_timed``) what it learned
    depends on the speed of its device."""

    origin: str  # "study/number"
    ending: Ending
    evaluations: tuple[Evaluation, ...]
    is_timed: bool = False


# What the memory of a training step consists of, with the words for it.
MEMORY_LABELS = {
    "parameter": "parameters", "gradient": "gradients", "optimizer": "optimizer state",
    "activation": "activations and images", "temporary": "temporary tensors", "scratch": "workspace of operations",
}  # fmt: skip
MEMORY_PARTS = tuple(MEMORY_LABELS)
_FORECASTS = {part: f"forecast_{part}_bytes" for part in MEMORY_PARTS}


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """The results of one probe: step time and memory of one shape on one device, None where nothing was measured. A
    step has at most two micro batches of ``shape``.

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
PROBE_KINDS: dict[str, Kind] = {
    item.name: _KINDS[get_args(item.type)[0]] for item in fields(ProbeRecord) if type(None) in get_args(item.type)
}
_MEASURED = frozenset(PROBE_KINDS) - {"micro_batch", "probed_at", "environment_digest", "error"}


def make_probe_record(
    shape_key: str, shape: str, micro_batch: int, ending: Ending, launch_seconds: float
) -> ProbeRecord:
    """The record of a probe with this ending; ``launch_seconds`` as in :class:`ProbeRecord`."""
    measured: dict[str, Any] = {
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
        **{**measured, "launch_seconds": launch_seconds},
    )


def make_forecast_record(
    shape_key: str, device: str, shape: str, micro_batch: int, parts: Mapping[str, float]
) -> ProbeRecord:
    """The record of an estimate with ``parts`` in bytes by name: ``parameter_bytes`` and so on."""
    named: dict[str, Any] = {column: round(parts[f"{part}_bytes"]) for part, column in _FORECASTS.items()}
    return ProbeRecord(
        shape_key=shape_key, device=device, shape=shape, outcome="estimated", micro_batch=micro_batch, **named
    )
