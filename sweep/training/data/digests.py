"""What identifies the images of a data set, and the check that a trial reads those that its study has counted."""

import hashlib
from collections.abc import Mapping

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.entries import resolve
from sweep.records.messages import ExpectedData
from sweep.training.data.images import ArrayImages, Images
from sweep.training.data.source_checks import read_test_images
from sweep.training.data.splits import Source

_MAX_BYTES = 64 * 2**20  # of pixels that every trial digests, which takes 0.3 s at most


def read_parts(source: Source, name: str) -> dict[str, Images]:
    """The images of each split that ``source`` has of its own: train, val, test."""
    own = {"train": source.train, "val": source.validation, "test": read_test_images(source, name)}
    return {split: images for split, images in own.items() if images is not None}


def digest_entry(section: DataSection) -> str:
    """The digest that the set's entry gives; empty where it gives none."""
    given = DATASETS[section.name].digest
    if given is None:
        return ""
    return hashlib.blake2b(str(resolve(given)(section)).encode(), digest_size=16).hexdigest()


def digest_pixels(parts: Mapping[str, Images]) -> str:
    """The digest of all pixels and labels; empty where they are not in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for split, images in sorted(parts.items()):
        if not isinstance(images, ArrayImages):
            return ""
        digest.update(f"{split} {images.pixels.shape}\0".encode())
        digest.update(np.ascontiguousarray(images.pixels).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()


def check_unchanged(source: Source, section: DataSection, expected: ExpectedData) -> None:
    """Compares the digest of ``source`` with that of the images which were counted before, where finding it is cheap.

    Raises:
        InputError: the images have changed.
    """
    found = _find_digest_of_trial(source, section)
    if not found or found == expected.digest:
        return
    is_in_memory = DATASETS[section.name].summarize is None
    same_again = "let the load function return the same at every call, by a generator with a seed"
    remedy = same_again if is_in_memory else "restore them"
    where = f" in {section.root!r}" if DATASETS[section.name].depends_on_root else ""
    num_images = sum(map(len, read_parts(source, section.name).values()))
    raise InputError(
        f"data {section.name}{where}: its images have changed since they were counted: "
        f"{expected.num_images:,} images (digest {expected.digest[:12]}) -> {num_images:,} (digest {found[:12]}); "
        f"trials of one study must read the same images: {remedy}, or give the study a new name."
    )


def _find_digest_of_trial(source: Source, section: DataSection) -> str:
    entry = DATASETS[section.name]
    if source.find_digest is not None:
        return source.find_digest()
    if entry.digest is not None:
        return digest_entry(section)
    if entry.summarize is not None or not _is_small(source.train, source.validation):
        return ""
    parts = read_parts(source, section.name)
    return digest_pixels(parts) if _is_small(*parts.values()) else ""


def _is_small(*parts: Images | None) -> bool:
    given = [images for images in parts if images is not None]
    return all(isinstance(images, ArrayImages) for images in given) and (
        sum(len(images) * images.side**2 * images.channels for images in given) <= _MAX_BYTES
    )
