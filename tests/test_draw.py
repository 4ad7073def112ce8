"""Pictures by matplotlib: every text can be read, every mark is whole, and a picture fits a journal."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import pytest
from frames_factory import make_frames
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from reports.draw import _STYLE, draw_picture, make_canvas
from reports.evidence import gather_evidence
from reports.figure import Axis, Bars, Figure, Panel, Paper, Points, check_width
from reports.figures.all_figures import make_figures
from reports.layout import log_ticks
from sweep.config.errors import InputError

LEAST_POINTS = 7.0
WIDTHS = {"column": 3.25, "page": 6.75}


@pytest.fixture(scope="module")
def figures() -> Sequence[Figure]:
    return make_figures(gather_evidence(make_frames(30, confirm=3))).figures


def drawn(panel: Panel) -> Axes:
    canvas = make_canvas(Figure(name="made", title="", caption="", panels=(panel,)), Paper("page", has_title=False))
    canvas.draw_without_rendering()
    area: Axes = canvas.axes[0]
    return area


@pytest.mark.parametrize("width", WIDTHS)
def test_letters_are_large_enough_and_within_the_picture(figures: Sequence[Figure], width: Any) -> None:
    assert len(figures) > 5
    for figure in figures:
        with mpl.rc_context(_STYLE):
            canvas = make_canvas(figure, Paper(width))
            FigureCanvasAgg(canvas).draw()
        texts = [each for each in canvas.findobj(Text) if each.get_visible() and each.get_text().strip()]
        assert canvas.get_size_inches()[0] == WIDTHS[width]
        assert min(each.get_fontsize() for each in texts) >= LEAST_POINTS, figure.name
        assert figure.title in {" ".join(each.get_text().split()) for each in texts}
        for box in (each.get_window_extent() for each in canvas.texts + canvas.legends):
            assert box.x1 <= canvas.bbox.x1 + 1, figure.name


@pytest.mark.parametrize("width", WIDTHS)
def test_the_file_has_the_width_and_no_title(figures: Sequence[Figure], width: Any) -> None:
    data = draw_picture(figures[0], "png", Paper(width, has_title=False))
    assert struct.unpack(">I", data[16:20])[0] == round(300 * WIDTHS[width])
    canvas = make_canvas(figures[0], Paper(width, has_title=False))
    shown = " ".join(each.get_text() for each in canvas.findobj(Text)).replace("\n", " ")
    assert figures[0].title not in shown
    assert figures[0].caption[:20] not in shown


def test_an_unknown_width_is_refused() -> None:
    with pytest.raises(InputError, match="column"):
        check_width("colum")


def test_texts_of_a_narrow_axis_do_not_run_into_each_other() -> None:
    ticks = tuple((float(place), str(2 ** (place + 4))) for place in range(9))
    layer = Points(name="p", role="search", x=(0.0, 8.0), y=(1.0, 2.0))
    boxes = [
        label.get_window_extent()
        for label in drawn(
            Panel(x=Axis(label="batch", ticks=ticks), y=Axis(label="y"), layers=(layer,))
        ).get_xticklabels()
    ]
    assert len(boxes) == 9
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_mark_at_the_end_of_the_longest_bar_is_whole() -> None:
    bars = (
        Bars(name="weights", role="parameter", y=(0.0,), starts=(0.0,), lengths=(70.0,)),
        Bars(name="scratch", role="scratch", y=(0.0,), starts=(70.0,), lengths=(0.0,)),
        Points(name="measured peak", role="measured", x=(70.0,), y=(0.0,)),
    )
    low, high = drawn(Panel(x=Axis(label="memory"), y=Axis(label="", ticks=((0.0, "16"),)), layers=bars)).get_xlim()
    assert low == 0.0
    assert high > 72.0


def test_an_axis_with_bounds_ends_there_and_may_fall() -> None:
    layer = Points(name="p", role="search", x=(1.0, 9.0), y=(0.01, 0.5))
    falling = Axis(label="error", scale="log", bounds=(0.2, 0.005))
    assert drawn(Panel(x=Axis(label="x"), y=falling, layers=(layer,))).get_ylim() == pytest.approx((0.2, 0.005))


@pytest.mark.parametrize(("low", "high"), [(0.9, 3.1), (2.0, 900.0), (0.1067, 0.1093), (0.003, 0.4), (183.0, 190.0)])
def test_a_logarithmic_axis_has_round_ticks_within_it(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 20
    assert all(low / 1.06 <= tick <= high * 1.06 for tick in ticks)
    assert all(len(f"{tick:.6g}") <= 7 for tick in ticks)
