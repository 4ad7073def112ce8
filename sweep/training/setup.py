"""Everything that a trial requires before its clock starts (data, model, optimizer), and what is known of it so far."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from sweep.config.scaling import scale_ema_decay
from sweep.config.trial import TrialConfig
from sweep.measurement.clock import PHASES, Ledger
from sweep.measurement.gradient_noise import WINDOWS_EVERY, NoiseMeter
from sweep.measurement.quality import find_timing_flags, measure_slowdown, measure_time_error
from sweep.records.messages import Evaluation, ExpectedData
from sweep.training.auto_micro import AutoMicro
from sweep.training.budget import BatchSchedule, Budget, TrainingPoint
from sweep.training.checkpoints import Stateful
from sweep.training.constants import TRAIN_ACCURACY_IMAGES
from sweep.training.data.feeders import (
    Batch,
    BatchPlanner,
    Feeder,
    ShardedFeeder,
    make_feeder,
    make_plain_batches,
    shard_images,
)
from sweep.training.data.images import Images, Splits
from sweep.training.data.sources import check_device, load_splits
from sweep.training.evaluation import EvalBatch, count_most_images
from sweep.training.models.build import build_model
from sweep.training.models.resnets import find_batch_norms
from sweep.training.optimizers import build_optimizer
from sweep.training.outcomes import DivergedError
from sweep.training.precision import Ema, Precision, arrange_model, make_precision
from sweep.training.step import GraphedMicroStep, Normalize, Step
from sweep.training.world import SOLO, World

_START = TrainingPoint(0, 0, 0.0)
_STATISTICS_IMAGES = 10_000  # that mean and deviation are measured on, at most
_LEAST_STATISTICS = 3  # images of a batch, so that none has a single one, which gives a norm no statistics


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    config: TrialConfig  # with what its rules give
    splits: Splits
    model: nn.Module
    step: Step
    feeder: Feeder
    planner: BatchPlanner
    schedule: BatchSchedule
    budget: Budget
    peak_lr: float  # with the first batch, as the optimizer was built
    eval_batch: EvalBatch
    batches_of: Callable[[Images], Callable[[], Iterable[Batch]]]  # for evaluation
    validation_batches: Callable[[], Iterable[Batch]]
    train_batches: Callable[[], Iterable[Batch]]  # the fixed part of the train split, without augmentation
    statistics_batches: Callable[[], Iterable[Batch]]  # the same images in micro batches, as norms see them in training
    auto_micro: AutoMicro | None = None  # with batch.micro = "auto"

    def stateful_parts(self) -> dict[str, Stateful]:
        """Everything that a training changes, so that a checkpoint must hold it."""
        step = self.step
        parts: dict[str, Stateful | None] = {
            "model": self.model,
            "optimizer": step.optimizer,
            "planner": self.planner,
            "batch_schedule": self.schedule,
            "budget": self.budget,
            "scaler": step.precision.scaler,
            "ema": step.ema,
            "noise": step.noise,
            "auto_micro": self.auto_micro,
        }
        return {name: part for name, part in parts.items() if part is not None}


def prepare_training(
    config: TrialConfig, device: torch.device, world: World = SOLO, expected_data: ExpectedData | None = None
) -> TrainingSetup:
    """Loads the data and builds model and optimizer. The weights depend on the trial's seed alone.

    Windows and micro batches are for all ranks together; each rank's feeder hands out its part of them. Raises
    ``InputError``: data, model or precision are not available, or the images are others than ``expected_data``."""
    config = config.apply_rules()
    check_device(config, device.type)
    precision = make_precision(config.precision, device)
    splits = world.load_in_turn(lambda: load_splits(config.data, expected_data))
    normalize = _measure_normalization(splits.train, precision.weights, device, config.precision.channels_last)
    feeder = make_feeder(config, splits.train, device, splits.shape.num_classes, normalize)
    if world.size > 1:
        feeder = ShardedFeeder(feeder, world)
    torch.manual_seed(config.seed)
    model = build_model(config.model, splits.shape)
    if config.model.norm == "sync" and world.size > 1:
        convert: Callable[[nn.Module], nn.Module] = nn.SyncBatchNorm.convert_sync_batchnorm  # torch leaves it untyped
        model = convert(model)
    model = arrange_model(model.to(device=device, dtype=precision.weights), config.precision)
    num_samples, global_batch = len(splits.train), config.global_batch_size
    step = _make_step(config, model, normalize, precision, world, device)
    if config.precision.cuda_graphs:  # the noise meter's own passes are not part of the graph
        step = replace(step, graphs=GraphedMicroStep(replace(step, noise=None).micro_step, step.model))

    is_auto, micro = config.batch.is_auto, 1 if config.batch.is_auto else config.micro_batch
    schedule = BatchSchedule(config.batch, global_batch, micro * (1 if is_auto else world.size))
    largest_micro = min(schedule.largest, num_samples) if is_auto else micro * world.size
    least = 2 * world.size if find_batch_norms(model) else 1
    planner = BatchPlanner(feeder, num_samples, largest_micro, least)
    windows = planner.windows_of_epoch(global_batch)
    world.check_agreement(f"{config.model_dump_json()} {num_samples}")
    eval_batch = EvalBatch(min(largest_micro // world.size, count_eval_images(splits, world)))

    def sized_batches_of(images: Images) -> Callable[[int], Iterable[Batch]]:
        return make_plain_batches(config, shard_images(images, world), device, ceil(len(images) / world.size))

    def batches_of(images: Images) -> Callable[[], Iterable[Batch]]:
        batches = sized_batches_of(images)
        return lambda: batches(eval_batch.size)

    train_batches = cache(lambda: sized_batches_of(pick_train_images(splits)))  # not before the first use
    return TrainingSetup(
        config=config,
        splits=splits,
        model=model,
        step=step,
        feeder=feeder,
        planner=planner,
        schedule=schedule,
        budget=Budget(config.budget, num_samples, global_batch, len(windows), is_growing=schedule.is_growing),
        peak_lr=step.optimizer.defaults["lr"],
        eval_batch=eval_batch,
        batches_of=batches_of,
        validation_batches=batches_of(splits.validation),
        train_batches=lambda: train_batches()(eval_batch.size),
        statistics_batches=lambda: train_batches()(count_statistics_images(planner, world)),
        auto_micro=AutoMicro(largest_micro, device) if is_auto else None,
    )


def _make_step(
    config: TrialConfig,
    model: nn.Module,
    normalize: Normalize,
    precision: Precision,
    world: World,
    device: torch.device,
) -> Step:
    ema_decay = scale_ema_decay(config.regularization.ema_decay, config.rules, config.global_batch_size)
    # Static shapes: after a smaller last micro batch torch would otherwise take every later step through a graph for
    # shapes that vary, which is slower, and only where the batch does not divide the split.
    forward = torch.compile(model, dynamic=False) if config.precision.compile else model
    noise = None
    if config.batch.schedule == "noise_scale":  # the schedule requires every window
        noise = NoiseMeter(model.parameters(), model.buffers())
    elif config.diagnostics.noise_scale:
        noise = NoiseMeter(model.parameters(), model.buffers(), WINDOWS_EVERY)
    return Step(
        forward=world.wrap_model(forward, device),
        model=model,
        optimizer=build_optimizer(config, model),
        normalize=normalize,
        precision=precision,
        regularization=config.regularization,
        world=world,
        noise=noise,
        ema=Ema(model, ema_decay) if ema_decay else None,
    )


def count_eval_images(splits: Splits, world: World) -> int:
    """The largest batch of an evaluation by one rank; what memory it requires is not considered."""
    return count_most_images(len(splits.validation) // world.size, splits.shape.side)


def count_statistics_images(planner: BatchPlanner, world: World) -> int:
    """The size of a batch that running statistics are measured on: a rank's micro batch."""
    return max(planner.micro // world.size, _LEAST_STATISTICS)


def pick_train_images(splits: Splits, most: int = TRAIN_ACCURACY_IMAGES) -> Images:
    """A fixed part of the train split to measure on: as many images as the validation split has, at most ``most``."""
    count = min(len(splits.train), len(splits.validation), most)
    return splits.train.pick(_spread(len(splits.train), count))


def _measure_normalization(images: Images, dtype: torch.dtype, device: torch.device, channels_last: bool) -> Normalize:
    pixels = images.read(_spread(len(images), min(len(images), _STATISTICS_IMAGES)))
    # uint8 (n, s, s, c); from the histogram, which is exact and much faster than the mean of floats
    counts = np.stack([np.bincount(pixels[..., channel].ravel(), minlength=256) for channel in range(images.channels)])
    weights = counts / counts.sum(axis=1, keepdims=True)
    levels = np.arange(256.0)
    mean = weights @ levels
    deviation = np.sqrt(np.maximum(weights @ levels**2 - mean**2, 1.0))
    center, inverse = (torch.tensor(row, dtype=dtype, device=device)[:, None, None] for row in (mean, 1 / deviation))
    return Normalize(center, inverse, channels_last)


def _spread(total: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(count, dtype=np.int64) * total // count


@final
class LossMeter:
    """Sums the training loss on the device; the host reads it at window edges only.

    The sum runs from evaluation to evaluation, so that it does not depend on where the windows end.
    """

    def __init__(self, device: torch.device, world: World = SOLO) -> None:
        self._world = world
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._samples = 0
        self._window_samples = 0
        self.window_steps = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """Adds a step's mean ``loss``, a scalar, over its ``samples``; with several ranks each adds its own."""
        self._loss += loss * samples
        self._samples += samples
        self._window_samples += samples
        self.window_steps += 1

    def close_window(self, ledger: Ledger, is_full: bool) -> None:
        """Adds the window to ``ledger`` and checks the loss."""
        ledger.close_window(self.window_steps, self._window_samples, is_full)
        self._window_samples, self.window_steps = 0, 0
        mean = self._mean()
        if not math.isfinite(mean):
            raise DivergedError(f"the training loss became {mean}")

    def take_mean(self) -> float:
        mean = self._mean()
        self._loss.zero_()
        self._samples = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self._world.mean(self._loss), "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loss.copy_(state["loss"])
        self._samples = state["samples"]

    def _mean(self) -> float:
        return float(self._world.mean(self._loss)) / self._samples


@final
@dataclass(kw_only=True)
class TrialState:
    """What is known of one trial so far, and reported by its ending, whatever the outcome."""

    ledger: Ledger = field(default_factory=Ledger)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    facts: dict[str, float] = field(default_factory=dict)  # by name of sweep.config.metrics
    flags: tuple[str, ...] = ()
    bottleneck: str = ""
    correct_images: str = ""  # of the last evaluation, see sweep.records.records
    num_steps: int = 0
    samples: int = 0
    num_train: int = 0
    point: TrainingPoint = _START  # at the last reading of the clock
    retries_before: int = 0  # of the memory allocator, before the training
    evaluations: list[Evaluation] = field(default_factory=list)
    agree: Callable[[float], float] = float  # the time that counts for all ranks

    @property
    def epoch(self) -> float:
        return self.samples / self.num_train if self.num_train else 0.0

    def read_clock(self) -> TrainingPoint:
        """Sets ``point`` to the present and returns it; all ranks must call this together where they agree on the time.

        Decisions until the next call use ``point``, because two readings of a clock may lead to different decisions.
        """
        self.point = TrainingPoint(self.num_steps, self.samples, self.agree(self.ledger.running_seconds))
        return self.point

    def state_dict(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.state_dict(),
            "facts": dict(self.facts),
            "flags": self.flags,
            "num_steps": self.num_steps,
            "samples": self.samples,
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "correct_images": self.correct_images,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of an earlier attempt; what this attempt has already spent is added."""
        self.ledger.load_state_dict(state["ledger"])
        self.facts |= state["facts"]
        self.flags = tuple(dict.fromkeys((*state["flags"], *self.flags)))
        self.num_steps, self.samples = state["num_steps"], state["samples"]
        self.correct_images = state["correct_images"]
        self.evaluations = [Evaluation(**evaluation) for evaluation in state["evaluations"]]

    def quality_flags(self) -> tuple[str, ...]:
        even = self.ledger.even_windows
        if not even:
            return self.flags
        num_steps = sum(window.num_steps for window in self.ledger.windows)
        timing = find_timing_flags(even, num_steps)
        return tuple(dict.fromkeys((*self.flags, *timing)))

    def measurements(self) -> dict[str, float | int]:
        """By name of :mod:`sweep.config.metrics`; without values that are unknown or not finite."""
        ledger = self.ledger
        values = dict(self.facts)
        values |= {f"{name}_seconds": ledger.seconds[name] for name in PHASES if name not in ("data_wait", "step")}
        if ledger.windows:
            values["train_seconds"] = ledger.train_seconds
            values["data_wait_seconds"] = ledger.seconds["data_wait"]
            values["images_per_second"] = ledger.images_per_second
            values["step_seconds_median"] = ledger.step_seconds()
            even = ledger.even_windows
            errors = {"step_time_error": measure_time_error(even), "slowdown_by_others": measure_slowdown(even)}
            values |= {name: math.nan if value is None else value for name, value in errors.items()}
        values |= {"num_steps": self.num_steps, "num_epochs": self.epoch, "total_seconds": ledger.total_seconds}
        return {name: value for name, value in values.items() if math.isfinite(value)}
