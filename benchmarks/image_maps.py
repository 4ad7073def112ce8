"""A folder of JPEG files that is decoded once into a map: the decoding beside a pool of Pillow, an epoch beside
torchvision's ImageFolder, training beside arrays in memory, and the second load."""

import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.datasets import offer
from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark
from benchmarks.speed import Trained, compose_transform, our_epochs, train
from sweep.config.sections import DataSection
from sweep.training.data.cache import find_cache_folder
from sweep.training.data.folders import scan_folder
from sweep.training.data.image_folder import load_imagefolder
from sweep.training.data.image_maps import Decoding, decode_files, open_map
from sweep.training.data.images import ArrayImages, Images
from sweep.training.data.sources import load_splits

_PROCESSES = len(os.sched_getaffinity(0))
_SPAN = 128  # images of a task, for both
_CLASSES = 10
_BATCH = 128
_VALIDATION_SHARE = 0.01  # small, because evaluation is not timed


def _write_image(root: Path, side: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        image.save(root / f"class{number % _CLASSES}" / f"{number}.jpg", quality=90)


@contextmanager
def _folder(count: int, side: int) -> Iterator[Path]:
    """Class folders of ``count`` made JPEG files, with an empty cache beside them."""
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(_PROCESSES, get_context("fork")) as pool:
        root = Path(place, "images")
        for label in range(_CLASSES):
            (root / f"class{label}").mkdir(parents=True)
        spans = [(first, min(_SPAN, count - first)) for first in range(0, count, _SPAN)]
        list(pool.map(partial(_write_image, root, side), *zip(*spans, strict=True)))
        os.sync()  # files that are still written would disturb the first arm
        with patch.dict(os.environ, SWEEP_CACHE=str(Path(place, "cache"))):
            yield root


# ---------------------------------------------------------------------- decoding


def _decode(paths: list[str], side: int, out: str, first: int) -> None:
    pixels = open_memmap(out, mode="r+") if out else None
    for row, path in enumerate(paths, first):
        with Image.open(path) as image:
            rgb = image.convert("RGB")
            decoded = np.asarray(
                rgb if rgb.size == (side, side) else rgb.resize((side, side), Image.Resampling.BILINEAR)
            )
            if pixels is not None:
                pixels[row] = decoded


def _decoding(setting: Setting, count: int, side: int, stored_side: int) -> Iterator[Arms]:
    """Theirs decodes into one mapped file. The facts have the images/s of a pool that keeps nothing."""
    with _folder(setting.pick(count, 40), side) as root:
        files = scan_folder(root).images
        decoding = Decoding(root=root, files=files, side=stored_side, resize=None if side == stored_side else "crop")
        paths, bare = [str(root / file.path) for file in files], list[float]()

        def ours(_pair: int) -> float:
            for path in find_cache_folder().glob("*.*"):
                path.unlink()
            began = time.perf_counter()
            facts = decode_files(decoding)
            seconds = time.perf_counter() - began
            if any(each.error for each in facts):
                raise ArmsDifferError("images could not be decoded")
            return len(files) / seconds

        def pool(out: str) -> float:
            began = time.perf_counter()
            pixels = open_memmap(out, "w+", np.uint8, (len(files), stored_side, stored_side, 3)) if out else None
            starts = range(0, len(files), _SPAN)
            with ProcessPoolExecutor(_PROCESSES, get_context("fork")) as processes:
                spans = [paths[start : start + _SPAN] for start in starts]
                list(processes.map(_decode, spans, repeat(stored_side), repeat(out), starts))
            if pixels is not None:
                pixels.flush()
            return len(files) / (time.perf_counter() - began)

        def theirs(_pair: int) -> float:
            bare.append(pool(""))
            return pool(str(root.parent / "pool.npy"))

        def check() -> dict[str, Any]:
            rows, stored = range(0, len(files), 50), open_memmap(root.parent / "pool.npy")
            if side == stored_side and not np.array_equal(open_map(decoding.name)[rows], stored[rows]):
                raise ArmsDifferError("pixels differ")
            return {"images_per_second_of_a_pool_that_keeps_nothing": bare}

        facts = {"num_images": len(files), "side": side, "stored_side": stored_side, "processes": _PROCESSES}
        yield Arms(ours, theirs, check, facts)


@benchmark(
    "map_decode",
    "images/s of the first decoding over a pool of Pillow that stores pixels (JPEG, 64 px)",
    "images/s",
    "higher",
    0.9,
)
def map_decode(setting: Setting) -> Iterator[Arms]:
    yield from _decoding(setting, 40_000, 64, 64)


@benchmark(
    "map_draft",
    "images/s of the first decoding over a pool of Pillow that stores pixels (JPEG, 512 px to 64)",
    "images/s",
    "higher",
    1.5,
)
def map_draft(setting: Setting) -> Iterator[Arms]:
    yield from _decoding(setting, 3_000, 512, 64)


# ---------------------------------------------------------------------- loading again


@benchmark(
    "map_load", "seconds to load a decoded folder again, per 100,000 images, over the 0.3 it may take", "seconds",
    "lower", 1.0,
)  # fmt: skip
def map_load(setting: Setting) -> Iterator[Arms]:
    """All of the folder's files are compared with what was decoded. A look at each file is measured beside it."""
    with _folder(count := setting.pick(200_000, 40), 64) as root:
        section, looks = _section(root), list[float]()
        load_splits(section)

        def seconds(load: Callable[[], object]) -> float:
            began = time.perf_counter()
            load()
            return (time.perf_counter() - began) / (count / 100_000)

        def theirs(_pair: int) -> float:
            looks.append(seconds(lambda: [entry.stat() for folder in os.scandir(root) for entry in os.scandir(folder)]))
            return 0.3

        def check() -> dict[str, Any]:
            return {"median_seconds_of_a_look_at_each_file": median(looks)}

        yield Arms(lambda _pair: seconds(lambda: load_splits(section)), theirs, check, {"num_images": count})


def _section(root: Path) -> DataSection:
    return DataSection(name="imagefolder", root=str(root), validation_share=_VALIDATION_SHARE)


# ---------------------------------------------------------------------- an epoch, and training


@benchmark(
    "map_epoch", "images/s of a second epoch (crop + flip + normalize, 64 px) over ImageFolder and DataLoader",
    "images/s", "higher", 20.0,
)  # fmt: skip
def map_epoch(setting: Setting) -> Iterator[Arms]:
    with _folder(setting.pick(20_000, 40), 64) as root:
        images = load_imagefolder(_section(root)).train
        assert isinstance(images, ArrayImages)
        ours = our_epochs(images, setting.device, _BATCH, placement="host")
        transform = compose_transform(64)  # opens the door to torchvision
        folders: Any = importlib.import_module("torchvision.datasets")
        loader = DataLoader(
            folders.ImageFolder(str(root), transform=transform), _BATCH, shuffle=True, num_workers=_PROCESSES,
            persistent_workers=True, multiprocessing_context="fork",
        )  # fmt: skip

        def speed(batches: Iterable[Tensor]) -> float:
            began = time.perf_counter()
            return sum(map(len, batches)) / (time.perf_counter() - began)

        yield Arms(
            lambda pair: speed(ours(pair + 1)),
            lambda _: speed(pixels for pixels, _labels in loader),
            facts={"images": len(images), "workers": _PROCESSES},
        )


@benchmark(
    "map_steps", "steps/s of training from the map of 200,000 images of 64 px over arrays in memory", "steps/s",
    "higher", 0.95, num_pairs=5,
)  # fmt: skip
def map_steps(setting: Setting) -> Iterator[Arms]:
    yield from _training(setting, 200_000, 64, 15)


@benchmark(
    "map_steps_small", "steps/s of training from the map of 60,000 images of 32 px over resident images", "steps/s",
    "higher", 0.95, num_pairs=5,
)  # fmt: skip
def map_steps_small(setting: Setting) -> Iterator[Arms]:
    yield from _training(setting, 60_000, 32, 40)


def _training(setting: Setting, count: int, side: int, steps: int) -> Iterator[Arms]:
    """The same trial twice: its images are streamed from the map, or are an array in memory, which is resident where it
    is small enough. The losses must be equal."""
    with _folder(setting.pick(count, 200), side) as root:
        steps, splits = setting.pick(steps, 2), load_splits(_section(root))
        offer("in_memory", *(_copy(each) for each in (splits.train, splits.validation)))
        values = {
            "model.name": "resnet8", "data.augment": "crop_flip", "batch.micro": _BATCH, "optimizer.lr": 0.05,
            "budget.steps": steps,
        }  # fmt: skip
        data: dict[str, dict[str, Any]] = {
            "ours": {
                "data.name": "imagefolder", "data.root": str(root), "data.placement": "host",
                "data.validation_share": _VALIDATION_SHARE,
            },
            "theirs": {"data.name": "in_memory", "data.placement": "device"},
        }  # fmt: skip
        trained: dict[str, Trained] = {}

        def speed(name: str) -> float:
            trained[name] = train(values | data[name], setting.device)
            return steps / trained[name].seconds

        def check() -> dict[str, Any]:
            losses = [trained[name].losses for name in data]
            accuracies = [trained[name].evaluations[-1].val_accuracy for name in data]
            if losses[0] != losses[1] or accuracies[0] != accuracies[1]:
                raise ArmsDifferError(f"losses {losses}, accuracies {accuracies}")
            return {"losses": losses[0]}

        yield Arms(
            lambda _: speed("ours"), lambda _: speed("theirs"), check, {"num_images": len(splits.train), "steps": steps}
        )


def _copy(images: Images) -> ArrayImages:
    assert isinstance(images, ArrayImages)
    return ArrayImages(np.array(images.pixels), images.labels)
