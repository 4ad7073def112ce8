"""Checks what the load function of a data set returns, as strictly as a study file. No torch here."""

import hashlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from operator import index
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.units import format_count
from sweep.training.data.images import ArrayImages, Images
from sweep.training.data.splits import Source

_MAX_OVERLAP = 0.01  # of a held-out split; published sets have some images twice


def load_checked(load: Callable[[DataSection], Any], section: DataSection) -> Source:
    """The images that ``load`` returns for ``section``, checked.

    Raises:
        InputError: it fails, or what it returns cannot be trained on; one line with value, rule and remedy.
    """
    source = _call(lambda: load(section), section.name)
    if not isinstance(source, Source):
        found = "nothing" if source is None else f"a value of the type {type(source).__name__}"
        raise InputError(
            f"data set {section.name!r}: its load function returned {found}; required is a Source: return "
            "Source(train=ArrayImages(pixels, labels), num_classes=...)."
        )
    source = replace(source, num_classes=_check_num_classes(section.name, source.num_classes))
    _check_images(section.name, "train", source.train, source)
    if source.validation is not None:
        _check_images(section.name, "validation", source.validation, source)
    return source


def read_test_images(source: Source, name: str) -> Images | None:
    """The images of the set's own test split, checked; None where it has none."""
    if source.read_test is None:
        return None
    if not callable(source.read_test):
        raise InputError(f"data set {name!r}: read_test is no function; give lambda: images, or a function.")
    images: Images = _call(source.read_test, name)
    _check_images(name, "test", images, source)
    return images


def _call(function: Callable[[], Any], name: str) -> Any:
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's own, which may be JSON
            return function()
    except InputError as error:
        is_complete = str(error).startswith(("data ", "data.", "data set"))
        raise InputError(str(error) if is_complete else f"data set {name!r}{_find_place(error)}: {error}") from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"data set {name!r}{_find_place(error)}: its load function failed: {type(error).__name__}: {text}."
        ) from error


def _find_place(error: BaseException) -> str:
    # the last line beside the function that was called, because one of a library explains nothing
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return ""
    folder = Path(frames[0].filename).parent
    last = [frame for frame in frames if Path(frame.filename).parent == folder][-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


def _check_num_classes(name: str, num_classes: Any) -> int:
    try:
        count = index(num_classes)  # also NumPy's integers, such as labels.max() + 1
    except TypeError:
        count = 0
    if count < 1 or isinstance(num_classes, bool):
        raise InputError(
            f"data set {name!r}: num_classes = {num_classes!r}; required is a whole number of at least 1: give the "
            "number of classes, for example int(labels.max()) + 1."
        )
    return count


def _check_images(name: str, split: str, images: Any, source: Source) -> None:
    where = f"data set {name!r}, {split} split"
    if not all(hasattr(images, each) for each in ("labels", "side", "channels", "read", "pick", "__len__")):
        raise InputError(
            f"{where}: a value of the type {type(images).__name__} holds no labeled images; give "
            "ArrayImages(pixels, labels)."
        )
    if len(images) == 0:
        raise InputError(f"{where}: it has no images; required are some of each class: give at least 3 of each.")
    low, high = int(np.min(images.labels)), int(np.max(images.labels))
    if low < 0 or high >= source.num_classes:
        raise InputError(
            f"{where}: the labels are {low} to {high}; num_classes = {source.num_classes} requires 0 to "
            f"{source.num_classes - 1}: {_advise_on_labels(low, high, source.num_classes)}."
        )
    if (images.side, images.channels) != (source.train.side, source.train.channels):
        raise InputError(
            f"{where}: images of {images.side} x {images.side} x {images.channels}; those of the train split are "
            f"{source.train.side} x {source.train.side} x {source.train.channels}: bring all to one size."
        )


def _advise_on_labels(low: int, high: int, num_classes: int) -> str:
    if low == 1 and high == num_classes:
        return "give labels - 1"
    if low < 0:
        return "leave out images without a class, and number the classes from 0"
    return f"give num_classes = {high + 1}, or mend the labels"


def check_overlap(name: str, parts: dict[str, Images]) -> list[str]:
    """Notes on images of the splits ``parts`` that are in two of them.

    Raises:
        InputError: more than 1 % of a split's images are in another one, so that it measures no new images.
    """
    digests = {split: _digest_each(images) for split, images in parts.items() if isinstance(images, ArrayImages)}
    notes = []
    for split, other in (("val", "train"), ("test", "train"), ("test", "val")):
        if split not in digests or other not in digests or len(set(digests["train"])) == 1:
            continue
        seen = set(digests[other])
        num_twice = sum(each in seen for each in digests[split])
        if num_twice > _MAX_OVERLAP * len(digests[split]):
            raise InputError(
                f"data set {name!r}: {num_twice} of {len(digests[split])} images of the {split} split are in the "
                f"{other} split too, so that accuracy on it is not accuracy on new images; give disjoint splits, or "
                "leave validation and read_test out, and they are held out of train."
            )
        if num_twice:
            notes.append(
                f"{num_twice} of {len(digests[split])} images of the {split} split are in the {other} split too"
            )
    return notes


def find_doubtful_pixels(parts: dict[str, Images]) -> list[str]:
    """Notes on pixels in memory that are hardly those of images, and on equal images from which a split is held out."""
    train, notes = parts["train"], list[str]()
    if not isinstance(train, ArrayImages):
        return notes
    if (highest := int(train.pixels.max())) <= 1:
        notes.append(f"the pixels are 0 to {highest}, of the 0 to 255 of uint8: multiply pixels of 0 to 1 by 255")
    num_twice = len(train) - len(set(_digest_each(train)))
    if num_twice and len(parts) < 3:
        notes.append(
            f"{format_count(num_twice, 'image')} equal to another one, so that an image can be in the training split "
            "and in a held-out one"
        )
    return notes


def _digest_each(images: ArrayImages) -> list[bytes]:
    pixels = np.ascontiguousarray(images.pixels)
    return [hashlib.blake2b(image.data, digest_size=16).digest() for image in pixels]
