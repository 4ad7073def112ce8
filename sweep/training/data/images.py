"""Labeled images, in memory or in files. Imports no torch."""

from math import isqrt
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
        to_bytes = ".to(torch.uint8)" if hasattr(pixels, "permute") else ".astype('uint8')"
        self.pixels: Pixels = _check_pixels(np.asarray(pixels), to_bytes)
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


def _check_pixels(pixels: NDArray[Any], to_bytes: str) -> Pixels:
    shape = " x ".join(map(str, pixels.shape))
    rule = f"pixels have the shape {shape}; required is (images, side, side, channels)"
    if pixels.ndim == 2 and (side := isqrt(pixels.shape[1])) ** 2 == pixels.shape[1] > 0:
        raise InputError(f"{rule}: give pixels.reshape(-1, {side}, {side}, 1).")
    if pixels.ndim == 3:
        raise InputError(f"{rule}: for images without an axis of channels give pixels[..., None].")
    if pixels.ndim != 4:
        raise InputError(f"{rule}: give one array of uint8 with these four axes.")
    _, height, width, channels = pixels.shape
    if height in _CHANNELS and channels not in _CHANNELS and (height != width or width == channels):
        raise InputError(
            f"{rule}: of (images, channels, side, side) give pixels.transpose(0, 2, 3, 1), of a torch tensor "
            "pixels.permute(0, 2, 3, 1)."
        )
    if height != width:
        raise InputError(
            f"pixels have the shape {shape}: images of {height} x {width} pixels; models require squares: crop or pad "
            "them."
        )
    if 0 in pixels.shape[1:]:
        raise InputError(f"{rule}, each at least 1: give images with pixels.")
    if pixels.dtype != np.uint8:
        raise InputError(_explain_levels(pixels, to_bytes))
    return pixels


def _explain_levels(pixels: NDArray[Any], to_bytes: str) -> str:
    required = "required is uint8 from 0 to 255, before any normalization"
    if pixels.dtype.kind not in "biuf" or not pixels.size:
        return f"pixels are {pixels.dtype}; {required}: give pixels{to_bytes}."
    low, high = float(pixels.min()), float(pixels.max())
    found = f"pixels are {pixels.dtype} from {low:g} to {high:g}; {required}"
    if not (low >= 0 and high <= 255):  # also not a number
        return f"{found}: give the images as they were before they were normalized, or scale them to 0 to 255."
    return f"{found}: give {'(pixels * 255).round()' if high <= 1 else 'pixels'}{to_bytes}."


def _check_labels(labels: NDArray[Any], num_images: int) -> Indices:
    if labels.ndim == 2 and len(labels) == num_images:
        remedy = "of one-hot labels give labels.argmax(1)" if labels.shape[1] > 1 else "give labels[:, 0]"
        raise InputError(
            f"labels have the shape {labels.shape[0]} x {labels.shape[1]}; required is one class index per image, "
            f"(images,): {remedy}."
        )
    if labels.ndim != 1 or len(labels) != num_images:
        shape = " x ".join(map(str, labels.shape)) or "of a single number"
        raise InputError(
            f"there are {num_images} images, and labels have the shape {shape}; required is one label for each image: "
            "give both in the same order and number."
        )
    if labels.dtype.kind not in "iu" and len(labels):
        is_whole = labels.dtype.kind in "bf" and bool((labels == np.round(labels.astype(np.float64))).all())
        remedy = "labels.astype('int64')" if is_whole else "numpy.unique(labels, return_inverse=True)[1]"
        raise InputError(
            f"labels are {labels.dtype}, such as {labels[0]!s}; required are class indices, integers from 0: give "
            f"{remedy}."
        )
    return labels.astype(np.int64, copy=False)
