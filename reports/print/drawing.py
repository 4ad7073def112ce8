"""Layers and axes drawn by matplotlib."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Line
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.ticker import MaxNLocator, NullLocator

from reports.figure import Axis, Bars, Density, Heat, Intervals, Layer, Lines, Panel, Points, Rule
from reports.labels import choose_unit
from reports.palette import HEAT_COLORS, Look, look_of
from reports.plot_layout import axis_ticks, axis_title, category_range, choose_units
from sweep.config.units import DisplayUnit

MAX_TICK = 32  # characters of a tick's text
Floats = np.ndarray[Any, np.dtype[np.float64]]


def make_printable(text: str) -> str:
    """``text`` in one line, with a mark in place of what cannot be drawn."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text.replace("\n", " "))


def draw_panel(area: Axes, panel: Panel) -> None:
    """Draws ``panel`` into ``area``."""
    area.set_title(make_printable(panel.title))
    # bars begin at the axis; a shade has a margin like the marks upon it
    area.use_sticky_edges = not any(isinstance(layer, Density) for layer in panel.layers)
    x_shown, y_shown = choose_units(panel)
    for layer in panel.layers:
        _layer(area, layer, x_shown, y_shown)
    area.set(xscale=panel.x.scale, yscale=panel.y.scale)
    area.autoscale_view()
    if ends := category_range(panel):
        area.set_xlim(*ends)
    if any(isinstance(layer, Heat) for layer in panel.layers):
        area.grid(visible=False)
    for line, axis, unit, values in zip(
        (area.xaxis, area.yaxis), (panel.x, panel.y), (x_shown, y_shown), panel.extents, strict=True
    ):
        _draw_axis(line, axis, unit, values)


def _draw_axis(line: Line, axis: Axis, unit: DisplayUnit, values: Sequence[float]) -> None:
    line.set_label_text(make_printable(axis_title(axis, unit)))
    low, high = sorted(line.get_view_interval())
    ticks = [(at, _short(text)) for at, text in axis_ticks(axis, unit, values) if low <= at <= high]
    if ticks:
        line.set_ticks([at for at, _ in ticks], [text for _, text in ticks])
        line.set_minor_locator(NullLocator())
    elif axis.scale == "linear":
        is_whole = not axis.unit and all(float(value).is_integer() for value in values)
        line.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=is_whole))


def _layer(area: Axes, layer: Layer, x_shown: DisplayUnit, y_shown: DisplayUnit) -> None:
    if isinstance(layer, Points):
        area.scatter(_scaled(layer.x, x_shown), _scaled(layer.y, y_shown), **_mark(look_of(layer.role)))
    elif isinstance(layer, Intervals):
        _intervals(area, layer, x_shown, y_shown)
    elif isinstance(layer, Lines):
        _lines(area, layer, x_shown, y_shown)
    elif isinstance(layer, Bars):
        starts = _scaled(layer.starts, x_shown)
        bars = area.barh(
            layer.y, _scaled(layer.lengths, x_shown), left=starts, height=0.6, color=look_of(layer.role).color
        )
        for bar in bars:
            bar.sticky_edges.x[:] = [0.0]  # the axis, not the end of another bar: marks there require a margin
    elif isinstance(layer, Density):
        _density(area, layer, x_shown, y_shown)
    elif isinstance(layer, Heat):
        _heat(area, layer)
    elif isinstance(layer, Rule):
        _rule(area, layer, x_shown, y_shown)


def _scaled(values: tuple[float, ...], shown: DisplayUnit) -> Floats:
    return np.asarray(values, dtype=np.float64) * shown.factor


def _mark(style: Look) -> dict[str, Any]:
    is_open = "open" in style.plotly and style.matplotlib != "+"
    return {
        "s": style.size**2 * 0.7, "marker": style.matplotlib, "alpha": style.opacity,
        "linewidths": 1.2 if is_open or style.matplotlib in "x+" else 0,
        "facecolors": "none" if is_open else style.color,
        "edgecolors": None if style.matplotlib in "x+" else style.color,
    }  # fmt: skip


def _intervals(area: Axes, layer: Intervals, x_shown: DisplayUnit, y_shown: DisplayUnit) -> None:
    style = look_of(layer.role)
    x, y = _scaled(layer.x, x_shown), _scaled(layer.y, y_shown)
    x_error = np.abs(np.stack([x - _scaled(layer.x_low, x_shown), _scaled(layer.x_high, x_shown) - x]))
    y_error = np.abs(np.stack([y - _scaled(layer.y_low, y_shown), _scaled(layer.y_high, y_shown) - y]))
    area.errorbar(
        x, y, xerr=x_error, yerr=y_error, fmt=style.matplotlib, color=style.color, markersize=5.5, elinewidth=1.1,
        capsize=2, zorder=4,
    )  # fmt: skip


def _lines(area: Axes, layer: Lines, x_shown: DisplayUnit, y_shown: DisplayUnit) -> None:
    style, is_faint = look_of(layer.role), layer.role == "faint"
    paths = [np.stack([_scaled(x, x_shown), _scaled(y, y_shown)], axis=1) for x, y in layer.segments]
    area.add_collection(
        LineCollection(
            paths, colors=style.color, alpha=style.opacity, linestyles=":" if layer.dashed else "-",
            linewidths=0.8 if is_faint else 1.5, zorder=1.5 if is_faint else 2,
        )
    )  # fmt: skip
    single = np.array([path[0] for path in paths if len(path) == 1]).reshape(-1, 2)
    area.scatter(single[:, 0], single[:, 1], s=12, color=style.color, alpha=style.opacity, linewidths=0)


def _density(area: Axes, layer: Density, x_shown: DisplayUnit, y_shown: DisplayUnit) -> None:
    color = look_of(layer.role).color
    shade = LinearSegmentedColormap.from_list("count", [to_rgba(color, 0.15), to_rgba(color, 0.9)])
    counts = np.ma.masked_equal(np.array(layer.counts, dtype=np.float64), 0.0)
    area.pcolormesh(
        _scaled(layer.x_edges, x_shown), _scaled(layer.y_edges, y_shown), counts, cmap=shade, rasterized=True
    )


def _heat(area: Axes, layer: Heat) -> None:
    shown = choose_unit(layer.unit, layer.span)
    cells = np.array([[np.nan if value is None else value for value in row] for row in layer.values]) * shown.factor
    colors = LinearSegmentedColormap.from_list("heat", HEAT_COLORS)
    low, high = (bound * shown.factor for bound in layer.span)
    scale = Normalize(low, high if high > low else low + 1.0)
    edges = [np.arange(size + 1) - 0.5 for size in (cells.shape[1], cells.shape[0])]
    area.pcolormesh(*edges, np.ma.masked_invalid(cells), cmap=colors, norm=scale, edgecolors="white", linewidth=0.8)
    figure = area.get_figure()
    assert figure is not None
    bar = figure.colorbar(ScalarMappable(scale, colors), ax=area, fraction=0.05, pad=0.02, label=shown.suffix)
    bar.outline.set_visible(False)


def _rule(area: Axes, layer: Rule, x_shown: DisplayUnit, y_shown: DisplayUnit) -> None:
    style: dict[str, Any] = {"color": look_of("rule").color, "linewidth": 0.8, "linestyle": ":"}
    text: dict[str, Any] = {"fontsize": 7, "color": "#5b6675"}
    if layer.axis == "x":
        at = layer.value * x_shown.factor
        area.axvline(at, **style)
        area.text(
            at,
            0.99,
            make_printable(layer.text),
            rotation=90,
            va="top",
            ha="right",
            transform=area.get_xaxis_transform(),
            **text,
        )
        return
    at = layer.value * y_shown.factor
    area.axhline(at, **style)
    area.text(
        0.99, at, make_printable(layer.text), va="bottom", ha="right", transform=area.get_yaxis_transform(), **text
    )


def _short(text: str) -> str:
    return make_printable(textwrap.shorten(text, MAX_TICK))
