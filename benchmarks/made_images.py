"""Images that are drawn by NumPy with a fixed seed, for tables of recorded trainings: noisy prototypes, of which the
best possible accuracy is known, and simple shapes and textures. No torch here."""

from functools import cache

import numpy as np
import numpy.typing as npt

from sweep.config.data_sections import DataSection
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

NUM_TRAIN, NUM_VALIDATION = 1500, 1000
Values = npt.NDArray[np.float64]

_SEED = 20151210
_NUM_CLASSES = 8

# ---------------------------------------------------------------------- prototypes

_SIDE = 8
_COARSE = 4  # a prototype has this many random gray levels a side
_CONTRAST = 24.0  # standard deviation of the gray levels of a prototype
_NOISE = 50.0  # of each pixel; with the contrast it decides the best possible accuracy
_MIDDLE = 127.5


@cache
def make_prototypes() -> Values:
    """One prototype a class, shape ``[classes, side, side]``, in gray levels of 0 to 255."""
    generator = np.random.default_rng(_SEED)
    coarse = generator.normal(_MIDDLE, _CONTRAST, (_NUM_CLASSES, _COARSE, _COARSE))
    return np.repeat(np.repeat(coarse, _SIDE // _COARSE, axis=1), _SIDE // _COARSE, axis=2)


def draw_prototypes(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """``count`` images, a class's prototype and Gaussian noise each, shape ``[count, side, side, 1]``, and classes."""
    generator = np.random.default_rng([_SEED, seed])
    labels = np.arange(count, dtype=np.int64) % _NUM_CLASSES
    noisy = make_prototypes()[labels] + generator.normal(0.0, _NOISE, (count, _SIDE, _SIDE))
    return to_pixels(noisy), labels


def classify_best(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The class of the nearest prototype, shape ``[count]``: the most probable one, because all classes are equally
    frequent and the noise is the same in every pixel (the clipping at 0 and 255 apart)."""
    prototypes = make_prototypes().reshape(_NUM_CLASSES, -1)
    flat = pixels.reshape(len(pixels), -1).astype(np.float64)
    scores = flat @ prototypes.T - (prototypes**2).sum(axis=1) / 2
    best: npt.NDArray[np.int64] = np.argmax(scores, axis=1)
    return best


@cache
def _prototypes() -> Source:
    train, validation = (ArrayImages(*draw_prototypes(count, turn)) for turn, count in _SIZES)
    return Source(train=train, num_classes=_NUM_CLASSES, validation=validation, read_test=lambda: validation)


def load_prototypes(_section: DataSection) -> Source:
    """Prototypes under noise, 8 x 8 x 1."""
    return _prototypes()


# ---------------------------------------------------------------------- shapes

_FIELD = 12  # pixels a side
_SIZES = ((0, NUM_TRAIN), (1, NUM_VALIDATION))
_SHAPE_NOISE = 38.0


def draw_shapes(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """``count`` images of one shape or texture each, shape ``[count, 12, 12, 1]``, and their classes: three stripes
    and checks that fill the image, and a disk, a ring, a cross and a frame at random places."""
    generator = np.random.default_rng([_SEED, 2, seed])
    labels = np.arange(count, dtype=np.int64) % _NUM_CLASSES
    drawn = np.stack([_draw_shape(int(label), generator) for label in labels])
    contrast = generator.uniform(45.0, 110.0, (count, 1, 1)) * generator.choice((-1.0, 1.0), (count, 1, 1))
    noise = generator.normal(0.0, _SHAPE_NOISE, drawn.shape)
    return to_pixels(_MIDDLE + contrast * (drawn - 0.5) + noise), labels


def _draw_shape(label: int, generator: np.random.Generator) -> Values:
    """0 or 1 for each pixel."""
    lines, columns = np.mgrid[0:_FIELD, 0:_FIELD].astype(np.float64)
    if label < 4:
        return _draw_texture(label, lines, columns, generator)
    middle = generator.uniform(3.5, _FIELD - 4.5, 2)
    size = generator.uniform(2.2, 4.2)
    down, right = np.abs(lines - middle[0]), np.abs(columns - middle[1])
    distance, largest = np.hypot(down, right), np.maximum(down, right)
    inside = (
        distance < size,
        (distance < size) & (distance > size - 1.4),
        (largest < size) & (np.minimum(down, right) < 0.8),
        (largest < size) & (largest > size - 1.3),
    )
    return np.asarray(inside[label - 4], dtype=np.float64)


def _draw_texture(label: int, lines: Values, columns: Values, generator: np.random.Generator) -> Values:
    period, phase = generator.uniform(3.0, 6.0), generator.uniform(0.0, 6.0, 2)
    across = ((lines + phase[0]) / period * 2).astype(np.int64) % 2
    along = ((columns + phase[1]) / period * 2).astype(np.int64) % 2
    slanted = ((lines + columns + phase[0]) / period * 2 / np.sqrt(2)).astype(np.int64) % 2
    return np.asarray((across, along, slanted, across ^ along)[label], dtype=np.float64)


@cache
def _shapes() -> Source:
    train, validation = (ArrayImages(*draw_shapes(count, turn)) for turn, count in _SIZES)
    return Source(train=train, num_classes=_NUM_CLASSES, validation=validation, read_test=lambda: validation)


def load_shapes(_section: DataSection) -> Source:
    """Shapes and textures, 12 x 12 x 1."""
    return _shapes()


def to_pixels(values: Values) -> npt.NDArray[np.uint8]:
    """Gray levels, shape ``[count, side, side]``, as bytes, shape ``[count, side, side, 1]``."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)[..., None]
