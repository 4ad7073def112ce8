"""Folders of images: the files below a root, what each holds, to which split and class it belongs, and its pixels.

What was found by reading images is kept in a cache on disk. Imports no torch.
"""

import contextlib
import hashlib
import io
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sweep.config.errors import InputError
from sweep.training.data.images import Indices, Pixels

_MIN_CACHED_BYTES, _MAX_CACHED_BYTES = 8 * 2**20, 2 * 2**30  # of pixels; smaller folders are decoded fast enough
_NUM_KEPT = 12  # files of each kind


def find_cache_folder() -> Path:
    """``$SWEEP_CACHE``, or ``batch-sweep`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SWEEP_CACHE") or Path(base) / "batch-sweep")


def load_or_decode(key: str, decode: Callable[[], Pixels]) -> Pixels:
    """The images (n, s, s, c) of ``decode``, from the cache if they have been decoded under the same ``key`` before.

    Where the cache cannot be read or written, they are decoded again.
    """
    path = find_cache_folder() / f"{key}.npy"
    try:
        pixels: Pixels = np.load(path, mmap_mode="c", allow_pickle=False)
        os.utime(path)
        return pixels
    except (OSError, ValueError):
        pixels = decode()
    if _MIN_CACHED_BYTES <= pixels.nbytes <= _MAX_CACHED_BYTES:
        _write_cached(path, lambda file: np.save(file, pixels, allow_pickle=False))
    return pixels


def load_document(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON document of the file ``name`` of the cache, or what ``make`` returns, which is then kept under that
    name."""
    path = find_cache_folder() / name
    document = _read_document(path)
    if document is None:
        document = make()
        _write_document(path, document)
    return document


def _read_document(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        os.utime(path)
    except (OSError, ValueError):
        return None  # there is none yet, or it was cut short
    return document


def _write_document(path: Path, document: dict[str, Any]) -> None:
    content = json.dumps(document, separators=(",", ":")).encode()
    _write_cached(path, lambda file: file.write(content))


def _write_cached(path: Path, write: Callable[[Any], Any]) -> None:
    """Writes a file of the cache at once, and deletes the oldest of its kind. Does nothing where the cache cannot be
    written."""
    temporary = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
        of_a_kind = path.parent.glob(f"*{''.join(path.suffixes)}")
        for old in sorted(of_a_kind, key=_modified, reverse=True)[_NUM_KEPT:]:
            old.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):  # there is none where the cache is no folder
            temporary.unlink()


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # removed by another process


Resize = Literal["crop", "stretch", "pad"]
# Whatever a file is called, no other reader is tried: some that Pillow has start programs.
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")
_MAX_PIXELS = 2**27  # of one image; decoded it takes 400 MB, in each of eight threads
_ORIENTATION = 0x0112  # the EXIF tag
_BILINEAR = Image.Resampling.BILINEAR


def decode_image(path: str, side: int, resize: Resize | None) -> Pixels:
    """The image as RGB, (side, side, 3).

    ``resize``: crop (short side to ``side``, center square, as torchvision's Resize and CenterCrop), stretch (both
    sides to ``side``) or pad (long side to ``side``, black borders); None: it must have that size already. Raises
    ``InputError``: the file cannot be decoded, or has another size where none may be changed."""
    with _open(path, Path(path)) as image:
        if image.size != (side, side) and resize is None:
            raise InputError(
                f"{path} is {image.width} x {image.height} pixels, the first image {side} x {side}; "
                "set data.image_size to bring all to one size."
            )
        rgb = _convert_to_rgb(image)
        return np.asarray(rgb if rgb.size == (side, side) else _bring_to_size(rgb, side, resize or "crop"))


def inspect_image(name: str, content: bytes) -> tuple[int, int, str, tuple[str, ...]]:
    """Width, height, mode and what is lost of the image file ``name``, as in :class:`ImageFacts`, after decoding all of
    its ``content``. Raises ``InputError``: it cannot be decoded."""
    with _open(name, io.BytesIO(content)) as image:
        mode = image.mode
        image.load()
        if mode == "F" or (mode == "I" and not (np.asarray(image).min() >= 0 and np.asarray(image).max() < 2**16)):
            raise InputError(f"{name} has pixels of 32 bits, whose range is unknown; save it with 8 bits.")
        try:
            rotation = image.getexif().get(_ORIENTATION, 1)
        except Exception:  # of the text beside whole pixels
            rotation = None
        lost = {
            "of 16 bits a pixel, of which the upper 8 are used: images of 12 bits become dark": mode.startswith("I"),
            "with an EXIF rotation, which is not applied": rotation not in {None, 1},
            "with EXIF data that cannot be read; no rotation is applied": rotation is None,
            "of several frames, of which the first is used": getattr(image, "is_animated", False),
        }
        return image.width, image.height, mode, tuple(text for text, is_so in lost.items() if is_so)


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


class _ScannedFile(NamedTuple):
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
    images: tuple[_ScannedFile, ...]  # sorted by path
    folders: frozenset[str]  # relative paths of those that may be a split or a class
    ignored: dict[str, list[str]] = field(default_factory=dict)  # reason -> relative paths


def scan_folder(root: Path) -> _FolderScan:
    """All files below ``root``; links to folders are followed, except to a folder that holds the link. Raises
    ``InputError``: ``root`` is no folder, or something below it cannot be read."""
    if not root.is_dir():
        raise InputError(
            f"data.root = {str(root)!r} is not a folder; imagefolder requires one with class folders: give it by --set "
            "data.root=FOLDER, or in the study file."
        )
    images: list[_ScannedFile] = []
    folders: set[str] = set()
    ignored: dict[str, list[str]] = {}
    for path, status, reason in _walk(root):
        if status is None:
            folders.add(path)
        elif reason:
            ignored.setdefault(reason, []).append(path)
        else:
            images.append(_ScannedFile(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return _FolderScan(root=root, images=tuple(sorted(images)), folders=frozenset(folders), ignored=ignored)


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None, str]]:
    # (path, status or None for a folder, reason to ignore it)
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
                yield path, status, reason or _reason_to_ignore(entry.name, status)
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


OnProgress = Callable[[int, int], None]  # images inspected so far, and all of them
_SPAN = 128  # images of one task: a task per image costs more than decoding a small one
_SMALL_BYTES = 2**13  # of a file; threads that decode smaller ones wait for the interpreter more than they gain
_FORMAT = "4.images.json"  # of the cached files


class ImageFacts(NamedTuple):
    """What is known of one image file. ``error`` is empty where it can be decoded."""

    num_bytes: int
    modified_ns: int
    changed_ns: int
    digest: str  # of its content, 32 hexadecimal digits
    width: int
    height: int
    mode: str  # of Pillow
    lost: Sequence[str]  # what of the content no trial uses, in words
    error: str

    def is_of(self, file: _ScannedFile) -> bool:
        return (self.num_bytes, self.modified_ns, self.changed_ns) == file[1:]


def inspect_files(
    root: Path, files: Sequence[_ScannedFile], on_progress: OnProgress | None = None
) -> dict[str, ImageFacts]:
    """The facts of ``files`` below ``root`` by path. Those that were not written since they were inspected last are
    taken from the cache; the others are read and decoded."""
    root_digest = hashlib.blake2b(os.fsencode(root.absolute()), digest_size=16).hexdigest()
    cached_file = find_cache_folder() / f"{root_digest}.{_FORMAT}"
    cached = {name: ImageFacts(*facts) for name, facts in (_read_document(cached_file) or {}).items()}
    fresh = {file.path: facts for file in files if (facts := cached.get(file.path)) and facts.is_of(file)}
    missing = [file for file in files if file.path not in fresh]
    spans = [missing[start : start + _SPAN] for start in range(0, len(missing), _SPAN)]
    is_small = sum(file.num_bytes for file in missing) < _SMALL_BYTES * len(missing)
    with ThreadPoolExecutor(1 if is_small else min(8, os.cpu_count() or 1)) as pool:
        for found in pool.map(lambda span: {file.path: _inspect(root, file) for file in span}, spans):
            fresh |= found
            if on_progress:
                on_progress(len(fresh), len(files))
    if missing or len(cached) != len(fresh):
        _write_document(cached_file, fresh)
    return fresh


def _inspect(root: Path, file: _ScannedFile) -> ImageFacts:
    digest, error = "", ""
    header: tuple[int, int, str, tuple[str, ...]] = (0, 0, "", ())
    try:
        content = (root / file.path).read_bytes()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        if not content:
            raise InputError("is empty.")
        header = inspect_image(file.path, content)
    except InputError as problem:
        error = str(problem).removeprefix(file.path).strip()
    except OSError as problem:
        error = f"cannot be read: {problem.strerror}."
    return ImageFacts(file.num_bytes, file.modified_ns, file.changed_ns, digest, *header, error)


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
    files: tuple[_ScannedFile, ...]
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
    labeled: dict[str, list[tuple[str, _ScannedFile]]] = {split: [] for split in folders}
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
    scan: _FolderScan, folder: str, labeled: Sequence[tuple[str, _ScannedFile]], classes: Sequence[str]
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
