"""Decoded image folders on disk, so that not every trial decodes them again. Imports no torch."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sweep.training.data.images import Pixels

_MIN_BYTES = 8 * 2**20  # smaller folders are decoded fast enough
_MAX_BYTES = 2 * 2**30
_KEPT_FILES = 8


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
    if _MIN_BYTES <= pixels.nbytes <= _MAX_BYTES:
        _write(path, pixels)
    return pixels


def _write(path: Path, pixels: Pixels) -> None:
    temporary = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.save(file, pixels, allow_pickle=False)
        temporary.replace(path)
        _delete_oldest(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)


def _delete_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.npy"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[_KEPT_FILES:]:
        file.unlink(missing_ok=True)
