"""Image files decoded once into one file of pixels, which every process maps into its memory. Imports no torch.

Images are decoded in spans, by one process for each processor unless they are few. A journal beside the pixels tells
which spans are whole, so that a decoding that was killed continues. Both get their names when all is decoded.
"""

import hashlib
import io
import json
import math
import os
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from sweep.config.errors import InputError
from sweep.training.data.cache import BYTES_VARIABLE, find_cache_folder, hold_lock, make_room, measure_cache
from sweep.training.data.folders import Resize, ScannedFile, decode_image
from sweep.training.data.images import Pixels
from sweep.training.processes import die_with_parent

OnProgress = Callable[[int, int, str], None]  # images decoded so far, all of them, and what they are decoded into
_FORMAT = "1"  # of the cached files
_SPAN = 128  # images of one task: a task per image costs more than decoding a small one
_PARALLEL_BYTES = 2**24  # of files; fewer are decoded in this process


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

    def is_of(self, file: ScannedFile) -> bool:
        return (self.num_bytes, self.modified_ns, self.changed_ns) == file[1:]


class _Journal(NamedTuple):
    rows: list[int]
    checksum: int  # of the pixels of these rows
    facts: list[tuple[str, ImageFacts]]  # by path


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What is decoded: ``files`` below ``root``, each to RGB (side, side, 3), in their order."""

    root: Path
    files: Sequence[ScannedFile]
    side: int
    resize: Resize | None

    @property
    def num_bytes(self) -> int:
        return len(self.files) * self.side**2 * 3

    @property
    def group(self) -> str:
        """The beginning of the names of this folder's maps of this size, whatever files it holds."""
        about = f"{_FORMAT}\0{self.side}\0{self.resize}\0".encode() + os.fsencode(self.root.absolute())
        return hashlib.blake2b(about, digest_size=10).hexdigest()

    @cached_property
    def name(self) -> str:
        """The name of the map, which changes with every file."""
        lines = "\n".join("\0".join(map(str, file)) for file in self.files)
        return f"{self.group}.{hashlib.blake2b(lines.encode(errors='surrogateescape'), digest_size=10).hexdigest()}.npy"

    def describe(self) -> str:
        """What it is decoded into, in words."""
        return f"{self.side} x {self.side} pixels, {self.num_bytes / 1e9:,.3g} GB in {find_cache_folder()}"


def open_map(name: str) -> Pixels:
    """The pixels (n, side, side, 3) of the map ``name``, read-only. Raises ``OSError`` or ``ValueError``: it is not
    there, or is none."""
    path = find_cache_folder() / name
    pixels: Pixels = open_memmap(path, mode="r")
    for used in (path.with_suffix(".jsonl"), path):  # the cache deletes what was not used for longest
        with suppress(FileNotFoundError):  # the facts alone may have made room
            os.utime(used)
    return pixels


def decode_files(decoding: Decoding, on_progress: OnProgress | None = None) -> list[ImageFacts]:
    """The facts of the files, in their order, with the map of their pixels in the cache under ``decoding.name``; black
    where there is an error or another size.

    Images that are in the map of an earlier state of the folder are copied from it. Raises ``InputError``: the cache
    has no room, or cannot be written."""
    try:
        with hold_lock(decoding.group):
            return _decode_locked(decoding, on_progress)
    except OSError as error:
        raise InputError(
            f"{decoding.describe()}: cannot be written: {error.strerror or error}; give SWEEP_CACHE another folder, or "
            "make room."
        ) from None
    except BrokenProcessPool:
        raise InputError(
            f"data.root = {str(decoding.root)!r}: a process that decodes its images was killed, maybe for lack of "
            "memory; the same command continues it."
        ) from None


def _decode_locked(decoding: Decoding, on_progress: OnProgress | None) -> list[ImageFacts]:
    final = find_cache_folder() / decoding.name
    journal = final.with_suffix(".jsonl")
    with suppress(OSError, ValueError, KeyError):  # by another process, while this one waited
        open_map(decoding.name)
        return _in_order(decoding, _read_journal(journal))
    _require_room(decoding)
    parts = [path.with_name(f"{path.name}.part") for path in (journal, final)]
    pixels = _allocate(decoding, parts[1])
    done = [each for each in _read_journal(parts[0]) if _checksum(pixels[each.rows]) == each.checksum]
    with parts[0].open("a") as file:
        for make_spans in (_copy_earlier, _decode_spans):
            missing = sorted(set(range(len(decoding.files))).difference(*(each.rows for each in done)))
            num_missing = len(missing)
            for found in chain([_Journal([], 0, [])], make_spans(decoding, pixels, missing)):
                file.write("\n" + json.dumps(found, separators=(",", ":")))  # after a line that was cut short
                file.flush()
                done.append(found)
                num_missing -= len(found.rows)
                if on_progress:  # the first time before anything is decoded
                    on_progress(len(decoding.files) - num_missing, len(decoding.files), decoding.describe())
    pixels.flush()  # type: ignore[attr-defined]
    facts = _in_order(decoding, done)
    for part, path in zip(parts, (journal, final), strict=True):  # the pixels last: they say that all is there
        part.replace(path)
        os.utime(path)  # the pixels are deleted last
    for path in final.parent.glob(f"{decoding.group}.*.*"):
        if path not in (final, journal):
            path.unlink(missing_ok=True)  # an earlier state of the folder; who has it mapped keeps it
    return facts


def _in_order(decoding: Decoding, spans: Iterable[_Journal]) -> list[ImageFacts]:
    facts = {path: facts for span in spans for path, facts in span.facts}
    return [facts[file.path] for file in decoding.files]


def _require_room(decoding: Decoding) -> None:
    _, limit = measure_cache()
    if decoding.num_bytes > limit:
        side = math.isqrt(limit // (3 * len(decoding.files)))
        raise InputError(
            f"data.root = {str(decoding.root)!r}: {len(decoding.files):,} images decode to {decoding.describe()}, "
            f"which may take {limit / 1e9:,.3g} GB ({BYTES_VARIABLE}, or half of what it takes and what is free). "
            f"Sizes up to {side} fit: set data.image_size to at most {side}, or SWEEP_CACHE to a folder on a larger "
            "disk."
        )
    make_room(decoding.num_bytes, keep=decoding.name.removesuffix("npy"))


def _allocate(decoding: Decoding, path: Path) -> Pixels:
    shape = (len(decoding.files), decoding.side, decoding.side, 3)
    try:
        pixels: Pixels = open_memmap(path, mode="r+")
        if pixels.shape != shape:
            raise ValueError
    except (OSError, ValueError):
        pixels = open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    with path.open("r+b") as file:  # a disk that fills up later would kill this process as it writes
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return pixels


def _read_journal(path: Path) -> list[_Journal]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    spans = []
    for line in lines:
        try:
            rows, checksum, facts = json.loads(line)
        except ValueError:  # cut short
            continue
        spans.append(_Journal(rows, checksum, [(name, ImageFacts(*each)) for name, each in facts]))
    return spans


def _checksum(pixels: Pixels) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)


def _copy_earlier(decoding: Decoding, pixels: Pixels, missing: Sequence[int]) -> Iterator[_Journal]:
    for path in find_cache_folder().glob(f"{decoding.group}.*.npy"):
        try:
            earlier = open_memmap(path, mode="r")
        except (OSError, ValueError):  # deleted meanwhile, or damaged
            continue
        known: dict[str, tuple[int, ImageFacts]] = {}
        for span in _read_journal(path.with_suffix(".jsonl")):
            known |= {name: (row, facts) for row, (name, facts) in zip(span.rows, span.facts, strict=True)}
        same = {row: known[file.path] for row in missing if (file := decoding.files[row]).path in known}
        for rows in _cut([row for row, (_, facts) in same.items() if facts.is_of(decoding.files[row])]):
            pixels[rows] = block = earlier[[same[row][0] for row in rows]]
            yield _Journal(rows, _checksum(block), [(decoding.files[row].path, same[row][1]) for row in rows])
        return


def _cut(rows: Sequence[int]) -> Iterator[list[int]]:
    size = max(1, min(_SPAN, len(rows) // (8 * len(os.sched_getaffinity(0)))))
    return (list(rows[start : start + size]) for start in range(0, len(rows), size))


_work: list[tuple[Decoding, Pixels]] = []  # of a worker


def _decode_spans(decoding: Decoding, pixels: Pixels, missing: Sequence[int]) -> Iterator[_Journal]:
    spans, num_bytes = _cut(missing), sum(decoding.files[row].num_bytes for row in missing)
    if num_bytes < _PARALLEL_BYTES:
        yield from map(partial(_decode_span, decoding, pixels), spans)
        return
    # forked, so that the workers have the map and the list of files without a copy
    count = len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(count, get_context("fork"), _begin_worker, (decoding, pixels, os.getpid()))
    try:
        yield from pool.map(_decode_in_worker, spans)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(decoding: Decoding, pixels: Pixels, parent_pid: int) -> None:
    die_with_parent(parent_pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # for the process that started it
        signal.signal(number, signal.SIG_IGN)
    _work[:] = [(decoding, pixels)]


def _decode_in_worker(rows: list[int]) -> _Journal:
    return _decode_span(*_work[0], rows)


def _decode_span(decoding: Decoding, pixels: Pixels, rows: list[int]) -> _Journal:
    block = np.zeros((len(rows), decoding.side, decoding.side, 3), dtype=np.uint8)
    facts = [(decoding.files[row].path, _decode_file(decoding, row, out)) for row, out in zip(rows, block, strict=True)]
    pixels[rows] = block
    return _Journal(rows, _checksum(block), facts)


def _decode_file(decoding: Decoding, row: int, out: Pixels) -> ImageFacts:
    file = decoding.files[row]
    digest, error = "", ""
    header: tuple[int, int, str, tuple[str, ...]] = (0, 0, "", ())
    try:
        # with pathlib, reading a small file takes twice as long
        with open(f"{decoding.root}/{file.path}", "rb", buffering=0) as opened:  # noqa: PTH123
            content = opened.read()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        if not content:
            raise InputError("is empty.")
        image = decode_image(file.path, io.BytesIO(content), decoding.side, decoding.resize)
        header = image[:4]
        if image.pixels is not None:
            out[:] = image.pixels
    except InputError as problem:
        error = str(problem).removeprefix(file.path).strip()
    except OSError as problem:
        error = f"cannot be read: {problem.strerror}."
    return ImageFacts(file.num_bytes, file.modified_ns, file.changed_ns, digest, *header, error)
