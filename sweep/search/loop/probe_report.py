"""``sweep probe``: one shape, then its micro batches, then what accumulation costs; each in a process of its own."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sweep.config.errors import InputError
from sweep.config.trial_config import TrialConfig
from sweep.executors.queryable import QueryableExecutor
from sweep.executors.table import check_executor, device_type, make_executor
from sweep.probing.micro_batch_search import MicroSearch, ProbeFailedError, search_micro
from sweep.probing.shape import shape_of, with_micro
from sweep.records.probe_records import ProbeRecord
from sweep.search.forecast.memory_gate import memory_limit_bytes
from sweep.search.forecast.prober import ProbePlan, Prober, shared_book
from sweep.search.loop.session import Options
from sweep.training.data.data_checks import check_data, check_precision

ACCUMULATIONS = (1, 2, 4, 8)
_TIMED_SECONDS = 1.0


@dataclass(frozen=True)
class SplitStep:
    """One global batch, taken as ``accumulation`` micro batches."""

    accumulation: int
    micro_batch: int
    global_batch_seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class ProbeReport:
    """``search`` is None where one shape alone was asked for, or did not run at all."""

    shape: str  # JSON
    probe: ProbeRecord
    memory_limit_bytes: int
    search: MicroSearch | None = None
    splits: tuple[SplitStep, ...] = ()

    def document(self) -> dict[str, Any]:
        """As ``sweep probe --json`` prints it."""
        search = self.search
        return {
            "probe": _plain(self.probe),
            "memory_limit_bytes": self.memory_limit_bytes,
            "tried": [_plain(search.tried[size]) for size in sorted(search.tried)] if search else [],
            "largest_micro_batch": search.largest if search else None,
            "is_limited_by_memory": search.is_limited_by_memory if search else None,
            "knee_micro_batch": search.knee if search else None,
            "accumulation": [vars(split) for split in self.splits],
        }


Hear = Callable[[ProbeRecord], None]


def check_probe(config: TrialConfig, options: Options) -> None:
    """Refuses what cannot be probed, before anything runs.

    Raises:
        InputError: the device, the data, the precision; or a configuration of several ranks.
    """
    check_executor(options.executor)
    check_precision(config.precision, device_type(options.executor))
    if config.distributed.world_size > 1:
        raise InputError(
            f"distributed.world_size = {config.distributed.world_size}: a probe is of one rank alone on a device; "
            "add --set distributed.world_size=1."
        )
    check_data(config)


@contextlib.contextmanager
def open_prober(options: Options, limit_bytes: int | None) -> Iterator[tuple[Prober, int]]:
    """A prober with an executor of its own, and the memory that a probe may use: ``limit_bytes``, else nine tenths."""
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(QueryableExecutor(make_executor(options.executor, root=options.root)))
        machine = executor.describe()
        limit = limit_bytes or memory_limit_bytes(int(machine.get("device_memory_bytes", 0)))
        plan = ProbePlan(options.executor.device, str(machine["device"]), options.plugin, limit)
        yield Prober(executor.ask, plan, stack.enter_context(shared_book(options.root))), limit


def probe_one(prober: Prober, config: TrialConfig, limit_bytes: int) -> ProbeReport:
    """Probes the shape of ``config`` alone."""
    return ProbeReport(shape_of(config).text, prober.probe(config, _TIMED_SECONDS), limit_bytes)


def probe_sizes(prober: Prober, config: TrialConfig, limit_bytes: int, hear: Hear) -> ProbeReport:
    """Probes the shape of ``config``, then other micro batches, then accumulation; ``hear`` gets every probe.

    Raises:
        ProbeFailedError: a probe failed for another reason than memory.
    """
    first = probe_one(prober, config, limit_bytes)
    hear(first.probe)
    if first.probe.num_train is None:
        raise ProbeFailedError(f"the probe ended as {first.probe.outcome}: {first.probe.error or ''}")

    def try_size(size: int) -> ProbeRecord:
        if size == first.probe.micro_batch:
            return first.probe
        hear(probe := prober.probe(with_micro(config, size), _TIMED_SECONDS))
        return probe

    search = search_micro(try_size, first.probe.num_train)
    splits = tuple(_split_steps(prober, config, search.knee or 0))
    return replace(first, search=search, splits=splits)


def _split_steps(prober: Prober, config: TrialConfig, global_batch: int) -> Iterator[SplitStep]:
    """The same global batch, about the throughput knee, whole and in parts."""
    global_batch -= global_batch % max(ACCUMULATIONS)
    for accumulation in ACCUMULATIONS if global_batch else ():
        micro = global_batch // accumulation
        ending = prober.time_steps(with_micro(config, micro, accumulation), _TIMED_SECONDS)
        if ending.outcome == "complete":
            measured = ending.measurements
            yield SplitStep(
                accumulation, micro, float(measured["step_seconds_median"]), int(measured["peak_memory_bytes"])
            )


def _plain(probe: ProbeRecord) -> dict[str, Any]:
    return vars(probe) | {
        "quality_flags": ",".join(probe.quality_flags),
        "probed_at": probe.probed_at.isoformat() if probe.probed_at else None,
    }
