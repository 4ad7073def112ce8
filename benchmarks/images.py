"""CIFAR-10's images for benchmarks: the real ones where the archive lies, else noise of the same shape."""

import io
import os
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import Setting
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.cache import load_document, load_or_decode
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

_USUAL_ARCHIVE = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10-jpeg.tar.xz"
ARCHIVE = Path(os.environ.get("CIFAR10_ARCHIVE") or _USUAL_ARCHIVE)
_CLASSES = 10


def cifar_images(count: int, setting: Setting, archive: Path = ARCHIVE) -> tuple[ArrayImages, str]:
    """The first ``count`` of the shuffled training images, and their origin; a tiny setting reads no archive."""
    is_there = archive.is_file() and not setting.is_tiny
    images, source = (_read(archive, "train"), "CIFAR-10") if is_there else (_noise(count), "noise")
    order = np.random.default_rng(0).permutation(len(images))[:count]
    return images.pick(order), source


def cifar_splits(setting: Setting, archive: Path = ARCHIVE) -> tuple[ArrayImages, ArrayImages]:
    """All training and all test images of the archive; noise in a tiny setting.

    Raises:
        InputError: there is no archive.
    """
    if setting.is_tiny:
        return _noise(64), _noise(32)
    if not archive.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {archive}; name it with CIFAR10_ARCHIVE.")
    return _read(archive, "train"), _read(archive, "test")


def offer(name: str, train: ArrayImages, validation: ArrayImages) -> None:
    """Makes the images a data set that a configuration can name."""
    source = Source(train=train, num_classes=_CLASSES, validation=validation, read_test=lambda: validation)
    DATASETS[name] = DatasetEntry(load=lambda _section: source)


@cache  # several benchmarks of one process want them
def _read(archive: Path, split: str) -> ArrayImages:
    document = load_document(f"{_key(archive, split)}.json", lambda: {"labels": _decode(archive, split)[1]})
    pixels = load_or_decode(_key(archive, split), lambda: np.stack(_decode(archive, split)[0]))
    return ArrayImages(pixels, np.asarray(document["labels"], dtype=np.int64))


def _key(archive: Path, split: str) -> str:
    return f"{archive.name.partition('.')[0]}-{archive.stat().st_size}-{split}"


@cache
def _decode(archive: Path, split: str) -> tuple[list[Any], list[int]]:
    pixels, classes = [], []
    with tarfile.open(archive, "r|xz") as files:
        for member in files:
            parts = Path(member.name).parts
            file = files.extractfile(member) if member.isfile() and split in parts else None
            if file is not None:
                pixels.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")))
                classes.append(parts[-2])
    _, labels = np.unique(classes, return_inverse=True)
    return pixels, labels.tolist()


def _noise(count: int) -> ArrayImages:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(count, dtype=np.int64) % _CLASSES)
