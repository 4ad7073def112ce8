"""What the loops of other libraries share: digits, ResNet-8, batch 64, fp32, SGD with momentum, the same schedule."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Arms, ArmsDifferError, Setting
from benchmarks.trials import Material, accuracy, material, train
from sweep.training.recipe.schedules import RateSchedule, Span

BATCH = 64
LR = 0.05
_MIN_ACCURACY = 0.9
_MAX_APART = 0.03  # in validation accuracy: the peers shuffle in an order of their own

PeerLoop = Callable[[Material, int], tuple[float, nn.Module]]  # epochs -> seconds of training, trained model


@contextmanager
def compare(loop: PeerLoop, setting: Setting) -> Iterator[Arms]:
    """A trial's images/s, and those of a peer's ``loop``; neither evaluates on the clock."""
    epochs = setting.pick(20, 1)
    values: dict[str, Any] = {
        "model.name": "resnet8",
        "data.name": "digits",
        "batch.micro": BATCH,
        "optimizer.lr": LR,
        "budget.epochs": epochs,
    }
    if setting.is_tiny:
        values["data.subset"] = 200
    shared = material(values, setting.device)
    reached: dict[str, float] = {}

    def ours(_pair: int) -> float:
        trained = train(values, setting.device)
        reached["ours"] = trained.evaluations[-1].val_accuracy
        return trained.images_per_second

    def theirs(_pair: int) -> float:
        seconds, model = loop(shared, epochs)
        reached["theirs"] = accuracy(model, *shared.validation)
        return epochs * len(shared.labels) / seconds

    def check() -> dict[str, Any]:
        is_good = min(reached.values()) >= _MIN_ACCURACY and abs(reached["ours"] - reached["theirs"]) <= _MAX_APART
        if not is_good and not setting.is_tiny:
            raise ArmsDifferError(f"validation accuracies differ: {reached}")
        return {"val_accuracy": reached}

    yield Arms(ours, theirs, check, {"epochs": epochs, "batch": BATCH, "images": len(shared.labels)})


def loader(shared: Material) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Normalised images in memory; without workers, which cost more than they bring for so small images."""
    return DataLoader(TensorDataset(shared.images, shared.labels), BATCH, shuffle=True)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """The trial's."""
    return torch.optim.SGD(model.parameters(), LR, momentum=0.9, fused=True)


def schedule_of(
    shared: Material, optimizer: torch.optim.Optimizer, epochs: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The trial's learning rate, step by step."""
    per_epoch = -(-len(shared.labels) // BATCH)
    span = Span(epochs * per_epoch, per_epoch, len(shared.labels))
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: RateSchedule(shared.config.schedule, span).factor(min(step, span.steps - 1))
    )
