"""How long the first look at a folder of images takes: every file found, read, decoded and digested, none silent."""

import os
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from sweep.config.data_sections import DataSection
from sweep.config.trial_config import build_config
from sweep.records.data_summary import DataSummary
from sweep.training.data.cache import find_cache_folder
from sweep.training.data.summaries import look_at_data

_NUM_IMAGES, _TINY_IMAGES = 60_000, 300
_NUM_CLASSES, _SIDE = 10, 28


def look_arms(which: Literal["first", "again"]) -> Callable[[Setting], AbstractContextManager[Arms]]:
    """Ours looks at a folder for the first time, or ``again`` with the cache of the first time; the other arm decodes
    each file of each class once with Pillow, in one thread."""
    return partial(_arms, which)


@contextmanager
def _arms(which: Literal["first", "again"], setting: Setting) -> Iterator[Arms]:
    count = setting.pick(_NUM_IMAGES, _TINY_IMAGES)
    with tempfile.TemporaryDirectory() as place, _own_cache(Path(place) / "cache"):
        root = Path(place) / "images"
        _write_images(root, count)
        section = build_config({"data.name": "imagefolder", "data.root": str(root)}, "benchmark").data
        found: list[DataSummary] = [look_at_data(section)]

        def ours(_pair: int) -> float:
            if which == "first":
                _forget()
            began = time.perf_counter()
            found.append(look_at_data(section))
            return time.perf_counter() - began

        def theirs(_pair: int) -> float:
            began = time.perf_counter()
            counts.append(_decode_all(root))
            return time.perf_counter() - began

        def check() -> dict[str, Any]:
            return compare(found, counts) | _measure_memory(section, which)

        counts: list[Counter[str]] = []
        facts = {"num_images": count, "images": f"gray PNG, {_SIDE} x {_SIDE}", "num_classes": _NUM_CLASSES}
        yield Arms(ours, theirs, check, facts)


def compare(found: list[DataSummary], counts: list[Counter[str]]) -> dict[str, Any]:
    """The digest that all looks agree on.

    Raises:
        ArmsDifferError: the looks differ, or the other arm has decoded other images.
    """
    if len({summary.digest for summary in found}) > 1:
        raise ArmsDifferError("two looks at the same folder differ")
    ours = Counter({name: sum(of_class.values()) for name, of_class in found[-1].classes.items()})
    if any(theirs != ours for theirs in counts):
        raise ArmsDifferError(f"images by class: {dict(ours)} and {dict(counts[-1])}")
    return {"digest": found[-1].digest}


def _measure_memory(section: DataSection, which: Literal["first", "again"]) -> dict[str, Any]:
    # apart from the timed looks, which it would slow down; what Python allocates, without decoded pixels
    if which == "first":
        _forget()
    tracemalloc.start()
    look_at_data(section)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    cache_bytes = sum(path.stat().st_size for path in find_cache_folder().iterdir())
    return {"peak_traced_bytes": peak_bytes, "cache_bytes": cache_bytes}


def _write_images(root: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for label in range(_NUM_CLASSES):
        (root / str(label)).mkdir(parents=True)
    for number in range(count):
        pixels = rng.integers(0, 256, (_SIDE, _SIDE), dtype=np.uint8)
        Image.fromarray(pixels).save(root / str(number % _NUM_CLASSES) / f"{number:05}.png")


def _decode_all(root: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for folder in sorted(root.iterdir()):
        for path in sorted(folder.iterdir()):
            with Image.open(path) as image:
                image.load()
            counts[folder.name] += 1
    return counts


def _forget() -> None:
    for path in find_cache_folder().iterdir():
        path.unlink()


@contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("SWEEP_CACHE")
    os.environ["SWEEP_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SWEEP_CACHE"]
        if before is not None:
            os.environ["SWEEP_CACHE"] = before


BENCHMARK = Benchmark(
    "data_look",
    f"seconds of the first look at {_NUM_IMAGES:,} small PNGs over a loop that decodes each with Pillow",
    "seconds",
    "lower",
    1.5,
    look_arms("first"),
    num_pairs=5,
)
