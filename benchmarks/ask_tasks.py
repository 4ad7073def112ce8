"""A plug-in with the tasks of ``benchmarks.ask_guide``, which nothing else was tried on: digits with wrong labels, few
digits, and rings of three difficulties. Drawn with fixed seeds; 1,000 images or fewer for validation."""

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.made_images import to_pixels
from sweep.config.data_sections import DataSection
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.sets.digits import read_digits
from sweep.training.data.splits import Source

Drawn = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
_SEED = 71_020
_SIDE, _NUM_RINGS = 12, 5
_NUM_TRAIN, _NUM_VALIDATION = 1500, 1000
_HELD_OUT = (500, 200)  # digits for validation and for testing
_WRONG_SHARE = 0.2  # of the training labels of "ask_digits_noisy"
_NUM_FEW = 200  # training images of "ask_digits_few"
_NOISE = {"ask_rings_easy": 20.0, "ask_rings_middle": 60.0, "ask_rings_hard": 110.0}  # gray levels
TASKS = ("ask_digits_noisy", "ask_digits_few", *_NOISE)


def draw_rings(count: int, seed: int, noise: float) -> Drawn:
    """``count`` noisy rings about a shifted center, shape ``[count, 12, 12, 1]``; the class is the radius."""
    generator = np.random.default_rng([_SEED, seed])
    labels = np.arange(count, dtype=np.int64) % _NUM_RINGS
    lines, columns = np.mgrid[0:_SIDE, 0:_SIDE].astype(np.float64)
    centers = (_SIDE - 1) / 2 + generator.uniform(-1.0, 1.0, (2, count, 1, 1))
    distances = np.hypot(lines - centers[0], columns - centers[1])
    rings = 150.0 * np.exp(-0.5 * ((distances - 1.5 - 0.9 * labels[:, None, None]) / 0.6) ** 2)
    return to_pixels(60.0 + rings + generator.normal(0.0, noise, rings.shape)), labels


def load_rings(section: DataSection) -> Source:
    """The rings that ``data.name`` names."""
    counts = (_NUM_TRAIN, _NUM_VALIDATION, _NUM_VALIDATION)
    noise = _NOISE[section.name]
    train, validation, test = (ArrayImages(*draw_rings(count, turn, noise)) for turn, count in enumerate(counts))
    return Source(train=train, num_classes=_NUM_RINGS, validation=validation, read_test=lambda: test)


def load_digits_task(_section: DataSection, *, num_train: int | None, wrong_share: float) -> Source:
    """``num_train`` digits (None: all) of which a share has another label, and others for validation and test."""
    generator = np.random.default_rng(_SEED)
    known = read_digits()
    order = generator.permutation(len(known.labels))
    pixels, labels = to_pixels(np.float64(255 / 16) * known.levels[order]), known.labels[order]
    validation, test, rest = np.split(np.arange(len(labels)), np.cumsum(_HELD_OUT))
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


def write_folder(folder: Path) -> None:
    """Rings of 24 pixels as PNG files, a folder for each class."""
    from PIL import Image

    pixels, labels = draw_rings(1500, 3, _NOISE["ask_rings_middle"])
    for number, (image, label) in enumerate(zip(pixels[..., 0], labels, strict=True)):
        place = folder / f"radius{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.kron(image, np.ones((2, 2), dtype=np.uint8))).save(place / f"{number}.png")


_noisy = partial(load_digits_task, num_train=None, wrong_share=_WRONG_SHARE)
_few = partial(load_digits_task, num_train=_NUM_FEW, wrong_share=0.0)
DATASETS.update({name: DatasetEntry(load=load_rings, depends_on_root=False) for name in _NOISE})
DATASETS["ask_digits_noisy"] = DatasetEntry(load=_noisy, depends_on_root=False)
DATASETS["ask_digits_few"] = DatasetEntry(load=_few, depends_on_root=False)
