"""scikit-learn's handwritten digits. No torch here."""

import importlib.util
from pathlib import Path

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source


def load_digits(_section: DataSection) -> Source:
    """1,797 handwritten digits, 8 x 8 x 1; their 17 gray levels are spread over 0...255."""
    table = np.loadtxt(_find_digits_file(), delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return Source(train=ArrayImages(pixels, table[:, -1]), num_classes=10)


def _find_digits_file() -> Path:
    """The digits inside scikit-learn's package: 64 gray levels and the label a line.

    Read directly, because importing scikit-learn takes as long as a small trial.

    Raises:
        InputError: when scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders or ()]
    for file in files:
        if file.is_file():
            return file
    raise InputError("data digits come with scikit-learn, which is not installed; run pip install scikit-learn.")
