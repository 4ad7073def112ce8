"""Trials as one arm of a benchmark, and the data and model that the other arm shares with them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import ArmsDifferError
from sweep.config.trial_config import TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.data.table import load_splits
from sweep.training.loop.trial import run_trial
from sweep.training.models.table import build_model
from sweep.training.steps.step import Normalize

_OUTSIDE_TRAINING = ("setup", "compile", "warmup", "memory", "eval", "checkpoint", "diagnostics")


@dataclass(frozen=True)
class Trained:
    """A trial that ended well."""

    measured: dict[str, float | int]
    evaluations: tuple[Evaluation, ...]

    @property
    def seconds(self) -> float:
        """Training and all that goes on around its steps: what is left of the wall-clock without the other phases."""
        outside = sum(self.measured[f"{phase}_seconds"] for phase in _OUTSIDE_TRAINING)
        return self.measured["total_seconds"] - outside

    @property
    def images_per_second(self) -> float:
        """Over :attr:`seconds`."""
        return self.evaluations[-1].samples / self.seconds


def train(values: dict[str, Any], device: torch.device) -> Trained:
    """Trains a configuration of dotted ``values`` in this process.

    Raises:
        ArmsDifferError: when the trial did not complete.
    """
    task = TrialTask(number=0, config=build_config(values, "benchmark"), device=str(device))
    messages = list(run_trial(task))
    ending = messages[-1]
    assert isinstance(ending, Ending)
    if ending.outcome != "complete":
        raise ArmsDifferError(f"the trial ended as {ending.outcome}: {ending.error}")
    return Trained(ending.measurements, tuple(message for message in messages if isinstance(message, Evaluation)))


@dataclass(frozen=True)
class Material:
    """The train and validation split as normalised tensors (n, c, s, s), and a way to the same initial model."""

    config: TrialConfig
    images: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor]
    device: torch.device

    def model(self) -> nn.Module:
        """As the trial's seed makes it."""
        torch.manual_seed(self.config.seed)
        shape = load_splits(self.config.data).shape
        return build_model(self.config.model, shape).to(self.device)


def material(values: dict[str, Any], device: torch.device) -> Material:
    """What a trial of the configuration would train on."""
    config = build_config(values, "benchmark")
    splits = load_splits(config.data)
    parts = []
    for images in (splits.train, splits.validation):
        every = torch.arange(len(images)).numpy()
        parts.append((torch.from_numpy(images.read(every)), torch.from_numpy(images.labels)))
    levels = parts[0][0].double().flatten(0, 2)
    mean, inverse = (values.float()[:, None, None] for values in (levels.mean(0), 1 / levels.std(0, correction=0)))
    normalize = Normalize(mean, inverse, channels_last=False)
    train_part, validation = ((normalize(x).to(device), y.to(device)) for x, y in parts)
    return Material(config, *train_part, validation, device)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, size: int = 1024) -> float:
    """Share of right answers, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in _pairs(images, labels, size))
    model.train()
    return right / len(labels)


def _pairs(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(labels), size):
        yield images[start : start + size], labels[start : start + size]
