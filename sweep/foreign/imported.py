"""Another program's records as a study under the root: what was made of them, with where they are from."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sweep.config.errors import InputError, explain_refusal
from sweep.records.address import IMPORTED_FILE
from sweep.records.files import read_table, write_table
from sweep.records.frames import (
    EVALUATION_COLUMNS,
    FRAME_PARTS,
    FrameColumn,
    Frames,
    RecordSource,
    build_frame,
    check_frames,
)
from sweep.records.records import Kind

_MAX_MANIFEST_BYTES = 10_000_000
_KINDS: dict[str, Kind] = {"int64": "int", "Int64": "int", "float64": "float", "bool": "bool", "boolean": "bool"}
# What every frame of trials has, whatever was mapped.
_TEXTS = ("study", "phase", "outcome", "device", "quality_flags", "error", "reused_from", "trial_key")
_REQUIRED = {
    ("number", "int"),
    ("global_batch_size", "int"),
    ("val_accuracy", "float"),
    *((name, "text") for name in _TEXTS),
}


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["batch-sweep import"] = "batch-sweep import"
    version: Literal[1] = 1
    columns: tuple[tuple[str, Kind, bool], ...]  # of trials: name, kind, whether a cell may be missing
    source: RecordSource


def is_imported(folder: Path) -> bool:
    """Whether ``sweep import`` made ``folder`` of another program's records."""
    return (folder / IMPORTED_FILE).is_file()


def write_imported(frames: Frames, folder: Path) -> None:
    """Writes another program's records, as :func:`sweep.load_foreign_frames` returns them, into an empty folder."""
    assert frames.source is not None
    assert frames.evaluations is not None
    columns = [
        FrameColumn(str(name), _KINDS.get(str(dtype), "text"), nullable=str(dtype) not in ("int64", "bool"))
        for name, dtype in frames.trials.dtypes.items()
    ]
    write_table(frames.trials, folder / "trials.parquet")
    write_table(frames.evaluations, folder / "evaluations.parquet")
    manifest = _Manifest(columns=tuple((each.name, each.kind, each.nullable) for each in columns), source=frames.source)
    (folder / IMPORTED_FILE).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def read_imported(folder: Path) -> Frames:
    """The frames that :func:`write_imported` wrote; raises ``InputError`` where a file is damaged."""
    path = folder / IMPORTED_FILE
    try:
        with path.open("rb") as file:
            manifest = _Manifest.model_validate_json(file.read(_MAX_MANIFEST_BYTES))
    except ValidationError as error:
        raise InputError(f"{explain_refusal(error, str(path))}; import the records again.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if lacking := _REQUIRED - {(name, kind) for name, kind, _ in manifest.columns}:
        raise InputError(f"{path}: columns: {' as '.join(min(lacking))} is missing; import the records again.")
    columns = [FrameColumn(*column) for column in manifest.columns]
    frames: dict[str, Any] = {part.field: build_frame(part.columns, {}, 0) for part in FRAME_PARTS}
    frames["trials"] = read_table(folder / "trials.parquet", columns)
    frames["evaluations"] = read_table(folder / "evaluations.parquet", EVALUATION_COLUMNS)
    imported = Frames(**frames, place=str(folder), source=manifest.source)
    check_frames(imported, str(folder))
    return imported
