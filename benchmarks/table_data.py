"""The images behind a table: made ones, and CIFAR-10's from the archive with a validation split."""

from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.images import ARCHIVE, cifar_images, offer
from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

NUM_VALIDATION = 500  # of "cifar10": an evaluation of more would take longer than the epoch before it
THREE = (0, 6, 9)  # airplane, frog, truck, by the order of their names
NUM_THREE, NUM_THREE_VALIDATION = 1000, 750
ANIMALS = (2, 6, 7)  # bird, frog, horse
NUM_ANIMALS, NUM_ANIMALS_VALIDATION = 1200, 2000

# The data sets that exist for tables alone, by name.
MADE: dict[str, DatasetEntry] = {
    "prototypes": DatasetEntry(load="benchmarks.made_images:load_prototypes", depends_on_root=False),
    "shapes": DatasetEntry(load="benchmarks.made_images:load_shapes", depends_on_root=False),
    "cifar10_three": DatasetEntry(load="benchmarks.table_data:load_three", depends_on_root=False),
    "cifar10_animals": DatasetEntry(load="benchmarks.table_data:load_animals", depends_on_root=False),
    **{
        name: DatasetEntry(load="benchmarks.made_tasks:load_task", depends_on_root=False)
        for name in ("gratings", "dots", "mixtures", "digits_blended")
    },
}


def load_design(path: Path) -> StudySpec:
    """The design in the file ``path``, which may name a data set of ``MADE``; errors as :func:`load_study`."""
    DATASETS.update(MADE)
    return load_study(path)


def offer_data(spec: StudySpec) -> None:
    """Makes the design's images known in this process: those of ``MADE``, and ``data.name = "cifar10"`` as the first
    ``data.subset`` of the shuffled images with the next ones for validation.

    Raises:
        InputError: the archive is missing.
    """
    DATASETS.update(MADE)
    if str(spec.base.get("data.name")).startswith("cifar10") and not ARCHIVE.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {ARCHIVE}; record another design.")
    if spec.base.get("data.name") == "cifar10":
        _offer_cifar(int(spec.base["data.subset"]))


@cache
def _offer_cifar(num_train: int) -> None:
    images = _read_cifar(num_train + NUM_VALIDATION)
    order = np.arange(len(images))
    offer("cifar10", images.pick(order[:num_train]), images.pick(order[num_train:]))


def load_three(_section: DataSection) -> Source:
    """Three classes of CIFAR-10 at half the side, 16 x 16 x 3: means of 2 x 2 pixels."""
    return _pick_classes(THREE, NUM_THREE, NUM_THREE_VALIDATION)


def load_animals(_section: DataSection) -> Source:
    """Three other classes of CIFAR-10, at a quarter of the side, 8 x 8 x 3: means of 4 x 4 pixels."""
    return _pick_classes(ANIMALS, NUM_ANIMALS, NUM_ANIMALS_VALIDATION, side=8)


@cache
def _pick_classes(classes: tuple[int, ...], num_train: int, num_validation: int, side: int = 16) -> Source:
    images = _read_cifar(50_000)
    chosen = np.flatnonzero(np.isin(images.labels, classes))[: num_train + num_validation]
    blocks = images.read(chosen).reshape(-1, side, 32 // side, side, 32 // side, 3)
    small = ArrayImages(
        blocks.mean(axis=(2, 4)).round().astype(np.uint8), np.searchsorted(classes, images.labels[chosen])
    )
    rows = np.arange(len(small))
    train, validation = small.pick(rows[:num_train]), small.pick(rows[num_train:])
    return Source(train=train, num_classes=len(classes), validation=validation, read_test=lambda: validation)


def _read_cifar(count: int) -> ArrayImages:
    # imported here, as by the trials: the modules behind it import torch
    import torch

    from benchmarks.harness import Setting

    images, _ = cifar_images(count, Setting(torch.device("cpu")))
    return images
