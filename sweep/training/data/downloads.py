"""The data sets that torchvision's own classes read, and download where there is a network."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.training.data.images import ArrayImages, Source
from sweep.training.data.published import check_published, describe_missing, is_unpacked
from sweep.training.vision import datasets

_TIMEOUT_SECONDS = 20.0  # for each answer of the server


def load_mnist(section: DataSection) -> Source:
    """MNIST: 60,000 images for training, 10,000 for test, 28 x 28 x 1."""
    return _load(datasets.MNIST, section, num_classes=10)


def load_fashion_mnist(section: DataSection) -> Source:
    """Fashion-MNIST: 60,000 images for training, 10,000 for test, 28 x 28 x 1."""
    return _load(datasets.FashionMNIST, section, num_classes=10)


def load_cifar10(section: DataSection) -> Source:
    """CIFAR-10: 50,000 images for training, 10,000 for test, 32 x 32 x 3."""
    return _load(datasets.CIFAR10, section, num_classes=10)


def load_cifar100(section: DataSection) -> Source:
    """CIFAR-100: 50,000 images for training, 10,000 for test, 32 x 32 x 3."""
    return _load(datasets.CIFAR100, section, num_classes=100)


def _load(dataset: Callable[..., Any], section: DataSection, num_classes: int) -> Source:
    check_published(section)
    try:
        with _download_timeout():
            train = _images(dataset(section.root, train=True, download=not is_unpacked(section)))
    except (OSError, RuntimeError) as error:
        raise InputError(f"{describe_missing(section)} ({type(error).__name__}: {error})") from error
    read_test = partial(_read_test, dataset, section.root)
    return Source(train=train, num_classes=num_classes, read_test=read_test)


def _read_test(dataset: Callable[..., Any], root: str) -> ArrayImages:
    return _images(dataset(root, train=False, download=False))


def _images(dataset: Any) -> ArrayImages:
    pixels = np.asarray(dataset.data, dtype=np.uint8)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    return ArrayImages(pixels, np.asarray(dataset.targets, dtype=np.int64))


@contextmanager
def _download_timeout() -> Iterator[None]:
    # torchvision opens addresses without a time limit of its own
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
