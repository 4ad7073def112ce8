"""Figures as data: what is drawn where, in the units of the records. Renderers decide how it looks.

Every number is finite; the function that makes the figure leaves missing values out or draws them at the edge.
``trials`` of a layer are the numbers of the trials that its marks (of lines: its segments) represent; by them the page
highlights a trial in every figure.
"""

import math
from dataclasses import dataclass
from typing import Literal

Floats = tuple[float, ...]
Format = Literal["png", "svg", "pdf"]  # of a picture
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """``unit`` is one of the metric table or "". ``ticks`` replaces the renderer's own: positions and their texts."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    ticks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Points:
    """Marks at ``x``, ``y``; ``texts`` are the hover texts."""

    name: str
    role: str
    x: Floats
    y: Floats
    texts: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.name, len(self.x), self.x, self.y)
        _check_trials(self.name, len(self.x), self.trials)


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Marks in space, for a panel with three axes."""

    name: str
    role: str
    x: Floats
    y: Floats
    z: Floats
    texts: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.name, len(self.x), self.x, self.y, self.z)
        _check_trials(self.name, len(self.x), self.trials)


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One or more polylines, each a pair of x and y."""

    name: str
    role: str
    segments: tuple[tuple[Floats, Floats], ...]
    texts: tuple[str, ...] = ()
    dashed: bool = False
    trials: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for x, y in self.segments:
            _check(self.name, len(x), x, y)
        _check_trials(self.name, len(self.segments), self.trials)


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Marks with a cross of intervals; a bound equals the mark where there is no interval."""

    name: str
    role: str
    x: Floats
    y: Floats
    x_low: Floats
    x_high: Floats
    y_low: Floats
    y_high: Floats
    texts: tuple[str, ...] = ()
    trials: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self.name, len(self.x), self.x, self.y, self.x_low, self.x_high, self.y_low, self.y_high)
        _check_trials(self.name, len(self.x), self.trials)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Horizontal bars from ``starts`` to ``starts + lengths`` at the heights ``y``."""

    name: str
    role: str
    y: Floats
    starts: Floats
    lengths: Floats
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.name, len(self.y), self.y, self.starts, self.lengths)


@dataclass(frozen=True, kw_only=True)
class Density:
    """How many points fall into each cell; ``counts[row][column]`` is between ``y_edges[row]`` and the next."""

    name: str
    role: str
    x_edges: Floats
    y_edges: Floats
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check(self.name, len(self.x_edges), self.x_edges)
        _check(self.name, len(self.y_edges), self.y_edges)


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Colored cells at whole positions: ``values[row][column]`` at x = column, y = row, in ``unit``; None is a cell
    without a value. ``trials`` holds the trial that a cell represents, -1 in an empty one; ``members`` the trial, row
    and column of every trial that is in a cell. ``span`` is the range of the color scale, so that panels share them."""

    name: str
    role: str
    unit: str
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    trials: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, int, int], ...]
    span: tuple[float, float]

    def __post_init__(self) -> None:
        _check_finite(self.name, (*self.known, *self.span))
        for row, trials in zip(self.values, self.trials, strict=True):
            _check_trials(self.name, len(row), trials)

    @property
    def known(self) -> Floats:
        """The values that are there."""
        return tuple(value for row in self.values for value in row if value is not None)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A thin line across the panel at ``value`` of one axis; ``text`` is its label."""

    axis: Literal["x", "y"]
    value: float
    text: str
    name: str = ""
    role: str = "rule"


Layer = Points | Cloud | Lines | Intervals | Bars | Density | Heat | Rule


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes, or with ``z`` three. ``view`` groups panels that show the same in another way: the page shows
    the panels of one view at a time, a picture those of all."""

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    title: str = ""
    z: Axis | None = None
    view: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the report: ``name`` is its file name and anchor, ``caption`` explains it and gives n."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]

    def legend_layers(self) -> tuple[Layer, ...]:
        """A layer of every name, in the order of drawing."""
        layers = [layer for panel in self.panels for layer in panel.layers if layer.name]
        return tuple({layer.name: layer for layer in reversed(layers)}.values())[::-1]


@dataclass(frozen=True)
class Absent:
    """A figure that the records cannot fill, and what to record so that they can."""

    title: str
    remedy: str


def _check_trials(name: str, length: int, trials: tuple[int, ...]) -> None:
    if trials and len(trials) != length:
        raise ValueError(f"layer {name!r}: {len(trials)} trials for {length} marks")


def _check(name: str, length: int, *columns: Floats) -> None:
    for column in columns:
        if len(column) != length:
            raise ValueError(f"layer {name!r}: columns of {len(column)} and {length} values")
        _check_finite(name, column)


def _check_finite(name: str, values: Floats) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError(f"layer {name!r}: a value is not finite")
