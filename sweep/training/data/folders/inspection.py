"""Every image of a folder is decoded once, in threads, and what was found is kept in the cache. No torch here."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from sweep.config.errors import InputError
from sweep.training.data.cache import find_cache_folder, write_file
from sweep.training.data.folders.decoding import ImageHeader, inspect_image
from sweep.training.data.folders.scan import ScannedFile

OnProgress = Callable[[int, int], None]  # images inspected so far, and all of them
_SPAN = 128  # images of one task: a task per image costs more than decoding a small one
_SMALL_BYTES = 2**13  # of a file; threads that decode smaller ones wait for the interpreter more than they gain
_FORMAT = 2  # of the cached files
_KEPT_FILES = 16


class ImageFacts(NamedTuple):
    """What is known of one image file. ``error`` is empty where it can be decoded."""

    num_bytes: int
    modified_ns: int
    changed_ns: int
    digest: str  # of its content, 32 hexadecimal digits
    width: int
    height: int
    mode: str  # of Pillow
    traits: Sequence[str]  # what of its content no trial uses, see inspect_image
    error: str

    def is_of(self, file: ScannedFile) -> bool:
        """Whether ``file`` has not been written since."""
        return (self.num_bytes, self.modified_ns, self.changed_ns) == file[1:]


def inspect_files(
    root: Path, files: Sequence[ScannedFile], on_progress: OnProgress | None = None
) -> dict[str, ImageFacts]:
    """The facts of ``files`` below ``root`` by path. Those that were not written since they were inspected last are
    taken from the cache; the others are read and decoded."""
    cached_file = _cached_file(root)
    known = _read(cached_file)
    fresh = {file.path: facts for file in files if (facts := known.get(file.path)) and facts.is_of(file)}
    missing = [file for file in files if file.path not in fresh]
    num_done = len(fresh)
    for path, facts in _inspect_all(root, missing):
        fresh[path] = facts
        num_done += 1
        if on_progress and (num_done % _SPAN == 0 or num_done == len(files)):
            on_progress(num_done, len(files))
    if missing or len(known) != len(fresh):
        content = json.dumps({"format": _FORMAT, "images": fresh}, separators=(",", ":"))
        write_file(cached_file, content.encode(), _KEPT_FILES)  # without it every process decodes the images again
    return fresh


def _inspect_all(root: Path, files: Sequence[ScannedFile]) -> Iterator[tuple[str, ImageFacts]]:
    spans = [files[start : start + _SPAN] for start in range(0, len(files), _SPAN)]

    def inspect_span(span: Iterable[ScannedFile]) -> list[tuple[str, ImageFacts]]:
        return [(file.path, _inspect(root, file)) for file in span]

    is_small = sum(file.num_bytes for file in files) < _SMALL_BYTES * len(files)
    with ThreadPoolExecutor(1 if is_small else min(8, os.cpu_count() or 1)) as pool:
        for found in pool.map(inspect_span, spans):
            yield from found


def _inspect(root: Path, file: ScannedFile) -> ImageFacts:
    digest, header, error = "", ImageHeader(0, 0, "", ()), ""
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


def _cached_file(root: Path) -> Path:
    name = hashlib.blake2b(str(root.absolute()).encode(), digest_size=16).hexdigest()
    return find_cache_folder() / f"{name}.images.json"


def _read(path: Path) -> dict[str, ImageFacts]:
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != _FORMAT:
            return {}
        os.utime(path)
        return {name: ImageFacts(*facts) for name, facts in document["images"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}  # there is none yet, or it was cut short
