"""SVG as text: elements with escaped values, the marks of models, and the colors of batch sizes."""

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from reports.palette import HEAT_COLORS

FONT = 12.0
# The parts of the color scale that stand out from a light and from a dark ground, with a contrast of at least 3 to 1.
_LIGHT_SHARES, _DARK_SHARES = (0.0, 0.56), (0.42, 0.95)
_SHAPES = (
    "M-5,0A5,5 0 1 0 5,0A5,5 0 1 0 -5,0Z", "M-4.5,-4.5H4.5V4.5H-4.5Z", "M0,-6.2L6,4.6H-6Z",
    "M0,-6.2L6.2,0L0,6.2L-6.2,0Z", "M0,6.2L6,-4.6H-6Z",
)  # fmt: skip
SHAPE_NAMES = ("circle", "square", "triangle", "diamond", "inverted triangle")


def element(name: str, inside: str = "", **attributes: object) -> Markup:
    """The element ``name``; ``inside`` is escaped unless it is markup, and "_" in an attribute's name becomes "-"."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shorten(value))}"'
        for key, value in attributes.items()
        if value != ""
    ]
    return Markup(f"<{name}{''.join(words)}>{escape(inside)}</{name}>")  # nosec B704


def join(parts: Sequence[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("").join(parts)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line of the class ``kind``."""
    return element("path", d=f"M{_shorten(x1)},{_shorten(y1)}L{_shorten(x2)},{_shorten(y2)}", class_=kind)


def polyline(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """A line through ``points``."""
    return element("polyline", points=" ".join(f"{_shorten(x)},{_shorten(y)}" for x, y in points), class_=kind)


def write(text: str, x: float, y: float, kind: str = "", anchor: str = "") -> Markup:
    """``text`` of which ``y`` is the base line."""
    return element("text", text, x=x, y=y, class_=kind, text_anchor=anchor)


def draw_mark(x: float, y: float, shape: int, kind: str, title: str, number: int) -> Markup:
    """The mark of configuration ``number``, with ``title`` as its tooltip."""
    path = element("path", d=_SHAPES[shape % len(_SHAPES)])
    place = f"translate({_shorten(x)} {_shorten(y)})"
    return element("g", join([element("title", title), path]), class_=kind, transform=place, data_configuration=number)


def hue_of(batch: float, batches: Sequence[float]) -> str:
    """The colors of an effective batch size among ``batches``, even over its logarithm: a style that the style sheet
    reads, ``--light`` for a light ground and ``--dark`` for a dark one."""
    light, dark = colors_of(batch, batches)
    return f"--light:{light};--dark:{dark}"


def colors_of(batch: float, batches: Sequence[float]) -> tuple[str, str]:
    """The color of an effective batch size on a light and on a dark ground."""
    low, high = math.log2(min(batches)), math.log2(max(batches))
    share = (math.log2(batch) - low) / (high - low) if high > low else 0.5
    light, dark = (_blend(first + share * (last - first)) for first, last in (_LIGHT_SHARES, _DARK_SHARES))
    return light, dark


def _blend(share: float) -> str:
    position = share * (len(HEAT_COLORS) - 1)
    index = min(int(position), len(HEAT_COLORS) - 2)
    pairs = zip(*(_channels(color) for color in HEAT_COLORS[index : index + 2]), strict=True)
    return "#" + "".join(f"{round(a + (position - index) * (b - a)):02x}" for a, b in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def _shorten(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
