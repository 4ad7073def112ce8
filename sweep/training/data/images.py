"""Labeled images, in memory or in files, and their splits: the same for every trial, whatever its seed.

Imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import ImageShape

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


def crop_center(pixels: Pixels, side: int) -> Pixels:
    """The center (..., side, side, c) of ``pixels`` (..., s, s, c); a view."""
    start = (pixels.shape[-2] - side) // 2
    return pixels[..., start : start + side, start : start + side, :]


@final
class ArrayImages:
    """Images in memory, or in a file that is mapped into it: ``pixels`` (n, s, s, channels) uint8 and ``labels`` (n,)
    of integers. Both are NumPy arrays, or anything that ``numpy.asarray`` converts, such as torch tensors on the CPU.

    With ``rows`` (m,) the images are these rows of ``pixels``, in that order, with ``labels`` (m,); no pixel is copied.
    With a ``side`` below s they are the centers of what is stored. Raises ``InputError``: another type or shape."""

    def __init__(self, pixels: Any, labels: Any, *, rows: Indices | None = None, side: int | None = None) -> None:
        self._stored: Pixels = _check_pixels(np.asarray(pixels))
        self._rows = rows
        self.labels: Indices = _check_labels(np.asarray(labels), len(self._stored if rows is None else rows))
        self._centers = crop_center(self._stored, side or self.stored_side)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        return int(self._centers.shape[1])

    @property
    def stored_side(self) -> int:
        return int(self._stored.shape[1])

    @property
    def channels(self) -> int:
        return int(self._stored.shape[3])

    @property
    def num_bytes(self) -> int:
        return len(self) * self.side**2 * self.channels

    @property
    def pixels(self) -> Pixels:
        """All of the images: (n, side, side, channels), a copy where they are rows of others."""
        return self._centers if self._rows is None else self._centers[self._rows]

    def read(self, indices: Indices, out: Pixels | None = None) -> Pixels:
        """The images at ``indices``, in ``out`` (len(indices), side, side, channels) where it is given."""
        rows = indices if self._rows is None else self._rows[indices]
        if out is None:
            return self._centers[rows]
        if self._centers.flags.c_contiguous:  # of others NumPy would copy all images first
            return np.take(self._centers, rows, axis=0, out=out, mode="clip")
        out[:] = self._centers[rows]
        return out

    def pick(self, indices: Indices) -> "ArrayImages":
        rows = indices if self._rows is None else self._rows[indices]
        return ArrayImages(self._stored, self.labels[indices], rows=rows, side=self.side)

    def uncropped(self) -> "ArrayImages":
        """The same images at the side at which they are stored."""
        return ArrayImages(self._stored, self.labels, rows=self._rows)


def _check_pixels(pixels: NDArray[Any]) -> Pixels:
    shape = pixels.shape
    if pixels.dtype != np.uint8 or len(shape) != 4 or shape[1] != shape[2] or 0 in shape[1:]:
        raise InputError(
            f"pixels are {pixels.dtype} of shape {_show_shape(shape)}; required is uint8, 0 to 255 before any "
            "normalization, of shape (images, side, side, channels). pixels[..., None] adds the axis of channels, "
            "pixels.transpose(0, 2, 3, 1), of a torch tensor permute, puts it last, and "
            "(pixels * 255).round().astype('uint8'), of a torch tensor to(torch.uint8), converts values of 0 to 1."
        )
    return pixels


def _check_labels(labels: NDArray[Any], num_images: int) -> Indices:
    if labels.shape != (num_images,) or (labels.dtype.kind not in "iu" and num_images):
        raise InputError(
            f"labels are {labels.dtype} of shape {_show_shape(labels.shape)} for {num_images} images; required is one "
            "class index for each image, an integer from 0. labels.argmax(1) converts one-hot labels, "
            "numpy.unique(labels, return_inverse=True)[1] names and other values."
        )
    return labels.astype(np.int64, copy=False)


def _show_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"


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
    """The splits of ``source``, stratified by class; ``data.subset`` shortens the train split alone."""
    has_validation, has_test = source.validation is not None, source.read_test is not None
    held_out = hold_out(source.train.labels, section, has_validation=has_validation, has_test=has_test)
    train = source.train.pick(held_out.train)
    return Splits(
        train=train,
        validation=source.validation or source.train.pick(held_out.validation),
        read_test=source.read_test or partial(source.train.pick, held_out.test),
        shape=ImageShape(channels=train.channels, side=train.side, num_classes=source.num_classes),
        class_names=source.class_names or tuple(map(str, range(source.num_classes))),
    )


def find_validation_share(section: DataSection, *, has_test: bool) -> float:
    """The share that is held out for validation of the images that are left after the test split."""
    return section.validation_share or (HELD_OUT_BESIDE_TEST if has_test else HELD_OUT)


class HeldOut(NamedTuple):
    """Indices (n,) into the images of a train split, by the split that gets them."""

    train: Indices
    validation: Indices
    test: Indices


def hold_out(labels: Indices, section: DataSection, *, has_validation: bool, has_test: bool) -> HeldOut:
    """What a train split with ``labels`` (n,) gives to the splits that the set does not have; of the rest, what
    ``data.subset`` leaves. Raises ``InputError``: there are too few images, or ``data.validation_share`` is given for a
    set with its own validation."""
    if has_validation:
        refuse_validation_share(section)
    rest = np.arange(len(labels), dtype=np.int64)
    validation = test = rest[:0]
    if not has_test:
        rest, test = _hold_out_share(labels, rest, HELD_OUT, salt=1)
    if not has_validation:
        rest, validation = _hold_out_share(labels, rest, find_validation_share(section, has_test=has_test), salt=2)
    if len(rest) == 0 or not (has_validation or len(validation)):
        raise InputError(
            f"data {section.name}: {len(labels)} images are too few: after the hold-out {len(rest)} are left for "
            f"training and {len(validation)} for validation; give at least 3 images of a class, or validation images "
            "of their own."
        )
    if section.subset is not None:
        check_subset(section, len(rest))
        rest = np.sort(np.random.default_rng((_SPLIT_SEED, 3)).permutation(rest)[: section.subset])
    return HeldOut(rest, validation, test)


def refuse_validation_share(section: DataSection) -> None:
    """Raises ``InputError`` where ``data.validation_share`` is given for a set with a validation split of its own."""
    if section.validation_share is not None:
        raise InputError(
            f"data.validation_share = {section.validation_share:g}, but {section.name} has a validation split of its "
            "own, so that none is held out; leave data.validation_share out."
        )


def _hold_out_share(labels: Indices, candidates: Indices, share: float, salt: int) -> tuple[Indices, Indices]:
    # per class, so that small classes are in every split; at least one image of a class stays for training
    generator = np.random.default_rng((_SPLIT_SEED, salt))
    kept, held_out = [], []
    for label in np.unique(labels[candidates]):
        members = generator.permutation(candidates[labels[candidates] == label])
        count = min(max(1, round(len(members) * share)), len(members) - 1)
        held_out.append(members[:count])
        kept.append(members[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def check_subset(section: DataSection, num_train: int) -> None:
    """Raises ``InputError`` where ``data.subset`` is more than the ``num_train`` images of the train split."""
    if section.subset is not None and section.subset > num_train:
        raise InputError(
            f"data.subset = {section.subset}, but the train split of {section.name} has {num_train} images; "
            "give that many or fewer, or leave data.subset out."
        )
