"""The data sets that are ready to use: those published for download, the digits shipped here, synthetic images.

torchvision, and torch with it, is imported only where published files are read."""

import dataclasses
import hashlib
import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import DATASETS, DataFacts, ImageShape, Published
from sweep.records.inputs import DataSummary, read_document
from sweep.training.data.folders import load_document
from sweep.training.data.images import (
    HELD_OUT_BESIDE_TEST,
    ArrayImages,
    Indices,
    Source,
    check_subset,
    count_train,
    find_validation_share,
    refuse_validation_share,
)
from sweep.training.data.sources import count_classes, summarize_source

_REACH_SECONDS = 8.0  # for an answer of the server, name look-up included
_DOWNLOAD_SECONDS = 20.0  # for each answer of the server while files are downloaded


def _load_published(dataset: str, num_classes: int, section: DataSection) -> Source:
    from sweep.training.vision import datasets  # imports torch

    check_published(section)
    read: Callable[..., Any] = getattr(datasets, dataset)
    try:
        with _download_timeout():
            train = _to_images(read(section.root, train=True, download=not is_unpacked(section)))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{_describe_missing(section)} ({type(error).__name__}: {error})") from error

    def read_test() -> ArrayImages:
        return _to_images(read(section.root, train=False, download=False))

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

    Raises:
        InputError: as :func:`check_published`, or for too large a ``data.subset``.
    """
    check_published(section)
    facts = find_published_facts(section)
    if not is_unpacked(section) and not may_download:
        check_subset(section, facts.num_train)
        return DataSummary(
            name=section.name,
            num_train=section.subset or facts.num_train,
            notes=("not counted, because it is not unpacked under data.root yet; the first run does that",),
        )
    if not is_unpacked(section):
        summarize_source(section)  # downloads and unpacks it
    folder = _find_folder(section)
    stamps = []
    for name in _get_published_files(section).files:
        status = (folder / name).stat()
        stamps.append((name, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    content = json.dumps([str(folder.absolute()), section.subset, section.validation_share, stamps])
    key = hashlib.sha256(content.encode()).hexdigest()
    document = load_document(f"{key}.data.json", lambda: _summarize_files(section).document())
    summary: DataSummary = read_document(DataSummary, document)
    return summary


def _summarize_files(section: DataSection) -> DataSummary:
    summary, digest = summarize_source(section), hashlib.blake2b(digest_size=16)
    for name in _get_published_files(section).files:
        with (_find_folder(section) / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    # the rounding of the hold-out by class depends on the share, the sum does not
    num_images = (summary.num_train or 0) + (summary.num_val or 0) + summary.num_ignored
    _, num_published = _count_published(section)
    if num_images != num_published:
        note = (
            f"these are not the published files: {num_images:,} images for training and validation instead of "
            f"{num_published:,}"
        )
        summary = dataclasses.replace(summary, notes=(*summary.notes, note))
    return dataclasses.replace(summary, digest=digest.hexdigest())


def find_published_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images of a published set, as long as its classes are of equal size."""
    facts, num_published = _count_published(section)
    return facts._replace(num_train=round(num_published * (1 - find_validation_share(section, has_test=True))))


def _count_published(section: DataSection) -> tuple[DataFacts, int]:
    # the facts in the table, and the number of images that are not for test
    facts = DATASETS[section.name].facts
    assert facts is not None, section.name
    return facts, round(facts.num_train / (1 - HELD_OUT_BESIDE_TEST))


def find_idx_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images of a set in IDX files, from its labels where they are there."""
    facts, published = find_published_facts(section), _get_published_files(section)
    name = next(name for name in published.files if name.startswith("train-labels"))
    try:
        content = (_find_folder(section) / name).read_bytes()
        (count,) = struct.unpack_from(">i", content, 4)
    except (OSError, struct.error):
        return facts
    labels = np.frombuffer(content, dtype=np.uint8, offset=8)[:count].astype(np.int64)
    return facts._replace(num_train=count_train(labels, section, has_validation=False, has_test=True))


def _find_folder(section: DataSection) -> Path:
    return Path(section.root) / _get_published_files(section).folder


def check_published(section: DataSection) -> None:
    """Refuses a set that is neither there, unpacked or as published archives, nor on a server that answers.

    Raises:
        InputError: with the files to put where.
    """
    published = _get_published_files(section)
    archives = (Path(section.root) / name for name in published.archives)
    is_present = is_unpacked(section) or all(path.is_file() for path in archives)
    if not is_present and not is_reachable(published.address):
        raise InputError(_describe_missing(section))


def is_unpacked(section: DataSection) -> bool:
    """Whether the files that torchvision reads are all there."""
    published = _get_published_files(section)
    return all((Path(section.root) / published.folder / name).is_file() for name in published.files)


def _get_published_files(section: DataSection) -> Published:
    published = DATASETS[section.name].published
    assert published is not None, section.name
    return published


def _describe_missing(section: DataSection) -> str:
    published, root = _get_published_files(section), Path(section.root).absolute()
    return (
        f"data {section.name} is not under data.root = {section.root!r} and could not be downloaded. "
        f"Put {', '.join(published.files)} into {root / published.folder}, or {', '.join(published.archives)} into "
        f"{root}, from {published.address}, or set data.root to the folder that holds them."
    )


@cache
def is_reachable(address: str, timeout_seconds: float = _REACH_SECONDS) -> bool:
    """Whether the server of ``address`` answers within ``timeout_seconds``; proxies of the environment are used.

    Cached, because a study checks each of its configurations.
    """
    answers: list[bool] = []

    def request_head() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=timeout_seconds):  # nosec B310 # addresses are of DATASETS
                answers.append(True)
        except urllib.error.HTTPError as error:
            # a listing may be forbidden although its files are not; 5xx is a gateway that has no way out
            answers.append(error.code < 500)
        except (OSError, ValueError):
            answers.append(False)

    # a thread, because a name look-up has no time limit of its own
    thread = Thread(target=request_head, daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    return bool(answers and answers[0])


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
    num_held_out = _count_held_out(num_train)
    labels = {"train": _label(num_train, num_classes)} | {
        split: _label(num_held_out, num_classes) for split in ("val", "test")
    }
    return DataSummary(
        name=section.name,
        num_train=num_train,
        num_val=num_held_out,
        num_test=num_held_out,
        classes=count_classes(labels, [str(label) for label in range(num_classes)]),
        held_out="validation and test: drawn from the same patterns",
        sizes={f"{side} x {side}": num_train + 2 * num_held_out},
        modes={f"{channels} channels": num_train + 2 * num_held_out},
        digest="synthetic",
    )


def _count_held_out(num_train: int) -> int:
    return max(100, num_train // 10)


def _label(count: int, num_classes: int) -> Indices:
    return np.arange(count, dtype=np.int64) % num_classes
