"""The data sets that are ready to use: those published for download, the digits shipped here, synthetic images.

torchvision, and torch with it, is imported only where published files are read."""

import dataclasses
import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import DATASETS, DataFacts, ImageShape, Published
from sweep.records.inputs import DataSummary, read_document
from sweep.training.data.cache import load_document
from sweep.training.data.images import (
    HELD_OUT_BESIDE_TEST,
    ArrayImages,
    Indices,
    Source,
    check_subset,
    find_validation_share,
    refuse_validation_share,
)
from sweep.training.data.sources import summarize_source, summarize_splits

_DOWNLOAD_SECONDS = 20.0  # for each answer of the server while files are downloaded


def _load_published(dataset: str, num_classes: int, section: DataSection) -> Source:
    from sweep.training.vision import datasets  # imports torch

    read: Callable[..., Any] = getattr(datasets, dataset)
    try:
        with _download_timeout():
            train = _to_images(read(str(section.folder), train=True, download=not _is_unpacked(section)))
    except (OSError, RuntimeError) as error:
        published, root = _get_published(section), section.folder.absolute()
        raise InputError(
            f"data {section.name} is not under data.root = {section.root!r} and could not be downloaded. "
            f"Put {', '.join(published.files)} into {root / published.folder}, or {', '.join(published.archives)} into "
            f"{root}, from {published.address}, or set data.root to the folder that holds them. "
            f"({type(error).__name__}: {error})"
        ) from error

    def read_test() -> ArrayImages:
        return _to_images(read(str(section.folder), train=False, download=False))

    return Source(train=train, num_classes=num_classes, read_test=read_test)


# by name, as in sweep.config.tables: (section) -> Source
load_mnist = partial(_load_published, "MNIST", 10)  # 60,000 images for training, 10,000 for test, 28 x 28 x 1
load_fashion_mnist = partial(_load_published, "FashionMNIST", 10)  # as MNIST
load_cifar10 = partial(_load_published, "CIFAR10", 10)  # 50,000 images for training, 10,000 for test, 32 x 32 x 3
load_cifar100 = partial(_load_published, "CIFAR100", 100)  # as CIFAR-10


def _to_images(dataset: Any) -> ArrayImages:
    pixels = np.asarray(dataset.data, dtype=np.uint8)
    return ArrayImages(pixels[..., None] if pixels.ndim == 3 else pixels, np.asarray(dataset.targets, dtype=np.int64))


@contextmanager
def _download_timeout() -> Iterator[None]:
    # torchvision opens addresses without a time limit of its own
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def summarize_published(section: DataSection, _on_progress: object = None, may_download: bool = False) -> DataSummary:
    """The summary of the files under ``data.root``; without counts where they are not there and may not be downloaded.
    Raises ``InputError``: too large a ``data.subset``, or the files cannot be downloaded."""
    facts = find_published_facts(section)
    if not _is_unpacked(section) and not may_download:
        check_subset(section, facts.num_train)
        return DataSummary(
            name=section.name,
            num_train=section.subset or facts.num_train,
            notes=("not counted, because it is not unpacked under data.root yet; the first run does that",),
        )
    if not _is_unpacked(section):
        summarize_source(section)  # downloads and unpacks it
    files = _list_files(section)
    stats = [path.stat() for path in files]
    stamps = [(status.st_size, status.st_mtime_ns, status.st_ctime_ns) for status in stats]
    content = json.dumps([*(str(path.absolute()) for path in files), section.subset, section.validation_share, stamps])

    def summarize() -> dict[str, Any]:
        (summary, _), digest = summarize_source(section), hashlib.blake2b(digest_size=16)
        for path in files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return dataclasses.asdict(dataclasses.replace(summary, digest=digest.hexdigest()))

    key = hashlib.sha256(content.encode()).hexdigest()
    summary: DataSummary = read_document(DataSummary, load_document(f"{key}.data.json", summarize))
    return summary


def find_published_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images of a published set, as long as its classes are of equal size."""
    facts = DATASETS[section.name].facts
    assert facts is not None, section.name
    num_published = round(facts.num_train / (1 - HELD_OUT_BESIDE_TEST))
    return facts._replace(num_train=round(num_published * (1 - find_validation_share(section, has_test=True))))


def _is_unpacked(section: DataSection) -> bool:
    return all(path.is_file() for path in _list_files(section))


def _list_files(section: DataSection) -> list[Path]:
    published = _get_published(section)
    return [section.folder / published.folder / name for name in published.files]


def _get_published(section: DataSection) -> Published:
    published = DATASETS[section.name].published
    assert published is not None, section.name
    return published


class Digits(NamedTuple):
    """All 1,797 digits in the order of the file: ``levels`` of gray, 0...16, and ``labels``."""

    levels: npt.NDArray[np.int64]  # [1797, 8, 8]
    labels: npt.NDArray[np.int64]  # [1797]


def read_digits() -> Digits:
    """The digits of the file: a line for each, with 64 levels of gray and the label."""
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",", dtype=np.int64)
    return Digits(table[:, :-1].reshape(-1, 8, 8), table[:, -1])


def load_digits(_section: DataSection) -> Source:
    """1,797 handwritten digits, 8 x 8 x 1; their 17 levels of gray are spread over 0...255."""
    digits = read_digits()
    pixels = np.rint(digits.levels[..., None] * (255 / 16)).astype(np.uint8)
    return Source(train=ArrayImages(pixels, digits.labels), num_classes=10)


def find_synthetic_facts(section: DataSection) -> DataFacts:
    """``data.subset`` images for training (8,192 when absent) of ``data.image_size`` pixels (32)."""
    refuse_validation_share(section)
    return DataFacts(ImageShape(channels=3, side=section.image_size or 32, num_classes=10), section.subset or 8192)


def make_synthetic(section: DataSection) -> Source:
    """Noise around one pattern per class, 3 channels, 10 classes: learnable, in the sizes of
    :func:`find_synthetic_facts`."""
    (_, side, num_classes), num_train = find_synthetic_facts(section)
    num_held_out = _count_held_out(num_train)
    generator = np.random.default_rng(0)
    patterns = generator.integers(64, 192, (num_classes, 4, 4, 3))

    def draw(count: int) -> ArrayImages:
        labels = _label(count, num_classes)
        spread = np.arange(side) * 4 // side
        coarse = patterns[:, spread][:, :, spread].astype(np.int16)
        noise = generator.integers(-64, 65, (count, side, side, 3), dtype=np.int16)
        return ArrayImages(np.clip(coarse[labels] + noise, 0, 255).astype(np.uint8), labels)

    train, validation, test = draw(num_train), draw(num_held_out), draw(num_held_out)
    return Source(train=train, num_classes=num_classes, validation=validation, read_test=lambda: test)


def summarize_synthetic(section: DataSection, _on_progress: object = None, _may_download: bool = False) -> DataSummary:
    """The summary, without computing the images; they depend on the other keys of the section and on nothing else."""
    (channels, side, num_classes), num_train = find_synthetic_facts(section)
    sizes = {"train": num_train} | dict.fromkeys(("val", "test"), _count_held_out(num_train))
    num_images = sum(sizes.values())
    return summarize_splits(
        section,
        {split: _label(size, num_classes) for split, size in sizes.items()},
        [str(label) for label in range(num_classes)],
        dict.fromkeys(sizes, "drawn from the same patterns"),
        sizes={f"{side} x {side}": num_images},
        modes={f"{channels} channels": num_images},
        digest="synthetic",
    )


def _count_held_out(num_train: int) -> int:
    return max(100, num_train // 10)


def _label(count: int, num_classes: int) -> Indices:
    return np.arange(count, dtype=np.int64) % num_classes
