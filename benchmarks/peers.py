"""Images a second of a trial over the loops of other libraries: digits, ResNet-8, batch 64, fp32, the same optimizer
and schedule."""

import importlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark
from benchmarks.speed import BATCH, DIGITS, LR, Material, accuracy, material, train
from sweep.measurement.device import make_synchronizer
from sweep.training.schedules import RateSchedule, Span

_MIN_ACCURACY = 0.9
_MAX_APART = 0.03  # in validation accuracy: the peers shuffle in an order of their own


@benchmark(
    "lightning",
    "images/s of a trial over PyTorch Lightning's Trainer (digits, ResNet-8, batch 64, fp32)",
    "images/s",
    "higher",
    1.05,
)
def lightning(setting: Setting) -> Iterator[Arms]:
    """Its Trainer, with everything off that costs it time."""
    importlib.import_module("sweep.training.vision")  # the door to torchvision comes first
    library: Any = importlib.import_module("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield _compare(lambda shared, epochs: _lightning_loop(library, shared, epochs), setting)


@benchmark(
    "accelerate",
    "images/s of a trial over a loop with Accelerate (digits, ResNet-8, batch 64, fp32)",
    "images/s",
    "higher",
    1.05,
)
def accelerate(setting: Setting) -> Iterator[Arms]:
    """As Accelerate's own examples write it."""
    library: Any = importlib.import_module("accelerate")
    yield _compare(lambda shared, epochs: _accelerate_loop(library, shared, epochs), setting)


def _compare(loop: Callable[[Material, int], tuple[float, nn.Module]], setting: Setting) -> Arms:
    # ``loop`` returns the seconds of so many epochs and the trained model; neither arm evaluates on the clock
    epochs = setting.pick(20, 1)
    values = DIGITS | {"optimizer.lr": LR, "budget.epochs": epochs} | ({"data.subset": 200} if setting.is_tiny else {})
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

    return Arms(ours, theirs, check, {"epochs": epochs, "batch": BATCH, "images": len(shared.labels)})


def _loader(shared: Material) -> DataLoader[tuple[Tensor, ...]]:
    # normalized images in memory; without workers, which cost more than they bring for so small images
    return DataLoader(TensorDataset(shared.images, shared.labels), BATCH, shuffle=True)


def _train_as_ours(shared: Material, model: nn.Module, epochs: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    # the trial's optimizer, and its learning rate step by step
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, fused=True)
    per_epoch = -(-len(shared.labels) // BATCH)
    span = Span(epochs * per_epoch, per_epoch, len(shared.labels))
    schedule = RateSchedule(shared.config.schedule, span)
    return optimizer, LambdaLR(optimizer, lambda step: schedule.factor(min(step, span.steps - 1)))


def _lightning_loop(library: Any, shared: Material, epochs: int) -> tuple[float, nn.Module]:
    class Classifier(library.LightningModule):  # type: ignore[misc]  # as Lightning's own examples write it
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = shared.model()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            images, labels = batch
            return cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = _train_as_ours(shared, self.model, epochs)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Clock(library.Callback):  # type: ignore[misc]  # from the start of the first epoch to the end of the last
        seconds = 0.0

        def on_train_start(self, *_: object) -> None:
            self.seconds -= time.perf_counter()

        def on_train_end(self, *_: object) -> None:
            self.seconds += time.perf_counter()

    clock, classifier = Clock(), Classifier()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    place = {"accelerator": "gpu" if shared.device.type == "cuda" else "cpu", "devices": 1, "precision": "32-true"}
    trainer = library.Trainer(max_epochs=epochs, callbacks=[clock], **quiet, **place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to use workers, and the like
        trainer.fit(classifier, _loader(shared))
    return clock.seconds, classifier.model.to(shared.device)


def _accelerate_loop(library: Any, shared: Material, epochs: int) -> tuple[float, nn.Module]:
    accelerator = library.Accelerator(cpu=shared.device.type == "cpu", mixed_precision="no")
    model: Any = shared.model()
    optimizer, schedule = _train_as_ours(shared, model, epochs)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, _loader(shared), schedule)
    wait = make_synchronizer(shared.device)
    model.train()
    began = time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
    wait()
    return time.perf_counter() - began, accelerator.unwrap_model(model)
