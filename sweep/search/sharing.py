"""Concurrent trials on one device: whether they fit, and the solo probes of the times that they cannot measure.

Time and memory depend on the shape alone, and accuracy does not depend on them. So every shape of the study is first
probed alone, and then trials are trained for their accuracy, several at once.
"""

import itertools

from sweep.analysis.costs import list_references
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial import Scalar, TrialConfig
from sweep.executors.packed import PackedExecutor
from sweep.probing.cost_model import CostModel
from sweep.probing.shape import NO_SHAPE, make_probed_config
from sweep.search.study_forecast import Forecaster, select_shapes

_MAX_PROBES = 64  # of one study
_MAX_PER_DEVICE = 16
_MAX_POINTS = 4096  # points of the space whose shapes are listed
_PROBE_SECONDS = 1.0
_PROBED = frozenset({"train_seconds", "peak_memory_bytes"})


def check_device_sharing(spec: StudySpec) -> None:
    """Raises ``InputError`` where a trial that shares its device would have to measure more than its accuracy, or too
    many shapes would have to be probed."""
    measured = [name for name in spec.objectives if METRICS[name].is_of_a_device and name not in _PROBED]
    if measured:
        probed = ", ".join(sorted(_PROBED))
        shared = ", ".join(measured)
        raise _refusal(f"objectives: {shared} would be measured on a shared device; probes give only {probed}")
    if spec.trial_timeout is not None:
        raise _refusal(f"trial_timeout = {spec.trial_timeout:g} s: concurrent trials slow each other down")
    for config in spec.corners.of("batch", "budget", "distributed"):
        unsuited = {
            "budget.seconds": config.budget.seconds is not None,
            "batch.micro = 'auto'": config.batch.is_auto,
            f"batch.schedule = {config.batch.schedule!r}": config.batch.schedule != "constant",
            f"distributed.world_size = {config.distributed.world_size}": config.distributed.world_size > 1,
        }
        if names := [name for name, is_set in unsuited.items() if is_set]:
            raise _refusal(f"{names[0]}: a solo probe of one shape on one rank cannot stand for such a trial")
    list_shapes(spec)


def _refusal(reason: str) -> InputError:
    return InputError(f"{reason}; change that, or train one trial at a time with per_device = 1.")


def share_devices(spec: StudySpec, packed: PackedExecutor, forecaster: Forecaster, per_device: int) -> None:
    """Probes every shape of ``spec``, then lets ``packed`` train as many trials at once on each device as requested.
    Raises ``InputError``: too many shapes, or too little memory for what is requested."""
    configs, cost_model = list_shapes(spec), forecaster.cost_model
    assert isinstance(cost_model, CostModel), "a script has no shapes"
    for config in configs:
        probe = forecaster.prober.find(config) or forecaster.prober.probe(config, _PROBE_SECONDS)
        if probe.is_complete and not list_references([probe]):  # a second one may be undisturbed
            probe = forecaster.prober.probe(config, _PROBE_SECONDS)
        cost_model.add(probe)
    largest = max(_count_reserved_bytes(config, forecaster) for config in configs)
    most = max(1, min(_MAX_PER_DEVICE, forecaster.memory_room.count_processes(largest)))
    if per_device > most:
        raise InputError(
            f"per_device = {per_device}: the largest trial leaves room for {most} at once; lower it, or the largest "
            "batch.micro of the space."
        )
    packed.pack(
        per_device,
        forecaster.device_class,
        lambda config: cost_model.predict_peak_memory_bytes(config) is not None,
    )


def list_shapes(spec: StudySpec) -> list[TrialConfig]:
    """One configuration for each shape in the space of ``spec``; for a range, its ends and its middle. Raises
    ``InputError``: there are more than can be probed."""
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


def _count_reserved_bytes(config: TrialConfig, forecaster: Forecaster) -> int:
    """What the allocator of a GPU had taken in the probe of ``config``, with the images; on a CPU what tensors hold."""
    probe = forecaster.prober.find(make_probed_config(config))
    reserved = probe.reserved_memory_bytes if probe else None
    return reserved or forecaster.cost_model.predict_peak_memory_bytes(config) or 0
