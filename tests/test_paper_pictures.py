"""Pictures for a journal: as wide as its column or page, with letters of at least 7 points, nothing beyond the edge."""

import io
import struct
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pytest
from frames_factory import make_frames
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from reports.evidence import gather_evidence
from reports.figure import Figure, Paper, check_width
from reports.figures.all_figures import make_figures
from reports.print.pictures import _STYLE, draw_picture, make_canvas
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
        title = canvas._suptitle
        assert title is not None
        assert " ".join(title.get_text().split()) == " ".join(figure.title.split())
        assert title.get_window_extent().x1 <= canvas.bbox.x1, figure.name
        for legend in canvas.legends:
            assert legend.get_window_extent().x1 <= canvas.bbox.x1 + 1, figure.name


@pytest.mark.parametrize("width", WIDTHS)
def test_the_file_has_the_width_and_no_title(figures: Sequence[Figure], width: Any) -> None:
    data = draw_picture(figures[0], "png", Paper(width, has_title=False))
    pixels = struct.unpack(">I", io.BytesIO(data).read()[16:20])[0]
    assert pixels == round(300 * WIDTHS[width])
    with mpl.rc_context(_STYLE):
        canvas = make_canvas(figures[0], Paper(width, has_title=False))
    shown = " ".join(each.get_text() for each in canvas.findobj(Text))
    assert figures[0].title not in shown
    assert figures[0].caption[:20] not in shown.replace("\n", " ")


def test_an_unknown_width_is_refused() -> None:
    with pytest.raises(InputError, match="column"):
        check_width("colum")
