"""One optimizer step of a configuration with fake tensors, equal to the warm-up step of a trial."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from sweep.config.data_sections import BatchSection, BudgetSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DataFacts, ImageShape
from sweep.config.trial_config import TrialConfig
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.probing.memory_tracker import (
    HeldBytes,
    StepTracker,
    convert_frozen_to_buffers,
    read_zero_values,
    use_fake_tensors,
)
from sweep.probing.scratch_memory import Operation, measure_scratch
from sweep.training.constants import READY_PIXELS
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import cut_windows
from sweep.training.models.norms import find_batch_norms
from sweep.training.models.table import build_model
from sweep.training.recipe.foreach_optimizer import ForeachOptimizer
from sweep.training.recipe.optimizers import build_optimizer
from sweep.training.recipe.precision import arrange_model, make_precision
from sweep.training.steps.batch_schedule import BatchSchedule
from sweep.training.steps.step import Normalize, Step, set_lr
from sweep.training.world import World

_CPU = torch.device("cpu")  # of all fake tensors: those of a GPU cannot go backward without one
_MOST_SCRATCH = 12  # times the arguments of an operation: unfolded images are 9 times as large for a 3 x 3 kernel
_KEPT = 256  # traces: a study has many configurations of one shape


class StepPeak(NamedTuple):
    """What one step holds when it holds most."""

    held: HeldBytes
    scratch_bytes: int  # inside the operation that ends then
    state_bytes: int  # of the optimizer
    average_bytes: int  # of the weights' moving average; it changes nothing else, so it is not traced
    num_unmeasured: int  # operations that may hold most and whose scratch memory could not be measured


class MicroSizes(NamedTuple):
    """Samples of the step's one or two micro batches, on the rank that has most."""

    plain: tuple[int, ...]
    with_statistics: tuple[int, ...]  # batch normalization requires two samples or more


def find_step_peak(config: TrialConfig, facts: DataFacts, device_type: str = "cpu") -> StepPeak:
    """What one step of ``config`` holds at most on a device of ``device_type``, without taking the step.

    For a CPU each distinct operation is run once on zeros, for its scratch memory; for a GPU that is left out.

    Raises:
        InputError: for a model that cannot be built; a model or an optimizer that depends on the values of tensors.
    """
    sizes, num_threads = find_micro_sizes(config, facts.num_train), torch.get_num_threads()
    return _find_peak(_essence(config), facts.shape, sizes, is_ready(config, facts), device_type, num_threads)


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


def is_ready(config: TrialConfig, facts: DataFacts) -> bool:
    """Whether the whole split is kept normalized, so that a batch is a view of it."""
    recipe, is_resident = config.regularization, config.data.placement == "device"
    is_fixed = config.data.augment == "none" and not recipe.mixup and not recipe.cutmix
    return is_resident and is_fixed and facts.num_train * facts.shape.side**2 <= READY_PIXELS


def _essence(config: TrialConfig) -> TrialConfig:
    # without fields that change no tensor's size, so that a trace is reused
    has_decay = config.optimizer.weight_decay > 0  # makes separate parameter groups
    optimizer = config.optimizer.model_copy(update={"lr": 1.0, "weight_decay": float(has_decay)})
    model = config.model.model_copy(update={"weights": None})
    batch = BatchSection(micro=1, accumulation=2, schedule=config.batch.schedule)
    changes = {"optimizer": optimizer, "model": model, "batch": batch, "budget": BudgetSection(), "seed": 0}
    return config.model_copy(update=changes)


@lru_cache(maxsize=_KEPT)
def _find_peak(
    config: TrialConfig, shape: ImageShape, sizes: MicroSizes, is_ready: bool, device_type: str, num_threads: int
) -> StepPeak:
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
        average_bytes = _bytes([*step.model.parameters(), *step.model.buffers()])

    held, scratch, num_unmeasured = _find_worst(tracker.worst, has_scratch=device_type == "cpu")
    return StepPeak(held, scratch, state_bytes, average_bytes if config.regularization.ema_decay else 0, num_unmeasured)


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
    # TF32 and CUDA graphs change no size here
    section = config.precision.model_copy(update={"cuda_graphs": False})
    if section.dtype == "tf32":
        section = section.model_copy(update={"dtype": "fp32"})
    # a loss scaler reads values
    precision = replace(make_precision(section, _CPU), scaler=None)
    with _default_dtype(precision.weights), read_zero_values():  # fake parameters cannot be converted
        model = arrange_model(build_model(config.model, shape), section)
    convert_frozen_to_buffers(model)
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
    # autocast on a GPU runs these norms in 32 bits; on a CPU they keep the format of their input
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.register_forward_pre_hook(lambda _module, inputs: tuple(each.float() for each in inputs))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _fill_state(step: Step) -> int:
    # allocates the optimizer's state before the measured step; returns its bytes
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
    # not where batches are made: with several ranks the next one is made before the model is called with this one
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
