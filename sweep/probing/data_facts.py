"""What a forecast must know of a data set: the size of its images and how many of them are trained on."""

from typing import NamedTuple

from sweep.config.trial_config import DataSection
from sweep.training.data.folder import list_folder
from sweep.training.data.known_sets import KNOWN_SETS
from sweep.training.data.splits import count_train
from sweep.training.data.table import load_splits
from sweep.training.models.image_shape import ImageShape


class DataFacts(NamedTuple):
    """The images of the training split."""

    shape: ImageShape
    num_train: int


_DIGITS = DataFacts(ImageShape(channels=1, side=8, num_classes=10), 1300)
_SYNTHETIC_TRAIN = 8192
_SHAPES = {
    "mnist": ImageShape(1, 28, 10),
    "fashion_mnist": ImageShape(1, 28, 10),
    "cifar10": ImageShape(3, 32, 10),
    "cifar100": ImageShape(3, 32, 100),
}


def data_facts(section: DataSection) -> DataFacts:
    """The facts of the set that ``section`` names, from what is known or listed; others are loaded.

    Raises:
        InputError: for a set that must be looked at and is not there.
    """
    known = _known(section)
    if known is None:
        splits = load_splits(section)
        return DataFacts(splits.shape, len(splits.train))
    return known._replace(num_train=min(section.subset or known.num_train, known.num_train))


def _known(section: DataSection) -> DataFacts | None:
    if section.name == "digits":
        return _DIGITS
    if section.name in _SHAPES:
        return DataFacts(_SHAPES[section.name], KNOWN_SETS[section.name].num_train)
    if section.name == "synthetic":
        return DataFacts(ImageShape(3, section.image_size or 32, 10), section.subset or _SYNTHETIC_TRAIN)
    if section.name == "imagefolder" and section.image_size is not None:
        return _folder(section, section.image_size)
    return None


def _folder(section: DataSection, side: int) -> DataFacts:
    parts, classes = list_folder(section)
    labels = parts["train"].labels
    num_train = count_train(labels, has_validation="val" in parts, has_test="test" in parts)
    return DataFacts(ImageShape(3, side, len(classes)), num_train)
