"""Where labels go beside their marks, so that none covers another."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_DISTANCES = (9.0, 15.0, 24.0, 36.0, 50.0)
# toward where a label lies from its mark: right and left, above and below, and between
_DIRECTIONS = ((1, -1), (1, 1), (-1, -1), (-1, 1), (1, 0), (-1, 0), (0, -1), (0, 1))
_SAME = 2.0  # pixels between marks that lie on each other
_LETTER = 0.62  # width of a bold digit or letter, of the font's size


class Box(NamedTuple):
    """A rectangle by its corners, in pixels; y grows downward."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: "Box") -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(width, 0.0) * max(height, 0.0)


class Label(NamedTuple):
    """``text`` for the mark at ``x``, ``y``."""

    text: str
    x: float
    y: float


def place_labels(
    labels: Sequence[Label],
    bounds: Box,
    obstacles: Sequence[Box],
    size: float,
    marks: Sequence[tuple[float, float]] = (),
) -> list[Box]:
    """A box for each label within ``bounds``, in letters of ``size`` pixels: in this order each takes the place with
    the least overlap with earlier labels, then with ``obstacles``, then the nearest one. A place that is nearer to
    another of the ``marks`` than to the label's own counts as if it covered half of itself."""
    placed: list[Box] = []
    fixed = np.array(obstacles, dtype=np.float64).reshape(-1, 4)
    for label in labels:
        choices = [_shift(label, direction, distance, size) for distance in _DISTANCES for direction in _DIRECTIONS]
        inside = [box for box in choices if box.overlap(bounds) >= 0.999 * _area(box)] or choices
        others = [place for place in marks if math.dist(place, (label.x, label.y)) > _SAME]
        costs = [_cost(box, placed, fixed, _is_misleading(box, label, others)) for box in inside]
        placed.append(inside[costs.index(min(costs))])
    return placed


def _is_misleading(box: Box, label: Label, others: Sequence[tuple[float, float]]) -> bool:
    own = _distance(box, label.x, label.y)
    return any(_distance(box, x, y) <= own for x, y in others)


def _distance(box: Box, x: float, y: float) -> float:
    return math.hypot(max(box.left - x, 0.0, x - box.right), max(box.top - y, 0.0, y - box.bottom))


def _cost(box: Box, placed: list[Box], fixed: npt.NDArray[np.float64], is_misleading: bool) -> tuple[float, float]:
    # ``fixed`` has a row for each obstacle: left, top, right, bottom
    width = np.minimum(box.right, fixed[:, 2]) - np.maximum(box.left, fixed[:, 0])
    height = np.minimum(box.bottom, fixed[:, 3]) - np.maximum(box.top, fixed[:, 1])
    covered = float((np.maximum(width, 0.0) * np.maximum(height, 0.0)).sum())
    return sum(box.overlap(each) for each in placed), covered + 0.5 * _area(box) * is_misleading


def _shift(label: Label, direction: tuple[int, int], distance: float, size: float) -> Box:
    width, height = _LETTER * size * len(label.text), 1.1 * size
    across, down = direction
    x = label.x + across * (distance + width / 2) * (1 if down == 0 else 0.75)
    y = label.y + down * (distance + height / 2) * (1 if across == 0 else 0.75)
    if across and down:
        x = label.x + across * (0.6 * distance + width / 2)
        y = label.y + down * (0.6 * distance + height / 2)
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _area(box: Box) -> float:
    return (box.right - box.left) * (box.bottom - box.top)
