"""The trials of a study as runs of TensorBoard: a folder per trial with one event file, for its scalars and HParams
pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweep.foreign.foreign_packages import import_package
from sweep.foreign.own_runs import SERIES, RunContents

_PACKAGE = "tensorboard"


def write_tensorboard(runs: Sequence[RunContents], folder: Path, final: Path) -> None:  # noqa: ARG001
    """Writes ``folder / trial-NNNNN`` for each run. Numbers are written as 64-bit floats, so that nothing is rounded.
    Raises ``InputError`` where the package tensorboard is not installed."""
    writers = import_package("tensorboard.summary.writer.event_file_writer", _PACKAGE)
    for run in runs:
        writer = writers.EventFileWriter(str(folder / f"trial-{run.number:05d}"))
        try:
            for event in _list_events(run):
                writer.add_event(event)
        finally:
            writer.close()


def _list_events(run: RunContents) -> list[Any]:
    events = import_package("tensorboard.compat.proto.event_pb2", _PACKAGE)
    hparams = import_package("tensorboard.plugins.hparams.summary_v2", _PACKAGE)
    seconds = (run.started_ms or 0) / 1000
    given = {**run.settings, **run.facts}
    summary = hparams.hparams_pb(given, trial_id=f"{run.study}/{run.number}", start_time_secs=seconds)
    made = [events.Event(summary=summary, wall_time=seconds)]
    for step, values in run.curves:
        named = {f"{SERIES}{key}": value for key, value in values.items()}
        made.append(events.Event(summary=_make_scalars(named), step=step, wall_time=seconds))
    last = round(run.results.get("num_steps", 0))
    return [*made, events.Event(summary=_make_scalars(run.results), step=last, wall_time=seconds)]


def _make_scalars(values: Any) -> Any:
    summaries = import_package("tensorboard.compat.proto.summary_pb2", _PACKAGE)
    metadata = import_package("tensorboard.plugins.scalar.metadata", _PACKAGE)
    tensors = import_package("tensorboard.util.tensor_util", _PACKAGE)
    made = [
        summaries.Summary.Value(
            tag=name,
            tensor=tensors.make_tensor_proto(value, dtype="float64"),
            metadata=metadata.create_summary_metadata("", ""),
        )
        for name, value in values.items()
    ]
    return summaries.Summary(value=made)
