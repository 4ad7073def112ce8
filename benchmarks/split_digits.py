"""A plug-in: the digits 0 to 3 and the digits 4 to 9 as two data sets, so that a model can be trained on the first and
fine-tuned on the second, of which it has seen no image. They differ in their number of classes, so that fine-tuning
begins with a new head."""

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.sets.digits import load_digits
from sweep.training.data.splits import Source

EARLIER, LATER = "digits_0_to_3", "digits_4_to_9"
_FIRST_OF_LATER, _NUM_DIGITS = 4, 10


def load_earlier(section: DataSection) -> Source:
    """The digits 0 to 3, 8 x 8 x 1."""
    return _load(section, 0, _FIRST_OF_LATER)


def load_later(section: DataSection) -> Source:
    """The digits 4 to 9 as the classes 0 to 5, 8 x 8 x 1."""
    return _load(section, _FIRST_OF_LATER, _NUM_DIGITS)


def _load(section: DataSection, low: int, high: int) -> Source:
    images = load_digits(section).train
    chosen = np.flatnonzero((images.labels >= low) & (images.labels < high))
    return Source(train=ArrayImages(images.read(chosen), images.labels[chosen] - low), num_classes=high - low)


DATASETS[EARLIER] = DatasetEntry(load=load_earlier, depends_on_root=False)
DATASETS[LATER] = DatasetEntry(load=load_later, depends_on_root=False)
