"""What was found by reading images, on disk, so that not every process reads them again. Imports no torch."""

import contextlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sweep.training.data.images import Pixels

_MIN_BYTES = 8 * 2**20  # smaller folders are decoded fast enough
_MAX_BYTES = 2 * 2**30
_KEPT_FILES = 8
_KEPT_DOCUMENTS = 64


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
        _write(path, lambda file: np.save(file, pixels, allow_pickle=False), _KEPT_FILES)
    return pixels


def load_document(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON document of the file ``name`` of the cache, or that of ``make``, which is then kept under that name."""
    path = find_cache_folder() / name
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        os.utime(path)
    except (OSError, ValueError):
        document = make()
        write_file(path, json.dumps(document, separators=(",", ":")).encode(), _KEPT_DOCUMENTS)
    return document


def write_file(path: Path, content: bytes, num_kept: int) -> None:
    """Writes a file of the cache at once, and deletes the oldest of its kind beyond ``num_kept``. Does nothing where
    the cache cannot be written."""
    _write(path, lambda file: file.write(content), num_kept)


def _write(path: Path, write: Callable[[Any], Any], num_kept: int) -> None:
    temporary = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
        temporary.replace(path)
        of_a_kind = path.parent.glob(f"*{''.join(path.suffixes)}")
        for old in sorted(of_a_kind, key=_modified, reverse=True)[num_kept:]:
            old.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):  # of a cache that is no folder there is none
            temporary.unlink()


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # removed by another process
