"""Any folder of images: class folders, with or without train/, val/ and test/ above them. No torch here."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import psutil
from PIL import Image

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DataFacts, ImageShape
from sweep.training.data.cache import load_or_decode
from sweep.training.data.images import ArrayImages, Images, Indices, Pixels
from sweep.training.data.splits import Source, check_subset, count_train
from sweep.training.supervisor_link import SUPERVISOR_LINK

_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_DECODED_SHARE = 0.25  # of the available memory; a folder that decodes to more is streamed from its files
_DIGEST_BYTES = 4096
# Whatever a file is called, no other reader is tried: some that Pillow has start programs.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
_MAX_PIXELS = 2**27  # of one image; decoded it takes 400 MB, in each of eight threads


class Listing(NamedTuple):
    """The image files of one split, by class folder in sorted order."""

    paths: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    labels: Indices


@final
class FolderImages:
    """Images that are decoded whenever they are read, in threads."""

    channels = 3

    def __init__(self, paths: tuple[str, ...], labels: Indices, side: int, resize: bool) -> None:
        self.paths = paths
        self.labels = labels
        self._side = side
        self._resize = resize

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        return self._side

    def read(self, indices: Indices) -> Pixels:
        return _decode([self.paths[index] for index in indices], self._side, self._resize)

    def pick(self, indices: Indices) -> "FolderImages":
        return FolderImages(
            tuple(self.paths[index] for index in indices), self.labels[indices], self._side, self._resize
        )


def load_imagefolder(section: DataSection) -> Source:
    """The class folders under ``data.root``; images are RGB squares of ``data.image_size`` pixels.

    ``train/`` with ``test/`` and ``val/`` where they exist; otherwise class folders, of which validation and test
    are held out. Without ``data.image_size`` all images must be squares of one size.
    """
    parts, classes = list_folder(section)
    train = parts["train"]
    side = section.image_size or _common_side(train.paths[0])
    load = partial(_load, side=side, resize=section.image_size is not None, in_memory=section.placement == "device")
    return Source(
        train=load(train),
        num_classes=len(classes),
        validation=load(parts["val"]) if "val" in parts else None,
        read_test=partial(load, parts["test"]) if "test" in parts else None,
    )


def list_folder(section: DataSection) -> tuple[dict[str, Listing], list[str]]:
    """The files of each split that has a folder, and the names of the classes.

    Raises:
        InputError: for a missing or empty folder, or a class that the train split lacks.
    """
    root = Path(section.root)
    if not root.is_dir():
        raise InputError(f"data.root = {section.root!r} is not a folder; imagefolder requires one with class folders.")
    folders = {name: root / name for name in ("train", "val", "test") if (root / name).is_dir()}
    if "train" not in folders:
        folders = {"train": root}
    classes = sorted(entry.name for entry in folders["train"].iterdir() if entry.is_dir())
    if len(classes) < 2:
        raise InputError(f"{folders['train']} holds {len(classes)} class folders; imagefolder requires two or more.")
    return {name: _list_split(folder, classes) for name, folder in folders.items()}, classes


def find_folder_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images, from the list of files and at most one of them."""
    parts, classes = list_folder(section)
    side = section.image_size or _common_side(parts["train"].paths[0])
    return DataFacts(ImageShape(3, side, len(classes)), _count_train(parts))


def check_folder(section: DataSection) -> None:
    """Raises ``InputError`` for a missing or empty folder, or too large a ``data.subset``."""
    parts, _ = list_folder(section)
    if section.subset is not None:
        check_subset(section, _count_train(parts))


def _count_train(parts: dict[str, Listing]) -> int:
    return count_train(parts["train"].labels, has_validation="val" in parts, has_test="test" in parts)


def digest_folder(section: DataSection) -> str:
    """A digest of the relative path, the size and the first 4 KiB of every image."""
    parts, _ = list_folder(section)
    digest = hashlib.sha256()
    for listing in parts.values():
        for path, size in zip(listing.paths, listing.sizes_bytes, strict=True):
            digest.update(f"{os.path.relpath(path, section.root)}\0{size}\0".encode())
            with Path(path).open("rb", buffering=0) as file:
                digest.update(file.read(_DIGEST_BYTES))
    return digest.hexdigest()


def _list_split(folder: Path, classes: list[str]) -> Listing:
    strange = {entry.name for entry in folder.iterdir() if entry.is_dir()} - set(classes)
    if strange:
        raise InputError(f"{folder} has class folders that the train split lacks: {', '.join(sorted(strange))}.")
    found = [(path, size, label) for label, name in enumerate(classes) for path, size in _files(folder / name)]
    if not found:
        raise InputError(f"{folder} holds no images ({', '.join(_SUFFIXES)}); put them into its class folders.")
    paths, sizes, labels = zip(*found, strict=True)
    return Listing(paths, sizes, np.asarray(labels, dtype=np.int64))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    if not folder.is_dir():
        return
    try:
        with os.scandir(folder) as entries:
            images = sorted(
                (entry for entry in entries if entry.name.lower().endswith(_SUFFIXES)), key=lambda e: e.name
            )
        yield from [(entry.path, entry.stat().st_size) for entry in images]
    except OSError as error:
        place = error.filename or folder
        raise InputError(f"{place}: cannot be read: {error.strerror}; repair or remove it.") from None


def _common_side(path: str) -> int:
    with _open(path) as image:
        width, height = image.size
    if width != height:
        raise InputError(f"{path} is {width} x {height} pixels; set data.image_size to bring all images to one size.")
    return width


def _load(listing: Listing, *, side: int, resize: bool, in_memory: bool) -> Images:
    images = FolderImages(listing.paths, listing.labels, side, resize)
    decoded_bytes = len(images) * side * side * 3
    if not in_memory or decoded_bytes > _DECODED_SHARE * psutil.virtual_memory().available:
        return images
    key = hashlib.sha256(f"{side} {resize}".encode())
    for path in listing.paths:
        status = Path(path).stat()
        key.update(f"{Path(path).absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    everything = np.arange(len(images), dtype=np.int64)
    pixels = load_or_decode(key.hexdigest(), lambda: images.read(everything))
    return ArrayImages(pixels, listing.labels)


def _decode(paths: list[str], side: int, resize: bool) -> Pixels:
    pixels = np.empty((len(paths), side, side, 3), dtype=np.uint8)

    def fill(span: range) -> None:
        for index in span:
            pixels[index] = _decode_one(paths[index], side, resize)

    # in spans, because a task per image costs more than decoding a small one
    spans = [range(start, min(start + 256, len(paths))) for start in range(0, len(paths), 256)]
    if len(spans) < 2:
        fill(range(len(paths)))
        return pixels
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, spans):
            SUPERVISOR_LINK.send_heartbeat()  # a large folder takes many minutes
    return pixels


def _decode_one(path: str, side: int, resize: bool) -> Pixels:
    with _open(path) as image:
        if image.size != (side, side) and not resize:
            raise InputError(
                f"{path} is {image.size[0]} x {image.size[1]} pixels, the first image {side} x {side}; "
                "set data.image_size to bring all to one size."
            )
        try:
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            return np.asarray(rgb if rgb.size == (side, side) else _square(rgb, side))
        except MemoryError:
            raise
        except Exception as error:  # a damaged or hostile file makes a decoder raise anything
            raise InputError(f"{path} cannot be decoded: {error}.") from None


def _square(image: Image.Image, side: int) -> Image.Image:
    # the center square, then the size: no image is distorted
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    # cropped first: a resize with a box still mixes in pixels around the box
    square = image.crop((left, top, left + edge, top + edge))
    return square.resize((side, side), Image.Resampling.BILINEAR)


def _open(path: str) -> Image.Image:
    try:
        image = Image.open(path, formats=_FORMATS)
    except Image.DecompressionBombError:
        raise InputError(_too_large(path)) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged or hostile file makes a decoder raise anything
        raise InputError(f"{path} is no readable image: {error}.") from None
    if image.width * image.height > _MAX_PIXELS:
        image.close()
        raise InputError(_too_large(path))
    return image


def _too_large(path: str) -> str:
    return f"{path} has more than {_MAX_PIXELS} pixels; make it smaller or remove it."
