"""Every data set that a configuration may name; a plug-in adds to the same table."""

from collections.abc import Callable

import numpy as np

from sweep.config.errors import InputError, unknown_name
from sweep.config.trial_config import DataSection
from sweep.training.data.downloads import cifar10, cifar100, fashion_mnist, mnist
from sweep.training.data.folder import imagefolder
from sweep.training.data.images import ArrayImages
from sweep.training.data.known_sets import digits_file
from sweep.training.data.splits import Source, Splits, split
from sweep.training.models.noisy_quadratic import blank_images

DatasetFunction = Callable[[DataSection], Source]


def digits(_section: DataSection) -> Source:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 x 1; their 17 grey levels are spread over 0...255."""
    table = np.loadtxt(digits_file(), delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return Source(ArrayImages(pixels, table[:, -1]), num_classes=10)


def synthetic(section: DataSection) -> Source:
    """Noise around one pattern per class, 3 channels, 10 classes: learnable, and as large as wanted.

    ``data.subset`` images for training (8,192 when absent) of ``data.image_size`` pixels (32).
    """
    side, num_train = section.image_size or 32, section.subset or 8192
    held_out = max(100, num_train // 10)
    generator = np.random.default_rng(0)
    patterns = generator.integers(64, 192, (10, 4, 4, 3))

    def draw(count: int) -> ArrayImages:
        labels = np.arange(count, dtype=np.int64) % 10
        spread = np.arange(side) * 4 // side
        coarse = patterns[:, spread][:, :, spread].astype(np.int16)
        noise = generator.integers(-64, 65, (count, side, side, 3), dtype=np.int16)
        return ArrayImages(np.clip(coarse[labels] + noise, 0, 255).astype(np.uint8), labels)

    train, validation, test = draw(num_train), draw(held_out), draw(held_out)
    return Source(train, num_classes=10, validation=validation, read_test=lambda: test)


DATASETS: dict[str, DatasetFunction] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagefolder": imagefolder,
    "synthetic": synthetic,
    "noisy_quadratic": blank_images,
}


def load_splits(section: DataSection) -> Splits:
    """The splits of the data set that ``section`` names.

    Raises:
        InputError: for an unknown set, missing files, or too few images.
    """
    if section.name not in DATASETS:
        raise InputError(unknown_name("data set", section.name, DATASETS))
    return split(DATASETS[section.name](section), section)
