"""Images a second of a trial over PyTorch Lightning's Trainer: digits, ResNet-8, batch 64, fp32, the same optimizer and
schedule."""

import importlib
import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark
from benchmarks.speed import BATCH, DIGITS, LR, Material, accuracy, lr_factor, material, train

_MIN_ACCURACY = 0.9
_MAX_APART = 0.03  # in validation accuracy: Lightning shuffles in an order of its own


@benchmark(
    "lightning", "images/s of a trial over PyTorch Lightning's Trainer (digits, ResNet-8, batch 64, fp32)", "images/s",
    "higher", 1.05,
)  # fmt: skip
def lightning(setting: Setting) -> Iterator[Arms]:
    """Neither arm evaluates on the clock, and everything optional of the Trainer is off."""
    importlib.import_module("sweep.training.vision")  # the door to torchvision comes first
    library: Any = importlib.import_module("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    epochs = setting.pick(20, 1)
    values = DIGITS | {"optimizer.lr": LR, "budget.epochs": epochs} | ({"data.subset": 200} if setting.is_tiny else {})
    shared = material(values, setting.device)
    reached: dict[str, float] = {}

    def ours(_pair: int) -> float:
        trained = train(values, setting.device)
        reached["ours"] = trained.evaluations[-1].val_accuracy
        return trained.images_per_second

    def theirs(_pair: int) -> float:
        seconds, model = _fit(library, shared, epochs)
        reached["theirs"] = accuracy(model, *shared.validation)
        return epochs * len(shared.labels) / seconds

    def check() -> dict[str, Any]:
        is_good = min(reached.values()) >= _MIN_ACCURACY and abs(reached["ours"] - reached["theirs"]) <= _MAX_APART
        if not is_good and not setting.is_tiny:
            raise ArmsDifferError(f"validation accuracies differ: {reached}")
        return {"val_accuracy": reached}

    yield Arms(ours, theirs, check, {"epochs": epochs, "batch": BATCH, "images": len(shared.labels)})


def _fit(library: Any, shared: Material, epochs: int) -> tuple[float, nn.Module]:
    # the seconds from the start of the first epoch to the end of the last, and the trained model
    num_steps = epochs * -(-len(shared.labels) // BATCH)

    class Classifier(library.LightningModule):  # type: ignore[misc]  # as Lightning's own examples write it
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = shared.model()

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            images, labels = batch
            return cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = torch.optim.SGD(self.model.parameters(), LR, momentum=0.9, fused=True)
            schedule = LambdaLR(optimizer, lambda step: lr_factor(min(step, num_steps - 1), num_steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Clock(library.Callback):  # type: ignore[misc]
        seconds = 0.0

        def on_train_start(self, *_: object) -> None:
            self.seconds -= time.perf_counter()

        def on_train_end(self, *_: object) -> None:
            self.seconds += time.perf_counter()

    clock, classifier = Clock(), Classifier()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    device = {"accelerator": "gpu" if shared.device.type == "cuda" else "cpu", "devices": 1, "precision": "32-true"}
    trainer = library.Trainer(max_epochs=epochs, callbacks=[clock], **quiet, **device)
    # images in memory, without workers, which cost more than they bring for so small images
    loader = DataLoader(TensorDataset(shared.images, shared.labels), BATCH, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to use workers, and the like
        trainer.fit(classifier, loader)
    return clock.seconds, classifier.model.to(shared.device)
