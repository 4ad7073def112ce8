"""Labeled images, in memory or in files. Imports no torch."""

from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]


class Images(Protocol):
    """Square labeled images. ``labels`` are (n,) int64."""

    labels: Indices

    def __len__(self) -> int: ...

    @property
    def side(self) -> int: ...

    @property
    def channels(self) -> int: ...

    def read(self, indices: Indices) -> Pixels:
        """The images at ``indices``: (len(indices), side, side, channels) uint8."""
        ...

    def pick(self, indices: Indices) -> "Images":
        """The images at ``indices``, in that order."""
        ...


@final
class ArrayImages:
    """Images in memory: ``pixels`` (n, side, side, channels) uint8."""

    def __init__(self, pixels: Pixels, labels: Indices) -> None:
        assert pixels.ndim == 4, pixels.shape
        assert pixels.shape[1] == pixels.shape[2], pixels.shape
        assert len(pixels) == len(labels), (len(pixels), len(labels))
        self.pixels = pixels
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    def read(self, indices: Indices) -> Pixels:
        return self.pixels[indices]

    def pick(self, indices: Indices) -> "ArrayImages":
        return ArrayImages(self.pixels[indices], self.labels[indices])
