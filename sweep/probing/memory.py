"""Estimates the peak memory of a configuration before it is trained.

One optimizer step, equal to the warm-up step of a trial, is traced with fake tensors by torch's MemTracker; on a CPU
each operation that may be the peak is run once on zeros for its scratch memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
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
from sweep.measurement.memory import record_allocations
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

    parameter_bytes: int = 0  # weights, buffers and, where one is kept, their moving average
    gradient_bytes: int = 0  # of the parameters
    optimizer_bytes: int = 0  # its state
    activation_bytes: int = 0  # of the forward pass, the images included
    temporary_bytes: int = 0  # of the backward pass and of the optimizer's step
    scratch_bytes: int = 0  # inside operations, not in tensors

    @property
    def peak_memory_bytes(self) -> int:
        """What a trial of the configuration would record: the sum of all."""
        return sum(vars(self).values())


def estimate_memory(config: TrialConfig, *, device_type: str = "cpu", facts: DataFacts | None = None) -> MemoryEstimate:
    """The peak memory of ``config`` on a device of ``device_type`` (cpu, cuda), on each rank. Needs no such device.

    A micro batch of "auto" is taken to be the whole global batch, which is an upper bound. A compiled model is taken to
    hold what it holds without the compiler, which is often more. Of a GPU's libraries only the persistent workspace of
    cuBLAS is counted. Without ``facts`` of the data set it is looked at. Raises ``InputError``: for an unknown device
    type; a model, a data set or a precision that is not available; a model or an optimizer that cannot be traced
    without values."""
    if device_type not in _DEVICE_TYPES:
        raise InputError(describe_unknown("device type", device_type, _DEVICE_TYPES))
    check_device(config, device_type)
    facts = facts or find_facts(config.data)
    # the whole split is kept normalized, so that a batch is a view of it
    ready = config.data.placement == "device" and config.data.augment == "none"
    ready &= not config.regularization.mixup and not config.regularization.cutmix
    ready &= facts.num_train * facts.shape.side**2 <= READY_PIXELS
    # batch normalization requires two samples or more on each rank
    sizes = tuple(find_micro_sizes(config, facts.num_train, least) for least in (1, 2 * config.distributed.world_size))
    estimate = _trace_step(_essence(config), facts.shape, sizes, ready, device_type, torch.get_num_threads())
    if device_type == "cpu":
        return estimate
    copy_bytes = 0
    if ready:  # a small set is reordered once an epoch; the copy is made after the resident set was subtracted
        value_bytes = 8 if config.precision.dtype == "fp64" else 4
        num_values = facts.shape.channels * facts.shape.side**2
        copy_bytes = facts.num_train * (num_values * value_bytes + _LABEL_BYTES)
    # The workspace that torch gives cuBLAS with the first matrix product and never releases: two pieces of 4 MiB and
    # eight of 16 KiB, from Hopper (capability 9) on 32 MiB. Without a GPU it is taken to be that of Hopper.
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    library_bytes = 32 * 2**20 if capability >= (9, 0) else 2 * 4 * 2**20 + 8 * 16 * 2**10
    return replace(
        estimate,
        activation_bytes=estimate.activation_bytes + copy_bytes,
        scratch_bytes=estimate.scratch_bytes + library_bytes,
    )


def run_estimate(task: EstimateTask) -> Iterator[Message]:
    """One :class:`Ending` with the estimated ``peak_memory_bytes`` and its parts; ``crashed`` without one."""
    try:
        estimate = estimate_memory(task.config, device_type=resolve_device(task.device).type, facts=task.facts)
    except (InputError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        yield Ending(outcome="crashed", error=f"{type(error).__name__}: {error}")
        return
    yield Ending(outcome="complete", measurements={"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)})


# ---------------------------------------------------------------------- what an operation holds inside, on a CPU

# A library such as oneDNN copies arguments into layouts of its own, sums 16-bit gradients in 32 bits and gives each
# thread a buffer. What it does depends on the processor's instruction set, the number of threads, the number format
# and the layout, and not on the values of tensors, so an operation is run once on zeros. A large one is run with two
# smaller batches and extrapolated by a straight line, because a copy either grows with the batch or does not depend on
# it. Matrices of a product are copied block by block, so its batches are doubled until blocks have their full size.
_LARGE_BYTES = 2**22  # of the arguments; from here on smaller batches are run
_LARGE_HALF_BYTES = 2**19  # of 16-bit floats that many processors have no fast instructions for
_HUGE_BYTES = 2**30  # of the arguments; an operation is not run with more
_BLOCK_BYTES = 2**22  # for each thread: a block fits a cache, so what is larger is a copy of the whole
_FLAT_SHARE = 1 / 64  # of the bytes by which the arguments grow; scratch memory that grows less does not grow
_KEPT_OPERATIONS = 2**12  # measurements: a step has about a hundred different operations
_WITH_BATCH = {"aten::convolution": (0,), "aten::convolution_backward": (0, 1)}  # of others any argument may have one
_LEFT_FACTOR = {"aten::mm": 0, "aten::addmm": 1}  # the argument of matrix products


@dataclass(frozen=True)
class TensorLayout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def make_zeros(self) -> Tensor:
        """A tensor of this layout."""
        is_empty = 0 in self.shape
        length = 0 if is_empty else 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return torch.zeros(length, dtype=self.dtype).as_strided(self.shape, self.stride)

    def resize(self, axis: int, length: int) -> "TensorLayout":
        """The layout with ``length`` elements along ``axis``, in the same order of memory."""
        before = self.shape[axis]
        stride = tuple(step * length // before if step > self.stride[axis] else step for step in self.stride)
        return replace(self, shape=(*self.shape[:axis], length, *self.shape[axis + 1 :]), stride=stride)


class Operation(NamedTuple):
    """A call of one of torch's operators: tensors as layouts, lists as tuples."""

    function: Any  # an overload, as torch.ops.aten.mm.default
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors among its arguments."""
        return sum(item.num_bytes for item in self.arguments if isinstance(item, TensorLayout))


def find_operation(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Operation | None:
    """The call as an :class:`Operation`; None for one that computes nothing new: views, changes in place, foreign
    operators, and operators on lists of tensors."""
    is_new = function.namespace == "aten" and not function.is_view and not function._schema.is_mutable
    if not is_new or not any(isinstance(item, Tensor) and item.ndim for item in arguments):
        return None
    frozen = [_freeze(value) for value in arguments]
    if function.name() == "aten::native_batch_norm_backward" and isinstance(frozen[2], TensorLayout):
        # The fake forward pass gives the saved statistics the format of the images, the real one uses the weights'.
        frozen[5:7] = [replace(statistics, dtype=frozen[2].dtype) for statistics in frozen[5:7]]
    return Operation(function, tuple(frozen), tuple((name, _freeze(value)) for name, value in sorted(keywords.items())))


def measure_scratch(operation: Operation) -> int | None:
    """The most bytes that the CPU allocator holds during ``operation`` beyond its arguments and results; None where it
    cannot be run on zeros, or only with arguments of more than 1 GiB."""
    return _measure(operation, torch.get_num_threads())


@lru_cache(maxsize=_KEPT_OPERATIONS)
def _measure(operation: Operation, num_threads: int) -> int | None:
    axes = _find_batch_axes(operation)
    length, longer = _axis_length(operation, axes), _choose_length(operation, axes, num_threads)
    largest = _largest_length(operation, axes)
    while 2 <= longer < length:
        shorter = longer // 2
        small, large = (_resize(operation, axes, size) for size in (shorter, longer))
        low, high = _run(small), _run(large)
        if low is None or high is None:
            break
        is_flat = abs(high - low) <= _FLAT_SHARE * (large.num_bytes - small.num_bytes)
        is_whole = operation.function.name() not in _LEFT_FACTOR or high >= num_threads * _BLOCK_BYTES
        if is_flat or is_whole or largest < min(2 * longer, length):
            return max(0, high + (high - low) * (length - longer) // (longer - shorter))
        longer *= 2
    return _run(operation)


def _choose_length(operation: Operation, axes: Sequence[tuple[int, int]], num_threads: int) -> int:
    is_half = any(isinstance(item, TensorLayout) and item.dtype == torch.float16 for item in operation.arguments)
    limit = min(_LARGE_BYTES, _LARGE_HALF_BYTES) if is_half else _LARGE_BYTES
    small = _axis_length(operation, axes) * limit // max(1, operation.num_bytes)
    # The size of a copy may depend on whether the batch is smaller than the number of threads.
    return min(max(small, 2 * num_threads), _largest_length(operation, axes))


def _largest_length(operation: Operation, axes: Sequence[tuple[int, int]]) -> int:
    """The longest batch, of at most the operation's own length, with which it may be run."""
    length = _axis_length(operation, axes)
    if operation.num_bytes <= _HUGE_BYTES or not length:
        return length
    fixed = _resize(operation, axes, 0).num_bytes
    return (_HUGE_BYTES - fixed) * length // (operation.num_bytes - fixed)


def _find_batch_axes(operation: Operation) -> list[tuple[int, int]]:
    """Argument and axis of all that grows with the batch; of a matrix product rows or inner axis, the longer one."""
    name, layouts = operation.function.name(), operation.arguments
    if name in _LEFT_FACTOR:
        left = _LEFT_FACTOR[name]
        rows, inner = layouts[left].shape
        return [(left, 0)] if rows >= inner else [(left, 1), (left + 1, 0)]
    batched = {
        index: layouts[index]
        for index in _WITH_BATCH.get(name, range(len(layouts)))
        if isinstance(layouts[index], TensorLayout) and len(layouts[index].shape) > 1
    }
    if not batched:
        return []
    largest = max(batched.values(), key=lambda layout: layout.num_bytes)
    return [(index, 0) for index, layout in batched.items() if layout.shape[0] == largest.shape[0]]


def _axis_length(operation: Operation, axes: Sequence[tuple[int, int]]) -> int:
    return int(operation.arguments[axes[0][0]].shape[axes[0][1]]) if axes else 0


def _resize(operation: Operation, axes: Sequence[tuple[int, int]], length: int) -> Operation:
    arguments = list(operation.arguments)
    for index, axis in axes:
        arguments[index] = arguments[index].resize(axis, length)
    return operation._replace(arguments=tuple(arguments))


def _run(operation: Operation) -> int | None:
    if operation.num_bytes > _HUGE_BYTES:
        return None
    arguments = [_thaw(value) for value in operation.arguments]
    keywords = {name: _thaw(value) for name, value in operation.keywords}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            changes = record_allocations(lambda: operation.function(*arguments, **keywords))
    except Exception:  # each operator raises its own error for zeros or a smaller batch
        return None
    held = list(accumulate(changes, initial=0))
    return max(held) - held[-1]


def _freeze(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorLayout(tuple(value.shape), value.stride(), value.dtype)
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _thaw(value: Any) -> Any:
    return value.make_zeros() if isinstance(value, TensorLayout) else value


# ---------------------------------------------------------------------- what a step holds, operation by operation


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
    held at most when it ends, its result included; under None, what is held at most when another operation ends.

    ``model`` and ``optimizer`` are held from the beginning; ``uncounted`` tensors exist and count nowhere.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, uncounted: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self._tracker = _Tracker()
        self._tracker.track_external(model, optimizer, *uncounted)
        self.worst: dict[Operation | None, MemoryEstimate] = {}

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
        if operation not in self.worst or held.peak_memory_bytes > self.worst[operation].peak_memory_bytes:
            self.worst[operation] = held
        return result

    def begin_micro_batch(self) -> None:
        """To be called before each; otherwise the tracker treats the model's second call as an error."""
        self._tracker.reset_mod_stats()

    def _read_held(self) -> MemoryEstimate:
        # While the optimizer steps, its temporaries are counted with its state. Only the CPU's fake tensors are
        # tracked, and none are left at the very beginning and end.
        (snapshot,) = self._tracker.get_tracker_snapshot().values() or ({},)
        held = {getattr(key, "value", key): num_bytes for key, num_bytes in snapshot.items()}
        return MemoryEstimate(
            parameter_bytes=held.get("Parameter", 0) + held.get("Buffer", 0),
            gradient_bytes=held.get("Gradient", 0),
            optimizer_bytes=held.get("Optstate", 0),
            activation_bytes=held.get("Activation", 0),
            temporary_bytes=held.get("Temp", 0),
        )


# ---------------------------------------------------------------------- the step, equal to a trial's warm-up step


def find_micro_sizes(config: TrialConfig, num_train: int, least: int = 1) -> tuple[int, ...]:
    """Samples of the first one or two micro batches of the largest step of a training, of which a warm-up step has two,
    on the rank that has most; none of fewer than ``least`` on all ranks."""
    ranks, is_auto = config.distributed.world_size, config.batch.is_auto
    micro = 1 if is_auto else config.micro_batch * ranks
    largest = BatchSchedule(config.batch, config.global_batch_size, micro).largest
    samples = min(num_train, largest + least)  # later samples change nothing
    window = cut_windows(0, samples, lambda _windows, _samples: largest, samples if is_auto else micro, least)[0]
    return tuple(-(-(part.stop - part.start) // ranks) for part in window.slices[:2])


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
    config: TrialConfig,
    shape: ImageShape,
    sizes: tuple[tuple[int, ...], ...],
    is_ready: bool,
    device_type: str,
    num_threads: int,
) -> MemoryEstimate:
    """What one step of ``config`` holds at most, with the micro batches ``sizes`` without and with batch normalization;
    for a GPU without the scratch memory of operations."""
    del num_threads  # scratch memory depends on it
    with use_fake_tensors():
        step = _make_step(config, shape)
        if config.precision.dtype == "fp16" and isinstance(step.optimizer, ForeachOptimizer):
            step.optimizer.found_inf = torch.zeros(())  # by which it keeps copies of weights and state for a moment
        if device_type == "cuda" and step.precision.autocast:
            _widen_norms(step.model)
        with _explain_values(f"optimizer {config.optimizer.name}"):
            state_bytes = _fill_state(step)
        counts = sizes[bool(find_batch_norms(step.model))]
        ready = tuple(_ready_images(config, shape, size) for size in counts) if is_ready else ()
        tracker = StepTracker(step.model, step.optimizer, ready)
        model = step.model

        def forward(images: Tensor) -> Tensor:
            # A micro batch begins here, not where it is made: with several ranks the next one is made before.
            tracker.begin_micro_batch()
            return cast(Tensor, model(images))

        step = replace(step, forward=forward)
        with _explain_values(f"model {config.model.name}"), tracker:
            step(_batches(config, shape, counts, ready), sum(counts))
        # The moving average of the weights changes nothing else, so it is not traced.
        has_average = bool(config.regularization.ema_decay)
        average_bytes = _bytes([*model.parameters(), *model.buffers()]) if has_average else 0
    held = find_worst(tracker.worst, has_scratch=device_type == "cpu")
    passing = max(0, held.optimizer_bytes - state_bytes)
    return replace(
        held,
        parameter_bytes=held.parameter_bytes + average_bytes,
        optimizer_bytes=held.optimizer_bytes - passing,
        temporary_bytes=held.temporary_bytes + passing,
    )


def find_worst(worst: Mapping[Operation | None, MemoryEstimate], *, has_scratch: bool) -> MemoryEstimate:
    """What is held when most is, with the scratch memory of that moment."""
    best = MemoryEstimate()
    for operation, held in sorted(worst.items(), key=lambda item: -item[1].peak_memory_bytes):
        # operations that cannot become the peak are not measured
        most = _MOST_SCRATCH * operation.num_bytes if operation is not None and has_scratch else 0
        if held.peak_memory_bytes + most > best.peak_memory_bytes:
            scratch = measure_scratch(operation) if operation is not None and has_scratch else 0
            with_scratch = replace(held, scratch_bytes=scratch or 0)
            best = max(best, with_scratch, key=lambda each: each.peak_memory_bytes)
    return best


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
