"""All files below a folder: images, and what is no image with the reason. No torch here."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sweep.config.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
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
        """The folders below the root, and the name."""
        return tuple(self.path.split("/"))


@dataclass(frozen=True, kw_only=True)
class FolderScan:
    """What lies below ``root``. Each file is either in ``images`` or, under one reason, in ``ignored``."""

    root: Path
    images: tuple[ScannedFile, ...]  # sorted by path
    folders: frozenset[str]  # relative paths of those that may be a split or a class
    ignored: dict[str, list[str]] = field(default_factory=dict)  # reason -> relative paths


def scan_folder(root: Path) -> FolderScan:
    """All files below ``root``; links to folders are followed, except to a folder that holds the link.

    Raises:
        InputError: ``root`` is no folder, or something below it cannot be read.
    """
    if not root.is_dir():
        raise InputError(
            f"data.root = {str(root)!r} is not a folder; imagefolder requires one with class folders: give it by --set "
            "data.root=FOLDER, or in the study file."
        )
    images: list[ScannedFile] = []
    folders: set[str] = set()
    ignored: dict[str, list[str]] = {}
    for path, status, reason in _walk(root):
        if status is None:
            folders.add(path)
        elif reason:
            ignored.setdefault(reason, []).append(path)
        else:
            images.append(ScannedFile(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return FolderScan(root=root, images=tuple(sorted(images)), folders=frozenset(folders), ignored=ignored)


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
            inside = reason or ("in a hidden folder or one that a program left" if _is_left_behind(entry.name) else "")
            if not inside:
                yield path, None, ""
            pending.append((path, inside, above | {identity}))


def _read_entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}; repair or remove it.") from None


def _is_left_behind(name: str) -> bool:
    # hidden, or made by a program for itself
    return name.startswith(".") or name.lower() in _LEFT_BEHIND


def _reason_to_ignore(name: str, status: os.stat_result) -> str:
    if name.startswith("."):
        return "hidden"
    if not name.lower().endswith(SUFFIXES):
        return f"no image by its suffix ({Path(name).suffix.lower() or 'none'})"
    return "" if stat.S_ISREG(status.st_mode) else "no file"
