"""How many trials share a device, and what stands in their records in place of what they cannot measure.

Time and memory depend on the shape alone, and accuracy on everything but them. So every shape of the study is probed
alone first, and then trials are trained for their accuracy, several at once.
"""

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sweep.config.data_sections import BudgetSection
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig
from sweep.executors.packed.packed_executor import PackedExecutor, Quote
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.probing.shape import NO_SHAPE, probed_config
from sweep.records.messages import Ending, TrialTask
from sweep.search.forecast.forecaster import Forecaster
from sweep.search.forecast.probe_selection import one_a_shape
from sweep.search.forecast.trial_cost import CostModel

MAX_PROBES = 64  # of one study
MOST = 16  # trials on one device
_MAX_POINTS = 4096
_PROBE_SECONDS = 1.0
_TRIAL_SECONDS = 1.5
_LIMIT_SECONDS = 120.0  # of a short training, with all that comes before it
_WORTHWHILE = 1.05  # times the images of one at a time, from which sharing is no noise
_PROCESS_BYTES = 600 * 2**20  # that a process takes beside its allocator: a CUDA context, or torch's libraries
_PROBED = frozenset({"train_seconds", "peak_memory_bytes"})

_log = logging.getLogger(__name__)


def check_packing(spec: StudySpec) -> None:
    """Raises ``InputError`` where a trial that shares its device would measure more than its accuracy, or too much
    would have to be probed."""
    measured = [name for name in spec.objectives if METRICS[name].is_of_a_device and name not in _PROBED]
    if measured:
        known = ", ".join(sorted(_PROBED))
        raise _refusal(f"objectives: {', '.join(measured)} would be that of a shared device; probes tell {known} alone")
    if spec.trial_timeout is not None:
        raise _refusal(f"trial_timeout = {spec.trial_timeout:g} s: how long a trial takes beside others says nothing")
    anywhere = next(spec.corners())
    for values in spec.corners("batch", "budget", "distributed"):
        _check_config(spec.config(anywhere | values))
    shapes_of(spec)


def _check_config(config: TrialConfig) -> None:
    if config.budget.seconds is not None:
        raise _refusal("budget.seconds: how far a trial gets in them depends on its neighbours")
    if config.batch.micro == "auto":
        raise _refusal("batch.micro = 'auto': what fits depends on the neighbours")
    if config.batch.schedule != "constant":
        raise _refusal(f"batch.schedule = {config.batch.schedule!r}: a probe is of one batch size")
    if config.distributed.world_size > 1:
        raise _refusal(f"distributed.world_size = {config.distributed.world_size}: a probe is of one rank")


def _refusal(what: str) -> InputError:
    return InputError(f"{what}; change that, or train one trial at a time with --per-device 1.")


def pack(
    spec: StudySpec,
    packed: PackedExecutor,
    foresight: Forecaster,
    environment: Mapping[str, str],
    wanted: int | None,
) -> int:
    """Probes every shape of ``spec``, then has ``packed`` train ``wanted`` trials at once on each device; None: as many
    as a short trial shows to be best. Returns their number.

    Raises:
        InputError: too many shapes, or not memory enough for ``wanted``.
    """
    configs = shapes_of(spec)
    for config in configs:
        foresight.costs.add(foresight.prober.find(config) or foresight.prober.probe(config, _PROBE_SECONDS))
    most = _most(configs, foresight)
    if wanted is not None and wanted > most:
        raise InputError(
            f"--per-device {wanted}: the largest trial leaves room for {most} at once; lower it, or the largest "
            "batch.micro of the space."
        )
    process = packed.process
    environment = environment if _works(process, environment) else {}
    task = TrialTask(number=0, config=_short(_typical(configs, foresight.costs)), measure_sharpness=False)
    best = wanted or best_number(lambda count: together(process, task, count, environment), most)
    packed.pack(best, lambda config: quote(config, foresight), environment)
    return best


def shapes_of(spec: StudySpec) -> list[TrialConfig]:
    """One configuration for each shape that ``spec`` can ask for; of a range, its ends and its middle.

    Raises:
        InputError: more than ``MAX_PROBES``.
    """
    axes = {path: _values(parameter) for path, parameter in spec.space.items() if path not in NO_SHAPE}
    anywhere = next(spec.corners())
    points = itertools.product(*axes.values())
    configs = [
        spec.config(anywhere | dict(zip(axes, point, strict=True))) for point in itertools.islice(points, _MAX_POINTS)
    ]
    shapes = one_a_shape(configs)
    if len(shapes) > MAX_PROBES or next(points, None) is not None:
        raise _refusal(f"{len(shapes)} shapes or more would be probed alone first, {MAX_PROBES} at most")
    return shapes


def _values(parameter: Parameter) -> list[Scalar]:
    if parameter.choice is not None or parameter.log2 is not None:
        return list(parameter.grid_values or ())
    return list(dict.fromkeys([*parameter.extremes(), parameter.at(0.5)]))


def quote(config: TrialConfig, foresight: Forecaster) -> Quote:
    """What the probes tell of ``config``."""
    epoch = config.model_copy(update={"budget": BudgetSection(epochs=1.0)})
    cost = foresight.costs.predict(epoch)
    probe = foresight.prober.find(probed_config(config))
    return Quote(
        None if cost is None or cost.is_guess else cost.train_seconds,
        foresight.costs.predict_peak_memory_bytes(config),
        foresight.device_class,
        probe.quality_flags if probe else (),
    )


def best_number(images_per_second: Callable[[int], float], most: int) -> int:
    """Of 1, 2, 4 ... trials at once, at most ``most``, the number that trains most images together; the first after
    which there is no gain."""
    best, best_rate, number = 1, images_per_second(1), 2
    while number <= most and (rate := images_per_second(number)) > _WORTHWHILE * best_rate:
        best, best_rate, number = number, rate, 2 * number
    _log.info("%d trials at once on each device train %.0f images/s", best, best_rate)
    return best


def together(process: ProcessExecutor, task: TrialTask, per_device: int, environment: Mapping[str, str]) -> float:
    """Images a second of as many copies of ``task`` as fit, all together, from the first step to the last; 0 where one
    fails."""
    process.divide(per_device, environment if per_device > 1 else {})
    for copy in range(process.slots):
        process.start(replace(task, number=-1 - copy))
    endings: list[Ending] = []
    deadline = time.monotonic() + _LIMIT_SECONDS
    num_copies = process.slots
    while len(endings) < num_copies and time.monotonic() < deadline:
        endings += [said for _, said in process.poll(1.0) if isinstance(said, Ending)]
    for copy in range(num_copies):
        process.stop(-1 - copy)
    return _rate(endings) if len(endings) == num_copies else 0.0


def _rate(endings: list[Ending]) -> float:
    if any(ending.outcome != "complete" or not ending.training_spans for ending in endings):
        return 0.0
    spans = [span for ending in endings for span in ending.training_spans]
    images = sum(ending.measurements["images_per_second"] * ending.measurements["train_seconds"] for ending in endings)
    return float(images) / (max(end for _, end in spans) - min(begin for begin, _ in spans))


def _most(configs: list[TrialConfig], foresight: Forecaster) -> int:
    peaks = [foresight.costs.predict_peak_memory_bytes(config) for config in configs]
    largest = max((peak for peak in peaks if peak is not None), default=0)
    return max(1, min(MOST, foresight.gate.limit_bytes // (largest + _PROCESS_BYTES)))


def _typical(configs: list[TrialConfig], costs: CostModel) -> TrialConfig:
    """The one whose training takes the middle of the time."""
    known = [(costs.predict_seconds(config) or 0.0, index) for index, config in enumerate(configs)]
    return configs[sorted(known)[len(known) // 2][1]]


def _short(config: TrialConfig) -> TrialConfig:
    return config.model_copy(update={"budget": BudgetSection(seconds=_TRIAL_SECONDS)})


def _works(process: ProcessExecutor, environment: Mapping[str, str]) -> bool:
    """Whether a process finds its device in ``environment``."""
    if not environment:
        return True
    process.divide(1, environment)
    try:
        process.describe()
    except (RuntimeError, ValueError) as error:
        _log.warning("the GPU cannot be shared as it should, trials take turns: %s", error)
        return False
    return True
