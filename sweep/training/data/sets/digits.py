"""The handwritten digits, which come with this package. No torch here.

``digits.csv.gz`` lies beside this file, its origin and licenses in ``digits.NOTICE.md``.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sweep.config.data_sections import DataSection
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

_FILE = Path(__file__).with_name("digits.csv.gz")


class Digits(NamedTuple):
    """All 1,797 digits in the order of the file: ``levels`` of gray, 0...16, and ``labels``."""

    levels: npt.NDArray[np.int64]  # [1797, 8, 8]
    labels: npt.NDArray[np.int64]  # [1797]


def read_digits() -> Digits:
    """The digits of the file: a line for each, with 64 levels of gray and the label."""
    table = np.loadtxt(_FILE, delimiter=",", dtype=np.int64)
    return Digits(table[:, :-1].reshape(-1, 8, 8), table[:, -1])


def load_digits(_section: DataSection) -> Source:
    """1,797 handwritten digits, 8 x 8 x 1; their 17 levels of gray are spread over 0...255."""
    digits = read_digits()
    pixels = np.rint(digits.levels[..., None] * (255 / 16)).astype(np.uint8)
    return Source(train=ArrayImages(pixels, digits.labels), num_classes=10)
