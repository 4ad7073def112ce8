"""Labeled images, in memory or in files, and their splits: the same for every trial, whatever its seed.

Imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isqrt
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import ImageShape

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
    problem = f"pixels are {pixels.dtype} from {low:g} to {high:g}; {required}"
    if not (low >= 0 and high <= 255):  # also not a number
        return f"{problem}: give the images as they were before they were normalized, or scale them to 0 to 255."
    return f"{problem}: give {'(pixels * 255).round()' if high <= 1 else 'pixels'}{to_bytes}."


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


_SPLIT_SEED = 20151210  # of the splits, never the trial's seed
HELD_OUT = 0.15  # validation, and as much again for test, where a set has no test split of its own
HELD_OUT_BESIDE_TEST = 0.1  # validation where the set has a test split of its own


@dataclass(frozen=True, kw_only=True)
class Source:
    """The images of a data set. ``validation`` and ``read_test`` are absent where the set has no such split.

    ``class_names`` are in the order of the labels; without them a class is called by its label.
    """

    train: Images
    num_classes: int
    validation: Images | None = None
    read_test: Callable[[], Images] | None = None
    class_names: tuple[str, ...] = ()
    find_digest: Callable[[], str] | None = None  # of the images as they were read, where that takes no second reading


@dataclass(frozen=True, kw_only=True)
class Splits:
    """What a trial trains on, chooses by and, only when asked, is judged on."""

    train: Images
    validation: Images
    read_test: Callable[[], Images]
    shape: ImageShape
    class_names: tuple[str, ...]  # in the order of the labels


def split_source(source: Source, section: DataSection) -> Splits:
    """The splits of ``source``, stratified by class; ``data.subset`` shortens the train split alone.

    Raises:
        InputError: when there are too few images.
    """
    has_validation, has_test = source.validation is not None, source.read_test is not None
    rest, for_validation, for_test = hold_out_missing(source.train.labels, section, has_validation, has_test)
    validation = source.train.pick(for_validation) if source.validation is None else source.validation
    check_split_sizes(section, len(source.train), len(rest), len(validation))
    train = source.train.pick(shorten_train(rest, section))
    shape = ImageShape(channels=train.channels, side=train.side, num_classes=source.num_classes)
    read_test = source.read_test or partial(source.train.pick, for_test)
    class_names = source.class_names or tuple(map(str, range(source.num_classes)))
    return Splits(train=train, validation=validation, read_test=read_test, shape=shape, class_names=class_names)


def count_train(labels: Indices, section: DataSection, *, has_validation: bool, has_test: bool) -> int:
    """How many of the images with ``labels`` are left for training when the missing splits are held out."""
    return len(hold_out_missing(labels, section, has_validation, has_test)[0])


def find_validation_share(section: DataSection, *, has_test: bool) -> float:
    """The share that is held out for validation of the images that are left after the test split."""
    return section.validation_share or (HELD_OUT_BESIDE_TEST if has_test else HELD_OUT)


def hold_out_missing(
    labels: Indices, section: DataSection, has_validation: bool, has_test: bool
) -> tuple[Indices, Indices, Indices]:
    """Indices for train, validation and test, of shapes ``(n,)``; none for a split that the set has of its own.

    Raises:
        InputError: where ``data.validation_share`` is given, and the set has a validation split of its own.
    """
    if has_validation:
        refuse_validation_share(section)
    rest = np.arange(len(labels), dtype=np.int64)
    validation = test = rest[:0]
    if not has_test:
        rest, test = _hold_out(labels, rest, HELD_OUT, salt=1)
    if not has_validation:
        rest, validation = _hold_out(labels, rest, find_validation_share(section, has_test=has_test), salt=2)
    return rest, validation, test


def refuse_validation_share(section: DataSection) -> None:
    """Raises ``InputError`` where ``data.validation_share`` is given for a set with a validation split of its own."""
    if section.validation_share is not None:
        raise InputError(
            f"data.validation_share = {section.validation_share:g}, but {section.name} has a validation split of its "
            "own, so that none is held out; leave data.validation_share out."
        )


def _hold_out(labels: Indices, candidates: Indices, share: float, salt: int) -> tuple[Indices, Indices]:
    # per class, so that small classes are in every split; at least one image of a class stays for training
    generator = np.random.default_rng((_SPLIT_SEED, salt))
    kept, held_out = [], []
    for label in np.unique(labels[candidates]):
        members = generator.permutation(candidates[labels[candidates] == label])
        count = min(max(1, round(len(members) * share)), len(members) - 1)
        held_out.append(members[:count])
        kept.append(members[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def shorten_train(rest: Indices, section: DataSection) -> Indices:
    if section.subset is None:
        return rest
    check_subset(section, len(rest))
    return np.sort(np.random.default_rng((_SPLIT_SEED, 3)).permutation(rest)[: section.subset])


def check_split_sizes(section: DataSection, num_images: int, num_train: int, num_val: int) -> None:
    """Raises ``InputError`` where nothing is left of ``num_images`` to train on or to validate by."""
    if num_train == 0 or num_val == 0:
        raise InputError(
            f"data {section.name}: {num_images} images are too few: after the hold-out {num_train} are left for "
            f"training and {num_val} for validation; give at least 3 images of a class, or validation images of "
            "their own."
        )


def check_subset(section: DataSection, num_train: int) -> None:
    """Raises ``InputError`` where ``data.subset`` is more than the ``num_train`` images of the train split."""
    if section.subset is not None and section.subset > num_train:
        raise InputError(
            f"data.subset = {section.subset}, but the train split of {section.name} has {num_train} images; "
            "give that many or fewer, or leave data.subset out."
        )
