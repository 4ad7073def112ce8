"""Pictures by matplotlib: every text can be read, and a picture fits a journal."""

import struct
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pytest
from frames_factory import make_frames
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from reports.draw import _STYLE, draw_picture, make_canvas
from reports.evidence import gather_evidence
from reports.figure import Axis, Figure, Panel, Paper, Points, check_width
from reports.figures.all_figures import make_figures
from reports.layout import log_ticks
from sweep.config.errors import InputError

LEAST_POINTS = 7.0
WIDTHS = {"column": 3.25, "page": 6.75}


@pytest.fixture(scope="module")
def figures() -> Sequence[Figure]:
    return make_figures(gather_evidence(make_frames(30, confirm=3))).figures


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


def test_an_axis_with_bounds_ends_there_and_may_fall() -> None:
    layer = Points(name="p", role="search", x=(1.0, 9.0), y=(0.01, 0.5))
    falling = Axis(label="error", scale="log", bounds=(0.2, 0.005))
    panel = Panel(x=Axis(label="x"), y=falling, layers=(layer,))
    canvas = make_canvas(Figure(name="made", title="", caption="", panels=(panel,)), Paper("page", has_title=False))
    canvas.draw_without_rendering()
    assert canvas.axes[0].get_ylim() == pytest.approx((0.2, 0.005))


@pytest.mark.parametrize(("low", "high"), [(0.9, 3.1), (2.0, 900.0), (0.1067, 0.1093), (0.003, 0.4), (183.0, 190.0)])
def test_a_logarithmic_axis_has_round_ticks_within_it(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 20
    assert all(low / 1.06 <= tick <= high * 1.06 for tick in ticks)
    assert all(len(f"{tick:.6g}") <= 7 for tick in ticks)
