"""How figures look in both renderers: colors and symbols of roles, units, ticks and titles of axes, Plotly's layout."""

import html
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from reports.figure import Axis, Bars, Floats, Intervals, Layer, Lines, Panel, Points, Rule
from reports.labels import choose_unit
from sweep.config.metrics import DisplayUnit


class _Look(NamedTuple):
    """A color, the symbol's name in Plotly and in matplotlib, its glyph in a legend, size in points, opacity."""

    color: str
    plotly: str
    matplotlib: str
    glyph: str
    size: float = 6.0
    opacity: float = 1.0


_LOOKS = {
    "search": _Look("#707a86", "circle", "o", "●", 6.0, 0.85),
    "faint": _Look("#868f99", "circle", "o", "━"),
    "search_front": _Look("#4a97d0", "circle-open", "o", "○", 8.0),
    "confirmed": _Look("#d55e00", "diamond", "D", "◆", 9.0),
    "complete": _Look("#0072b2", "circle", "o", "■"),
    "out_of_memory": _Look("#cc3d3d", "x", "x", "✖", 8.0),
    "not_fitting": _Look("#c48600", "square-open", "s", "□", 8.0),
    "diverged": _Look("#cc79a7", "triangle-up", "^", "▲", 8.0),
    "timed_out": _Look("#009e73", "cross", "P", "✚", 8.0),
    "target_missed": _Look("#9c4f96", "triangle-left", "<", "◀", 8.0),
    "crashed": _Look("#8c5a2b", "star", "*", "★", 9.0),
    "cancelled": _Look("#8f8f8f", "cross-thin-open", "+", "+", 8.0),
    "pruned": _Look("#7d6bb5", "triangle-down", "v", "▼", 7.0),
    "setup": _Look("#8f8f8f", "circle", "o", "■"),
    "warmup": _Look("#c48600", "circle", "o", "■"),
    "data_wait": _Look("#cc79a7", "circle", "o", "■"),
    "step": _Look("#0072b2", "circle", "o", "■"),
    "compile": _Look("#cc3d3d", "circle", "o", "■"),
    "diagnostics": _Look("#2f93cc", "circle", "o", "■"),
    "memory": _Look("#7d6bb5", "circle", "o", "■"),
    "eval": _Look("#009e73", "circle", "o", "■"),
    "checkpoint": _Look("#8c5a2b", "circle", "o", "■"),
    "other": _Look("#8c9431", "circle", "o", "■"),
    "probe": _Look("#7d6bb5", "hexagon-open", "h", "⬡", 9.0),
    "parameter": _Look("#0072b2", "circle", "o", "■"),
    "gradient": _Look("#2f93cc", "circle", "o", "■"),
    "optimizer": _Look("#009e73", "circle", "o", "■"),
    "activation": _Look("#c48600", "circle", "o", "■"),
    "temporary": _Look("#cc79a7", "circle", "o", "■"),
    "scratch": _Look("#8f8f8f", "circle", "o", "■"),
    "measured": _Look("#d55e00", "diamond", "D", "◆", 9.0),
    "knee": _Look("#cc3d3d", "star-diamond-open", "*", "✧", 15.0),
    "heat": _Look("#3a78a3", "square", "s", "▦"),
    "density": _Look("#0072b2", "square", "s", "▦"),
    "rule": _Look("#8f8f8f", "circle", "o", ""),
    "ring": _Look("#1c2430", "circle-open", "o", "○", 15.0),
    "best": _Look("#1c2430", "circle", "o", "━"),
    "tuned": _Look("#5b6675", "circle", "o", "●", 3.0),
    "band": _Look("#1b7a43", "square", "s", "■", 6.0, 0.14),
    "beyond": _Look("#5b6675", "triangle-down", "v", "▾", 6.0),
}
Json = dict[str, Any]
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c48600", "#2f93cc", "#8c5a2b", "#7d6bb5")
# the symbol of each series in Plotly, in matplotlib and in a legend of text
_SYMBOLS = (
    ("circle", "o", "●"), ("square", "s", "■"), ("diamond", "D", "◆"), ("triangle-up", "^", "▲"),
    ("cross", "P", "✚"), ("triangle-down", "v", "▼"), ("star", "*", "★"), ("x", "X", "✖"),
)  # fmt: skip
NUM_SERIES = len(_SERIES)
# viridis: even steps of lightness, distinguishable without color
HEAT_COLORS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
# The parts of the color scale that stand out from a light and from a dark ground, with a contrast of at least 3 to 1.
_LIGHT_SHARES, _DARK_SHARES = (0.0, 0.56), (0.42, 0.95)


def key_glyph(layer: Layer) -> str:
    """The symbol of a layer in a legend of text."""
    if isinstance(layer, Lines):
        return "┅" if layer.dashed else "━"
    return look_of(layer.role).glyph


def look_of(role: str) -> _Look:
    """The look of ``role``; ``series-0`` ... are as many as a figure needs, ``series-0-open`` have open marks."""
    if role.startswith("series-"):
        index = int(role.split("-")[1]) % NUM_SERIES
        plotly, matplotlib, glyph = _SYMBOLS[index]
        return _Look(_SERIES[index], plotly + ("-open" if role.endswith("-open") else ""), matplotlib, glyph)
    return _LOOKS[role]


def shade_colors(shade: float) -> tuple[str, str]:
    """The color at ``shade`` of the color scale, from 0 to 1, on a light and on a dark ground."""

    def blend(share: float) -> str:
        position = share * (len(HEAT_COLORS) - 1)
        index = min(int(position), len(HEAT_COLORS) - 2)
        ends = (bytes.fromhex(color[1:]) for color in HEAT_COLORS[index : index + 2])
        return "#" + bytes(round(a + (position - index) * (b - a)) for a, b in zip(*ends, strict=True)).hex()

    light, dark = (blend(first + shade * (last - first)) for first, last in (_LIGHT_SHARES, _DARK_SHARES))
    return light, dark


@lru_cache(maxsize=4096)  # a trial has the same text in every panel
def escape_text(text: str) -> str:
    """``text`` without anything that Plotly reads as markup; line ends become ``<br>``."""
    # a pair of dollar signs would be taken for a formula
    return html.escape(text, quote=False).replace("$", "&#36;").replace("\n", "<br>")


def choose_units(panel: Panel) -> tuple[DisplayUnit, DisplayUnit]:
    """The units in which the two axes of ``panel`` are readable."""
    x, y = panel.extents
    return choose_unit(panel.x.unit, x), choose_unit(panel.y.unit, y)


def show_panel(panel: Panel) -> Panel:
    """``panel`` as both renderers draw it: values in the units in which they are readable, the unit in the label of its
    axis, and ticks wherever the renderer's own are not good enough."""
    units = x, y = choose_units(panel)
    factors = dict.fromkeys(("x", "x_low", "x_high", "x_edges", "starts", "lengths"), x.factor)
    factors |= dict.fromkeys(("y", "y_low", "y_high", "y_edges"), y.factor)

    def scale(values: Iterable[float], factor: float) -> Floats:
        return tuple(value * factor for value in values)

    def show(layer: Layer) -> Layer:
        if isinstance(layer, Rule):
            factor = x.factor if layer.axis == "x" else y.factor
            return replace(layer, value=layer.value * factor, end=None if layer.end is None else layer.end * factor)
        if isinstance(layer, Lines):
            return replace(layer, segments=tuple((scale(a, x.factor), scale(b, y.factor)) for a, b in layer.segments))
        own: dict[str, Any] = {
            name: scale(column, factors[name]) for name, column in vars(layer).items() if name in factors
        }
        return replace(layer, **own)

    def show_axis(axis: Axis, shown: DisplayUnit, values: Iterable[float]) -> Axis:
        ticks = tuple((position * shown.factor, text) for position, text in axis.ticks)
        positive = [value * shown.factor for value in axis.bounds or values if value > 0]
        if not ticks and axis.scale == "log" and positive:
            ticks = tuple((tick, f"{tick:.6g}") for tick in log_ticks(min(positive), max(positive)))
        label = f"{axis.label} ({shown.suffix})" if shown.suffix else axis.label
        return replace(axis, label=label, ticks=ticks, bounds=scale(axis.bounds, shown.factor))

    across, up = map(show_axis, (panel.x, panel.y), units, panel.extents)
    return replace(panel, x=across, y=up, layers=tuple(map(show, panel.layers)))


def log_ticks(low: float, high: float) -> list[float]:
    """Round values from ``low`` to ``high``, three or more where there are so many, by powers of ten or even steps; one
    at least."""
    # both renderers' own labels of a logarithmic axis are hard to read: bare digits, SI prefixes, powers as markup
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 5, 6, 8)):
        every = [float(f"{digit}e{power}") for power in powers for digit in digits]
        ticks = [tick for tick in every if low / 1.05 <= tick <= high * 1.05]
        if len(ticks) >= 3:
            return ticks
    return list_even_ticks(low, high) if high > 1.0001 * low else ticks or [float(f"{low:.3g}")]


def list_even_ticks(low: float, high: float) -> list[float]:
    """Round values in even steps from ``low`` to a ``high`` above it; three or more."""
    base, even = 10.0 ** math.floor(math.log10(high - low)), list[float]()
    for step in (base, base / 2, base / 5, base / 10):
        even = [round(number * step, 12) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(even) >= 3:
            break
    return even


def category_range(panel: Panel) -> tuple[float, float] | None:
    """The ends of the x axis where choices lie side by side, so that one without a mark is shown too."""
    is_marked = all(isinstance(layer, Points | Intervals | Rule) for layer in panel.layers)
    if panel.x.scale != "linear" or not panel.x.ticks or not is_marked:
        return None
    positions = [position for position, _ in panel.x.ticks]
    return min(positions) - 0.5, max(positions) + 0.5


def make_layout(panel: Panel) -> Json:
    """Plotly's layout of ``panel``, which is as it is shown; colors are set by the page."""
    across = _axis(panel.x)
    if any(isinstance(layer, Bars) for layer in panel.layers):
        across["rangemode"] = "tozero"  # bars are lengths, which only an axis from zero shows truly
    if ends := category_range(panel):
        across["range"] = list(ends)
    return {
        "xaxis": across,
        "yaxis": _axis(panel.y),
        "margin": {"l": 64, "r": 12, "t": 8, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "overlay",
        "shapes": [_draw_rule(layer) for layer in panel.layers if isinstance(layer, Rule)],
    }


def _axis(axis: Axis) -> Json:
    # with a standoff the title keeps off the ticks' texts, however long they are
    title = {"text": escape_text(axis.label), "standoff": 8}
    made: Json = {"title": title, "type": axis.scale, "automargin": True}
    if axis.ticks:
        positions, texts = [position for position, _ in axis.ticks], [escape_text(text) for _, text in axis.ticks]
        made |= {"tickmode": "array", "tickvals": positions, "ticktext": texts}
    if axis.bounds:
        made["range"] = [math.log10(end) for end in axis.bounds] if axis.scale == "log" else list(axis.bounds)
    return made | {"zeroline": False, "exponentformat": "e"}


def _draw_rule(layer: Rule) -> Json:
    axis, other = ("x", "y") if layer.axis == "x" else ("y", "x")
    end = layer.value if layer.end is None else layer.end
    shape: Json = {f"{axis}0": layer.value, f"{axis}1": end, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    if layer.end is not None:
        look = look_of("band")
        return shape | {"type": "rect", "fillcolor": look.color, "opacity": look.opacity, "line": {"width": 0}}
    text = escape_text(layer.text) if axis == "y" else ""  # beside an upright line there is no room
    label = {"text": text, "textposition": "start", "font": {"size": 10}}
    line = {"color": look_of("rule").color, "width": 1, "dash": "dot"}
    return shape | {"type": "line", "line": line, "label": label}
