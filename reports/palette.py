"""One look for each role, the same on the page and in the PNG: the palette of Okabe and Ito, distinguishable with
color blindness, each with its own symbol so that color is never the only difference. The light ones are darker than
there: every mark has a contrast of at least 3 to 1 with a light and with a dark ground, its opacity included."""

from typing import NamedTuple

from reports.figure import Layer, Lines


class Look(NamedTuple):
    """A color, the symbol's name in Plotly and in matplotlib, its glyph in a legend, size in points, opacity."""

    color: str
    plotly: str
    matplotlib: str
    glyph: str
    size: float = 6.0
    opacity: float = 1.0


_LOOKS = {
    "search": Look("#707a86", "circle", "o", "●", 6.0, 0.85),
    "faint": Look("#868f99", "circle", "o", "━"),
    "search_front": Look("#4a97d0", "circle-open", "o", "○", 8.0),
    "confirmed": Look("#d55e00", "diamond", "D", "◆", 9.0),
    "complete": Look("#0072b2", "circle", "o", "■"),
    "out_of_memory": Look("#cc3d3d", "x", "x", "✖", 8.0),
    "not_fitting": Look("#c48600", "square-open", "s", "□", 8.0),
    "diverged": Look("#cc79a7", "triangle-up", "^", "▲", 8.0),
    "timed_out": Look("#009e73", "cross", "P", "✚", 8.0),
    "target_missed": Look("#9c4f96", "triangle-left", "<", "◀", 8.0),
    "crashed": Look("#8c5a2b", "star", "*", "★", 9.0),
    "cancelled": Look("#8f8f8f", "cross-thin-open", "+", "+", 8.0),
    "pruned": Look("#7d6bb5", "triangle-down", "v", "▼", 7.0),
    "confirm_phase": Look("#d55e00", "circle", "o", "■"),
    "search_phase": Look("#4a97d0", "circle", "o", "■"),
    "setup": Look("#8f8f8f", "circle", "o", "■"),
    "warmup": Look("#c48600", "circle", "o", "■"),
    "data_wait": Look("#cc79a7", "circle", "o", "■"),
    "step": Look("#0072b2", "circle", "o", "■"),
    "compile": Look("#cc3d3d", "circle", "o", "■"),
    "diagnostics": Look("#2f93cc", "circle", "o", "■"),
    "memory": Look("#7d6bb5", "circle", "o", "■"),
    "eval": Look("#009e73", "circle", "o", "■"),
    "checkpoint": Look("#8c5a2b", "circle", "o", "■"),
    "other": Look("#8c9431", "circle", "o", "■"),
    "probe": Look("#7d6bb5", "hexagon-open", "h", "⬡", 9.0),
    "parameter": Look("#0072b2", "circle", "o", "■"),
    "gradient": Look("#2f93cc", "circle", "o", "■"),
    "optimizer": Look("#009e73", "circle", "o", "■"),
    "activation": Look("#c48600", "circle", "o", "■"),
    "temporary": Look("#cc79a7", "circle", "o", "■"),
    "scratch": Look("#8f8f8f", "circle", "o", "■"),
    "measured": Look("#d55e00", "diamond", "D", "◆", 9.0),
    "knee": Look("#cc3d3d", "star-diamond-open", "*", "✧", 15.0),
    "heat": Look("#3a78a3", "square", "s", "▦"),
    "density": Look("#0072b2", "square", "s", "▦"),
    "rule": Look("#8f8f8f", "circle", "o", ""),
}
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c48600", "#2f93cc", "#8c5a2b", "#7d6bb5")
# Plotly's, matplotlib's and the legend's symbol of each series
_SYMBOLS = (
    ("circle", "o", "●"), ("square", "s", "■"), ("diamond", "D", "◆"), ("triangle-up", "^", "▲"),
    ("cross", "P", "✚"), ("triangle-down", "v", "▼"), ("star", "*", "★"), ("x", "X", "✖"),
)  # fmt: skip
NUM_SERIES = len(_SERIES)
# viridis: even steps of lightness, distinguishable without color
HEAT_COLORS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")


def key_glyph(layer: Layer) -> str:
    """The symbol of a layer in a legend of text."""
    if isinstance(layer, Lines):
        return "┅" if layer.dashed else "━"
    return look_of(layer.role).glyph


def look_of(role: str) -> Look:
    """The look of ``role``; ``series-0`` ... are as many kinds as a figure needs."""
    if role.startswith("series-"):
        index = int(role.removeprefix("series-")) % NUM_SERIES
        return Look(_SERIES[index], *_SYMBOLS[index])
    return _LOOKS[role]
