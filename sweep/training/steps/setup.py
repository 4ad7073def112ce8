"""Everything a trial needs before its clock starts: data, model, optimizer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from sweep.config.errors import InputError
from sweep.config.scaling import scaled_ema_decay
from sweep.config.trial_config import TrialConfig
from sweep.measurement.gradient_noise import WINDOWS_EVERY, NoiseMeter
from sweep.training.checkpoints.checkpoint import Stateful
from sweep.training.data.batch_planner import BatchPlanner
from sweep.training.data.feeders import Batch, Feeder, make_feeder, plain_batches
from sweep.training.data.images import Images
from sweep.training.data.splits import Splits
from sweep.training.data.table import load_splits
from sweep.training.models.table import build_model
from sweep.training.recipe.ema import Ema
from sweep.training.recipe.optimizers import build_optimizer
from sweep.training.recipe.precision import Precision, make_precision, place_model
from sweep.training.recipe.tta import ASKED, Ask, ask_once
from sweep.training.steps.auto_micro import AutoMicro
from sweep.training.steps.batch_schedule import BatchSchedule
from sweep.training.steps.budget import Budget
from sweep.training.steps.cuda_graphs import GraphedMicroStep
from sweep.training.steps.step import Normalise, Step
from sweep.training.world import SOLO, World

_STATISTICS_IMAGES = 10_000  # for mean and deviation, where not all images are in memory
_EVAL_PIXELS = 2**23  # of a batch of evaluation, at most, but never less than the micro batch
_EVAL_IMAGES = 1024
_TRAIN_PART = 10_000  # images of the fixed part of the train split that train_accuracy is measured on, at most


@dataclass(frozen=True)
class TrainingSetup:
    """A trial that is ready to train."""

    splits: Splits
    model: nn.Module
    step: Step
    feeder: Feeder
    course: BatchPlanner
    schedule: BatchSchedule
    budget: Budget
    batches_of: Callable[[Images], Callable[[], Iterable[Batch]]]  # for evaluation
    train_batches: Callable[[], Iterable[Batch]]  # the fixed part of the train split, without augmentation
    pilot: AutoMicro | None = None  # where the micro batch is to be found
    is_compiled: bool = False
    ask: Ask = ask_once  # of an evaluation

    def parts(self) -> dict[str, Stateful]:
        """Everything that a training changes and a checkpoint must therefore hold."""
        parts: dict[str, Stateful] = {
            "model": self.model,
            "optimizer": self.step.optimizer,
            "course": self.course,
            "batch_schedule": self.schedule,
            "budget": self.budget,
        }
        if self.step.precision.scaler:
            parts["scaler"] = self.step.precision.scaler
        if self.step.ema:
            parts["ema"] = self.step.ema
        if self.step.noise:
            parts["noise"] = self.step.noise
        if self.pilot:
            parts["auto_micro"] = self.pilot
        return parts


def prepare(config: TrialConfig, device: torch.device, world: World = SOLO) -> TrainingSetup:
    """Loads the data and builds model and optimizer. The trial's seed makes the weights.

    Windows and micro batches are those of all ranks together; each rank's feeder hands out its part of them.

    Raises:
        InputError: for data, a model or a precision that cannot be had.
    """
    precision = make_precision(config.precision, device)
    splits = world.first_then_others(lambda: load_splits(config.data))
    normalise = _normalise(splits.train, precision.weights, device, config.precision.channels_last)
    feeder = world.feeder(make_feeder(config, splits.train, device, splits.shape.num_classes, normalise))
    torch.manual_seed(config.seed)
    model = build_model(config.model, splits.shape)
    if config.model.norm == "sync":
        model = world.synchronise_norms(model)
    model = place_model(model, config.precision, precision, device)
    num_samples, global_batch = len(splits.train), config.global_batch_size
    is_auto = config.batch.micro == "auto"
    micro = global_batch if config.batch.micro == "auto" else config.batch.micro
    schedule = BatchSchedule(config.batch, global_batch, 1 if is_auto else micro * world.size)
    step = _make_step(config, model, normalise, precision, world, device)
    least = 2 * world.size if _has_batch_statistics(model) else 1
    course = BatchPlanner(
        feeder, num_samples, min(schedule.largest, num_samples) if is_auto else micro * world.size, least
    )
    world.check_agreement(f"{config.model_dump_json()} {num_samples}", course.windows_of_epoch(global_batch))
    steps_per_epoch = len(course.windows_of_epoch(global_batch))
    size = max(1 if is_auto else micro, min(_EVAL_IMAGES, _EVAL_PIXELS // splits.shape.side**2), 1)

    def batches_of(images: Images) -> Callable[[], Iterable[Batch]]:
        return plain_batches(config, world.part(images), size, device)

    @cache  # made when it is first wanted
    def train_batches() -> Callable[[], Iterable[Batch]]:
        return batches_of(train_part(splits))

    return TrainingSetup(
        splits,
        model,
        _with_graphs(config, step) if config.precision.cuda_graphs else step,
        feeder,
        course,
        schedule,
        Budget(config.budget, num_samples, global_batch, steps_per_epoch, is_growing=schedule.is_growing),
        batches_of,
        lambda: train_batches()(),
        AutoMicro(config.batch, min(schedule.largest, num_samples), device) if is_auto else None,
        config.precision.compile,
        ASKED[config.evaluation.tta],
    )


def _make_step(
    config: TrialConfig,
    model: nn.Module,
    normalise: Normalise,
    precision: Precision,
    world: World,
    device: torch.device,
) -> Step:
    ema_decay = scaled_ema_decay(config.regularization, config.optimizer, config.global_batch_size)
    forward = world.wrap(torch.compile(model) if config.precision.compile else model, device)
    return Step(
        forward,
        model,
        build_optimizer(config, model),
        normalise,
        precision,
        config.regularization,
        world,
        _noise_meter(config, model),
        Ema(model, ema_decay) if ema_decay else None,
    )


def _noise_meter(config: TrialConfig, model: nn.Module) -> NoiseMeter | None:
    if config.batch.schedule == "noise_scale":  # which is to follow at once
        return NoiseMeter(model.parameters(), model.buffers())
    if config.diagnostics.noise_scale:
        return NoiseMeter(model.parameters(), model.buffers(), WINDOWS_EVERY)
    return None


def _with_graphs(config: TrialConfig, step: Step) -> Step:
    if step.world.size > 1:
        raise InputError("precision.cuda_graphs and distributed.world_size above 1 do not go together; leave one out.")
    if config.batch.micro == "auto":
        raise InputError("precision.cuda_graphs and batch.micro = 'auto' do not go together; leave one out.")
    if config.batch.schedule == "noise_scale":
        raise InputError("precision.cuda_graphs and batch.schedule = 'noise_scale' do not go together; leave one out.")
    unseen = replace(step, noise=None)  # halves are taken beside the recording
    return replace(step, graphs=GraphedMicroStep(unseen.micro_step, step.model))


def train_part(splits: Splits, most: int = _TRAIN_PART) -> Images:
    """A fixed part of the train split for measuring, as large as the validation split and at ``most`` so large."""
    count = min(len(splits.train), len(splits.validation), most)
    return splits.train.pick(_spread(len(splits.train), count))


def _has_batch_statistics(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _normalise(images: Images, dtype: torch.dtype, device: torch.device, channels_last: bool) -> Normalise:
    pixels = images.read(_spread(len(images), min(len(images), _STATISTICS_IMAGES)))
    # from the histogram, which is exact and far cheaper than the mean of floats
    counts = np.stack([np.bincount(pixels[..., channel].ravel(), minlength=256) for channel in range(images.channels)])
    weights = counts / counts.sum(axis=1, keepdims=True)
    levels = np.arange(256.0)
    mean = weights @ levels
    deviation = np.sqrt(np.maximum(weights @ levels**2 - mean**2, 1.0))
    as_tensor = [torch.tensor(value, dtype=dtype, device=device)[:, None, None] for value in (mean, 1 / deviation)]
    return Normalise(as_tensor[0], as_tensor[1], channels_last)


def _spread(total: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(count, dtype=np.int64) * total // count
