"""Labeled images, in memory or in files. Imports no torch."""

from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from sweep.config.errors import InputError

Pixels = NDArray[np.uint8]
Indices = NDArray[np.int64]
_CHANNELS = (1, 3, 4)


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
    """Images in memory: ``pixels`` (n, side, side, channels) uint8 and ``labels`` (n,) of integers.

    Both are NumPy arrays, or anything that ``numpy.asarray`` converts, such as torch tensors on the CPU.

    Raises:
        InputError: another type or shape, with the expression that converts the most frequent ones.
    """

    def __init__(self, pixels: Any, labels: Any) -> None:
        self.pixels: Pixels = _check_pixels(np.asarray(pixels))
        self.labels: Indices = _check_labels(np.asarray(labels), len(self.pixels))

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


def _check_pixels(pixels: NDArray[Any]) -> Pixels:
    shape = " x ".join(map(str, pixels.shape))
    if pixels.ndim == 3:
        raise InputError(
            f"pixels have the shape {shape}: images without an axis of channels; required is (images, side, side, "
            "channels): give pixels[..., None]."
        )
    if pixels.ndim != 4:
        raise InputError(f"pixels have the shape {shape}; required is (images, side, side, channels).")
    _, height, width, channels = pixels.shape
    if height in _CHANNELS and channels not in _CHANNELS and width == channels:
        raise InputError(
            f"pixels have the shape {shape}, which is (images, channels, side, side); required is (images, side, side, "
            "channels): give pixels.transpose(0, 2, 3, 1), of a torch tensor pixels.permute(0, 2, 3, 1)."
        )
    if height != width:
        raise InputError(
            f"pixels have the shape {shape}: images of {height} x {width} pixels; models require squares: crop or pad "
            "them."
        )
    if pixels.dtype != np.uint8:
        span = f" from {pixels.min():g} to {pixels.max():g}" if pixels.size and pixels.dtype.kind in "biuf" else ""
        to_bytes = "(pixels * 255).round()" if span and pixels.max() <= 1 else "pixels"
        raise InputError(
            f"pixels are {pixels.dtype}{span}; required is uint8 from 0 to 255, before any normalization: give "
            f"{to_bytes}.astype('uint8')."
        )
    return pixels


def _check_labels(labels: NDArray[Any], num_images: int) -> Indices:
    if labels.ndim == 2 and len(labels) == num_images:
        raise InputError(
            f"labels have the shape {labels.shape[0]} x {labels.shape[1]}; required is one class index per image, "
            "(images,): of one-hot labels give labels.argmax(1)."
        )
    if labels.ndim != 1 or len(labels) != num_images:
        raise InputError(f"there are {num_images} images and labels of the shape {labels.shape}; give one for each.")
    if labels.dtype.kind not in "iu":
        raise InputError(
            f"labels are {labels.dtype}; required are class indices: integers from 0, for example "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    return labels.astype(np.int64, copy=False)
