"""The image of the answer: its marks are those of the page's first screen, its texts are large enough and apart."""

import struct
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from frames_factory import make_frames
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from reports.evidence import Evidence, gather_evidence
from reports.figure import Absent, Paper
from reports.first.answer_figure import AnswerFigure
from reports.first.answer_marks import AnswerMarks, collect_marks
from reports.first.answer_panels import make_answer_figure
from reports.first.first_texts import describe_first
from reports.first.log_axis import error_of
from reports.first.svg_elements import colors_of
from reports.print.answer_picture import make_answer_canvas
from reports.print.painter import dump_task, load_task
from reports.print.pictures import _STYLE, draw_picture
from reports.writing import write_frames_report

RING = 150  # area of the ring of the recommendation
WIDTHS = {"screen": 1200 / 130, "column": 3.25, "page": 6.75}


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(make_frames(40, confirm=4))


@pytest.fixture(scope="module")
def found(evidence: Evidence) -> AnswerMarks:
    marks = collect_marks(evidence)
    assert marks is not None
    return marks


@pytest.fixture(scope="module")
def figure(evidence: Evidence) -> AnswerFigure:
    made = make_answer_figure(evidence, describe_first(evidence))
    assert isinstance(made, AnswerFigure)
    return made


def draw(figure: AnswerFigure, paper: Paper) -> Canvas:
    with mpl.rc_context(_STYLE):
        canvas = make_answer_canvas(figure, paper, 130)
        FigureCanvasAgg(canvas).draw()
    return canvas


def marks_of(area: Axes) -> Iterator[tuple[float, float]]:
    for mark in area.collections:
        if isinstance(mark, PathCollection) and mark.get_sizes()[0] != RING:
            yield tuple(mark.get_offsets().tolist()[0])


def test_marks_lie_at_the_estimates_of_the_first_screen(figure: AnswerFigure, found: AnswerMarks) -> None:
    tradeoff, accuracies, times = draw(figure, Paper()).axes
    expected = [(mark.seconds.median, error_of(mark.accuracy.median)) for mark in found.shown]
    assert np.array(sorted(marks_of(tradeoff))) == pytest.approx(np.array(sorted(expected)))
    assert len(expected) >= 5
    assert "(s)" in figure.panels[0].x.name
    lowest = max(accuracies.get_ylim())
    heights = [(float(point.batch), min(error_of(point.accuracy.median), lowest)) for point in found.curve]
    assert np.array(sorted(marks_of(accuracies))) == pytest.approx(np.array(sorted(heights)))
    spent = [(float(point.batch), point.seconds.median) for point in found.curve]
    assert np.array(sorted(marks_of(times))) == pytest.approx(np.array(sorted(spent)))


def test_color_shape_filling_and_ring_are_those_of_the_first_screen(figure: AnswerFigure, found: AnswerMarks) -> None:
    spots = {(spot.x, spot.y): spot for spot in figure.panels[0].spots}
    for mark in found.shown:
        spot = spots[mark.seconds.median, error_of(mark.accuracy.median)]
        assert spot.color == colors_of(mark.batch, found.batches)[0]
        assert (spot.shape, spot.is_filled) == (found.models.index(mark.model), mark.num_seeds > 0)
        assert spot.is_named == mark.is_named
        assert (spot.x_bounds[0] < spot.x < spot.x_bounds[1]) == (mark.num_seeds > 0)
    rings = [
        mark.get_offsets().tolist()[0]
        for mark in draw(figure, Paper()).axes[0].collections
        if isinstance(mark, PathCollection) and mark.get_sizes()[0] == RING
    ]
    named = [mark for mark in found.shown if mark.is_named]
    assert rings == [pytest.approx([mark.seconds.median, error_of(mark.accuracy.median)]) for mark in named]
    assert len(figure.panels[0].edge) == len(found.below) > 0
    assert f"{len(found.below)} configurations below" in figure.panels[0].x.name


@pytest.mark.parametrize("width", WIDTHS)
def test_texts_are_large_enough_apart_and_within_the_image(
    figure: AnswerFigure, width: Any, found: AnswerMarks
) -> None:
    canvas = draw(figure, Paper(width))
    assert canvas.get_size_inches()[0] == pytest.approx(WIDTHS[width])
    texts = [each for each in canvas.findobj(Text) if each.get_visible() and each.get_text().strip()]
    assert min(each.get_fontsize() for each in texts) >= 7.0
    boxes = [each.get_window_extent() for each in texts]
    assert all(box.x0 >= 0 and box.x1 <= canvas.bbox.x1 and box.y0 >= 0 and box.y1 <= canvas.bbox.y1 for box in boxes)
    labels = [each for each in canvas.axes[0].texts if each.get_fontweight() == "bold"]
    assert sorted(each.get_text() for each in labels) == sorted(
        f"batch {mark.batch}" if mark.is_named else str(mark.batch) for mark in found.labeled
    )
    overlapping = [
        (one.get_text(), other.get_text())
        for one, other in combinations(labels, 2)
        if one.get_window_extent().overlaps(other.get_window_extent())
    ]
    assert overlapping == []


def test_the_title_is_the_answer_and_can_be_left_out(figure: AnswerFigure, evidence: Evidence) -> None:
    first = describe_first(evidence)
    for has_title in (True, False):
        canvas = draw(figure, Paper("column", has_title))
        shown = " ".join(each.get_text() for each in canvas.texts)
        assert (first.headline in shown, first.comparison in shown) == (has_title, has_title)
        assert ("Number and color" in shown) == has_title


def test_the_report_has_the_image_in_each_format(evidence: Evidence, tmp_path: Path) -> None:
    write_frames_report(evidence.frames, tmp_path / "report.html", formats=("png", "svg", "pdf"))
    data = (tmp_path / "answer.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 630)
    assert (tmp_path / "answer.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "answer.svg").read_text("utf-8")


def test_the_drawing_process_receives_the_whole_image(figure: AnswerFigure) -> None:
    assert load_task(dump_task((figure, "png", Paper()))) == (figure, "png", Paper())
    assert draw_picture(figure) == draw_picture(figure)


def test_without_an_answer_there_is_no_image_and_the_page_says_so(tmp_path: Path) -> None:
    frames = make_frames(20)
    evidence = gather_evidence(frames)
    made = make_answer_figure(evidence, describe_first(evidence))
    assert isinstance(made, Absent)
    (tmp_path / "answer.png").write_bytes(b"of an earlier answer")
    page = write_frames_report(frames, tmp_path / "report.html").read_text("utf-8")
    assert not (tmp_path / "answer.png").exists()
    assert "Image of the answer" in page.partition("Figures without data")[2]
    assert describe_first(evidence).command in made.remedy
