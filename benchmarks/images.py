"""CIFAR-10's images for benchmarks: the real ones where the archive lies, else noise of the same shape."""

import io
import os
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.harness import Setting
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

_USUAL_ARCHIVE = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10-jpeg.tar.xz"
ARCHIVE = Path(os.environ.get("CIFAR10_ARCHIVE") or _USUAL_ARCHIVE)
_CLASSES = 10


def cifar_images(count: int, setting: Setting, archive: Path = ARCHIVE) -> tuple[ArrayImages, str]:
    """The first ``count`` of the shuffled training images, and their origin; a tiny setting reads no archive."""
    is_there = archive.is_file() and not setting.is_tiny
    images, source = (_read(archive), "CIFAR-10") if is_there else (_noise(count), "noise")
    order = np.random.default_rng(0).permutation(len(images))[:count]
    return images.pick(order), source


def offer(name: str, train: ArrayImages, validation: ArrayImages) -> None:
    """Makes the images a data set that a configuration can name."""
    source = Source(train=train, num_classes=_CLASSES, validation=validation, read_test=lambda: validation)
    DATASETS[name] = DatasetEntry(load=lambda _section: source)


@cache  # several benchmarks of one process want them
def _read(archive: Path) -> ArrayImages:
    pixels, classes = [], []
    with tarfile.open(archive, "r|xz") as files:
        for member in files:
            parts = Path(member.name).parts
            file = files.extractfile(member) if member.isfile() and "train" in parts else None
            if file is not None:
                pixels.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")))
                classes.append(parts[-2])
    _, labels = np.unique(classes, return_inverse=True)
    return ArrayImages(np.stack(pixels), labels.astype(np.int64))


def _noise(count: int) -> ArrayImages:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(count, dtype=np.int64) % _CLASSES)
