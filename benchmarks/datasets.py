"""Images that benchmarks train on: CIFAR-10's from an archive, and tasks that NumPy draws with fixed seeds.

Also a plug-in, which makes all of ``MADE`` known to a command of ``sweep``. No torch here: trials begin without it.
"""

import io
import os
import tarfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from PIL import Image

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import DATASETS, DatasetEntry
from sweep.training.data.cache import find_cache_folder, load_document
from sweep.training.data.images import ArrayImages, Source
from sweep.training.data.published import load_digits, read_digits

Values = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Drawn = tuple[Pixels, Labels]
PLUGIN = str(Path(__file__).resolve())

# ---------------------------------------------------------------------- CIFAR-10 from the archive

_USUAL_ARCHIVE = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10-jpeg.tar.xz"
ARCHIVE = Path(os.environ.get("CIFAR10_ARCHIVE") or _USUAL_ARCHIVE)


def require_archive(archive: Path) -> Path:
    if not archive.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {archive}; name it with CIFAR10_ARCHIVE.")
    return archive


def cifar_images(count: int, *, is_tiny: bool = False, archive: Path = ARCHIVE) -> tuple[ArrayImages, str]:
    """The first ``count`` of the shuffled training images, and their origin: noise of the same shape without the
    archive, and in a tiny setting."""
    is_there = archive.is_file() and not is_tiny
    images, origin = (_read(archive, "train"), "CIFAR-10") if is_there else (_noise(count), "noise")
    return images.pick(np.random.default_rng(0).permutation(len(images))[:count]), origin


def cifar_splits(*, is_tiny: bool = False, archive: Path = ARCHIVE) -> tuple[ArrayImages, ArrayImages]:
    """All training and all test images of the archive; noise in a tiny setting."""
    if is_tiny:
        return _noise(64), _noise(32)
    return _read(require_archive(archive), "train"), _read(archive, "test")


def split(images: ArrayImages, num_train: int) -> tuple[ArrayImages, ArrayImages]:
    rows = np.arange(len(images))
    return images.pick(rows[:num_train]), images.pick(rows[num_train:])


def offer(name: str, train: ArrayImages, validation: ArrayImages) -> None:
    """Makes images of ten classes a data set that a configuration can name."""
    DATASETS[name] = DatasetEntry(load=lambda _section: _make_source(train, validation, 10))


def _make_source(train: ArrayImages, validation: ArrayImages, num_classes: int) -> Source:
    return Source(train=train, num_classes=num_classes, validation=validation, read_test=lambda: validation)


@cache  # several benchmarks of one process want them
def _read(archive: Path, part: str) -> ArrayImages:
    key = f"{archive.name.partition('.')[0]}-{archive.stat().st_size}-{part}"
    document = load_document(f"{key}.json", lambda: {"labels": _decode(archive, part)[1]})
    path = find_cache_folder() / f"{key}.npy"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.npy")
        np.save(temporary, np.stack(_decode(archive, part)[0]))
        temporary.replace(path)
    pixels = open_memmap(path, mode="r")
    return ArrayImages(pixels, np.asarray(document["labels"], dtype=np.int64))


@cache
def _decode(archive: Path, part: str) -> tuple[list[Any], list[int]]:
    pixels, classes = [], []
    with tarfile.open(archive, "r|xz") as files:
        for member in files:
            parts = Path(member.name).parts
            file = files.extractfile(member) if member.isfile() and part in parts else None
            if file is not None:
                pixels.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")))
                classes.append(parts[-2])
    _, labels = np.unique(classes, return_inverse=True)
    return pixels, labels.tolist()


def _noise(count: int) -> ArrayImages:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return ArrayImages(pixels, np.arange(count, dtype=np.int64) % 10)


@cache
def _pick_classes(classes: tuple[int, ...], num_train: int, num_validation: int, side: int) -> Source:
    # by the order of their names, as means of blocks of pixels
    images, _ = cifar_images(50_000)
    chosen = np.flatnonzero(np.isin(images.labels, classes))[: num_train + num_validation]
    blocks = images.read(chosen).reshape(-1, side, 32 // side, side, 32 // side, 3)
    pixels = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    small = ArrayImages(pixels, np.searchsorted(classes, images.labels[chosen]))
    return _make_source(*split(small, num_train), len(classes))


# ---------------------------------------------------------------------- drawn images

_MIDDLE = 127.5  # gray level


def _to_pixels(values: Values) -> Pixels:
    # gray levels, shape [count, side, side], as bytes, shape [count, side, side, 1]
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)[..., None]


def _cycle(count: int, num_classes: int) -> Labels:
    return np.arange(count, dtype=np.int64) % num_classes


_SECOND_SEED, _NOISE = 20190612, 45.0  # of each pixel


def draw_gratings(count: int, seed: int) -> Drawn:
    """Noisy sine gratings of random period, phase and contrast, 8 x 8; the class is the orientation."""
    generator = np.random.default_rng([_SECOND_SEED, 1, seed])
    labels = _cycle(count, 6)
    angles = (labels * np.pi / 6)[:, None, None]
    lines, columns = np.mgrid[0:8, 0:8].astype(np.float64)
    across = lines * np.cos(angles) + columns * np.sin(angles)
    period, phase, contrast = (
        generator.uniform(low, high, (count, 1, 1)) for low, high in ((3.0, 6.0), (0.0, 2 * np.pi), (40.0, 90.0))
    )
    waves = contrast * np.sin(2 * np.pi * across / period + phase)
    return _to_pixels(_MIDDLE + waves + generator.normal(0.0, _NOISE, waves.shape)), labels


def draw_dots(count: int, seed: int) -> Drawn:
    """1 to 5 bright dots on a noisy ground, 12 x 12; the class is their number less 1."""
    generator = np.random.default_rng([_SECOND_SEED, 2, seed])
    labels = _cycle(count, 5)
    places = np.stack([generator.permutation(16)[:5] for _ in range(count)])  # cells of 3 x 3 pixels
    ground = generator.normal(70.0, 25.0, (count, 12, 12))
    for image, (label, cells) in enumerate(zip(labels, places, strict=True)):
        for cell in cells[: label + 1]:
            line, column = 3 * (cell // 4) + generator.integers(0, 2), 3 * (cell % 4) + generator.integers(0, 2)
            ground[image, line : line + 2, column : column + 2] += generator.uniform(60.0, 140.0)
    return _to_pixels(ground), labels


@cache
def make_parts() -> Values:
    """Four prototypes of each of five classes, shape ``[5, 4, 8, 8]``, in gray levels of 0 to 255."""
    coarse = np.random.default_rng(_SECOND_SEED).normal(_MIDDLE, 27.0, (5, 4, 4, 4))
    return np.repeat(np.repeat(coarse, 2, axis=-2), 2, axis=-1)


def draw_mixtures(count: int, seed: int) -> Drawn:
    generator = np.random.default_rng([_SECOND_SEED, 3, seed])
    labels = _cycle(count, 5)
    parts = make_parts()[labels, generator.integers(0, 4, count)]
    return _to_pixels(parts + generator.normal(0.0, _NOISE, parts.shape)), labels


def draw_blended(count: int, seed: int) -> Drawn:
    """Real digits, each under half as bright another one; the class is the bright one. Seeds 0 and 1 draw from disjoint
    halves of the digits."""
    generator = np.random.default_rng([_SECOND_SEED, 4, seed])
    known = read_digits()
    pool = np.random.default_rng(_SECOND_SEED).permutation(len(known.labels))[seed::2]
    bright, dark = generator.choice(pool, count), generator.choice(pool, count)
    return _to_pixels(255.0 / 16.0 * (known.levels[bright] + 0.5 * known.levels[dark])), known.labels[bright]


@cache
def _draw_source(draw: Callable[[int, int], Drawn], num_train: int, num_validation: int) -> Source:
    train, validation = (ArrayImages(*draw(count, turn)) for turn, count in enumerate((num_train, num_validation)))
    return _make_source(train, validation, int(train.labels.max()) + 1)


# ---------------------------------------------------------------------- tasks of `ask_guide`, which nothing else saw

_ASK_SEED = 71_020
_RING_NOISE = {"ask_rings_easy": 20.0, "ask_rings_middle": 60.0, "ask_rings_hard": 110.0}  # gray levels
ASK_TASKS = ("ask_digits_noisy", "ask_digits_few", *_RING_NOISE)


def draw_rings(count: int, seed: int, noise: float) -> Drawn:
    """Noisy rings about a shifted center, 12 x 12; the class is the radius."""
    generator = np.random.default_rng([_ASK_SEED, seed])
    labels = _cycle(count, 5)
    lines, columns = np.mgrid[0:12, 0:12].astype(np.float64)
    centers = 5.5 + generator.uniform(-1.0, 1.0, (2, count, 1, 1))
    distances = np.hypot(lines - centers[0], columns - centers[1])
    rings = 150.0 * np.exp(-0.5 * ((distances - 1.5 - 0.9 * labels[:, None, None]) / 0.6) ** 2)
    return _to_pixels(60.0 + rings + generator.normal(0.0, noise, rings.shape)), labels


def _load_rings(section: DataSection) -> Source:
    noise = _RING_NOISE[section.name]
    train, validation, test = (ArrayImages(*draw_rings(n, turn, noise)) for turn, n in enumerate((1500, 1000, 1000)))
    return Source(train=train, num_classes=5, validation=validation, read_test=lambda: test)


def load_digits_task(_section: DataSection, *, num_train: int | None, wrong_share: float) -> Source:
    """``num_train`` digits (None: all) of which a share has another label, 500 for validation, 200 for test."""
    generator = np.random.default_rng(_ASK_SEED)
    known = read_digits()
    order = generator.permutation(len(known.labels))
    pixels, labels = _to_pixels(np.float64(255 / 16) * known.levels[order]), known.labels[order]
    validation, test, rest = np.split(np.arange(len(labels)), (500, 700))
    chosen = rest[:num_train]
    given = labels[chosen]
    is_wrong = generator.random(len(given)) < wrong_share
    given[is_wrong] = (given[is_wrong] + generator.integers(1, 10, int(is_wrong.sum()))) % 10
    return Source(
        train=ArrayImages(pixels[chosen], given),
        num_classes=10,
        validation=ArrayImages(pixels[validation], labels[validation]),
        read_test=lambda: ArrayImages(pixels[test], labels[test]),
    )


def write_rings(folder: Path) -> None:
    pixels, labels = draw_rings(1500, 3, _RING_NOISE["ask_rings_middle"])
    for number, (image, label) in enumerate(zip(pixels[..., 0], labels, strict=True)):
        place = folder / f"radius{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.kron(image, np.ones((2, 2), dtype=np.uint8))).save(place / f"{number}.png")


# ---------------------------------------------------------------------- digits to train on first, and to fine-tune on

# They differ in their number of classes, so that fine-tuning begins with a new head.
EARLIER, LATER = "digits_0_to_3", "digits_4_to_9"


def _load_digits_between(section: DataSection, low: int, high: int) -> Source:
    images = load_digits(section).train
    chosen = np.flatnonzero((images.labels >= low) & (images.labels < high))
    return Source(train=ArrayImages(images.read(chosen), images.labels[chosen] - low), num_classes=high - low)


# ---------------------------------------------------------------------- all of them by name

_DRAWN = {
    # 2,000 validation images each, so that half a point of accuracy can be told
    "gratings": (draw_gratings, 1200, 2000),
    "dots": (draw_dots, 1200, 2000),
    "mixtures": (draw_mixtures, 1200, 2000),
    "digits_blended": (draw_blended, 1200, 2000),
}
_LOADS: dict[str, Callable[[DataSection], Source]] = {
    **{name: lambda _section, about=about: _draw_source(*about) for name, about in _DRAWN.items()},  # type: ignore[misc]
    "cifar10_animals": lambda _section: _pick_classes((2, 6, 7), 1200, 2000, 8),  # bird, frog, horse
    **dict.fromkeys(_RING_NOISE, _load_rings),
    "ask_digits_noisy": partial(load_digits_task, num_train=None, wrong_share=0.2),
    "ask_digits_few": partial(load_digits_task, num_train=200, wrong_share=0.0),
    EARLIER: partial(_load_digits_between, low=0, high=4),
    LATER: partial(_load_digits_between, low=4, high=10),
}
MADE = {name: DatasetEntry(load=load, depends_on_root=False) for name, load in _LOADS.items()}
DATASETS |= MADE
