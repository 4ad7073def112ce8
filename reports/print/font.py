"""The one font of the pictures: which characters it has, and how wide they are."""

from functools import cache
from typing import Any

from matplotlib.font_manager import findfont, get_font

FONT = "DejaVu Sans"
_FINE = 20
_HINTING = 1.04  # fitted to pixels, letters are that much wider at most


def printable(text: str) -> str:
    """With a mark in place of what the font cannot draw."""
    known = _font()
    return "".join(c if known.get_char_index(ord(c)) else "\ufffd" for c in text.replace("\n", " "))


def width_of(text: str, size: float) -> float:
    """The width of a line in points when it is drawn at ``size`` points; rather too wide than too narrow."""
    font = _font()
    font.set_size(size, 72 * _FINE)  # coarse pixels would round every letter
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64 / _FINE * _HINTING


@cache
def _font() -> Any:
    return get_font(findfont(FONT))
