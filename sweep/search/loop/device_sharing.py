"""Concurrent trials on one device: how many, and the solo probes of the times that they cannot measure.

Time and memory depend on the shape alone, and accuracy does not depend on them. So every shape of the study is first
probed alone, and then trials are trained for their accuracy, several at once.
"""

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sweep.analysis.costs import list_references
from sweep.config.data_sections import BudgetSection
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig
from sweep.executors.packed.packed_executor import PackedExecutor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.table import ExecutorSettings
from sweep.probing.shape import NO_SHAPE, make_probed_config
from sweep.records.messages import Ending, TrialTask
from sweep.search.study_forecast import Forecaster, select_shapes

_MAX_PROBES = 64  # of one study
_MAX_PER_DEVICE = 16
_MAX_POINTS = 4096  # of the space, of which the shapes are listed
_PROBE_SECONDS = 1.0
_TRIAL_SECONDS = 1.5  # of the short trainings whose throughput is compared
_LIMIT_SECONDS = 120.0  # of a short training, with its setup
_MIN_GAIN = 1.05  # in throughput; a smaller one may be noise
_PROBED = frozenset({"train_seconds", "peak_memory_bytes"})

_log = logging.getLogger(__name__)


def check_device_sharing(spec: StudySpec) -> None:
    """Raises ``InputError`` where a trial that shares its device would have to measure more than its accuracy, or too
    many shapes would have to be probed."""
    measured = [name for name in spec.objectives if METRICS[name].is_of_a_device and name not in _PROBED]
    if measured:
        probed = ", ".join(sorted(_PROBED))
        raise _refusal(f"objectives: {', '.join(measured)} would be that of a shared device; probes give only {probed}")
    if spec.trial_timeout is not None:
        raise _refusal(f"trial_timeout = {spec.trial_timeout:g} s: concurrent trials slow each other down")
    for config in spec.corners.of("batch", "budget", "distributed"):
        _check_config(config)
    list_shapes(spec)


def _check_config(config: TrialConfig) -> None:
    if config.budget.seconds is not None:
        raise _refusal("budget.seconds: what a trial trains in them depends on the other trials")
    if config.batch.is_auto:
        raise _refusal("batch.micro = 'auto': what fits depends on the other trials")
    if config.batch.schedule != "constant":
        raise _refusal(f"batch.schedule = {config.batch.schedule!r}: a probe is of one batch size")
    if config.distributed.world_size > 1:
        raise _refusal(f"distributed.world_size = {config.distributed.world_size}: a probe is of one rank")


def _refusal(reason: str) -> InputError:
    return InputError(f"{reason}; change that, or train one trial at a time with --per-device 1.")


def share_devices(
    spec: StudySpec,
    packed: PackedExecutor,
    forecaster: Forecaster,
    environment: Mapping[str, str],
    settings: ExecutorSettings,
) -> None:
    """Probes every shape of ``spec``, then lets ``packed`` train as many trials at once on each device as ``settings``
    request; where they leave it open, as many as give the highest throughput of short trials.

    Raises:
        InputError: too many shapes, or too little memory for what is requested.
    """
    configs = list_shapes(spec)
    for config in configs:
        probe = forecaster.prober.find(config) or forecaster.prober.probe(config, _PROBE_SECONDS)
        if probe.is_complete and not list_references([probe]).seconds:  # a second one may be undisturbed
            probe = forecaster.prober.probe(config, _PROBE_SECONDS)
        forecaster.cost_model.add(probe)
    largest = max(_count_reserved_bytes(config, forecaster) for config in configs)
    most = max(1, min(_MAX_PER_DEVICE, forecaster.memory_room.count_processes(largest)))
    if settings.per_device is not None and settings.per_device > most:
        raise InputError(
            f"--per-device {settings.per_device}: the largest trial leaves room for {most} at once; lower it, or the "
            "largest batch.micro of the space."
        )
    process = packed.process
    environment = environment if _works_in(process, environment) else {}
    task = TrialTask(number=0, config=_short_config(configs, forecaster), measure_costly=False)
    best = settings.per_device or choose_concurrency(
        lambda count: measure_throughput(process, task, count, environment), most
    )
    packed.pack(
        best,
        forecaster.device_class,
        lambda config: forecaster.cost_model.predict_peak_memory_bytes(config) is not None,
        environment,
    )


def list_shapes(spec: StudySpec) -> list[TrialConfig]:
    """One configuration for each shape in the space of ``spec``; of a range, its ends and its middle.

    Raises:
        InputError: there are more than can be probed.
    """
    axes = {path: _probed_values(parameter) for path, parameter in spec.space.items() if path not in NO_SHAPE}
    points = itertools.product(*axes.values())
    configs = [spec.corners.at(dict(zip(axes, point, strict=True))) for point in itertools.islice(points, _MAX_POINTS)]
    shapes = select_shapes(configs)
    if len(shapes) > _MAX_PROBES or next(points, None) is not None:
        raise _refusal(f"{len(shapes)} shapes or more would have to be probed first, at most {_MAX_PROBES} can be")
    return shapes


def _probed_values(parameter: Parameter) -> list[Scalar]:
    if parameter.choice is not None or parameter.log2 is not None:
        return list(parameter.grid_values or ())
    return list(dict.fromkeys([*parameter.extremes(), parameter.at(0.5)]))


def choose_concurrency(images_per_second: Callable[[int], float], most: int) -> int:
    """The number of concurrent trials, of 1, 2, 4 ... up to ``most``, with the highest throughput: the first after
    which there is no gain."""
    best, best_rate, number = 1, images_per_second(1), 2
    while number <= most and (rate := images_per_second(number)) > _MIN_GAIN * best_rate:
        best, best_rate, number = number, rate, 2 * number
    _log.info("%d concurrent trials on each device train %.0f images/s", best, best_rate)
    return best


def measure_throughput(
    process: ProcessExecutor, task: TrialTask, per_device: int, environment: Mapping[str, str]
) -> float:
    """Images per second of as many copies of ``task`` as there are slots, from the first step of all to the last; 0
    where one of them fails."""
    process.divide(per_device, environment if per_device > 1 else {})
    num_copies = process.slots
    for copy in range(num_copies):
        process.start(replace(task, number=-1 - copy))
    endings: list[Ending] = []
    deadline = time.monotonic() + _LIMIT_SECONDS
    while len(endings) < num_copies and time.monotonic() < deadline:
        endings += [message for _, message in process.poll(1.0) if isinstance(message, Ending)]
    for copy in range(num_copies):
        process.stop(-1 - copy)
    return _total_rate(endings) if len(endings) == num_copies else 0.0


def _total_rate(endings: list[Ending]) -> float:
    if any(ending.outcome != "complete" or not ending.training_spans for ending in endings):
        return 0.0
    spans = [span for ending in endings for span in ending.training_spans]
    images = sum(ending.measurements["images_per_second"] * ending.measurements["train_seconds"] for ending in endings)
    return float(images) / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def _count_reserved_bytes(config: TrialConfig, forecaster: Forecaster) -> int:
    # by its probe, what the allocator of a GPU had taken, with the images; on a CPU, what its tensors hold
    probe = forecaster.prober.find(make_probed_config(config))
    reserved = probe.reserved_memory_bytes if probe else None
    return reserved or forecaster.cost_model.predict_peak_memory_bytes(config) or 0


def _short_config(configs: list[TrialConfig], forecaster: Forecaster) -> TrialConfig:
    """The configuration of median training time, with a short budget."""
    seconds = [(forecaster.cost_model.predict_seconds(config) or 0.0, index) for index, config in enumerate(configs)]
    config = configs[sorted(seconds)[len(seconds) // 2][1]]
    return config.model_copy(update={"budget": BudgetSection(seconds=_TRIAL_SECONDS)})


def _works_in(process: ProcessExecutor, environment: Mapping[str, str]) -> bool:
    """Whether a process finds its device in ``environment``."""
    if not environment:
        return True
    process.divide(1, environment)
    try:
        process.describe()
    except (RuntimeError, ValueError) as error:
        _log.warning(
            "the GPU cannot be shared by its service, so that trials on it take turns, which is slower: %s", error
        )
        return False
    return True
