"""The main picture: validation accuracy against training time, with the effective batch size at each mark."""

import math
from itertools import pairwise

from markupsafe import Markup

from reports.first.answer_marks import AnswerMarks, Mark, known_bounds, label_of, time_bounds
from reports.first.label_places import Box, Label, place_labels
from reports.first.log_axis import LogAxis, make_axis, make_error_axis
from reports.first.picture_frame import (
    PictureSize,
    draw_accuracy_axis,
    draw_time_ticks,
    draw_titles,
    find_time_unit,
    place_accuracy,
    wrap_picture,
)
from reports.first.svg_elements import FONT, draw_mark, element, hue_of, join, line, polyline, write
from reports.labels import format_value
from sweep.config.units import DisplayUnit, format_count

WIDE, NARROW = PictureSize(780.0, 430.0), PictureSize(350.0, 400.0)
_REACH = 7.0  # of a mark, in pixels
_LABEL = FONT + 1.0
_BESIDE = 13.0  # pixels between a mark and its label without a line to it
_STRIP = 34.0  # below the axis of accuracy, for the configurations that are below its cut
_LETTER = 0.56  # width of a letter of a remark, of the font's size


class TradeOff:
    """One size of the picture: its axes, and where each mark lies on them."""

    def __init__(self, found: AnswerMarks, size: PictureSize) -> None:
        self.found, self.size, self.area = found, size, size.area
        seconds = [bound for mark in found.shown for bound in time_bounds(mark)]
        self.unit: DisplayUnit = find_time_unit(seconds)
        self.x: LogAxis = make_axis([each * self.unit.factor for each in seconds], self.area.left, self.area.right)
        bottom = self.area.bottom - (_STRIP if found.below else 0.0)
        self.y: LogAxis = make_error_axis(found.errors, self.area._replace(bottom=bottom))

    def place(self, mark: Mark) -> tuple[float, float]:
        """The pixels of a mark."""
        return self.across(mark.seconds.median), self.up(mark.accuracy.median)

    def across(self, seconds: float) -> float:
        """The pixel of a time."""
        return self.x.place(seconds * self.unit.factor)

    def up(self, accuracy: float) -> float:
        """The pixel of an accuracy."""
        return place_accuracy(self.y, accuracy)


def draw_tradeoff(found: AnswerMarks, size: PictureSize, finding: str) -> Markup:
    """The picture in one size; its name begins with ``finding``."""
    picture = TradeOff(found, size)
    marks = sorted(found.shown, key=lambda mark: (mark.is_named, mark.num_seeds > 0, mark.is_front))
    parts = [
        draw_accuracy_axis(picture.y, picture.area),
        draw_time_ticks(picture.x, picture.area, is_down=False),
        draw_titles(
            picture.area, "Validation accuracy (%), on an error scale", f"Training time ({picture.unit.suffix}), log"
        ),
        _draw_floor(picture),
        _draw_below(picture),
        *(_draw_intervals(picture, mark) for mark in marks if mark.num_seeds),
        _draw_front(picture),
        *(_draw_mark(picture, mark) for mark in marks),
        *_draw_labels(picture),
    ]
    return wrap_picture(size, f"tradeoff {'full' if size is WIDE else 'narrow'}", finding, parts)


def describe_floor(found: AnswerMarks) -> str:
    """The line of the least useful accuracy."""
    return f"useful accuracy: {format_value('fraction', found.floor)} or more"


def describe_below(found: AnswerMarks) -> str:
    """How many configurations are too inaccurate for the axis, and from where to where they are; "" without one."""
    below = found.below
    ends = dict.fromkeys(format_value("fraction", mark.accuracy.median) for mark in (*below[-1:], *below[:1]))
    if not below:
        return ""
    reach = max(bound for mark in found.shown for bound in time_bounds(mark))
    slower = [mark.seconds.median for mark in below if mark.seconds.median > reach]
    beyond = f"; {len(slower)} of them beyond the axis, up to {format_value('seconds', max(slower))}" if slower else ""
    return f"{format_count(len(below), 'configuration')} below: {' to '.join(ends)}{beyond}"


def _draw_floor(picture: TradeOff) -> Markup:
    area, y, box = picture.area, picture.up(picture.found.floor), _place_floor(picture)
    text = write(describe_floor(picture.found), box.left, box.bottom - 4, "remark")
    return join([line(area.left, y, area.right, y, "floor"), text])


def _place_floor(picture: TradeOff) -> Box:
    # at the end of the line, above or below, where it covers the least
    area, y, width = picture.area, picture.up(picture.found.floor), _LETTER * FONT * len(describe_floor(picture.found))
    heights = [top for top in (y - 17, y + 1) if top + 16 <= area.bottom]
    lefts = (area.right - 4 - width, area.left + 6)
    boxes = [Box(left, top, left + width, top + 16) for top in heights for left in lefts]
    drawn = _list_drawn(picture)
    return min(boxes, key=lambda box: sum(box.overlap(each) for each in drawn))


def _draw_below(picture: TradeOff) -> Markup:
    below, area = picture.found.below, picture.area
    if not below:
        return Markup("")
    parts = [
        element(
            "path",
            element("title", mark.words),
            d=f"M{picture.across(mark.seconds.median):.1f},{area.bottom:g}v-9",
            class_="below hue",
            style=hue_of(mark.batch, picture.found.batches),
        )
        for mark in below
    ]
    return join([*parts, write(describe_below(picture.found), area.left + 6, area.bottom - 15, "remark count-below")])


def _draw_intervals(picture: TradeOff, mark: Mark) -> Markup:
    x, y = picture.place(mark)
    left, right = (picture.across(bound) for bound in known_bounds(mark.seconds))
    lower, upper = (picture.up(bound) for bound in known_bounds(mark.accuracy))
    return element(
        "path",
        d=f"M{left:.1f},{y:.1f}H{right:.1f}M{x:.1f},{lower:.1f}V{upper:.1f}",
        class_="interval hue",
        style=hue_of(mark.batch, picture.found.batches),
    )


def _front_corners(picture: TradeOff) -> list[tuple[float, float]]:
    return [(picture.across(seconds), picture.up(accuracy)) for seconds, accuracy in picture.found.front_line]


def _draw_front(picture: TradeOff) -> Markup:
    corners = _front_corners(picture)
    return polyline(corners, "front") if len(corners) > 1 else Markup("")


def _draw_mark(picture: TradeOff, mark: Mark) -> Markup:
    x, y = picture.place(mark)
    shape = picture.found.models.index(mark.model)
    ring = element("circle", cx=x, cy=y, r=11.0, class_="ring") if mark.is_named else Markup("")
    kind = f"mark hue{'' if mark.num_seeds else ' hollow'}"
    drawn = draw_mark(x, y, shape, kind, mark.words, mark.number)
    return join([ring, element("g", drawn, style=hue_of(mark.batch, picture.found.batches))])


def _draw_labels(picture: TradeOff) -> list[Markup]:
    chosen = picture.found.labeled
    labels = [Label(label_of(mark), *picture.place(mark)) for mark in chosen]
    boxes = place_labels(
        labels, picture.area, _list_obstacles(picture), _LABEL, [picture.place(mark) for mark in picture.found.shown]
    )
    leaders = [_draw_leader(label, box) for label, box in zip(labels, boxes, strict=True)]
    return [
        *leaders,
        *(
            write(label.text, (box.left + box.right) / 2, box.bottom - 0.2 * _LABEL, _label_kind(mark), "middle")
            for mark, label, box in zip(chosen, labels, boxes, strict=True)
        ),
    ]


def _draw_leader(label: Label, box: Box) -> Markup:
    # to a label that does not lie beside its mark
    x, y = min(max(label.x, box.left), box.right), min(max(label.y, box.top), box.bottom)
    is_beside = math.hypot(x - label.x, y - label.y) <= _BESIDE
    return Markup("") if is_beside else line(label.x, label.y, x, y, "leader")


def _label_kind(mark: Mark) -> str:
    return "label named" if mark.is_named else "label"


def _list_obstacles(picture: TradeOff) -> list[Box]:
    area = picture.area
    below = [Box(area.left, area.bottom - _STRIP, area.right, area.bottom)] if picture.found.below else []
    height = picture.up(picture.found.floor)
    floor = Box(area.left, height - 2, area.right, height + 2)
    return [_place_floor(picture), floor, *below, *_list_drawn(picture)]


def _list_drawn(picture: TradeOff) -> list[Box]:
    # marks, intervals, and the line of the front
    boxes = []
    for mark in picture.found.shown:
        x, y = picture.place(mark)
        boxes.append(Box(x - _REACH, y - _REACH, x + _REACH, y + _REACH))
        if mark.num_seeds:
            left, right = (picture.across(bound) for bound in known_bounds(mark.seconds))
            lower, upper = (picture.up(bound) for bound in known_bounds(mark.accuracy))
            boxes += [Box(left, y - 2, right, y + 2), Box(x - 2, upper, x + 2, lower)]
    for (left, lower), (right, upper) in pairwise(_front_corners(picture)):
        boxes.append(Box(left - 2, min(upper, lower) - 2, right + 2, max(upper, lower) + 2))
    return boxes
