"""Axes of the pictures: every text can be read, and every mark is whole."""

from itertools import pairwise

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from reports.figure import Axis, Bars, Panel, Points
from reports.print.drawing import draw_axes, draw_panel
from reports.print.font import FONT, width_of
from reports.print.ticks import usual_ticks


def drawn(panel: Panel, width: float = 4.0) -> Axes:
    """The axes of a picture that is ``width`` inches wide."""
    with mpl.rc_context({"font.family": FONT}):
        canvas = Canvas(figsize=(width, 3.0))
        FigureCanvasAgg(canvas)
        area = canvas.add_axes((0.2, 0.2, 0.7, 0.7))
        draw_panel(area, panel)
        draw_axes(area, panel)
        canvas.draw_without_rendering()
    return area


def boxes(area: Axes) -> dict[str, tuple[float, float]]:
    """From where to where each text reaches, in pixels."""
    extents = {text.get_text(): text.get_window_extent() for text in area.texts}
    return {name: (box.x0, box.x1) for name, box in extents.items()}


@pytest.mark.parametrize(("width", "num"), [(8.0, 9), (2.0, 5)])
def test_texts_that_would_run_into_each_other_are_left_out(width: float, num: int) -> None:
    ticks = tuple((float(place), str(2 ** (place + 4))) for place in range(9))
    panel = Panel(Axis("batch", ticks=ticks), Axis("y"), (Points("p", "search", (0.0, 8.0), (1.0, 2.0)),))
    found = boxes(drawn(panel, width))
    across = sorted(found[text] for _, text in ticks if text in found)
    assert all(end < start for (_, end), (start, _) in pairwise(across))
    assert num - 2 <= len(across) <= num


def test_the_label_stands_clear_of_the_texts() -> None:
    ticks = ((0.0, "a"), (1.0, "a rather long name of a row"))
    area = drawn(Panel(Axis("x"), Axis("rows", ticks=ticks), (Points("p", "search", (0.0, 8.0), (0.0, 1.0)),)))
    label = area.yaxis.label.get_window_extent()
    assert label.x1 < boxes(area)["a rather long name of a row"][0]


def test_a_mark_at_the_end_of_the_longest_bar_is_whole() -> None:
    bars = (
        Bars("weights", "parameter", (0.0,), (0.0,), (70.0,)),
        Bars("scratch", "scratch", (0.0,), (70.0,), (0.0,)),
        Points("measured peak", "measured", (70.0,), (0.0,)),
    )
    low, high = drawn(Panel(Axis("memory"), Axis("", ticks=((0.0, "16"),)), bars)).get_xlim()
    assert low == 0.0
    assert high > 72.0


def test_an_axis_that_counts_has_whole_ticks() -> None:
    assert [text for _, text in usual_ticks(0.0, 2.0, 5, is_whole=True)] == ["0", "1", "2"]
    assert "0.5" in [text for _, text in usual_ticks(0.0, 2.0, 5, is_whole=False)]


def test_a_width_is_that_of_the_drawn_text() -> None:
    area = drawn(Panel(Axis("x", ticks=((0.0, "1024"),)), Axis("y"), (Points("p", "search", (0.0, 1.0), (0.0, 1.0)),)))
    start, end = boxes(area)["1024"]
    figure = area.get_figure(root=True)
    assert figure is not None
    assert width_of("1024", 9.0) == pytest.approx((end - start) * 72 / figure.dpi, abs=1.5)
