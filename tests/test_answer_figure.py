"""Pictures: the answer's figure and the texts of the first screen have the numbers of the answer; every text can be
read, and a picture fits a journal."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from frames_factory import MadeFrames, frames_of, make_frames, make_spec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from wild_studies import STUDIES, load_wild_study

from reports.draw import _STYLE, draw_inline, draw_picture, make_canvas
from reports.evidence import Evidence, gather_evidence
from reports.figure import Absent, Axis, Figure, Intervals, Layer, Lines, Panel, Paper, Points, Rule, check_width
from reports.figures.all_figures import make_figures
from reports.figures.answer import AnswerMarks, collect_marks, make_answer
from reports.labels import format_estimate
from reports.layout import log_ticks, show_panel
from reports.texts import describe_first
from reports.writing import write_report
from sweep.analysis.recommendation import as_document
from sweep.config.errors import InputError
from sweep.config.metrics import format_probability
from sweep.records.inputs import DataSummary
from sweep.records.loading import load_frames

METRICS = ("val_accuracy", "train_seconds", "peak_memory_bytes")


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(make_frames(40, confirm=4))


@pytest.fixture(scope="module")
def found(evidence: Evidence) -> AnswerMarks:
    marks = collect_marks(evidence)
    assert marks is not None
    return marks


@pytest.fixture(scope="module")
def figure(evidence: Evidence) -> Figure:
    made = make_answer(evidence)
    assert isinstance(made, Figure)
    return made


def test_the_sentence_and_the_chips_have_the_numbers_of_the_document(evidence: Evidence) -> None:
    document, first = as_document(evidence.answer)["batch_size"], describe_first(evidence)
    named = document["named"]
    assert f"effective batch size of {named['global_batch_size']} " in first.headline
    assert f"micro batch {named['config']['batch.micro']}," in first.headline
    assert f"learning rate {named['config']['optimizer.lr']:.3g}, {named['config']['model.name']})" in first.headline
    texts = {each["name"]: each["text"] for each in document["statements"]}
    assert first.comparison == texts["next_smaller"] if "next_smaller" in texts else texts["next_larger"]
    assert format_probability(document["statements"][0]["probability"]) in first.certainty
    assert first.command == (document["statements"][0]["missing"] or "")
    for chip, name in zip(first.chips, METRICS, strict=True):
        assert (chip.value, chip.interval) == format_estimate(name, *named[name].values())
        assert f"n = {named[name]['n']} trainings" in chip.sure
        assert ("with fresh seeds" in chip.sure) == (named[name]["n"] == named["val_accuracy"]["n"])


def test_a_test_accuracy_has_the_interval_of_the_answer(evidence: Evidence) -> None:
    trials = evidence.frames.trials.assign(test_accuracy=evidence.frames.trials["val_accuracy"])
    data = DataSummary(name="digits", num_test=100)
    named = gather_evidence(replace(evidence.frames, trials=trials, data=data))
    rows = named.configurations.set_index("number")
    measured = {each.number: each.measured["test_accuracy"] for each in named.answer.configurations if each.num_seeds}
    assert measured
    for number, value in measured.items():
        low, high = rows.loc[number, ["test_accuracy_low", "test_accuracy_high"]]
        assert (low, high) == value[1:3]


def test_what_cannot_be_recommended_yet_is_named_with_the_command() -> None:
    searched = gather_evidence(make_frames(20))
    first, named = describe_first(searched), searched.answer.batch_size.named
    assert "cannot be recommended yet: no eligible configuration has 3 fresh seeds" in first.headline
    assert (first.command, first.chips) == (named.missing, ())
    empty = gather_evidence(make_frames(0))
    assert "cannot be recommended yet: no trial is complete" in describe_first(empty).headline
    made = make_answer(empty)
    assert isinstance(made, Absent)
    assert describe_first(empty).command in made.remedy


def test_the_provenance_holds_what_is_on_record_and_names_what_is_not(evidence: Evidence) -> None:
    parts = evidence.provenance
    assert parts[:2] == ("digits (images not on record)", "resnet8, vit_micro")
    assert "4 configurations trained again with 3 fresh seeds" in parts[4]
    assert parts[5:] == ("cpu: made", "date not on record", "commit not on record")
    alone = gather_evidence(make_frames(1))
    assert alone.provenance[4].startswith("1 search trial completed with one seed;")
    frames = make_frames(8, confirm=1)
    frames.trials["phase"] = "search"
    assert (
        gather_evidence(frames).provenance[4] == "1 configuration trained with 4 seeds each, none chosen by its result"
    )


def test_marks_lie_at_the_estimates_of_the_answer(figure: Figure, found: AnswerMarks) -> None:
    shown = [mark for mark in found.marks if mark.accuracy.median >= found.cut]
    errors = [(mark.seconds.median, 1 - mark.accuracy.median) for mark in shown]
    assert len(errors) >= 5
    kept = [point for point in found.curve if point.accuracy.median >= found.cut]
    heights = [(float(point.batch), 1 - point.accuracy.median) for point in kept]
    spent = [(float(point.batch), point.seconds.median) for point in found.curve]
    for panel, expected in zip(figure.panels, (errors, heights, spent), strict=True):
        places = [(layer.x[0], layer.y[0]) for layer in panel.layers if isinstance(layer, Intervals)]
        assert np.array(sorted(places)) == pytest.approx(np.array(sorted(expected)))


def test_shade_shape_filling_ring_and_label_say_what_a_mark_is(figure: Figure, found: AnswerMarks) -> None:
    layers = {layer.trials[0]: layer for layer in figure.panels[0].layers if isinstance(layer, Intervals)}
    shown = [mark for mark in found.marks if mark.accuracy.median >= found.cut]
    assert set(layers) == {mark.number for mark in shown}
    for mark in shown:
        layer, is_open = layers[mark.number], "" if mark.num_seeds else "-open"
        assert layer.role == f"series-{found.models.index(mark.model)}{is_open}"
        assert layer.shade == found.shade(mark.batch)
        assert (layer.x_low[0] < layer.x[0] < layer.x_high[0]) == (mark.num_seeds > 0)
        label = f"batch {mark.batch}" if mark.is_named else str(mark.batch)
        assert layer.labels == ((label,) if mark.is_named or mark.is_tuned or mark.is_front else ())
    (ring,) = (layer for layer in figure.panels[0].layers if layer.role == "ring")
    (named,) = (mark for mark in shown if mark.is_named)
    assert (ring.x[0], ring.y[0]) == (named.seconds.median, 1 - named.accuracy.median)
    assert found.shade(min(mark.batch for mark in found.marks)) == 0.0


def _make_random_table(seed: int) -> MadeFrames:
    """Trials with errors from 0.1 to 90 % and times that differ a hundredfold, at up to 6 batch sizes."""
    rng = np.random.default_rng(seed)
    rows = [
        {"number": n, "config.model.name": f"m{n % (1 + seed % 2)}", "global_batch_size": int(2 ** rng.integers(4, 10)),
         "config.optimizer.lr": 0.01 * (1 + n), "val_accuracy": 1.0 - 10 ** rng.uniform(-3.0, -0.05),
         "train_seconds": 10 ** rng.uniform(0.0, 2.0)}
        for n in range(1 + 4 * seed)
    ]  # fmt: skip
    return frames_of(make_spec(), rows)


def _make_equal_table(count: int, accuracy: float, growth: float = 1.0, last: float | None = None) -> MadeFrames:
    """Trials of equal accuracy, but for the ``last``, at up to 3 batch sizes; each size takes ``growth`` times as long
    as the one before."""
    rows = [
        {"number": n, "config.model.name": "m", "global_batch_size": 64 * 2 ** (n % 3), "val_accuracy": accuracy,
         "config.optimizer.lr": 0.01 * (1 + n), "train_seconds": 12.0 * growth ** (n % 3)}
        for n in range(count)
    ]  # fmt: skip
    rows[-1] |= {"val_accuracy": accuracy if last is None else last}
    return frames_of(make_spec(), rows)


_GALLERY = Path(__file__).parents[1] / "docs/gallery/quickstart"
TABLES: dict[str, Callable[[Path], Any]] = {
    **{f"random {seed}": lambda _, seed=seed: _make_random_table(seed) for seed in range(10)},
    "one trial": lambda _: _make_equal_table(1, 0.9),
    "equal trials": lambda _: _make_equal_table(6, 0.95),
    "one far below": lambda _: _make_equal_table(7, 0.95, last=0.2),
    "without an error": lambda _: _make_equal_table(6, 1.0),
    "slower with the batch": lambda _: _make_equal_table(6, 0.9, growth=2.0),
    "made": lambda _: make_frames(40, confirm=4),
    "quickstart": lambda _: load_frames(_GALLERY, evaluations=True),
    **{name: lambda folder, name=name: load_wild_study(name, folder / name) for name in STUDIES},
}


@pytest.fixture(scope="module", params=TABLES)
def pictured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[AnswerMarks, Figure]:
    """What there is to draw of a table of records, and its picture."""
    evidence = gather_evidence(TABLES[request.param](tmp_path_factory.mktemp("records")))
    drawn, made = collect_marks(evidence), make_answer(evidence)
    assert drawn is not None
    assert isinstance(made, Figure)
    return drawn, made


def _list_bounds(layers: Sequence[Layer]) -> tuple[list[float], list[float]]:
    """All x and all y of marks with the ends of their intervals."""
    intervals = [layer for layer in layers if isinstance(layer, Intervals)]
    points = [layer for layer in layers if isinstance(layer, Points)]
    across = [x for each in intervals for x in (*each.x_low, *each.x_high)] + [x for each in points for x in each.x]
    return across, [y for each in intervals for y in (*each.y_low, *each.y_high)] + [
        y for each in points for y in each.y
    ]


def test_the_axes_show_every_mark_with_its_interval(pictured: tuple[AnswerMarks, Figure]) -> None:
    _, made = pictured
    canvas = make_canvas(made)
    for area, panel in zip(canvas.axes, made.panels, strict=True):
        shown = show_panel(panel)
        assert shown.x.ticks, panel.x.label
        assert shown.y.ticks, panel.y.label
        for ends, values in zip((area.get_xlim(), area.get_ylim()), _list_bounds(shown.layers), strict=True):
            assert min(ends) < min(values), panel.y.label
            assert max(values) < max(ends), panel.y.label


def test_every_batch_is_at_its_height_and_what_lies_below_the_axis_is_counted(
    pictured: tuple[AnswerMarks, Figure],
) -> None:
    drawn, made = pictured
    panel = made.panels[0]
    last, _ = panel.y.bounds
    heights = {each.trials[0]: each.y[0] for each in panel.layers if isinstance(each, Intervals)}
    below = {each.trials[0]: each for each in panel.layers if each.role == "beyond"}
    assert set(heights) | set(below) == {mark.number for mark in drawn.marks}
    for mark in drawn.marks:
        error = max(1.0 - mark.accuracy.median, 1e-4)
        is_best = mark.accuracy.median == max(
            each.accuracy.median for each in drawn.marks if (each.model, each.batch) == (mark.model, mark.batch)
        )
        assert (mark.number in below) == (error > last), mark
        assert not (mark.number in below and (is_best or mark.is_tuned or mark.is_named)), mark
        if mark.number in below:
            assert below[mark.number].x == (mark.seconds.median,)
        else:
            assert heights[mark.number] == pytest.approx(error)
    texts = [layer.text for layer in panel.layers if isinstance(layer, Rule) and "below" in layer.text]
    assert [text.split()[0] for text in texts] == ([str(len(below))] if below else [])
    batches = [layer for layer in made.panels[1].layers if isinstance(layer, Intervals)]
    assert [each.x[0] for each in batches] == [point.batch for point in drawn.curve]


def test_a_configuration_far_below_the_others_is_below_the_axis() -> None:
    made = make_answer(gather_evidence(_make_equal_table(7, 0.95, last=0.2)))
    assert isinstance(made, Figure)
    assert [layer.trials for layer in made.panels[0].layers if layer.role == "beyond"] == [(6,)]


def test_every_entry_of_the_legend_is_drawn(pictured: tuple[AnswerMarks, Figure]) -> None:
    _, made = pictured
    canvas = make_canvas(made)
    for area, panel in zip(canvas.axes, made.panels, strict=True):
        for layer in (layer for layer in show_panel(panel).layers if layer.name):
            if isinstance(layer, Lines):
                paths = [area.transData.transform(np.stack(segment, axis=1)) for segment in layer.segments]
                assert max(np.ptp(path, axis=0).max() for path in paths) >= 1.0, layer.name  # pixels
            elif not isinstance(layer, Rule):
                assert layer.y, layer.name


def test_the_image_to_share_has_its_size_and_the_answer(figure: Figure, evidence: Evidence, tmp_path: Path) -> None:
    first = describe_first(evidence)
    assert figure.title == first.headline
    assert figure.finding.startswith(first.comparison)
    assert figure.caption.endswith(f"{evidence.provenance[-1]}.")
    write_report(evidence.frames, tmp_path / "report.html", formats=("png", "svg", "pdf"))
    assert struct.unpack(">II", (tmp_path / "answer.png").read_bytes()[16:24]) == (1200, 630)
    assert (tmp_path / "answer.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "answer.svg").read_text("utf-8")


def test_an_image_of_an_earlier_answer_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "answer.png").write_bytes(b"of an earlier answer")
    page = write_report(make_frames(0), tmp_path / "report.html").read_text("utf-8")
    assert not (tmp_path / "answer.png").exists()
    assert "Picture of the answer" in page.partition("Figures without data")[2]


def test_text_of_the_records_does_not_become_markup() -> None:
    rows = [
        {"number": n, "config.model.name": "<script>x</script>", "global_batch_size": 2**n * 16, "val_accuracy": 0.9,
         "train_seconds": 1.0 + n}
        for n in range(3)
    ]  # fmt: skip
    made = make_answer(gather_evidence(frames_of(make_spec(), rows)))
    assert isinstance(made, Figure)
    text = draw_inline(made, 11.0)
    assert "&lt;script&gt;" in text
    assert "<script" not in text


@pytest.mark.parametrize(("width", "inches"), [("screen", 0.0), ("column", 3.25), ("page", 6.75)])
def test_every_text_is_large_enough_and_within_the_picture(evidence: Evidence, width: Any, inches: float) -> None:
    made = make_figures(evidence)
    assert isinstance(made.answer, Figure)
    for figure in (made.answer, *made.figures) if inches else (made.answer,):
        with mpl.rc_context(_STYLE):
            canvas = make_canvas(figure, Paper(width))
            FigureCanvasAgg(canvas).draw()
        assert not inches or canvas.get_size_inches()[0] == inches
        texts = [each for each in canvas.findobj(Text) if each.get_visible() and each.get_text().strip()]
        assert min(each.get_fontsize() for each in texts) >= 7.0, figure.name
        assert figure.title in {" ".join(each.get_text().split()) for each in texts}
        for box in (each.get_window_extent() for each in canvas.texts + canvas.legends):
            assert box.x1 <= canvas.bbox.x1 + 1, figure.name
        labels = [each for each in canvas.axes[0].texts if each.get_fontweight() == "bold"]
        assert figure is not made.answer or any(each.get_text().startswith("batch ") for each in labels)
        for one, other in combinations(labels, 2):
            # without the lines to their marks
            boxes = Text.get_window_extent(one), Text.get_window_extent(other)
            assert not boxes[0].overlaps(boxes[1]), (one.get_text(), other.get_text())


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_a_file_for_a_journal_has_its_width_and_no_title(figure: Figure, width: Any, inches: float) -> None:
    paper = Paper(check_width(width), has_title=False)
    assert struct.unpack(">I", draw_picture(figure, "png", paper)[16:20])[0] == round(300 * inches)
    shown = " ".join(each.get_text() for each in make_canvas(figure, paper).findobj(Text)).replace("\n", " ")
    assert figure.title not in shown
    assert figure.caption[:20] not in shown
    with pytest.raises(InputError, match="column"):
        check_width(width[:-1])


def test_an_axis_with_bounds_ends_there_and_may_fall() -> None:
    layer = Points(name="p", role="search", x=(1.0, 9.0), y=(0.01, 0.5))
    falling = Axis(label="error", scale="log", bounds=(0.2, 0.005))
    panel = Panel(x=Axis(label="x"), y=falling, layers=(layer,))
    canvas = make_canvas(Figure(name="made", title="", caption="", panels=(panel,)), Paper("page", has_title=False))
    canvas.draw_without_rendering()
    assert canvas.axes[0].get_ylim() == pytest.approx((0.2, 0.005))


@pytest.mark.parametrize(("at", "side"), [(1.0, "right"), (9.0, "left")])
def test_the_text_of_a_line_is_at_the_end_with_fewer_marks(at: float, side: str) -> None:
    marked = Points(name="", role="search", x=(at, 0.0, 10.0), y=(5.2, 0.0, 10.0), labels=("1",))
    panel = Panel(x=Axis(label="x"), y=Axis(label="y"), layers=(marked, Rule(axis="y", value=5.0, text="a long text")))
    canvas = make_canvas(Figure(name="made", title="", caption="", panels=(panel,)), Paper("column", has_title=False))
    (text,) = (each for each in canvas.axes[0].texts if each.get_text() == "a long text")
    assert text.get_horizontalalignment() == side


def test_a_logarithmic_axis_of_one_value_has_it_as_tick() -> None:
    assert log_ticks(11.916, 11.916) == [11.9]


@pytest.mark.parametrize(("low", "high"), [(0.9, 3.1), (2.0, 900.0), (0.1067, 0.1093), (0.003, 0.4), (183.0, 190.0)])
def test_a_logarithmic_axis_has_round_ticks_within_it(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 20
    assert all(low / 1.06 <= tick <= high * 1.06 for tick in ticks)
    assert all(len(f"{tick:.6g}") <= 7 for tick in ticks)
