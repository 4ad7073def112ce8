"""The data set ``imagefolder``: any folder of images with class folders. Imports no torch."""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sweep.config.errors import InputError, show_name
from sweep.config.metrics import format_count
from sweep.config.sections import DataSection, escape_bytes
from sweep.config.tables import DataFacts, ImageShape
from sweep.records.inputs import DataSummary
from sweep.training.data.cache import find_cache_folder, load_document
from sweep.training.data.folders import (
    FolderLayout,
    ScannedFile,
    arrange_folder,
    decode_image,
    digest_folder,
    scan_folder,
)
from sweep.training.data.image_maps import Decoding, ImageFacts, OnProgress, decode_files, open_map
from sweep.training.data.images import ArrayImages, Indices, Pixels, Source, hold_out
from sweep.training.data.sources import note_copies, summarize_splits
from sweep.training.processes import SUPERVISOR_LINK

_MAX_NAMED = 1000  # bad files in one message
_MAX_SIZES = 100  # on record
_BAD = "cannot be decoded (data.on_bad_image = 'skip')"


class SeveralSizesError(InputError):
    """The images are no squares of one size, and ``data.image_size`` is not given."""


class _ImageFolder(NamedTuple):
    """A folder whose images were all decoded once. It is kept as a document in the cache, so that a process that finds
    the folder unchanged looks at no image."""

    map_name: str
    side: int  # at which trials read them
    stored_side: int  # of the map, of which trials read the center
    decode_seconds: float
    digest: str  # of paths, splits, classes and contents
    classes: tuple[str, ...]
    splits: dict[str, dict[str, Any]]  # folder, and rows of the map and labels as lists
    ignored: dict[str, list[str]]  # reason -> paths
    sizes: dict[str, int]
    modes: dict[str, int]
    notes: list[str]

    @property
    def labels(self) -> dict[str, Indices]:
        return {split: np.asarray(each["labels"], dtype=np.int64) for split, each in self.splits.items()}


def _open_folder(section: DataSection, on_progress: OnProgress | None = None) -> tuple[_ImageFolder, Pixels]:
    """The folder ``data.root`` and the map of its images, each decoded once, now or by an earlier process."""
    keys = section.image_size, section.resize, section.on_bad_image, find_stored_side(section, 7)
    about = digest_folder(section.folder), *keys
    name = f"{hashlib.blake2b(repr(about).encode(), digest_size=10).hexdigest()}.folder.json"
    for _ in range(2):
        folder = _ImageFolder(**load_document(name, lambda: _read_folder(section, on_progress)._asdict()))
        try:
            return folder, open_map(folder.map_name)
        except (OSError, ValueError):  # another study needed the room
            (find_cache_folder() / name).unlink(missing_ok=True)
    raise InputError(
        f"data.root = {section.root!r}: its decoded images were deleted from {find_cache_folder()} at once, because "
        "other data needs the room too; set SWEEP_CACHE_BYTES to more bytes."
    )


def find_stored_side(section: DataSection, side: int) -> int:
    """The side in pixels to which images are decoded that trials read at ``side``: more where crops are cut out of
    them, as for ImageNet, where models of 224 pixels are evaluated on the center of 256."""
    is_cropped = section.name == "imagefolder" and section.augment == "random_resized_crop"
    return -(-side * 8 // 7) if is_cropped and section.image_size is not None else side


def _read_folder(section: DataSection, on_progress: OnProgress | None) -> _ImageFolder:
    root, began = section.folder, time.monotonic()
    layout = arrange_folder(scan_folder(root))
    files = tuple(file for listing in layout.splits.values() for file in listing.files)
    resize = section.resize if section.image_size is not None else None
    side = section.image_size or guess_side(root, files)
    while True:
        stored_side = find_stored_side(section, side)
        decoding = Decoding(root=root, files=files, side=stored_side, resize=resize)
        facts = dict(zip((file.path for file in files), decode_files(decoding, on_progress), strict=True))
        layout = _drop_bad(section, layout, facts)
        used = [facts[file.path] for listing in layout.splits.values() for file in listing.files]
        if (found := _find_side(used, section)) == side:
            break
        side = found  # the file that was looked at first cannot be decoded, and had another size
    row_of = {file: row for row, file in enumerate(files)}
    digests = {split: [facts[file.path].digest for file in each.files] for split, each in layout.splits.items()}
    lost = Counter(text for image in used for text in image.lost)
    notes = [f"{format_count(count, 'image')} {text}" for text, count in sorted(lost.items())]
    return _ImageFolder(
        map_name=decoding.name,
        side=side,
        stored_side=stored_side,
        decode_seconds=time.monotonic() - began,
        digest=_digest(layout, digests),
        classes=layout.classes,
        splits={
            split: {"folder": folder, "rows": [row_of[file] for file in listed], "labels": labels.tolist()}
            for split, (folder, listed, labels) in layout.splits.items()
        },
        ignored=layout.ignored,
        sizes=_count_sizes(used),
        modes=dict(Counter(image.mode for image in used).most_common()),
        notes=[*notes, *note_copies(digests, {split: each.labels for split, each in layout.splits.items()})],
    )


def guess_side(root: Path, files: Sequence[ScannedFile] | None = None) -> int:
    """The side of the images below ``root``, if they are squares of one size as the first one is; 1 where that is no
    square."""
    for file in scan_folder(root).images if files is None else files:
        with suppress(InputError):
            image = decode_image(file.path, root / file.path, 1, None)
            return image.width if image.width == image.height else 1
    return 1


def _drop_bad(section: DataSection, layout: FolderLayout, facts: Mapping[str, ImageFacts]) -> FolderLayout:
    bad = {path: image.error for path, image in facts.items() if image.error}
    if bad and section.on_bad_image == "refuse":
        lines = [f"  {show_name(path)} {error}" for path, error in list(bad.items())[:_MAX_NAMED]]
        lines += [f"  and {len(bad) - _MAX_NAMED} more"] if len(bad) > _MAX_NAMED else []
        raise InputError(
            "\n".join([
                f"data.root = {section.root!r}: {len(bad)} of {len(facts)} images cannot be used:", *lines,
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
            f"{section.folder / layout.splits['train'].folder}: {', '.join(empty)} "
            f"{'has' if len(empty) == 1 else 'have'} no images that can be used and would count as a class; add "
            "images, or move it out of data.root."
        )
    return layout


def load_imagefolder(section: DataSection) -> Source:
    """The class folders under ``data.root``; images are RGB squares of ``data.image_size`` pixels.

    ``train/`` with ``test/`` and ``val/`` where they exist; otherwise class folders, from which validation and test
    are held out. Without ``data.image_size`` all images must be squares of one size.
    """
    folder, pixels = _open_folder(section, lambda *_: SUPERVISOR_LINK.send_heartbeat())

    def load(split: str) -> ArrayImages:
        rows = np.asarray(folder.splits[split]["rows"], dtype=np.int64)
        return ArrayImages(pixels, folder.labels[split], rows=rows, side=folder.side)

    return Source(
        train=load("train"),
        num_classes=len(folder.classes),
        class_names=tuple(map(escape_bytes, folder.classes)),
        validation=load("val") if "val" in folder.splits else None,
        read_test=partial(load, "test") if "test" in folder.splits else None,
        find_digest=lambda: folder.digest,
    )


def find_folder_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images."""
    folder, _ = _open_folder(section)
    held_out = hold_out(
        folder.labels["train"], section, has_validation="val" in folder.splits, has_test="test" in folder.splits
    )
    return DataFacts(ImageShape(3, folder.side, len(folder.classes)), len(held_out.train))


def _digest(layout: FolderLayout, digests: Mapping[str, Sequence[str]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split, listing in sorted(layout.splits.items()):
        for file, label, of_content in zip(listing.files, listing.labels, digests[split], strict=True):
            line = f"{split}\0{label}\0{file.path}\0{of_content}\0"
            digest.update(line.encode(errors="surrogateescape"))  # names of files need not be text
    return digest.hexdigest()


def summarize_folder(
    section: DataSection, on_progress: OnProgress | None = None, _may_download: bool = False
) -> DataSummary:
    """The images by split, class, size and mode, every file that is not used, and what decoding them took."""
    folder, pixels = _open_folder(section, on_progress)
    return summarize_splits(
        section,
        folder.labels,
        folder.classes,
        {split: f"{each['folder']}/" for split, each in folder.splits.items()},
        ignored=folder.ignored,
        sizes=folder.sizes,
        modes=folder.modes,
        notes=tuple(folder.notes),
        digest=folder.digest,
        stored_side=folder.stored_side,
        stored_bytes=pixels.nbytes,
        decode_seconds=folder.decode_seconds,
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
    raise SeveralSizesError(
        f"data.root = {section.root!r}: the images are {some} pixels, and models require squares of one size; set "
        f"data.image_size, for example {short}, and data.resize = 'crop', 'stretch' or 'pad'."
    )
