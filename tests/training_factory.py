"""Configurations, optimizer steps, images and trials of a few steps, for the tests of the training."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sweep.config.tables import ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, Progress, TrialTask
from sweep.training.data.feeders import Batch, Feeder
from sweep.training.data.images import ArrayImages
from sweep.training.data.windows import cut_epoch
from sweep.training.models.build import build_model
from sweep.training.optimizers import build_optimizer
from sweep.training.precision import Ema, arrange_model, make_precision
from sweep.training.step import Normalize, Step
from sweep.training.trial import run_trial

CPU = torch.device("cpu")
DIGITS = ImageShape(1, 8, 10)


def make_config(defaults: Mapping[str, object] | None = None, /, **values: object) -> TrialConfig:
    """``values`` have two underscores for the dot of a key, and replace the ``defaults``."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    return build_config({**(defaults or {}), **given}, "test")


def train(config: TrialConfig, device: str = "cpu", **task: Any) -> tuple[list[Evaluation], Ending]:
    """The evaluations and the ending of a trial in this process."""
    *messages, ending = run_trial(TrialTask(number=0, config=config, device=device, **task))
    assert isinstance(ending, Ending)
    assert all(message.num_steps >= message.step for message in messages if isinstance(message, Progress))
    return [message for message in messages if isinstance(message, Evaluation)], ending


def train_whole(config: TrialConfig, **task: Any) -> tuple[list[Evaluation], Ending]:
    """As :func:`train`, of a trial that must be complete."""
    evaluations, ending = train(config, **task)
    assert ending.outcome == "complete", ending.error
    return evaluations, ending


@final
class ScriptedClock:
    """Stands in for the clock that the ledger reads; ``pass_seconds`` lets time go by, and then may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        monkeypatch.setattr("sweep.measurement.clock.time", SimpleNamespace(perf_counter=lambda: self._now))

    def pass_seconds(self, seconds: float, error: Exception | None = None) -> None:
        self._now += seconds
        if error:
            raise error


def make_batch(count: int = 64, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 8, 8, 1), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (count,), generator=generator)


def make_step(config: TrialConfig) -> Step:
    """A step on digits, from seed 0."""
    torch.manual_seed(0)
    precision = make_precision(config.precision, CPU)
    model = arrange_model(build_model(config.model, DIGITS).to(dtype=precision.weights), config.precision)
    if hasattr(model, "heads"):  # torchvision starts a ViT's head at zero, which would hide the gradient of the rest
        nn.init.normal_(model.heads[0].weight, std=0.1)
    mean, inverse = (torch.full((1, 1, 1), value, dtype=precision.weights) for value in (127.5, 1 / 64))
    decay = config.regularization.ema_decay
    return Step(
        forward=model,
        model=model,
        optimizer=build_optimizer(config, model),
        normalize=Normalize(mean, inverse, config.precision.channels_last),
        precision=precision,
        regularization=config.regularization,
        ema=Ema(model, decay) if decay else None,
    )


def make_images(count: int, side: int = 8, channels: int = 3, num_classes: int = 10) -> ArrayImages:
    pixels = np.random.default_rng(0).integers(1, 256, (count, side, side, channels), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(count, dtype=np.int64) % num_classes)


def take_epoch(feeder: Feeder, count: int, micro: int, number: int = 0) -> tuple[Tensor, Tensor]:
    """All images and labels of an epoch in the order of the feeder, in windows of four micro batches."""
    windows = cut_epoch(count, 4 * micro, micro)
    feeder.begin_epoch(number, windows)
    batches = [batch for window in windows for batch in feeder.micro_batches(window)]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])
