"""The cache folder: documents and decoded images that later processes read, and the bytes that it may take.

Imports no torch.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sweep.config.errors import InputError
from sweep.training.processes import SUPERVISOR_LINK

BYTES_VARIABLE = "SWEEP_CACHE_BYTES"
_SHARE = 0.5  # of the bytes that the cache takes and those that are free on its disk, where no limit is given
_POLL_SECONDS = 0.1
_PART_SECONDS = 24 * 3600.0  # after which a decoding that was killed is given up


def find_cache_folder() -> Path:
    """``$SWEEP_CACHE``, or ``batch-sweep`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SWEEP_CACHE") or Path(base) / "batch-sweep")


def measure_cache() -> tuple[int, int]:
    """The bytes that the cache takes, and those that it may take: ``$SWEEP_CACHE_BYTES``, or half of what it takes and
    what is free on its disk. Raises ``InputError``: the variable is no number of bytes."""
    folder = find_cache_folder()
    taken = sum(size for _, _, size in _list_files(folder))
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    most, given = taken + shutil.disk_usage(place).free, os.environ.get(BYTES_VARIABLE)
    if given is None:
        return taken, int(_SHARE * most)
    if not given.isascii() or not given.isdecimal():
        raise InputError(f"{BYTES_VARIABLE} = {given!r} is no number of bytes; give one such as 50000000000.")
    return taken, min(int(given), most)


def make_room(num_bytes: int, keep: str) -> None:
    """Deletes what was not used for longest until ``num_bytes`` more are within the limit; never files whose name
    begins with ``keep``, which do not count, nor what another process may still decode into."""
    _, limit = measure_cache()
    others = [each for each in _list_files(find_cache_folder()) if not (keep and each[1].name.startswith(keep))]
    taken = sum(size for *_, size in others)
    for modified, path, size in sorted(others):
        if taken + num_bytes <= limit:
            break
        if path.suffix != ".part" or time.time() - modified > _PART_SECONDS:
            path.unlink(missing_ok=True)
            taken -= size


def _list_files(folder: Path) -> list[tuple[float, Path, int]]:
    # when each was used last, and its bytes; a lock that was deleted could be held twice
    paths, found = list[Path](), []
    with contextlib.suppress(OSError):
        paths = list(folder.iterdir())
    for path in paths:
        with contextlib.suppress(OSError):  # another process deletes too
            status = path.stat()
            if path.is_file() and path.suffix != ".lock":
                found.append((status.st_mtime, path, status.st_size))
    return found


@contextlib.contextmanager
def hold_lock(name: str) -> Iterator[None]:
    """Holds the lock ``name`` of the cache, after waiting for it; the kernel releases it when the process dies."""
    folder = find_cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("wb") as file:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            SUPERVISOR_LINK.send_heartbeat()  # another process may decode for hours
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # at once, though forked workers have the file open too


def load_document(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON document of the file ``name`` of the cache, or what ``make`` returns, which is then kept under that
    name."""
    path = find_cache_folder() / name
    with contextlib.suppress(OSError, ValueError):  # there is none yet, or it was cut short
        document: dict[str, Any] = json.loads(path.read_bytes())
        os.utime(path)
        return document
    document = make()
    content = json.dumps(document, separators=(",", ":")).encode()
    temporary = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_room(len(content), keep="")
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:  # it is made again the next time
        with contextlib.suppress(OSError):  # there is none where the cache is no folder
            temporary.unlink()
    return document
