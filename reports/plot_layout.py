"""Axes of a panel: units, ticks and titles for both renderers, and Plotly's layout."""

import html
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

from reports.figure import Axis, Bars, Heat, Intervals, Panel, Points, Rule
from reports.labels import choose_unit
from reports.palette import look_of
from sweep.config.units import DisplayUnit

Json = dict[str, Any]


@lru_cache(maxsize=4096)  # a trial has the same text in every panel
def escape_text(text: str) -> str:
    """``text`` without anything that Plotly reads as markup; line ends become ``<br>``."""
    # a pair of dollar signs would be taken for a formula
    return html.escape(text, quote=False).replace("$", "&#36;").replace("\n", "<br>")


def choose_units(panel: Panel) -> tuple[DisplayUnit, DisplayUnit]:
    """The units in which the two axes of ``panel`` are readable."""
    x, y = panel.extents
    return choose_unit(panel.x.unit, x), choose_unit(panel.y.unit, y)


def axis_ticks(axis: Axis, shown: DisplayUnit, values: Iterable[float]) -> list[tuple[float, str]]:
    """Ticks in shown units with their texts; none where the renderer's own are good enough."""
    if axis.ticks:
        return [(position * shown.factor, text) for position, text in axis.ticks]
    positive = [value * shown.factor for value in values if value > 0]
    if axis.scale == "linear" or not positive:
        return []
    return [(tick, f"{tick:.6g}") for tick in _log_ticks(min(positive), max(positive))]


def _log_ticks(low: float, high: float) -> list[float]:
    # both renderers' own labels of a logarithmic axis are hard to read: bare digits, SI prefixes, powers as markup
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
        every = [float(f"{digit}e{power}") for power in powers for digit in digits]
        ticks = [tick for tick in every if low / 1.05 <= tick <= high * 1.05]
        if len(ticks) >= 3:
            break
    return ticks


def category_range(panel: Panel) -> tuple[float, float] | None:
    """The ends of the x axis where choices lie side by side, so that those without a mark have their place too."""
    is_marked = all(isinstance(layer, Points | Intervals | Rule) for layer in panel.layers)
    if panel.x.scale != "linear" or not panel.x.ticks or not is_marked:
        return None
    places = [position for position, _ in panel.x.ticks]
    return min(places) - 0.5, max(places) + 0.5


def axis_title(axis: Axis, shown: DisplayUnit) -> str:
    """The label with its unit."""
    return f"{axis.label} ({shown.suffix})" if shown.suffix else axis.label


def make_layout(panel: Panel) -> Json:
    """Plotly's layout of ``panel``; colors are set by the page."""
    x_shown, y_shown = choose_units(panel)
    x, y = panel.extents
    return {
        "xaxis": _axis(panel.x, panel.x.scale, x_shown, x) | _from_zero(panel) | _whole_range(panel),
        "yaxis": _axis(panel.y, panel.y.scale, y_shown, y),
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
        "shapes": [_rule(layer, x_shown, y_shown) for layer in panel.layers if isinstance(layer, Rule)],
    }


def make_scales(panel: Panel) -> Json:
    """For each axis whose scale a reader may choose: the axis in either scale and which is shown first."""
    chosen: Json = {}
    for which, axis, shown, values in zip(
        ("x", "y"), (panel.x, panel.y), choose_units(panel), panel.extents, strict=True
    ):
        is_category = bool(axis.ticks) and axis.scale == "linear"
        if is_category or any(isinstance(layer, Bars | Heat) for layer in panel.layers) or not values:
            continue
        if min(values) > 0:
            both = {scale: _axis(axis, scale, shown, values) for scale in ("linear", "log")}
            chosen[which] = both | {"first": axis.scale}
    return chosen


def _axis(axis: Axis, scale: str, shown: DisplayUnit, values: Iterable[float]) -> Json:
    # with a standoff the title keeps off the ticks' texts, however long they are
    title = {"text": escape_text(axis_title(axis, shown)), "standoff": 8}
    made: Json = {"title": title, "type": scale, "automargin": True}
    as_drawn = Axis(
        label=axis.label, unit=axis.unit, scale=_scale(scale), ticks=axis.ticks if scale == axis.scale else ()
    )
    ticks = axis_ticks(as_drawn, shown, values)
    if ticks:
        positions, texts = [position for position, _ in ticks], [escape_text(text) for _, text in ticks]
        made |= {"tickmode": "array", "tickvals": positions, "ticktext": texts}
    return made | {"zeroline": False, "exponentformat": "e"}


def _scale(name: str) -> Literal["linear", "log"]:
    return "log" if name == "log" else "linear"


def _from_zero(panel: Panel) -> Json:
    # bars are lengths, which only an axis from zero shows truly
    return {"rangemode": "tozero"} if any(isinstance(layer, Bars) for layer in panel.layers) else {}


def _whole_range(panel: Panel) -> Json:
    ends = category_range(panel)
    return {"range": list(ends)} if ends else {}


def _rule(layer: Rule, x_shown: DisplayUnit, y_shown: DisplayUnit) -> Json:
    other = "y" if layer.axis == "x" else "x"
    value = layer.value * (x_shown if layer.axis == "x" else y_shown).factor
    place = {f"{layer.axis}0": value, f"{layer.axis}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    text = escape_text(layer.text) if layer.axis == "y" else ""  # beside an upright line there is no room
    label = {"text": text, "textposition": "start", "font": {"size": 10}}
    line = {"color": look_of("rule").color, "width": 1, "dash": "dot"}
    return place | {"type": "line", "line": line, "label": label}
