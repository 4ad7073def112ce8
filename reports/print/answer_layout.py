"""Where the texts and the three pairs of axes of the answer's image lie, in points from its upper left corner."""

import textwrap
from dataclasses import dataclass

from reports.figure import INCHES, Paper
from reports.first.answer_figure import AnswerFigure, AnswerPanel
from reports.first.label_places import Box
from reports.print.drawing import make_printable

SCREEN_PIXELS = (1200, 630)  # what sites that show a linked image ask for
SCREEN_DPI = 130
NUMBERS, NAME_INDENT = 3.6, 3.2  # room at the left of the axes, and where the name above begins, of the font's size
_POINTS = 72.0  # of an inch
_EDGE = 8.0
_LETTER, _BOLD_LETTER = 0.52, 0.59  # mean width of the font's letters, of its size
_LINE = 1.35  # height of a line, of the font's size


@dataclass(frozen=True, kw_only=True)
class TextSizes:
    """Of the texts in points."""

    title: float
    text: float
    small: float


@dataclass(frozen=True)
class TextBlock:
    """Lines of which the first begins at ``top``."""

    lines: tuple[str, ...]
    top: float
    size: float

    @property
    def bottom(self) -> float:
        """Where the next block can begin."""
        return self.top + _LINE * self.size * len(self.lines)


@dataclass(frozen=True, kw_only=True)
class AnswerLayout:
    """``areas`` are those of the panels, without their ticks and titles."""

    width: float
    height: float
    sizes: TextSizes
    title: TextBlock
    subtitle: TextBlock
    caption: TextBlock
    areas: tuple[Box, ...]


def wrap_text(text: str, width: float, size: float, letter: float = _LETTER) -> list[str]:
    """The lines of ``text`` that fit into ``width`` points in letters of ``size``."""
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(make_printable(part), max(8, int(width / (size * letter))))
    ]


def plan_layout(figure: AnswerFigure, paper: Paper) -> AnswerLayout:
    """The layout for ``paper``: panels side by side, in a column of a journal one below the other."""
    is_screen = paper.width == "screen"
    sizes = TextSizes(title=12, text=9, small=8) if is_screen else TextSizes(title=9, text=7, small=7)
    width = _POINTS * INCHES.get(paper.width, SCREEN_PIXELS[0] / SCREEN_DPI)
    title = _wrap(figure.title, width, sizes.title, _EDGE, _BOLD_LETTER) if paper.has_title else _leave_out(_EDGE)
    subtitle = _wrap(figure.subtitle, width, sizes.text, title.bottom) if paper.has_title else title
    caption = _wrap(figure.caption, width, sizes.small, 0.0) if paper.has_title else _leave_out(0.0)
    top = subtitle.bottom + 4.0
    height = _POINTS * SCREEN_PIXELS[1] / SCREEN_DPI
    if not is_screen:
        height = top + caption.bottom + _EDGE + (380.0 if paper.width == "column" else 235.0)
    bottom = height - _EDGE - caption.bottom
    return AnswerLayout(
        width=width, height=height, sizes=sizes, title=title, subtitle=subtitle,
        caption=TextBlock(caption.lines, bottom, sizes.small),
        areas=_place_areas(figure, Box(_EDGE, top, width - _EDGE, bottom - 2.0), sizes.text, paper.width == "column"),
    )  # fmt: skip


def _place_areas(figure: AnswerFigure, room: Box, size: float, is_stacked: bool) -> tuple[Box, ...]:
    middle = (room.top + room.bottom) / 2
    if is_stacked:
        shares = (0.0, 0.44, 0.72, 1.0)
        edges = [room.top + share * (room.bottom - room.top) for share in shares]
        cells = [Box(room.left, edges[row], room.right, edges[row + 1]) for row in range(3)]
    else:
        between = room.left + 0.63 * (room.right - room.left)
        cells = [
            Box(room.left, room.top, between, room.bottom),
            Box(between, room.top, room.right, middle),
            Box(between, middle, room.right, room.bottom),
        ]
    return tuple(_leave_room(panel, cell, size) for panel, cell in zip(figure.panels, cells, strict=True))


def _leave_room(panel: AnswerPanel, cell: Box, size: float) -> Box:
    # for the numbers at the left, the name of an axis above, and numbers and a name below
    left, right = cell.left + NUMBERS * size, cell.right - size
    above, below = (
        _LINE * size * len(wrap_text(axis.name, right - left + indent * size, size))
        for axis, indent in ((panel.y, NAME_INDENT), (panel.x, 0.0))
    )
    return Box(left, cell.top + above + 0.6 * size, right, cell.bottom - below - 2.0 * size)


def _wrap(text: str, width: float, size: float, top: float, letter: float = _LETTER) -> TextBlock:
    return TextBlock(tuple(wrap_text(text, width - 2 * _EDGE, size, letter)), top, size)


def _leave_out(top: float) -> TextBlock:
    return TextBlock((), top, 0.0)
