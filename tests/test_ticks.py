"""Axes of the pictures: every text can be read, and every mark is whole."""

from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from reports.figure import Axis, Bars, Panel, Points
from reports.print.drawing import draw_panel


def drawn(panel: Panel, width: float = 4.0) -> Axes:
    """The axes of a picture that is ``width`` inches wide."""
    canvas = Canvas(figsize=(width, 3.0), layout="constrained")
    area: Axes = canvas.add_subplot()
    draw_panel(area, panel)
    canvas.draw_without_rendering()
    return area


def test_texts_of_a_narrow_axis_do_not_run_into_each_other() -> None:
    ticks = tuple((float(place), str(2 ** (place + 4))) for place in range(9))
    panel = Panel(
        x=Axis(label="batch", ticks=ticks),
        y=Axis(label="y"),
        layers=(Points(name="p", role="search", x=(0.0, 8.0), y=(1.0, 2.0)),),
    )
    boxes = [label.get_window_extent() for label in drawn(panel).get_xticklabels()]
    assert len(boxes) == 9
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_the_label_stands_clear_of_the_texts() -> None:
    ticks = ((0.0, "a"), (1.0, "a rather long name of a row"))
    area = drawn(
        Panel(
            x=Axis(label="x"),
            y=Axis(label="rows", ticks=ticks),
            layers=(Points(name="p", role="search", x=(0.0, 8.0), y=(0.0, 1.0)),),
        )
    )
    label = area.yaxis.label.get_window_extent()
    assert label.x0 >= 0.0
    assert label.x1 < min(text.get_window_extent().x0 for text in area.get_yticklabels())


def test_a_mark_at_the_end_of_the_longest_bar_is_whole() -> None:
    bars = (
        Bars(name="weights", role="parameter", y=(0.0,), starts=(0.0,), lengths=(70.0,)),
        Bars(name="scratch", role="scratch", y=(0.0,), starts=(70.0,), lengths=(0.0,)),
        Points(name="measured peak", role="measured", x=(70.0,), y=(0.0,)),
    )
    low, high = drawn(Panel(x=Axis(label="memory"), y=Axis(label="", ticks=((0.0, "16"),)), layers=bars)).get_xlim()
    assert low == 0.0
    assert high > 72.0


def test_an_axis_that_counts_has_whole_ticks() -> None:
    def ticks(*x: float) -> list[float]:
        area = drawn(Panel(x=Axis(label="x"), y=Axis(label="y"), layers=(Points(name="p", role="search", x=x, y=x),)))
        return [float(at) for at in area.get_xticks()]

    assert all(at.is_integer() for at in ticks(0.0, 2.0))
    assert not all(at.is_integer() for at in ticks(0.5, 1.0))
