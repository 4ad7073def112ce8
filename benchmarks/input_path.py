"""Images a second from the data set to a normalised batch: random crop, random flip, normalisation."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from benchmarks.images import cifar_images
from sweep.config.trial_config import build_config
from sweep.measurement.device import make_synchronizer
from sweep.training.data.feeders import make_feeder
from sweep.training.data.images import ArrayImages
from sweep.training.data.windows import cut_epoch
from sweep.training.steps.step import Normalize

_BATCH = 512
_WORKERS = 2
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2470, 0.2435, 0.2616)
_APART = 0.01  # the random crops alone move the moments of a whole epoch by less than 0.002


class _Augmented(Dataset[tuple[torch.Tensor, int]]):
    """Images as torchvision's users have them: an array, and transforms of one image."""

    def __init__(self, images: ArrayImages) -> None:
        importlib.import_module("sweep.training.vision")  # the door to torchvision comes first
        transforms: Any = importlib.import_module("torchvision.transforms")
        self.pixels = images.pixels
        self.labels = images.labels.tolist()
        # the fastest of five ways of writing it: see benchmarks/NOTES.md
        self.transform: Any = transforms.Compose(
            [
                transforms.ToTensor(),
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.Normalize(_MEAN, _DEVIATION),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.pixels[index]), self.labels[index]


Epochs = Callable[[int], Iterator[torch.Tensor]]  # the batches of one epoch by its number


def _our_epochs(images: ArrayImages, device: torch.device) -> Epochs:
    config = build_config({"data.augment": "crop_flip", "batch.micro": _BATCH}, "benchmark")
    feeder, windows = make_feeder(config, images, device), cut_epoch(len(images), _BATCH, _BATCH)
    normalize = _normalise(device)

    def batches(epoch: int) -> Iterator[torch.Tensor]:
        feeder.begin_epoch(epoch, windows)
        for window in windows:
            for pixels, _labels in feeder.micro_batches(window):
                yield normalize(pixels)

    return batches


def _their_epochs(images: ArrayImages, device: torch.device) -> Epochs:
    loader = DataLoader(
        _Augmented(images),
        _BATCH,
        shuffle=True,
        num_workers=_WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
        pin_memory=device.type == "cuda",
    )

    def batches(_epoch: int) -> Iterator[torch.Tensor]:
        for pixels, labels in loader:
            labels.to(device, non_blocking=True)
            yield pixels.to(device, non_blocking=True)

    return batches


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours hands out resident images; theirs is a DataLoader with workers and torchvision's transforms."""
    images, source = cifar_images(setting.pick(50_000, 600), setting)
    our_epochs, their_epochs = _our_epochs(images, setting.device), _their_epochs(images, setting.device)
    wait = make_synchronizer(setting.device)

    def speed(epochs: Epochs, first: int, count: int) -> float:
        began = time.perf_counter()
        for epoch in range(first, first + count):
            for batch in epochs(epoch):
                del batch
        wait()
        return count * len(images) / (time.perf_counter() - began)

    def check() -> dict[str, Any]:
        ours, theirs = _moments(our_epochs(0)), _moments(their_epochs(0))
        return {} if setting.is_tiny else compare(ours, theirs)  # crops of few images differ by more than a bug would

    count = setting.pick(5, 1)  # epochs of ours in a sample, which would be short otherwise
    facts = {"images": source, "num_images": len(images), "batch": _BATCH, "workers": _WORKERS}
    yield Arms(
        lambda pair: speed(our_epochs, (pair + 1) * count, count), lambda _: speed(their_epochs, 0, 1), check, facts
    )


def _moments(batches: Iterator[torch.Tensor]) -> tuple[float, float]:
    values = torch.cat([batch.flatten() for batch in batches])
    return float(values.mean()), float(values.std())


def compare(ours: tuple[float, float], theirs: tuple[float, float]) -> dict[str, Any]:
    """Mean and deviation over an untimed epoch of each arm.

    Raises:
        ArmsDifferError: when they are apart, because one arm then leaves something out.
    """
    if any(abs(one - other) > _APART for one, other in zip(ours, theirs, strict=True)):
        raise ArmsDifferError(f"batches differ: mean and deviation {ours} and {theirs}")
    return {"mean_and_deviation": ours, "their_mean_and_deviation": theirs}


def _normalise(device: torch.device) -> Normalize:
    mean, deviation = (torch.tensor(values, device=device)[:, None, None] * 255 for values in (_MEAN, _DEVIATION))
    return Normalize(mean, 1 / deviation, channels_last=False)


BENCHMARK = Benchmark(
    "input",
    "images/s of crop + flip + normalise over DataLoader and torchvision's transforms with 2 workers",
    "images/s",
    "higher",
    30.0,
    prepare,
)
