"""What needs no study: a probe of a shape, of its micro batches and of accumulation; and the training of one trial."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.config.trial import TrialConfig
from sweep.executors.base import QueryableExecutor
from sweep.executors.table import ExecutorSettings, make_executor
from sweep.probing.cost_model import count_epoch_steps
from sweep.probing.gate import measure_room
from sweep.probing.micro_batch_search import (
    MicroBatchSearch,
    ProbeFailedError,
    SplitStep,
    measure_bytes_per_sample,
    search_micro_batch,
)
from sweep.probing.prober import Prober, open_shared_book
from sweep.probing.shape import derive_shape, replace_micro_batch
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.records.records import ProbeRecord
from sweep.search.session import Options, check_config
from sweep.training.data.sources import make_expected_data
from sweep.training.processes import SUPERVISOR_LINK

_ACCUMULATIONS = (1, 2, 4, 8)
_TIMED_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What was probed. ``search`` is None if one shape alone was requested. ``steps_per_epoch`` is for the
    configuration, None if its images were not counted; ``epoch_steps`` is for each micro batch that was tried;
    ``memory_parts`` are estimated bytes of a step of the configuration."""

    shape: str  # JSON
    probe: ProbeRecord
    memory_limit_bytes: int
    search: MicroBatchSearch | None = None
    splits: tuple[SplitStep, ...] = ()
    steps_per_epoch: int | None = None
    epoch_steps: dict[int, int] = field(default_factory=dict)
    memory_parts: dict[str, int] = field(default_factory=dict)

    @property
    def bytes_per_sample(self) -> float | None:
        """By which the peak memory grows with the micro batch; None without two sizes."""
        fitting = {size: probe.peak_memory_bytes for size, probe in self.tried if probe.is_complete}
        return measure_bytes_per_sample({size: peak for size, peak in fitting.items() if peak})

    @property
    def tried(self) -> list[tuple[int, ProbeRecord]]:
        """The micro batches that were tried, ascending, with their probes."""
        return sorted(self.search.tried.items(), key=lambda each: each[0]) if self.search else []

    def document(self) -> dict[str, Any]:
        """As ``sweep cost --measure --json`` prints it."""
        search = self.search
        return {
            "probe": _make_plain(self.probe),
            "memory_limit_bytes": self.memory_limit_bytes,
            "tried": [_make_plain(probe) | {"steps_per_epoch": self.epoch_steps[size]} for size, probe in self.tried],
            "largest_micro_batch": search.largest if search else None,
            "is_limited_by_memory": search.is_limited_by_memory if search else None,
            "knee_micro_batch": search.knee if search else None,
            "accumulation": [vars(split) for split in self.splits],
            "steps_per_epoch": self.steps_per_epoch,
            "bytes_per_sample": self.bytes_per_sample,
        }


def check_probe(config: TrialConfig, options: Options) -> None:
    """Checks whether ``config`` can be probed, before anything runs. Raises ``InputError``: the device, the data or the
    precision is not there, or the configuration is of several ranks."""
    if config.distributed.world_size > 1:
        raise InputError(
            f"distributed.world_size = {config.distributed.world_size}: a probe is of one rank alone on a device; "
            "add --set distributed.world_size=1."
        )
    check_config(config, options.executor)


@contextlib.contextmanager
def open_prober(options: Options, limit_bytes: int | None) -> Iterator[tuple[Prober, int]]:
    """A prober with an executor of its own, and the memory limit of a probe: ``limit_bytes``, else nine tenths
    of what is free."""
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(QueryableExecutor(make_executor(options.executor, root=options.root)))
        machine = executor.describe()
        limit = limit_bytes or measure_room(machine).limit_bytes
        prober = Prober(
            executor.run_query,
            stack.enter_context(open_shared_book(options.root)),
            device=options.executor.device,
            device_class=str(machine["device"]),
            plugin=options.plugin,
            memory_limit_bytes=limit,
        )
        yield prober, limit


def probe_one(prober: Prober, config: TrialConfig, limit_bytes: int) -> ProbeReport:
    """Probes the shape of ``config`` alone."""
    probe = prober.probe(config, _TIMED_SECONDS)
    num_train = probe.num_train
    return ProbeReport(
        shape=derive_shape(config).text,
        probe=probe,
        memory_limit_bytes=limit_bytes,
        steps_per_epoch=None if num_train is None else count_epoch_steps(config, num_train),
        memory_parts=prober.estimate_memory_parts(config),
    )


def probe_sizes(
    prober: Prober, config: TrialConfig, limit_bytes: int, on_probe: Callable[[ProbeRecord], None]
) -> ProbeReport:
    """Probes the shape of ``config``, then other micro batches, then accumulation; calls ``on_probe`` with each probe.
    Raises ``ProbeFailedError``: a probe failed for another reason than memory."""
    first = probe_one(prober, config, limit_bytes)
    on_probe(first.probe)
    if first.probe.num_train is None:
        raise ProbeFailedError(f"the probe ended as {first.probe.outcome}: {first.probe.error or ''}")

    def try_size(size: int) -> ProbeRecord:
        if size == first.probe.micro_batch:
            return first.probe
        probe = prober.probe(replace_micro_batch(config, size), _TIMED_SECONDS)
        on_probe(probe)
        return probe

    num_train = first.probe.num_train
    search = search_micro_batch(try_size, num_train)
    steps = {size: count_epoch_steps(replace_micro_batch(config, size), num_train) for size in search.tried}
    splits = tuple(_split_steps(prober, config, search.knee or 0))
    return replace(first, search=search, splits=splits, epoch_steps=steps)


def _split_steps(prober: Prober, config: TrialConfig, global_batch: int) -> Iterator[SplitStep]:
    """Times the same global batch, near the throughput knee, as one micro batch and as several."""
    global_batch -= global_batch % max(_ACCUMULATIONS)
    for accumulation in _ACCUMULATIONS if global_batch else ():
        micro = global_batch // accumulation
        ending = prober.time_steps(replace_micro_batch(config, micro, accumulation), _TIMED_SECONDS)
        if ending.outcome == "complete":
            measured = ending.measurements
            yield SplitStep(
                accumulation=accumulation,
                micro_batch=micro,
                global_batch_seconds=float(measured["step_seconds_median"]),
                peak_memory_bytes=int(measured["peak_memory_bytes"]),
            )


def _make_plain(probe: ProbeRecord) -> dict[str, Any]:
    return vars(probe) | {
        "quality_flags": ",".join(probe.quality_flags),
        "probed_at": probe.probed_at.isoformat() if probe.probed_at else None,
    }


def train_trial(
    config: TrialConfig,
    *,
    device: str = "auto",
    plugin: str | None = None,
    save: Path | None = None,
    on_evaluation: Callable[[Evaluation], None] | None = None,
) -> Ending:
    """Trains one configuration in this process, without a study or records; returns how it ended and what was measured.

    ``on_evaluation`` is called with every evaluation; ``save`` is a file for the trained weights (safetensors).

    Raises:
        InputError: the device or the data is missing, the data set does not admit the configuration, or ``save``
            cannot be written.
    """
    data = check_config(config, ExecutorSettings(device=device))
    if save is not None:
        _check_writable(save)  # before the training rather than after it
    from sweep.training.ranks import launch_trial

    weights_path = str(save) if save is not None else None
    task = TrialTask(
        number=0,
        config=config,
        device=device,
        plugin=plugin,
        weights_path=weights_path,
        expected_data=make_expected_data(data),
    )
    try:
        for message in launch_trial(task):
            if isinstance(message, Evaluation) and on_evaluation:
                on_evaluation(message)
            if isinstance(message, Ending):
                return message
    finally:
        SUPERVISOR_LINK.reset()  # a request to leave was for this training only
    raise RuntimeError("the trial ended without an ending")


def _check_writable(file: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=file.absolute().parent):
            pass
    except OSError as error:
        raise InputError(f"--save {file}: the folder cannot be written: {error.strerror}.") from None
    if file.is_dir():
        raise InputError(f"--save {file}: that is a folder; name a file in it.")
