"""The answer as one image to share, by matplotlib: the same axes, marks and labels as on the page's first screen."""

import math
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patheffects import withStroke

from reports.figure import Paper
from reports.first.answer_figure import AnswerFigure, AnswerPanel, PictureAxis, Spot
from reports.first.label_places import Box, Label, place_labels
from reports.first.log_axis import LogAxis, make_axis, make_error_axis
from reports.print.answer_layout import NAME_INDENT, AnswerLayout, TextBlock, TextSizes, plan_layout, wrap_text

_INK, _MUTED, _LINE = "#1c2430", "#5b6675", "#dde2e8"
_MARKERS = ("o", "s", "^", "D", "v")
_REACH = 4.5  # of a mark, in points
_FAR = 14.0  # from a mark to its label, in points, that requires a line between them
_WIDE = 1.14  # the bold letters here, of those that labels are placed by
_CURVES: dict[str, dict[str, Any]] = {
    "front": {"color": _INK, "linewidth": 1.6, "zorder": 2.5},
    "series": {"color": _MUTED, "linewidth": 1.1},
    "target": {"color": _MUTED, "linewidth": 1.1, "linestyle": ":", "marker": "o", "markersize": 2.5},
    "ideal": {"color": _MUTED, "linewidth": 1.1, "linestyle": "--"},
    "floor": {"color": _MUTED, "linewidth": 1.0, "linestyle": ":"},
}


def make_answer_canvas(figure: AnswerFigure, paper: Paper, dpi: int) -> Canvas:
    """The drawn image in matplotlib, as wide as ``paper`` in inches."""
    plan = plan_layout(figure, paper)
    canvas = Canvas(figsize=(plan.width / 72, plan.height / 72), dpi=dpi)
    _write_block(canvas, plan, plan.title, color=_INK, fontweight="bold")
    if plan.subtitle is not plan.title:
        _write_block(canvas, plan, plan.subtitle, color=_INK)
    _write_block(canvas, plan, plan.caption, color=_MUTED)
    for panel, box in zip(figure.panels, plan.areas, strict=True):
        width, height = box.right - box.left, box.bottom - box.top
        place = (box.left / plan.width, 1 - box.bottom / plan.height, width / plan.width, height / plan.height)
        PanelDrawing(canvas.add_axes(place), panel, Box(0.0, 0.0, width, height), plan.sizes).draw()
    return canvas


def _write_block(canvas: Canvas, plan: AnswerLayout, block: TextBlock, **look: Any) -> None:
    for row, text in enumerate(block.lines):
        y = block.top + row * (block.bottom - block.top) / len(block.lines)
        canvas.text(8.0 / plan.width, 1 - y / plan.height, text, ha="left", va="top", fontsize=block.size, **look)


class PanelDrawing:
    """One panel in the axes ``area``, which ``box`` measures in points."""

    def __init__(self, area: Axes, panel: AnswerPanel, box: Box, sizes: TextSizes) -> None:
        self.area, self.panel, self.box, self.sizes = area, panel, box, sizes
        self.x, self.y = _make_scale(panel.x, box.left, box.right, box), _make_scale(panel.y, box.bottom, box.top, box)

    def draw(self) -> None:
        """Draws everything."""
        self._set_axes()
        if self.panel.band:
            self.area.axhspan(*self.panel.band, color="#1b7a43", alpha=0.14, linewidth=0)
        for curve in self.panel.curves:
            if len(curve.x) > 1 or curve.role == "target":
                x, y = (
                    [_keep(axis, each) for each in values] for axis, values in ((self.x, curve.x), (self.y, curve.y))
                )
                ends = (self.x.low, self.x.high) if curve.role == "floor" else x
                self.area.plot(ends, y, **_CURVES[curve.role])
        self._write_remarks()
        for place, color in self.panel.edge:
            self.area.plot([_keep(self.x, place)] * 2, [0.0, 0.025], color=color, linewidth=2.0,
                           transform=self.area.get_xaxis_transform())  # fmt: skip
        for spot in sorted(self.panel.spots, key=lambda each: (each.is_named, each.is_filled, bool(each.label))):
            self._draw_spot(spot)
        self._write_labels()

    def _set_axes(self) -> None:
        area, box = self.area, self.box
        area.set(xscale="log", yscale="log", xlim=(self.x.low, self.x.high))
        area.set_ylim(*((self.y.high, self.y.low) if self.panel.y.scale == "error" else (self.y.low, self.y.high)))
        for line, axis, scale, apart in (
            (area.xaxis, self.panel.x, self.x, 3.2), (area.yaxis, self.panel.y, self.y, 1.7)
        ):  # fmt: skip
            ticks = _list_ticks(axis, scale, apart * self.sizes.text)
            line.set_ticks(ticks, [_name_tick(axis, tick) for tick in ticks])
            line.set_ticks([], minor=True)
        area.tick_params(labelsize=self.sizes.text, length=0, pad=4)
        area.grid(visible=self.panel.x.scale != "batch", axis="x")
        below = "\n".join(wrap_text(self.panel.x.name, box.right, self.sizes.text))
        area.set_xlabel(below, fontsize=self.sizes.text, labelpad=2, color=_MUTED)
        indent = NAME_INDENT * self.sizes.text
        above = "\n".join(wrap_text(self.panel.y.name, box.right + indent, self.sizes.text))
        area.text(-indent / box.right, 1 + 0.5 * self.sizes.text / box.bottom, above,
                  fontsize=self.sizes.text, color=_MUTED, transform=area.transAxes)  # fmt: skip

    def _draw_spot(self, spot: Spot) -> None:
        x, y = _keep(self.x, spot.x), _keep(self.y, spot.y)
        for across, up in ((spot.x_bounds, (y, y)), ((x, x), spot.y_bounds)):
            self.area.plot([_keep(self.x, each) for each in across], [_keep(self.y, each) for each in up],
                           color=spot.color, linewidth=1.0, alpha=0.8)  # fmt: skip
        look: dict[str, Any] = {"marker": _MARKERS[spot.shape % len(_MARKERS)], "linewidths": 1.2, "clip_on": False}
        fill = spot.color if spot.is_filled else "white"
        self.area.scatter([x], [y], s=26, facecolors=fill, edgecolors=spot.color, zorder=3, **look)
        if spot.is_named:
            self.area.scatter([x], [y], s=150, facecolors="none", edgecolors=_INK, linewidths=1.6, zorder=4)

    def _write_remarks(self) -> None:
        look: dict[str, Any] = {"fontsize": self.sizes.small, "color": _MUTED, "transform": self.area.transAxes}
        floor = [curve for curve in self.panel.curves if curve.role == "floor"]
        for curve in floor:
            height = 1 - (self.y.place(curve.y[0]) - 3) / (self.box.bottom - self.box.top)
            self.area.text(0.995, height, self.panel.floor_text, ha="right", va="bottom", zorder=5,
                           path_effects=[withStroke(linewidth=2, foreground="white")], **look)  # fmt: skip

    def _write_labels(self) -> None:
        spots = [spot for spot in self.panel.spots if spot.label]
        labels = [Label(spot.label, self.x.place(spot.x), self.y.place(spot.y)) for spot in spots]
        marks = [(self.x.place(spot.x), self.y.place(spot.y)) for spot in self.panel.spots]
        boxes = place_labels(labels, self.box, self._list_obstacles(), _WIDE * self.sizes.text, marks)
        written: list[Box] = []
        for label, box in zip(labels, boxes, strict=True):
            if any(box.overlap(other) for other in written):
                continue  # no place is left
            written.append(box)
            self._draw_leader(label, box)
            x, y = (box.left + box.right) / 2 / self.box.right, 1 - (box.top + box.bottom) / 2 / self.box.bottom
            self.area.text(
                x, y, label.text, ha="center", va="center", fontsize=self.sizes.text, fontweight="bold", color=_INK,
                transform=self.area.transAxes, zorder=5, path_effects=[withStroke(linewidth=2, foreground="white")],
            )  # fmt: skip

    def _draw_leader(self, label: Label, box: Box) -> None:
        # to a label that is not at its mark; places are shares of the axes
        x, y = min(max(label.x, box.left), box.right), min(max(label.y, box.top), box.bottom)
        if math.hypot(x - label.x, y - label.y) > _FAR:
            across, up = ([label.x, x], [label.y, y])
            self.area.plot(
                [each / self.box.right for each in across], [1 - each / self.box.bottom for each in up],
                color=_MUTED, linewidth=0.6, transform=self.area.transAxes, zorder=2,
            )  # fmt: skip

    def _list_obstacles(self) -> list[Box]:
        size, boxes = self.sizes.small, []
        for curve in self.panel.curves:
            places = [(self.x.place(x), self.y.place(y)) for x, y in zip(curve.x, curve.y, strict=True)]
            if curve.role == "floor":
                y = places[0][1]
                boxes.append(
                    Box(self.box.right - 0.56 * size * len(self.panel.floor_text), y - 12, self.box.right, y + 2)
                )
            elif curve.role == "front":
                boxes += [Box(a - 2, min(b, d) - 2, c + 2, max(b, d) + 2) for (a, b), (c, d) in pairwise(places)]
        return [*boxes, *(box for spot in self.panel.spots for box in self._list_boxes(spot))]

    def _list_boxes(self, spot: Spot) -> list[Box]:
        x, y, reach = self.x.place(spot.x), self.y.place(spot.y), (1.5 if spot.is_named else 1.0) * _REACH
        left, right = sorted(self.x.place(bound) for bound in spot.x_bounds)
        upper, lower = sorted(self.y.place(bound) for bound in spot.y_bounds)
        return [
            Box(x - reach, y - reach, x + reach, y + reach),
            Box(left, y - 1, right, y + 1),
            Box(x - 1, upper, x + 1, lower),
        ]


def _make_scale(axis: PictureAxis, start: float, end: float, box: Box) -> LogAxis:
    if axis.scale == "error":
        return make_error_axis(list(axis.values), box)
    if axis.scale == "batch":
        return LogAxis(low=min(axis.values) / 1.25, high=max(axis.values) * 1.25, start=start, end=end)
    return make_axis(list(axis.values), start, end)


def _list_ticks(axis: PictureAxis, scale: LogAxis, least_points: float) -> list[float]:
    if axis.scale != "batch":
        return scale.ticks(least_points)
    ticks: list[float] = []
    for value in axis.values:
        if not ticks or scale.place(value) - scale.place(ticks[-1]) >= least_points:
            ticks.append(value)
    return ticks


def _name_tick(axis: PictureAxis, value: float) -> str:
    return f"{round(100 * (1 - value), 6):g}" if axis.scale == "error" else f"{value:g}"


def _keep(axis: LogAxis, value: float) -> float:
    # what lies beyond the axis is drawn at its end, as on the page
    return min(max(value, axis.low), axis.high)
