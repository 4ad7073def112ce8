"""Ticks, grid and labels of an axis, each kind as one artist: matplotlib's own are five objects a tick, which take a
third of the time of a picture."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis as Line
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from reports.print.font import width_of

_MARK, _PAD, _SIZE = 3.5, 3.5, 9.0  # points: a tick's length, from there to its text, the text's size
_GAP = 2.0  # between two texts
_HEIGHT = 8.0  # of a line of text
_COLOUR, _GRID = "#5b6675", "#e3e7ec"
_BELOW = 0.5  # what lies below the marks of a panel


def clear_ticks(area: Axes) -> None:
    """Takes matplotlib's own ticks away."""
    for line in (area.xaxis, area.yaxis):
        line.set_major_locator(NullLocator())
        line.set_minor_locator(NullLocator())


def usual_ticks(low: float, high: float, limit: int, is_whole: bool) -> list[tuple[float, str]]:
    """Round places about the bounds of a linear axis, about ``limit`` within them, and their texts; ``is_whole`` where
    the axis counts."""
    locator = MaxNLocator(limit, steps=[1, 2, 5, 10], integer=is_whole)
    return [(at, f"{at:.10g}") for at in locator.tick_values(low, high)]


def draw_ticks(area: Axes, which: str, ticks: Sequence[tuple[float, str]], label: str | None, has_grid: bool) -> None:
    """Draws the ``ticks`` that lie within the limits of one axis of ``area``, and the axis' ``label``; where that is
    None no texts either, because another panel has them."""
    is_x = which == "x"
    line: Line = area.xaxis if is_x else area.yaxis
    low, high = sorted(line.get_view_interval())
    inside = [(at, text) for at, text in ticks if low <= at <= high]
    places = [at for at, _ in inside]
    base = area.get_xaxis_transform() if is_x else area.get_yaxis_transform()
    if has_grid:
        paths = [[(at, 0), (at, 1)] if is_x else [(0, at), (1, at)] for at in places]
        grid = LineCollection(paths, colors=_GRID, linewidths=0.7, transform=base, zorder=_BELOW)
        area.add_collection(grid, autolim=False)
    zeros = [0.0] * len(places)
    style: dict[str, Any] = {"linestyle": "", "color": _COLOUR, "markersize": _MARK, "markeredgewidth": 0.8}
    marks = Line2D(*((places, zeros) if is_x else (zeros, places)), marker="|" if is_x else "_", **style)
    marks.set(transform=_moved(area, base, is_x, _MARK / 2), zorder=_BELOW, clip_on=False)
    area.add_artist(marks)
    if label is not None:
        _draw_texts(area, is_x, inside, base)
        away = _MARK + _PAD + (_HEIGHT if is_x else max((width_of(text, _SIZE) for _, text in inside), default=0.0))
        middle = _moved(area, area.transAxes, is_x, away + 4.0)
        line.set_label_coords(*((0.5, 0.0) if is_x else (0.0, 0.5)), transform=middle)
        line.set_label_text(label)


def _draw_texts(area: Axes, is_x: bool, ticks: Sequence[tuple[float, str]], base: Transform) -> None:
    place = _moved(area, base, is_x, _MARK + _PAD)
    style: dict[str, Any] = {"color": _COLOUR, "fontsize": _SIZE, "transform": place}
    end = -math.inf
    for at, text in sorted(ticks) if is_x else ():
        middle, half = _points_from_left(area, at), width_of(text, _SIZE) / 2
        if middle - half > end:  # what would run into the text before is left out
            area.text(at, 0, text, ha="center", va="top", **style)
            end = middle + half + _GAP
    for at, text in () if is_x else ticks:
        area.text(0, at, text, ha="right", va="center_baseline", **style)


def _points_from_left(area: Axes, at: float) -> float:
    figure = area.get_figure(root=True)
    assert figure is not None
    return float(area.get_xaxis_transform().transform((at, 0.0))[0]) * 72 / figure.dpi


def _moved(area: Axes, base: Transform, is_x: bool, points: float) -> Transform:
    """``base``, so many points away from the axis."""
    figure = area.get_figure(root=True)
    assert figure is not None
    away = -points / 72
    return base + ScaledTranslation(*((0.0, away) if is_x else (away, 0.0)), figure.dpi_scale_trans)
