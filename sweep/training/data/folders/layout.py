"""Which images below a folder belong to which split and class. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sweep.config.errors import InputError
from sweep.training.data.folders.scan import SUFFIXES, FolderScan, ScannedFile
from sweep.training.data.images import Indices

# In any case of letters.
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
KNOWN_LAYOUTS = (
    "known layouts: ROOT/CLASS/image.png, or ROOT/train/CLASS/image.png with ROOT/val/CLASS/ and ROOT/test/CLASS/ "
    "where they exist (also training; valid, validation, dev; testing; in any case of letters); subfolders of a class "
    "belong to it"
)


class Listing(NamedTuple):
    """The images of one split in the order of their paths, class by class."""

    folder: str  # relative to the root; "" for the root itself
    files: tuple[ScannedFile, ...]
    labels: Indices

    def pick(self, indices: Indices) -> "Listing":
        """The images at ``indices``, in that order."""
        return Listing(self.folder, tuple(self.files[index] for index in indices), self.labels[indices])


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """The images by split (train, and val and test where they exist); the rest by the reason why it is not used."""

    splits: dict[str, Listing]
    classes: tuple[str, ...]
    ignored: dict[str, list[str]]  # reason -> paths relative to the root


def arrange_folder(scan: FolderScan) -> FolderLayout:
    """Splits and classes of the images of ``scan``.

    Raises:
        InputError: the layout is not a known one or can be read in two ways, or a split has a class that the train
            split lacks.
    """
    top = sorted(path for path in scan.folders if "/" not in path)
    named = {name: _SPLIT_NAMES[name.lower()] for name in top if name.lower() in _SPLIT_NAMES}
    parents = {path.partition("/")[0] for path in scan.folders if "/" in path}
    split_folders = {name: split for name, split in named.items() if name in parents}
    if split_folders:
        return _arrange_splits(scan, _check_splits(scan, split_folders))
    with_images = {file.parts[0] for file in scan.images if len(file.parts) > 1}
    if unlabeled := sorted(named.keys() & with_images):
        raise InputError(
            f"data.root = {str(scan.root)!r}: {_join(unlabeled)} could be a split or a class, and has images but no "
            f"class folders in it; put the images into class folders, or give the class another name; {KNOWN_LAYOUTS}."
        )
    _refuse_folder_above(scan, top)
    return _arrange_splits(scan, {"train": ""})


def _check_splits(scan: FolderScan, split_folders: Mapping[str, str]) -> dict[str, str]:
    # folder by split
    by_split: dict[str, list[str]] = {}
    for name, split in split_folders.items():
        by_split.setdefault(split, []).append(name)
    if twice := next((names for names in by_split.values() if len(names) > 1), None):
        raise InputError(
            f"data.root = {str(scan.root)!r}: {_join(twice)} are names of the same split; keep one of them; "
            f"{KNOWN_LAYOUTS}."
        )
    if "train" not in by_split:
        beside = sorted(path for path in scan.folders if "/" not in path and path not in split_folders)
        found = f", beside {_join(beside)}" if beside else ""
        raise InputError(
            f"data.root = {str(scan.root)!r} has {_join(split_folders)}{found} and no train/; name the folder of the "
            f"training images train; {KNOWN_LAYOUTS}."
        )
    return {split: names[0] for split, names in by_split.items()}


def _refuse_folder_above(scan: FolderScan, top: Sequence[str]) -> None:
    with_images = {file.parts[0] for file in scan.images if len(file.parts) > 1}
    if len(with_images) == 1 and len(top) == 1:
        (only,) = with_images
        inner = {file.parts[1] for file in scan.images if file.parts[0] == only and len(file.parts) > 2}
        if len(inner) > 1:
            raise InputError(
                f"data.root = {str(scan.root)!r} holds the folder {only}/ alone, with "
                f"{_join(sorted(inner)[:5])} in it; set data.root = {str(scan.root / only)!r}; {KNOWN_LAYOUTS}."
            )


def _arrange_splits(scan: FolderScan, folders: Mapping[str, str]) -> FolderLayout:
    train = folders["train"]
    classes = _find_classes(scan, train)
    ignored = {reason: list(paths) for reason, paths in scan.ignored.items()}
    by_folder = {folder: split for split, folder in folders.items()}
    found: dict[str, list[tuple[str, ScannedFile]]] = {split: [] for split in folders}
    for file in scan.images:
        top, *below = ("", *file.parts) if train == "" else file.parts
        if top in by_folder and len(below) > 1:
            found[by_folder[top]].append((below[0], file))
        elif top in by_folder or (train == "" and not below):
            ignored.setdefault("an image outside of a class folder", []).append(file.path)
        elif not below:
            ignored.setdefault("an image outside of the splits", []).append(file.path)
        else:
            reason = f"in {top}/, which is no split with class folders"
            ignored.setdefault(reason, []).append(file.path)
    splits = {split: _label(scan, folders[split], found[split], classes) for split in folders}
    return FolderLayout(splits=splits, classes=classes, ignored=ignored)


def _find_classes(scan: FolderScan, train: str) -> tuple[str, ...]:
    prefix = f"{train}/" if train else ""
    below = (path.removeprefix(prefix) for path in scan.folders if path.startswith(prefix) and path != train)
    classes = tuple(sorted(name for name in below if "/" not in name))
    if len(classes) < 2:
        found = f": {_join(classes)}" if classes else ""
        raise InputError(
            f"{scan.root / train} holds {len(classes)} class folders{found}; imagefolder requires two or more; "
            f"{KNOWN_LAYOUTS}."
        )
    return classes


def _label(scan: FolderScan, folder: str, found: Sequence[tuple[str, ScannedFile]], classes: Sequence[str]) -> Listing:
    labels = {name: label for label, name in enumerate(classes)}
    if strange := sorted({name for name, _ in found} - labels.keys()):
        raise InputError(
            f"{scan.root / folder} has class folders that the train split lacks: {', '.join(strange)}; rename or "
            "remove them."
        )
    if not found:
        raise InputError(
            f"{scan.root / folder} holds no images ({', '.join(SUFFIXES)}); put them into its class folders."
        )
    ordered = sorted(found, key=lambda each: (labels[each[0]], each[1].path))
    return Listing(
        folder, tuple(file for _, file in ordered), np.asarray([labels[name] for name, _ in ordered], dtype=np.int64)
    )


def explain_empty_classes(root: Path, layout: FolderLayout) -> str:
    """The complaint about classes without a training image; empty where each has one."""
    train = layout.splits["train"]
    counts = np.bincount(train.labels, minlength=len(layout.classes))
    empty = [name for name, count in zip(layout.classes, counts, strict=True) if count == 0]
    if not empty:
        return ""
    return (
        f"{root / train.folder}: {_join(empty)} {'has' if len(empty) == 1 else 'have'} no images "
        f"({', '.join(SUFFIXES)}) and would count as a class; add images, or move it out of data.root."
    )


def _join(names: Mapping[str, str] | Sequence[str]) -> str:
    return ", ".join(f"{name}/" for name in names)
