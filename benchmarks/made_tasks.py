"""Image tasks for tables of recorded trainings, drawn with a fixed seed: gratings, counted dots, mixtures of prototypes
of which the best possible accuracy is known, and digits under another digit. 2,000 validation images each, so that half
a point of accuracy can be told. No torch here."""

from functools import cache

import numpy as np
import numpy.typing as npt

from benchmarks.made_images import to_pixels
from sweep.config.data_sections import DataSection
from sweep.training.data.images import ArrayImages
from sweep.training.data.sets.digits import read_digits
from sweep.training.data.splits import Source

NUM_TRAIN, NUM_VALIDATION = 1200, 2000
Values = npt.NDArray[np.float64]
Drawn = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]

_SEED = 20190612
_MIDDLE = 127.5
_SIDE = 8
_NOISE = 45.0  # of each pixel

# ---------------------------------------------------------------------- gratings

_NUM_ORIENTATIONS = 6


def draw_gratings(count: int, seed: int) -> Drawn:
    """``count`` noisy sine gratings of random period, phase and contrast, shape ``[count, 8, 8, 1]``; the class is the
    orientation."""
    generator = np.random.default_rng([_SEED, 1, seed])
    labels = np.arange(count, dtype=np.int64) % _NUM_ORIENTATIONS
    angles = (labels * np.pi / _NUM_ORIENTATIONS)[:, None, None]
    lines, columns = np.mgrid[0:_SIDE, 0:_SIDE].astype(np.float64)
    across = lines * np.cos(angles) + columns * np.sin(angles)
    period, phase, contrast = (
        generator.uniform(low, high, (count, 1, 1)) for low, high in ((3.0, 6.0), (0.0, 2 * np.pi), (40.0, 90.0))
    )
    waves = contrast * np.sin(2 * np.pi * across / period + phase)
    return to_pixels(_MIDDLE + waves + generator.normal(0.0, _NOISE, waves.shape)), labels


# ---------------------------------------------------------------------- dots

_FIELD, _MOST_DOTS = 12, 5


def draw_dots(count: int, seed: int) -> Drawn:
    """``count`` images of 1 to 5 bright dots on a noisy ground, shape ``[count, 12, 12, 1]``; the class is their number
    less 1."""
    generator = np.random.default_rng([_SEED, 2, seed])
    labels = np.arange(count, dtype=np.int64) % _MOST_DOTS
    places = np.stack([generator.permutation(16)[:_MOST_DOTS] for _ in range(count)])  # cells of 3 x 3 pixels
    ground = generator.normal(70.0, 25.0, (count, _FIELD, _FIELD))
    for image, (label, cells) in enumerate(zip(labels, places, strict=True)):
        for cell in cells[: label + 1]:
            line, column = 3 * (cell // 4) + generator.integers(0, 2), 3 * (cell % 4) + generator.integers(0, 2)
            ground[image, line : line + 2, column : column + 2] += generator.uniform(60.0, 140.0)
    return to_pixels(ground), labels


# ---------------------------------------------------------------------- mixtures

_NUM_MIXED, _NUM_PARTS = 5, 4


@cache
def make_parts() -> Values:
    """The prototypes of each class, shape ``[classes, prototypes, side, side]``, in gray levels of 0 to 255."""
    generator = np.random.default_rng(_SEED)
    coarse = generator.normal(_MIDDLE, 27.0, (_NUM_MIXED, _NUM_PARTS, _SIDE // 2, _SIDE // 2))
    return np.repeat(np.repeat(coarse, 2, axis=2), 2, axis=3)


def draw_mixtures(count: int, seed: int) -> Drawn:
    """``count`` images, one of four prototypes of a class and Gaussian noise each, shape ``[count, 8, 8, 1]``."""
    generator = np.random.default_rng([_SEED, 3, seed])
    labels = np.arange(count, dtype=np.int64) % _NUM_MIXED
    parts = make_parts()[labels, generator.integers(0, _NUM_PARTS, count)]
    return to_pixels(parts + generator.normal(0.0, _NOISE, parts.shape)), labels


def classify_mixtures(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The most probable class of each image, shape ``[count]``: Bayes' rule for equally frequent prototypes and the
    same Gaussian noise in every pixel (the clipping at 0 and 255 apart)."""
    flat, parts = pixels.reshape(len(pixels), 1, -1).astype(np.float64), make_parts().reshape(1, -1, _SIDE**2)
    logs = -0.5 * ((flat - parts) ** 2).sum(axis=-1) / _NOISE**2
    weights = np.exp(logs - logs.max(axis=1, keepdims=True)).reshape(len(pixels), _NUM_MIXED, _NUM_PARTS)
    best: npt.NDArray[np.int64] = np.argmax(weights.sum(axis=-1), axis=1)
    return best


# ---------------------------------------------------------------------- digits under another digit


def draw_blended(count: int, seed: int) -> Drawn:
    """``count`` real digits, each under half as bright another one, shape ``[count, 8, 8, 1]``; the class is the bright
    one. Seeds 0 and 1 draw from disjoint halves of the digits."""
    generator = np.random.default_rng([_SEED, 4, seed])
    known = read_digits()
    pool = np.random.default_rng(_SEED).permutation(len(known.labels))[seed::2]
    bright, dark = generator.choice(pool, count), generator.choice(pool, count)
    values = 255.0 / 16.0 * (known.levels[bright] + 0.5 * known.levels[dark])
    return to_pixels(values), known.labels[bright]


# ---------------------------------------------------------------------- sources

_DRAWS = {"gratings": draw_gratings, "dots": draw_dots, "mixtures": draw_mixtures, "digits_blended": draw_blended}


def load_task(section: DataSection) -> Source:
    """The task that ``data.name`` names."""
    return _load(str(section.name))


@cache
def _load(name: str) -> Source:
    draw = _DRAWS[name]
    train, validation = (ArrayImages(*draw(count, turn)) for turn, count in enumerate((NUM_TRAIN, NUM_VALIDATION)))
    num_classes = int(train.labels.max()) + 1
    return Source(train=train, num_classes=num_classes, validation=validation, read_test=lambda: validation)
