"""One look for each role, the same on the page and in the PNG: the palette of Okabe and Ito, distinguishable with
color blindness, each with its own symbol so that color is never the only difference."""

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
    "search": Look("#8a94a0", "circle", "o", "●", 6.0, 0.6),
    "faint": Look("#8a94a0", "circle", "o", "━", 6.0, 0.35),
    "search_front": Look("#56a0d6", "circle-open", "o", "○", 8.0),
    "confirmed": Look("#d55e00", "diamond", "D", "◆", 9.0),
    "complete": Look("#0072b2", "circle", "o", "■"),
    "out_of_memory": Look("#cc3d3d", "x", "x", "✖", 8.0),
    "not_fitting": Look("#e69f00", "square-open", "s", "□", 8.0),
    "diverged": Look("#cc79a7", "triangle-up", "^", "▲", 8.0),
    "timed_out": Look("#009e73", "cross", "P", "✚", 8.0),
    "target_missed": Look("#4b3f72", "triangle-left", "<", "◀", 8.0),
    "crashed": Look("#8c5a2b", "star", "*", "★", 9.0),
    "cancelled": Look("#9a9a9a", "cross-thin-open", "+", "+", 8.0),
    "pruned": Look("#7d6bb5", "triangle-down", "v", "▼", 7.0),
    "confirm_phase": Look("#d55e00", "circle", "o", "■"),
    "search_phase": Look("#56a0d6", "circle", "o", "■"),
    "setup": Look("#999999", "circle", "o", "■"),
    "warmup": Look("#e69f00", "circle", "o", "■"),
    "data_wait": Look("#cc79a7", "circle", "o", "■"),
    "step": Look("#0072b2", "circle", "o", "■"),
    "compile": Look("#cc3d3d", "circle", "o", "■"),
    "diagnostics": Look("#56b4e9", "circle", "o", "■"),
    "memory": Look("#7d6bb5", "circle", "o", "■"),
    "eval": Look("#009e73", "circle", "o", "■"),
    "checkpoint": Look("#8c5a2b", "circle", "o", "■"),
    "other": Look("#c9b458", "circle", "o", "■"),
    "probe": Look("#7d6bb5", "hexagon-open", "h", "⬡", 9.0),
    "parameter": Look("#0072b2", "circle", "o", "■"),
    "gradient": Look("#56b4e9", "circle", "o", "■"),
    "optimizer": Look("#009e73", "circle", "o", "■"),
    "activation": Look("#e69f00", "circle", "o", "■"),
    "temporary": Look("#cc79a7", "circle", "o", "■"),
    "scratch": Look("#999999", "circle", "o", "■"),
    "measured": Look("#d55e00", "diamond", "D", "◆", 9.0),
    "knee": Look("#cc3d3d", "star-diamond-open", "*", "✧", 15.0),
    "heat": Look("#31688e", "square", "s", "▦"),
    "density": Look("#0072b2", "square", "s", "▦"),
    "rule": Look("#9a9a9a", "circle", "o", ""),
}
_SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c5a2b", "#7d6bb5")
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
        return Look(_SERIES[index], *_SYMBOLS[index], size=6.0, opacity=0.9)
    return _LOOKS[role]
