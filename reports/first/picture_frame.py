"""What the pictures of the first screen share: the drawing area, its axes, and the error scale of accuracy."""

from dataclasses import dataclass

from markupsafe import Markup

from reports.first.label_places import Box
from reports.first.log_axis import LogAxis, error_of
from reports.first.svg_elements import FONT, element, join, line, write
from reports.labels import choose_unit
from sweep.config.units import DisplayUnit

_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 12.0, 26.0, 42.0
TICK_PIXELS_DOWN, TICK_PIXELS_ACROSS = 26.0, 34.0


@dataclass(frozen=True)
class PictureSize:
    """Of a picture in pixels, margins included."""

    width: float
    height: float

    @property
    def area(self) -> Box:
        """Where marks lie."""
        return Box(_LEFT, _TOP, self.width - _RIGHT, self.height - _BOTTOM)


def place_accuracy(axis: LogAxis, accuracy: float) -> float:
    """The pixel of an accuracy on an error axis."""
    return axis.place(error_of(accuracy))


def find_time_unit(seconds: list[float]) -> DisplayUnit:
    """The unit in which all of ``seconds`` are readable."""
    return choose_unit("seconds", seconds)


def draw_accuracy_axis(axis: LogAxis, area: Box) -> Markup:
    """Lines and numbers of accuracies in percent."""
    parts = []
    for error in axis.ticks(TICK_PIXELS_DOWN):
        y = axis.place(error)
        parts.append(line(area.left, y, area.right, y, "grid"))
        parts.append(write(f"{round(100 * (1 - error), 6):g}", area.left - 6, y + 4, "tick y-tick", "end"))
    return join(parts)


def draw_time_ticks(axis: LogAxis, area: Box, *, is_down: bool) -> Markup:
    """Lines and numbers of times, in the unit of the axis; ``is_down`` for an axis at the left."""
    parts = []
    for value in axis.ticks(TICK_PIXELS_DOWN if is_down else TICK_PIXELS_ACROSS):
        place, text = axis.place(value), f"{value:g}"
        if is_down:
            parts += [line(area.left, place, area.right, place, "grid")]
            parts += [write(text, area.left - 6, place + 4, "tick y-tick", "end")]
        else:
            parts += [line(place, area.top, place, area.bottom, "grid")]
            parts += [write(text, place, area.bottom + 16, "tick x-tick", "middle")]
    return join(parts)


def draw_titles(area: Box, above: str, below: str) -> Markup:
    """The name of the vertical axis above the drawing area, of the horizontal one below it, and both axes' lines."""
    return join(
        [
            write(above, area.left - 44, area.top - 12, "axis-title"),
            write(below, (area.left + area.right) / 2, area.bottom + 36, "axis-title", "middle"),
            line(area.left, area.top, area.left, area.bottom, "axis"),
            line(area.left, area.bottom, area.right, area.bottom, "axis"),
        ]
    )


def wrap_picture(size: PictureSize, kind: str, finding: str, parts: list[Markup]) -> Markup:
    """The picture as an element whose name for readers of a screen begins with ``finding``."""
    return element(
        "svg",
        join([element("title", finding), *parts]),
        viewBox=f"0 0 {size.width:g} {size.height:g}",
        class_=f"picture {kind}",
        role="img",
        aria_label=finding,
        font_size=FONT,
    )
