"""Logs of TensorBoard: event files with scalars and hyperparameters, or with a file ``hparams.yaml`` beside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.foreign.foreign_packages import import_package
from sweep.foreign.foreign_table import (
    Cell,
    ForeignTable,
    Role,
    Run,
    compute_digest,
    list_files,
    read_small_text,
    tabulate_runs,
)

EVENTS = "events.out.tfevents*"
_HPARAMS_FILE = "hparams.yaml"
_HPARAMS, _SCALARS = "hparams", "scalars"
_MAX_HPARAMS_BYTES = 1_000_000
_PACKAGE = "tensorboard"


def is_tensorboard_folder(folder: Path) -> bool:
    """Whether event files lie in ``folder`` or below it."""
    return next(folder.rglob(EVENTS), None) is not None


def read_tensorboard_events(folder: Path) -> ForeignTable:
    """The runs below ``folder``: each folder with hyperparameters, with the scalars of its files. Scalars of a folder
    around exactly one such folder are that run's, as ``add_hparams`` of torch writes them.

    Raises:
        InputError: the package tensorboard is not installed, no folder has hyperparameters, or a file is damaged.
    """
    files = list_files(folder, EVENTS)
    found: dict[Path, Run] = {}
    for path in files:
        run = found.setdefault(path.parent, Run(cells={}))
        _read_file(path, run)
    yamls = [path.parent / _HPARAMS_FILE for path in files if (path.parent / _HPARAMS_FILE).is_file()]
    for path in dict.fromkeys(yamls):
        found[path.parent].cells |= _read_yaml(path)
    runs, num_left_out = _join_parents(found)
    if not runs:
        raise InputError(f"{folder}: no run below it has hyperparameters (the hparams plug-in, or {_HPARAMS_FILE}).")
    for path, run in runs:
        run.cells["run"] = path.relative_to(folder).as_posix()
    cells, curves = tabulate_runs([run for _, run in runs], folder)
    notes = [f"{num_left_out} folders of scalars without hyperparameters left out."] if num_left_out else []
    return ForeignTable(
        program="TensorBoard",
        place=str(folder),
        digest=compute_digest([*files, *dict.fromkeys(yamls)], folder),
        cells=cells,
        roles={str(name): _find_role(str(name)) for name in cells},
        curves=curves,
        notes=tuple(notes),
    )


def _find_role(name: str) -> Role:
    return "fact" if name == "run" else "parameter" if name.startswith("hparams.") else "metric"


def _join_parents(found: dict[Path, Run]) -> tuple[list[tuple[Path, Run]], int]:
    runs = [(path, run) for path, run in found.items() if run.cells]
    num_left_out = 0
    for path, run in found.items():
        if run.cells:
            continue
        inner = [each for each, _ in runs if path in each.parents]
        if len(inner) == 1 and inner[0].parent == path:
            series = found[inner[0]].series
            for name, points in run.series.items():
                series[name] = points
        else:
            num_left_out += 1
    return runs, num_left_out


def _read_file(path: Path, run: Run) -> None:
    for value, step in _load_values(path):
        plugin = value.metadata.plugin_data.plugin_name
        if plugin == _HPARAMS:
            run.cells |= _read_hparams(value.metadata.plugin_data.content)
        elif value.HasField("tensor") and plugin in {_SCALARS, ""} and (number := _read_scalar(value)) is not None:
            run.series.setdefault(str(value.tag), []).append((float(step), number))


def _load_values(path: Path) -> Iterator[tuple[Any, int]]:
    loading = import_package("tensorboard.backend.event_processing.event_file_loader", _PACKAGE)
    kinds: dict[str, Any] = {}  # only the first value of a tag names its plug-in
    try:
        for event in loading.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                metadata = kinds.setdefault(value.tag, value.metadata)
                if not value.metadata.plugin_data.plugin_name:
                    value.metadata.CopyFrom(metadata)
                yield value, event.step
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{path}: damaged: {str(error).splitlines()[0]}.") from None


def _read_scalar(value: Any) -> float | None:
    tensor_util = import_package("tensorboard.util.tensor_util", _PACKAGE)
    array = tensor_util.make_ndarray(value.tensor)
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None


def _read_hparams(content: bytes) -> dict[str, Cell]:
    plugin_data_pb2 = import_package("tensorboard.plugins.hparams.plugin_data_pb2", _PACKAGE)
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    found: dict[str, Cell] = {}
    for name, value in data.session_start_info.hparams.items():
        kind = value.WhichOneof("kind")
        found[f"hparams.{name}"] = getattr(value, kind) if kind in _KINDS else None
    return found


_KINDS = {"number_value", "string_value", "bool_value"}


def _read_yaml(path: Path) -> dict[str, Cell]:
    # flat lines only, as Lightning writes plain hyperparameters; nothing else of YAML is understood
    found: dict[str, Cell] = {}
    for line in read_small_text(path, _MAX_HPARAMS_BYTES).splitlines():
        name, mark, value = line.partition(":")
        if mark and value.strip() and not line[0].isspace() and not line.startswith(("#", "-")):
            text = value.strip()
            found[f"hparams.{name}"] = None if text in {"null", "~"} else text.strip("'\"")
    return found
