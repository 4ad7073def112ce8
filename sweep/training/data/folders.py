"""Folders of images: the files below a root, to which split and class each belongs, and the pixels of one file.

Imports no torch.
"""

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sweep.config.errors import InputError
from sweep.training.data.images import Indices, Pixels, crop_center

Resize = Literal["crop", "stretch", "pad"]
# Whatever a file is called, no other reader is tried: some that Pillow has start programs.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
_MAX_PIXELS = 2**27  # of one image; decoded it takes 400 MB, in each process
_ORIENTATION = 0x0112  # the EXIF tag
_BILINEAR = Image.Resampling.BILINEAR


class DecodedImage(NamedTuple):
    """An image file: its own size and mode, and its pixels at the side that was asked for."""

    width: int
    height: int
    mode: str  # of Pillow
    lost: tuple[str, ...]  # what of the content no trial uses, in words
    pixels: Pixels | None  # RGB (side, side, 3); None where it has another size and none may be changed


def read_image(path: str, side: int, resize: Resize | None, stored_side: int) -> Pixels:
    """The image as RGB, (side, side, 3): the center of the one that :func:`decode_image` brings to ``stored_side``.

    Raises ``InputError``: the file cannot be decoded, or has another size where none may be changed."""
    image = decode_image(path, Path(path), stored_side, resize)
    if image.pixels is None:
        raise InputError(
            f"{path} is {image.width} x {image.height} pixels, the first image {side} x {side}; "
            "set data.image_size to bring all to one size."
        )
    return crop_center(image.pixels, side)


def decode_image(name: str, source: Path | io.BytesIO, side: int, resize: Resize | None) -> DecodedImage:
    """The image file ``name`` after all of its content was decoded.

    ``resize``: crop (short side to ``side``, center square, as torchvision's Resize and CenterCrop), stretch (both
    sides to ``side``) or pad (long side to ``side``, black borders); None: it must have that size already. A JPEG of
    four times the side or more is decoded at a half, a quarter or an eighth of its size, but at least at twice the
    side. Raises ``InputError``: it cannot be decoded."""
    with _open(name, source) as image:
        (width, height), mode = image.size, image.mode
        if resize is not None:
            image.draft(None, (2 * side, 2 * side))
        image.load()
        if mode == "F" or (mode == "I" and not (np.asarray(image).min() >= 0 and np.asarray(image).max() < 2**16)):
            raise InputError(f"{name} has pixels of 32 bits, whose range is unknown; save it with 8 bits.")
        try:
            # a JPEG has the tag in these bytes alone, and looking for it takes as long as decoding a small one
            has_tag = image.format != "JPEG" or "exif" in image.info
            rotation = image.getexif().get(_ORIENTATION, 1) if has_tag else 1
        except Exception:  # of the text beside whole pixels
            rotation = None
        lost = {
            "of 16 bits a pixel, of which the upper 8 are used: images of 12 bits become dark": mode.startswith("I"),
            "with an EXIF rotation, which is not applied": rotation not in {None, 1},
            "with EXIF data that cannot be read; no rotation is applied": rotation is None,
            "of several frames, of which the first is used": getattr(image, "is_animated", False),
        }
        pixels = None
        if resize is not None or (width, height) == (side, side):
            rgb = _convert_to_rgb(image)
            pixels = np.asarray(rgb if rgb.size == (side, side) else _bring_to_size(rgb, side, resize or "crop"))
        return DecodedImage(width, height, mode, tuple(text for text, is_so in lost.items() if is_so), pixels)


@contextlib.contextmanager
def _open(name: str, source: Path | io.BytesIO) -> Iterator[Image.Image]:
    """The image; whatever a damaged or hostile file makes a decoder raise inside becomes an ``InputError``."""
    try:
        with Image.open(source, formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise Image.DecompressionBombError
            yield image
    except (MemoryError, InputError):
        raise
    except Image.DecompressionBombError:
        raise InputError(f"{name} has more than {_MAX_PIXELS} pixels; make it smaller or remove it.") from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is no readable image: its content is none of {', '.join(_FORMATS)}.") from None
    except Exception as error:
        raise InputError(f"{name} is no readable image: {error}.") from None


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):
        # 16 bits a pixel; Pillow's own conversion would cut all above 255 to white
        levels = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8))
    return image.convert("RGB")


def _bring_to_size(image: Image.Image, side: int, resize: Resize) -> Image.Image:
    if resize == "stretch":
        return image.resize((side, side), _BILINEAR)
    if resize == "pad":
        return ImageOps.pad(image, (side, side), _BILINEAR)
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    # cropped first: a resize with a box still mixes in pixels around the box
    return image.crop((left, top, left + edge, top + edge)).resize((side, side), _BILINEAR)


_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
# Folders that programs leave behind and that hold no images of a user; in small letters.
_LEFT_BEHIND = frozenset(
    {"__macosx", "__pycache__", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
)


class ScannedFile(NamedTuple):
    """A file with an image's suffix; ``path`` is relative to the root, with slashes."""

    path: str
    num_bytes: int
    modified_ns: int
    changed_ns: int  # of the file's data or its entry; no program can set it back

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))


@dataclass(frozen=True, kw_only=True)
class _FolderScan:
    """What lies below ``root``. Each file is either in ``images`` or, under one reason, in ``ignored``."""

    root: Path
    images: tuple[ScannedFile, ...]  # sorted by path
    folders: frozenset[str]  # relative paths of those that may be a split or a class
    ignored: dict[str, list[str]] = field(default_factory=dict)  # reason -> relative paths


def digest_folder(root: Path) -> str:
    """32 hexadecimal digits of the names, sizes and times of change of everything below ``root``, by which a change is
    noticed without a look at the files. Raises ``InputError`` as :func:`scan_folder`."""
    lines = sorted(
        f"{path}\0{status.st_size} {status.st_ctime_ns}" if status else path for path, status, _ in _walk(root)
    )
    text = "\n".join([str(root.absolute()), *lines])
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def scan_folder(root: Path) -> _FolderScan:
    """All files below ``root``; links to folders are followed, except to a folder that holds the link. Raises
    ``InputError``: ``root`` is no folder, or something below it cannot be read."""
    images: list[ScannedFile] = []
    folders: set[str] = set()
    ignored: dict[str, list[str]] = {}
    for path, status, reason in _walk(root):
        if status is None:
            folders.add(path)
        elif reason := reason or _reason_to_ignore(path.rpartition("/")[2], status):
            ignored.setdefault(reason, []).append(path)
        else:
            images.append(ScannedFile(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return _FolderScan(root=root, images=tuple(sorted(images)), folders=frozenset(folders), ignored=ignored)


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None, str]]:
    # (path, status or None for a folder, reason to ignore it whatever its name is)
    if not root.is_dir():
        raise InputError(
            f"data.root = {str(root)!r} is not a folder; imagefolder requires one with class folders: give it by --set "
            "data.root=FOLDER, or in the study file."
        )
    status = root.stat()
    pending: list[tuple[str, str, frozenset[tuple[int, int]]]] = [("", "", frozenset({(status.st_dev, status.st_ino)}))]
    while pending:
        folder, reason, above = pending.pop()
        for entry in _read_entries(root / folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat()
            except OSError:
                yield path, entry.stat(follow_symlinks=False), reason or "a link to nothing"
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield path, status, reason
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                yield path, entry.stat(follow_symlinks=False), reason or "a link to a folder above it"
                continue
            is_left_behind = entry.name.startswith(".") or entry.name.lower() in _LEFT_BEHIND
            inside = reason or ("in a hidden folder or one that a program left" if is_left_behind else "")
            if not inside:
                yield path, None, ""
            pending.append((path, inside, above | {identity}))


def _read_entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}; repair or remove it.") from None


def _reason_to_ignore(name: str, status: os.stat_result) -> str:
    if name.startswith("."):
        return "hidden"
    if not name.lower().endswith(_SUFFIXES):
        return f"no image by its suffix ({Path(name).suffix.lower() or 'none'})"
    return "" if stat.S_ISREG(status.st_mode) else "no file"


_SPLIT_NAMES = dict.fromkeys(("train", "training"), "train")  # in any case of letters
_SPLIT_NAMES |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
_SPLIT_NAMES |= dict.fromkeys(("test", "testing"), "test")
_KNOWN_LAYOUTS = (
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
        return Listing(self.folder, tuple(self.files[index] for index in indices), self.labels[indices])


class FolderLayout(NamedTuple):
    """The images by split (train, and val and test where they exist); the rest by the reason why it is not used."""

    splits: dict[str, Listing]
    classes: tuple[str, ...]
    ignored: dict[str, list[str]]  # reason -> paths relative to the root


def arrange_folder(scan: _FolderScan) -> FolderLayout:
    """Splits and classes of the images of ``scan``. Raises ``InputError``: the layout is not a known one or can be read
    in two ways, or a split has a class that the train split lacks."""
    top = sorted(path for path in scan.folders if "/" not in path)
    named = {name: _SPLIT_NAMES[name.lower()] for name in top if name.lower() in _SPLIT_NAMES}
    with_folders = {path.partition("/")[0] for path in scan.folders if "/" in path}
    folders: dict[str, str] = {}  # by split
    for name in (name for name in named if name in with_folders):
        if (other := folders.setdefault(named[name], name)) != name:
            raise InputError(
                f"data.root = {str(scan.root)!r}: {_join((other, name))} are names of the same split; keep one of "
                f"them; {_KNOWN_LAYOUTS}."
            )
    if folders and "train" not in folders:
        beside = [path for path in top if path not in folders.values()]
        others = f", beside {_join(beside)}" if beside else ""
        raise InputError(
            f"data.root = {str(scan.root)!r} has {_join(sorted(folders.values()))}{others} and no train/; name the "
            f"folder of the training images train; {_KNOWN_LAYOUTS}."
        )
    with_images = {file.parts[0] for file in scan.images if len(file.parts) > 1}
    if not folders and (unlabeled := sorted(named.keys() & with_images)):
        raise InputError(
            f"data.root = {str(scan.root)!r}: {_join(unlabeled)} could be a split or a class, and has images but no "
            f"class folders in it; put the images into class folders, or give the class another name; {_KNOWN_LAYOUTS}."
        )
    return _arrange_splits(scan, folders or {"train": ""})


def _arrange_splits(scan: _FolderScan, folders: Mapping[str, str]) -> FolderLayout:
    train = folders["train"]
    classes = _find_classes(scan, train)
    ignored = {reason: list(paths) for reason, paths in scan.ignored.items()}
    by_folder = {folder: split for split, folder in folders.items()}
    labeled: dict[str, list[tuple[str, ScannedFile]]] = {split: [] for split in folders}
    for file in scan.images:
        top, *below = ("", *file.parts) if train == "" else file.parts
        if top in by_folder and len(below) > 1:
            labeled[by_folder[top]].append((below[0], file))
        elif top in by_folder or (train == "" and not below):
            ignored.setdefault("an image outside of a class folder", []).append(file.path)
        elif not below:
            ignored.setdefault("an image outside of the splits", []).append(file.path)
        else:
            ignored.setdefault(f"in {top}/, which is no split with class folders", []).append(file.path)
    splits = {split: _label(scan, folders[split], labeled[split], classes) for split in folders}
    return FolderLayout(splits=splits, classes=classes, ignored=ignored)


def _find_classes(scan: _FolderScan, train: str) -> tuple[str, ...]:
    prefix = f"{train}/" if train else ""
    below = (path.removeprefix(prefix) for path in scan.folders if path.startswith(prefix) and path != train)
    classes = tuple(sorted(name for name in below if "/" not in name))
    if len(classes) < 2:
        listed = f": {_join(classes)}" if classes else ""
        raise InputError(
            f"{scan.root / train} holds {len(classes)} class folders{listed}; imagefolder requires two or more, so set "
            f"data.root to the folder that holds them; {_KNOWN_LAYOUTS}."
        )
    return classes


def _label(
    scan: _FolderScan, folder: str, labeled: Sequence[tuple[str, ScannedFile]], classes: Sequence[str]
) -> Listing:
    labels = {name: label for label, name in enumerate(classes)}
    if strange := sorted({name for name, _ in labeled} - labels.keys()):
        raise InputError(
            f"{scan.root / folder} has class folders that the train split lacks: {', '.join(strange)}; rename or "
            "remove them."
        )
    if not labeled:
        raise InputError(
            f"{scan.root / folder} holds no images ({', '.join(_SUFFIXES)}); put them into its class folders."
        )
    ordered = sorted((labels[name], file.path, file) for name, file in labeled)
    files, numbers = tuple(file for *_, file in ordered), [label for label, *_ in ordered]
    return Listing(folder, files, np.asarray(numbers, dtype=np.int64))


def _join(names: Sequence[str]) -> str:
    return ", ".join(f"{name}/" for name in names)
