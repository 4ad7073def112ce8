"""Estimates the peak memory of a configuration before it is trained.

One optimizer step, equal to the warm-up step of a trial, is traced with fake tensors by torch's MemTracker; on a CPU
each operation that may be the peak is run once on zeros for its scratch memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple, Self, cast, final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from sweep.config.errors import InputError, describe_unknown
from sweep.config.sections import BatchSection, BudgetSection
from sweep.config.tables import DataFacts, ImageShape
from sweep.config.trial import TrialConfig
from sweep.measurement.device import resolve_device
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.probing.scratch_memory import Operation, find_operation, measure_scratch
from sweep.records.messages import Ending, EstimateTask, Message
from sweep.training.budget import BatchSchedule
from sweep.training.constants import READY_PIXELS
from sweep.training.data.feeders import Batch
from sweep.training.data.sources import check_device, find_facts
from sweep.training.data.windows import cut_windows
from sweep.training.models.build import build_model
from sweep.training.models.resnets import find_batch_norms
from sweep.training.optimizers import ForeachOptimizer, build_optimizer
from sweep.training.precision import arrange_model, make_precision
from sweep.training.step import Normalize, Step, set_lr
from sweep.training.world import World

_LABEL_BYTES = 8
_DEVICE_TYPES = frozenset({"cpu", "cuda"})
_CPU = torch.device("cpu")  # of all fake tensors: those of a GPU cannot go backward without one
_MOST_SCRATCH = 12  # times the arguments of an operation: unfolded images are 9 times as large for a 3 x 3 kernel
_KEPT = 256  # traces: a study has many configurations of one shape
# Optimizer steps that hold nothing more than they are given; torch has no fake kernel for some, and would run them.
_IN_PLACE = frozenset({"aten::_fused_sgd_", "aten::_fused_adam_", "aten::_fused_adamw_"})


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes at the moment when most is held, by category."""

    parameter_bytes: int  # weights, buffers and, where one is kept, their moving average
    gradient_bytes: int  # of the parameters
    optimizer_bytes: int  # its state
    activation_bytes: int  # of the forward pass, the images included
    temporary_bytes: int  # of the backward pass and of the optimizer's step
    scratch_bytes: int  # inside operations, not in tensors
    unmeasured_operations: int = 0  # whose scratch memory could not be measured and is not included

    @property
    def peak_memory_bytes(self) -> int:
        """What a trial of the configuration would record: the sum of all."""
        return sum(value for name, value in asdict(self).items() if name.endswith("_bytes"))


def estimate_memory(config: TrialConfig, *, device_type: str = "cpu", facts: DataFacts | None = None) -> MemoryEstimate:
    """The peak memory of ``config`` on a device of ``device_type`` (cpu, cuda), on each rank. Needs no such device.

    A micro batch of "auto" is taken to be the whole global batch, which is an upper bound. A compiled model is taken to
    hold what it holds without the compiler, which is often more. Of a GPU's libraries only the persistent workspace of
    cuBLAS is counted. Without ``facts`` of the data set it is looked at.

    Raises:
        InputError: for an unknown device type; a model, a data set or a precision that is not available; a model or an
            optimizer that cannot be traced without values.
    """
    if device_type not in _DEVICE_TYPES:
        raise InputError(describe_unknown("device type", device_type, _DEVICE_TYPES))
    check_device(config, device_type)
    facts = facts or find_facts(config.data)
    sizes, ready = find_micro_sizes(config, facts.num_train), _is_ready(config, facts)
    estimate = _trace_step(_essence(config), facts.shape, sizes, ready, device_type, torch.get_num_threads())
    if device_type == "cpu":
        return estimate
    copy_bytes = 0
    if ready:  # a small set is reordered once an epoch; the copy is made after the resident set was subtracted
        value_bytes = 8 if config.precision.dtype == "fp64" else 4
        num_values = facts.shape.channels * facts.shape.side**2
        copy_bytes = facts.num_train * (num_values * value_bytes + _LABEL_BYTES)
    return replace(
        estimate,
        activation_bytes=estimate.activation_bytes + copy_bytes,
        scratch_bytes=estimate.scratch_bytes + _library_bytes(),
    )


def run_estimate(task: EstimateTask) -> Iterator[Message]:
    """One :class:`Ending` with the estimated ``peak_memory_bytes`` and its parts; ``crashed`` without one."""
    try:
        estimate = estimate_memory(task.config, device_type=resolve_device(task.device).type, facts=task.facts)
    except (InputError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        yield Ending(outcome="crashed", error=f"{type(error).__name__}: {error}")
        return
    yield Ending(outcome="complete", measurements={"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)})


def _library_bytes() -> int:
    # The workspace that torch gives cuBLAS with the first matrix product and never releases: two pieces of 4 MiB and
    # eight of 16 KiB, from Hopper (capability 9) on 32 MiB. Without a GPU it is taken to be that of Hopper.
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 32 * 2**20 if capability >= (9, 0) else 2 * 4 * 2**20 + 8 * 16 * 2**10


# ---------------------------------------------------------------------- what a step holds, operation by operation


class HeldBytes(NamedTuple):
    """Bytes that are held at one moment, by category."""

    parameter_bytes: int  # weights and buffers
    gradient_bytes: int
    optimizer_bytes: int  # state and, while the optimizer steps, its temporaries
    activation_bytes: int
    temporary_bytes: int  # of the backward pass

    @property
    def total(self) -> int:
        return sum(self)


@contextmanager
def use_fake_tensors() -> Iterator[None]:
    """Every tensor that is made inside has a shape, a dtype and a memory layout, and no memory."""
    with FakeTensorMode(allow_fallback_kernels=False), _Replacement(_IN_PLACE, None):
        yield


@final
class _Replacement(TorchDispatchMode):
    """The named operations do nothing and return ``result``."""

    def __init__(self, names: frozenset[str], result: int | None) -> None:
        super().__init__()
        self._names, self._result = names, result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self._result if func.name() in self._names else func(*args, **(kwargs or {}))


def _convert_frozen_to_buffers(model: nn.Module) -> None:
    """Makes buffers of the parameters that are not trained; the tracker requires a gradient of every parameter."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.detach())


@final
class _Tracker(MemTracker):
    def _update_peak_stats(self, peak_state: Any) -> None:
        """Skips the peak of each module after each operation, which is not used and takes most of the time."""


@final
class StepTracker(TorchDispatchMode):
    """A context for one optimizer step of fake tensors; afterwards ``worst`` has, for each distinct operation, what is
    held at most when it ends, its result included; under None, that of all others.

    ``model`` and ``optimizer`` are held from the beginning; ``uncounted`` tensors exist and count nowhere.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, uncounted: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self._tracker = _Tracker()
        self._tracker.track_external(model, optimizer, *uncounted)
        self.worst: dict[Operation | None, HeldBytes] = {}

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        super().__enter__()  # entered last, so it is called first and passes everything on
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._tracker.__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        held, operation = self._read_held(), find_operation(func, args, kwargs or {})
        if operation not in self.worst or held.total > self.worst[operation].total:
            self.worst[operation] = held
        return result

    def begin_micro_batch(self) -> None:
        """To be called before each; otherwise the tracker treats the model's second call as an error."""
        self._tracker.reset_mod_stats()

    def _read_held(self) -> HeldBytes:
        # Only the CPU's fake tensors are tracked, and none are left at the very beginning and end.
        (snapshot,) = self._tracker.get_tracker_snapshot().values() or ({},)
        held = {getattr(key, "value", key): num_bytes for key, num_bytes in snapshot.items()}
        buffers, *others = (held.get(name, 0) for name in ("Buffer", "Gradient", "Optstate", "Activation", "Temp"))
        return HeldBytes(held.get("Parameter", 0) + buffers, *others)


# ---------------------------------------------------------------------- the step, equal to a trial's warm-up step


class MicroSizes(NamedTuple):
    """Samples of the step's one or two micro batches, on the rank that has most."""

    plain: tuple[int, ...]
    with_statistics: tuple[int, ...]  # batch normalization requires two samples or more


def find_micro_sizes(config: TrialConfig, num_train: int) -> MicroSizes:
    """The micro batches of the largest step of a training, of which a warm-up step has two."""
    ranks, is_auto = config.distributed.world_size, config.batch.is_auto
    micro = 1 if is_auto else config.micro_batch * ranks
    largest = BatchSchedule(config.batch, config.global_batch_size, micro).largest

    def of_window(least: int) -> tuple[int, ...]:
        samples = min(num_train, largest + least)  # later samples change nothing
        window = cut_windows(0, samples, lambda _windows, _samples: largest, samples if is_auto else micro, least)[0]
        return tuple(-(-(part.stop - part.start) // ranks) for part in window.slices[:2])

    return MicroSizes(of_window(1), of_window(2 * ranks))


def _is_ready(config: TrialConfig, facts: DataFacts) -> bool:
    """Whether the whole split is kept normalized, so that a batch is a view of it."""
    recipe, is_resident = config.regularization, config.data.placement == "device"
    is_fixed = config.data.augment == "none" and not recipe.mixup and not recipe.cutmix
    return is_resident and is_fixed and facts.num_train * facts.shape.side**2 <= READY_PIXELS


def _essence(config: TrialConfig) -> TrialConfig:
    # Fields that change no tensor's size are left out, so that a trace is reused.
    has_decay = config.optimizer.weight_decay > 0  # makes separate parameter groups
    optimizer = config.optimizer.model_copy(update={"lr": 1.0, "weight_decay": float(has_decay)})
    model = config.model.model_copy(update={"weights": None})
    batch = BatchSection(micro=1, accumulation=2, schedule=config.batch.schedule)
    changes = {"optimizer": optimizer, "model": model, "batch": batch, "budget": BudgetSection(), "seed": 0}
    return config.model_copy(update=changes)


@lru_cache(maxsize=_KEPT)
def _trace_step(
    config: TrialConfig, shape: ImageShape, sizes: MicroSizes, is_ready: bool, device_type: str, num_threads: int
) -> MemoryEstimate:
    """What one step of ``config`` holds at most; for a GPU without the scratch memory of operations."""
    del num_threads  # scratch memory depends on it
    with use_fake_tensors():
        step = _make_step(config, shape)
        if config.precision.dtype == "fp16" and isinstance(step.optimizer, ForeachOptimizer):
            step.optimizer.found_inf = torch.zeros(())  # by which it keeps copies of weights and state for a moment
        if device_type == "cuda" and step.precision.autocast:
            _widen_norms(step.model)
        with _explain_values(f"optimizer {config.optimizer.name}"):
            state_bytes = _fill_state(step)
        counts = sizes.with_statistics if find_batch_norms(step.model) else sizes.plain
        ready = tuple(_ready_images(config, shape, size) for size in counts) if is_ready else ()
        tracker = StepTracker(step.model, step.optimizer, ready)
        step = replace(step, forward=_announce_calls(step.model, tracker))
        with _explain_values(f"model {config.model.name}"), tracker:
            step(_batches(config, shape, counts, ready), sum(counts))
        # The moving average of the weights changes nothing else, so it is not traced.
        has_average = bool(config.regularization.ema_decay)
        average_bytes = _bytes([*step.model.parameters(), *step.model.buffers()]) if has_average else 0
    held, scratch_bytes, num_unmeasured = _find_worst(tracker.worst, has_scratch=device_type == "cpu")
    # During the optimizer's step the tracker counts its temporaries with its state.
    passing = max(0, held.optimizer_bytes - state_bytes)
    return MemoryEstimate(
        parameter_bytes=held.parameter_bytes + average_bytes,
        gradient_bytes=held.gradient_bytes,
        optimizer_bytes=held.optimizer_bytes - passing,
        activation_bytes=held.activation_bytes,
        temporary_bytes=held.temporary_bytes + passing,
        scratch_bytes=scratch_bytes,
        unmeasured_operations=num_unmeasured,
    )


def _find_worst(worst: Mapping[Operation | None, HeldBytes], *, has_scratch: bool) -> tuple[HeldBytes, int, int]:
    """What is held when most is, the scratch memory of that moment, and how many operations that could hold more were
    not measured."""
    best, best_scratch, num_unmeasured = HeldBytes(0, 0, 0, 0, 0), 0, 0
    for operation, held in sorted(worst.items(), key=lambda item: -item[1].total):
        # operations that cannot become the peak are not measured
        most = _MOST_SCRATCH * operation.num_bytes if operation is not None and has_scratch else 0
        if held.total + most > best.total + best_scratch:
            measured = measure_scratch(operation) if operation is not None and has_scratch else 0
            num_unmeasured += measured is None
            scratch = measured or 0
            if held.total + scratch > best.total + best_scratch:
                best, best_scratch = held, scratch
    return best, best_scratch, num_unmeasured


@contextmanager
def _explain_values(subject: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a plug-in may raise anything; fake tensors have no values
        reason = str(error).partition("\n")[0]
        raise InputError(f"the memory of {subject} cannot be forecast without computing: {reason}") from None


def _make_step(config: TrialConfig, shape: ImageShape) -> Step:
    # TF32 and CUDA graphs change no size here.
    section = config.precision.model_copy(update={"cuda_graphs": False})
    if section.dtype == "tf32":
        section = section.model_copy(update={"dtype": "fp32"})
    # A loss scaler would read values.
    precision = replace(make_precision(section, _CPU), scaler=None)
    # Fake parameters cannot be converted, and some initializations of weights read values, which are 0 here.
    read_zeros = _Replacement(frozenset({"aten::_local_scalar_dense"}), 0)
    with _default_dtype(precision.weights), read_zeros:
        model = arrange_model(build_model(config.model, shape), section)
    _convert_frozen_to_buffers(model)
    levels = torch.ones(shape.channels, 1, 1, dtype=precision.weights)
    return Step(
        forward=model,
        model=model,
        optimizer=build_optimizer(config, model),
        normalize=Normalize(levels, levels, section.channels_last),
        precision=precision,
        regularization=config.regularization,
        world=World(0, config.distributed.world_size),
        noise=_noise_meter(config, model),
    )


def _noise_meter(config: TrialConfig, model: nn.Module) -> NoiseMeter | None:
    if not config.diagnostics.noise_scale and config.batch.schedule != "noise_scale":
        return None
    meter = NoiseMeter(model.parameters(), model.buffers())
    meter.reset()  # as after the first steps, so that the halves of the next one are not measured
    return meter


def _widen_norms(model: nn.Module) -> None:
    # Autocast on a GPU runs these norms in 32 bits; on a CPU they keep the format of their input.
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.register_forward_pre_hook(lambda _module, inputs: tuple(item.float() for item in inputs))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _fill_state(step: Step) -> int:
    # Allocates the optimizer's state before the traced step; returns its bytes.
    for group in step.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    set_lr(step.optimizer, 0.0)
    step.optimizer.step()
    step.clear_gradients()
    values = (value for entry in step.optimizer.state.values() for value in entry.values())
    return _bytes(value for value in values if isinstance(value, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _announce_calls(model: nn.Module, tracker: StepTracker) -> Callable[[Tensor], Tensor]:
    # A micro batch begins with the call, not where it is made: with several ranks the next one is made before.
    def forward(images: Tensor) -> Tensor:
        tracker.begin_micro_batch()
        return cast(Tensor, model(images))

    return forward


def _batches(
    config: TrialConfig, shape: ImageShape, sizes: tuple[int, ...], ready: tuple[Tensor, ...]
) -> Iterator[Batch]:
    is_mixed = config.regularization.mixup or config.regularization.cutmix
    for index, size in enumerate(sizes):
        images = ready[index] if ready else torch.empty(size, shape.side, shape.side, shape.channels, dtype=torch.uint8)
        labels = torch.empty(size, shape.num_classes) if is_mixed else torch.empty(size, dtype=torch.int64)
        yield images, labels


def _ready_images(config: TrialConfig, shape: ImageShape, size: int) -> Tensor:
    layout = torch.channels_last if config.precision.channels_last else torch.contiguous_format
    dtype = torch.float64 if config.precision.dtype == "fp64" else torch.float32
    return torch.empty(size, shape.channels, shape.side, shape.side, dtype=dtype, memory_format=layout)
