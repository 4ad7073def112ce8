"""The answer's pictures as data for one image to share: what is drawn where, in the units that are shown.

It imports nothing heavy: the process that draws loads it while the records are still being read."""

from dataclasses import dataclass
from typing import Literal

from reports.figure import DRAW, Floats
from sweep.config.tables.entries import resolve

ANSWER_NAME = "answer"  # of the image's file
AxisScale = Literal["log", "error", "batch"]  # error: 1 - accuracy, the least at the top


@dataclass(frozen=True, kw_only=True)
class Spot:
    """The mark of one batch size; a bound equals the mark where there is no interval."""

    x: float
    y: float
    x_bounds: Floats
    y_bounds: Floats
    color: str
    shape: int
    is_filled: bool
    is_named: bool = False
    label: str = ""


@dataclass(frozen=True)
class PictureAxis:
    """``values`` are what has to lie on it."""

    name: str
    scale: AxisScale
    values: Floats


@dataclass(frozen=True)
class Curve:
    """A line of the look ``role``."""

    role: Literal["front", "series", "target", "ideal", "floor"]
    x: Floats
    y: Floats


@dataclass(frozen=True, kw_only=True)
class AnswerPanel:
    """One pair of axes: ``band`` are two heights or none, ``edge`` what lies below the axis as place and color;
    ``floor_text`` stands at the curve of the role floor. Labels are placed in the order of ``spots``."""

    x: PictureAxis
    y: PictureAxis
    spots: tuple[Spot, ...]
    curves: tuple[Curve, ...]
    band: Floats = ()
    edge: tuple[tuple[float, str], ...] = ()
    floor_text: str = ""


@dataclass(frozen=True, kw_only=True)
class AnswerFigure:
    """The first of ``panels`` is the large one; ``title`` is the answer, ``subtitle`` what a neighbor costs and how
    sure the answer is."""

    title: str
    subtitle: str
    caption: str
    panels: tuple[AnswerPanel, ...]
    name: str = ANSWER_NAME

    def __repr__(self) -> str:
        return f"AnswerFigure({self.title!r})"

    def _repr_png_(self) -> bytes:
        return bytes(resolve(DRAW)(self))  # a notebook shows it
