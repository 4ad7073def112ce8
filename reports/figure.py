"""Figures as data: what is drawn where, in the units of the records. Renderers decide how it looks.

Every number is finite; the function that makes the figure leaves missing values out or draws them at the edge.
``trials`` of a layer are the numbers of the trials that its marks (of lines: its segments) represent; by them the page
highlights a trial in every figure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast, get_args

from sweep.config.errors import InputError, describe_unknown
from sweep.config.tables import resolve

Floats = tuple[float, ...]
Scale = Literal["linear", "log"]
Format = Literal["png", "svg", "pdf"]  # of a picture
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
Width = Literal["screen", "column", "page"]
INCHES: dict[Width, float] = {"column": 3.25, "page": 6.75}  # of a journal with two columns

_DRAW = "reports.draw:draw_picture"  # by name, because matplotlib is slow to import


@dataclass(frozen=True, kw_only=True)
class Axis:
    """``unit`` is one of the metric table or "". ``ticks`` replaces the renderer's own: positions and their texts.
    ``bounds`` are its ends where marks alone do not decide them; the first one is larger on an axis that falls."""

    label: str
    unit: str = ""
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    bounds: Floats = ()


@dataclass(frozen=True, kw_only=True)
class _Named:
    """``role`` selects the look of a layer; ``name`` is its entry in the legend."""

    name: str
    role: str

    def _check(self, length: int, *columns: Floats, trials: tuple[int, ...] = ()) -> None:
        for column in (*columns, trials or columns[0]):
            if len(column) != length:
                raise ValueError(f"layer {self.name!r}: columns of {len(column)} and {length} values")
            if not all(map(math.isfinite, column)):
                raise ValueError(f"layer {self.name!r}: a value is not finite")


@dataclass(frozen=True, kw_only=True)
class _Marks(_Named):
    """Marks at heights ``y``; ``texts`` are the hover texts, ``labels`` stand beside the marks, the most important
    ones of a panel first. ``shade`` is the place of their color on the color scale, from 0 to 1, in place of the
    role's own color."""

    y: Floats
    texts: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    shade: float | None = None

    def __post_init__(self) -> None:
        others = ("name", "role", "texts", "trials", "labels", "shade")
        columns = (column for field, column in vars(self).items() if field not in others)
        self._check(len(self.y), *columns, trials=self.trials)


@dataclass(frozen=True, kw_only=True)
class Points(_Marks):
    """Marks at ``x``, ``y``."""

    x: Floats


@dataclass(frozen=True, kw_only=True)
class Intervals(_Marks):
    """Marks with a cross of intervals; a bound equals the mark where there is no interval."""

    x: Floats
    x_low: Floats
    x_high: Floats
    y_low: Floats
    y_high: Floats


@dataclass(frozen=True, kw_only=True)
class Bars(_Marks):
    """Horizontal bars from ``starts`` to ``starts + lengths`` at the heights ``y``."""

    starts: Floats
    lengths: Floats


@dataclass(frozen=True, kw_only=True)
class Lines(_Named):
    """One or more polylines, each a pair of x and y; ``texts`` has a hover text for each. A line that is the Pareto
    front of marks has the names of their layers in ``front_of``, and in ``signs`` -1 for an axis on which larger is
    better, else 1."""

    segments: tuple[tuple[Floats, Floats], ...]
    texts: tuple[str, ...] = ()
    dashed: bool = False
    trials: tuple[int, ...] = ()
    front_of: tuple[str, ...] = ()
    signs: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        for x, y in self.segments:
            self._check(len(x), x, y)


@dataclass(frozen=True, kw_only=True)
class Density(_Named):
    """How many points fall into each cell; ``counts[row][column]`` is between ``y_edges[row]`` and the next."""

    x_edges: Floats
    y_edges: Floats
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Heat(_Named):
    """Colored cells at whole positions: ``values[row][column]`` at x = column, y = row, in ``unit``; None is a cell
    without a value. ``trials`` holds the trial that a cell represents, -1 in an empty one; ``members`` the trial, row
    and column of every trial that is in a cell. ``span`` is the range of the color scale, so that panels share them."""

    unit: str
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    trials: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, int, int], ...]
    span: tuple[float, float]

    def __post_init__(self) -> None:
        self._check(len(self.known), self.known)

    @property
    def known(self) -> Floats:
        """The values that are there."""
        return tuple(value for row in self.values for value in row if value is not None)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A thin line across the panel at ``value`` of one axis, or a band from there to ``end``; ``text`` is its label."""

    axis: Literal["x", "y"]
    value: float
    text: str = ""
    end: float | None = None
    name: str = ""
    role: str = "rule"


Layer = Points | Lines | Intervals | Bars | Density | Heat | Rule


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes. ``view`` groups panels that show the same in another way: the page shows the panels of one view
    at a time, a picture those of all."""

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    title: str = ""
    view: str = ""

    @cached_property
    def extents(self) -> tuple[list[float], list[float]]:
        """All x and all y that are drawn."""
        both = [_read_extent(layer) for layer in self.layers]
        return [value for x, _ in both for value in x], [value for _, y in both for value in y]


def _read_extent(layer: Layer) -> tuple[Iterable[float], Iterable[float]]:
    if isinstance(layer, Points | Intervals):
        return layer.x, layer.y
    if isinstance(layer, Lines):
        return (value for x, _ in layer.segments for value in x), (value for _, y in layer.segments for value in y)
    if isinstance(layer, Bars):
        return (start + length for start, length in zip(layer.starts, layer.lengths, strict=True)), ()
    if isinstance(layer, Density):
        return layer.x_edges, layer.y_edges
    if isinstance(layer, Rule):
        return ((layer.value,), ()) if layer.axis == "x" else ((), (layer.value,))
    return (), ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the report: ``name`` is its file name and anchor, ``caption`` explains it and gives n; ``group``
    is the part of the page that holds it; ``finding`` is what it shows as a sentence, "" where nothing is settled. A
    figure that ``is_led`` has a large first panel."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    group: str = ""
    finding: str = ""
    is_led: bool = False

    def legend_layers(self) -> tuple[Layer, ...]:
        """A layer of every name, in the order of drawing."""
        layers: dict[str, Layer] = {}
        for layer in (layer for panel in self.panels for layer in panel.layers if layer.name):
            layers.setdefault(layer.name, layer)
        return tuple(layers.values())

    def __repr__(self) -> str:
        return f"Figure({self.name!r}, {self.title!r})"

    def _repr_png_(self) -> bytes:
        return bytes(resolve(_DRAW)(self))  # a notebook shows it


@dataclass(frozen=True)
class Absent:
    """A figure that the records cannot fill, and what to record so that they can."""

    title: str
    remedy: str


@dataclass(frozen=True)
class Paper:
    """What a picture is for: a ``width`` of the screen or of a journal, with title and caption in it or without."""

    width: Width = "screen"
    has_title: bool = True


def check_width(name: str) -> Width:
    """``name`` as a width of pictures. Raises ``InputError``: there is no such width."""
    if name not in get_args(Width):
        raise InputError(describe_unknown("width of images", name, get_args(Width)))
    return cast("Width", name)
