"""The data set ``imagefolder``: any folder of images with class folders. Imports no torch."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import psutil

from sweep.config.errors import InputError, show_name
from sweep.config.metrics import format_count
from sweep.config.sections import DataSection, escape_bytes
from sweep.config.tables import DataFacts, ImageShape
from sweep.records.inputs import DataSummary
from sweep.training.data.folders import (
    FolderLayout,
    ImageFacts,
    Listing,
    OnProgress,
    Resize,
    arrange_folder,
    decode_image,
    inspect_files,
    load_or_decode,
    scan_folder,
)
from sweep.training.data.images import ArrayImages, Images, Indices, Pixels, Source, hold_out
from sweep.training.data.sources import note_copies, summarize_splits
from sweep.training.processes import SUPERVISOR_LINK

_DECODED_SHARE = 0.25  # of the available memory; a folder that decodes to more is streamed from its files
_MAX_NAMED = 1000  # bad files in one message
_MAX_SIZES = 100  # on record
_BAD = "cannot be decoded (data.on_bad_image = 'skip')"


class _ImageFolder(NamedTuple):
    """A folder whose images were all decoded once: those that trials use, and the facts of each file by path."""

    layout: FolderLayout
    facts: dict[str, ImageFacts]
    used: list[ImageFacts]  # of those that trials use
    side: int  # at which trials read them


def _open_folder(section: DataSection, on_progress: OnProgress | None = None) -> _ImageFolder:
    """The folder ``data.root``, each of its images decoded once, now or by an earlier process."""
    root = section.folder
    layout = arrange_folder(scan_folder(root))
    files = [file for listing in layout.splits.values() for file in listing.files]
    facts = inspect_files(root, files, on_progress)
    bad = {path: image.error for path, image in facts.items() if image.error}
    if bad and section.on_bad_image == "refuse":
        lines = [f"  {show_name(path)} {error}" for path, error in list(bad.items())[:_MAX_NAMED]]
        lines += [f"  and {len(bad) - _MAX_NAMED} more"] if len(bad) > _MAX_NAMED else []
        raise InputError(
            "\n".join([
                f"data.root = {section.root!r}: {len(bad)} of {len(files)} images cannot be used:", *lines,
                "Repair or remove them, or set data.on_bad_image = 'skip' to train without them.",
            ])
        )  # fmt: skip
    if bad:
        is_good = {split: [file.path not in bad for file in each.files] for split, each in layout.splits.items()}
        splits = {split: each.pick(np.flatnonzero(is_good[split])) for split, each in layout.splits.items()}
        layout = layout._replace(splits=splits, ignored=layout.ignored | {_BAD: sorted(bad)})
    counts = np.bincount(layout.splits["train"].labels, minlength=len(layout.classes))
    if empty := [f"{name}/" for name, count in zip(layout.classes, counts, strict=True) if not count]:
        raise InputError(
            f"{root / layout.splits['train'].folder}: {', '.join(empty)} {'has' if len(empty) == 1 else 'have'} no "
            "images that can be used and would count as a class; add images, or move it out of data.root."
        )
    used = [facts[file.path] for listing in layout.splits.values() for file in listing.files]
    return _ImageFolder(layout, facts, used, _find_side(used, section))


def load_imagefolder(section: DataSection) -> Source:
    """The class folders under ``data.root``; images are RGB squares of ``data.image_size`` pixels.

    ``train/`` with ``test/`` and ``val/`` where they exist; otherwise class folders, from which validation and test
    are held out. Without ``data.image_size`` all images must be squares of one size.
    """
    folder = _open_folder(section, lambda _done, _all: SUPERVISOR_LINK.send_heartbeat())
    resize = section.resize if section.image_size is not None else None
    load = partial(_load, section.folder, side=folder.side, resize=resize, in_memory=section.placement == "device")
    splits = folder.layout.splits
    return Source(
        train=load(splits["train"]),
        num_classes=len(folder.layout.classes),
        class_names=tuple(map(escape_bytes, folder.layout.classes)),
        validation=load(splits["val"]) if "val" in splits else None,
        read_test=partial(load, splits["test"]) if "test" in splits else None,
        find_digest=partial(_digest, folder),
    )


def find_folder_facts(section: DataSection) -> DataFacts:
    folder = _open_folder(section)
    splits = folder.layout.splits
    held_out = hold_out(splits["train"].labels, section, has_validation="val" in splits, has_test="test" in splits)
    return DataFacts(ImageShape(3, folder.side, len(folder.layout.classes)), len(held_out.train))


def _digest(folder: _ImageFolder) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split, listing in sorted(folder.layout.splits.items()):
        for file, label in zip(listing.files, listing.labels, strict=True):
            line = f"{split}\0{label}\0{file.path}\0{folder.facts[file.path].digest}\0"
            digest.update(line.encode(errors="surrogateescape"))  # names of files need not be text
    return digest.hexdigest()


def summarize_folder(
    section: DataSection, on_progress: OnProgress | None = None, _may_download: bool = False
) -> DataSummary:
    """The images by split, class, size and mode, and every file that is not used."""
    folder = _open_folder(section, on_progress)
    layout = folder.layout
    lost = Counter(text for facts in folder.used for text in facts.lost)
    digests = {
        split: [folder.facts[file.path].digest for file in listing.files] for split, listing in layout.splits.items()
    }
    notes = [f"{format_count(count, 'image')} {text}" for text, count in sorted(lost.items())]
    labels = {split: listing.labels for split, listing in layout.splits.items()}
    notes += note_copies(digests, labels)
    return summarize_splits(
        section,
        labels,
        layout.classes,
        {split: f"{listing.folder}/" for split, listing in layout.splits.items()},
        ignored=layout.ignored,
        sizes=_count_sizes(folder.used),
        modes=dict(Counter(image.mode for image in folder.used).most_common()),
        notes=tuple(notes),
        digest=_digest(folder),
    )


def _count_sizes(images: Sequence[ImageFacts]) -> dict[str, int]:
    # nearly every photograph may have a size of its own
    counts = Counter(f"{image.width} x {image.height}" for image in images)
    most = dict(counts.most_common(_MAX_SIZES))
    rest = len(images) - sum(most.values())
    return most | ({"others": rest} if rest else {})


def _find_side(images: Sequence[ImageFacts], section: DataSection) -> int:
    if section.image_size is not None:
        return section.image_size
    sizes = Counter((image.width, image.height) for image in images)
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) == 1 and width == height:
        return width
    texts = [f"{width} x {height}" for width, height in sorted(sizes)]
    some = f"{texts[0]} to {texts[-1]} ({len(texts)} sizes)" if len(texts) > 3 else ", ".join(texts)
    short = sorted(min(size) for size in sizes.elements())[sum(sizes.values()) // 2]
    raise InputError(
        f"data.root = {section.root!r}: the images are {some} pixels, and models require squares of one size; set "
        f"data.image_size, for example {short}, and data.resize = 'crop', 'stretch' or 'pad'."
    )


@final
class FolderImages:
    """Images that are decoded whenever they are read, in threads."""

    channels = 3

    def __init__(self, paths: tuple[str, ...], labels: Indices, side: int, resize: Resize | None) -> None:
        self.paths = paths
        self.labels = labels
        self.side = side
        self._resize = resize

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Indices) -> Pixels:
        paths = [self.paths[index] for index in indices]
        pixels = np.empty((len(paths), self.side, self.side, 3), dtype=np.uint8)

        def fill(span: range) -> None:
            for index in span:
                pixels[index] = decode_image(paths[index], self.side, self._resize)

        # in spans, because a task per image costs more than decoding a small one
        spans = [range(start, min(start + 256, len(paths))) for start in range(0, len(paths), 256)]
        if len(spans) == 1:
            fill(spans[0])
            return pixels
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for _ in pool.map(fill, spans):
                SUPERVISOR_LINK.send_heartbeat()  # a large folder takes many minutes
        return pixels

    def pick(self, indices: Indices) -> "FolderImages":
        paths = tuple(self.paths[index] for index in indices)
        return FolderImages(paths, self.labels[indices], self.side, self._resize)


def _load(root: Path, listing: Listing, *, side: int, resize: Resize | None, in_memory: bool) -> Images:
    paths = tuple(str(root / file.path) for file in listing.files)
    images = FolderImages(paths, listing.labels, side, resize)
    decoded_bytes = len(images) * side * side * 3
    if not in_memory or decoded_bytes > _DECODED_SHARE * psutil.virtual_memory().available:
        return images
    key = hashlib.sha256(f"{side} {resize}".encode())
    for path, file in zip(paths, listing.files, strict=True):
        line = f"{Path(path).absolute()}\0{file.num_bytes}\0{file.modified_ns}\0{file.changed_ns}\0"
        key.update(line.encode(errors="surrogateescape"))
    everything = np.arange(len(images), dtype=np.int64)
    pixels = load_or_decode(key.hexdigest(), lambda: images.read(everything))
    return ArrayImages(pixels, listing.labels)
