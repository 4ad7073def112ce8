"""The first screen: one sentence and one picture, both of the numbers of the answer."""

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from frames_factory import frames_of, make_frames, make_spec

from reports.evidence import Evidence, gather_evidence
from reports.first.answer_marks import AnswerMarks, collect_marks
from reports.first.batch_pictures import draw_tuned_accuracies
from reports.first.first_texts import describe_first
from reports.first.label_places import Box, Label, place_labels
from reports.first.log_axis import LogAxis, make_axis, make_error_axis
from reports.first.pictures_of_answer import draw_first_pictures
from reports.first.svg_elements import hue_of
from reports.first.tradeoff_picture import WIDE, TradeOff, _list_obstacles
from reports.labels import format_estimate, format_probability
from sweep.analysis.recommendation import as_document
from sweep.analysis.statistics import Interval

METRICS = ("val_accuracy", "train_seconds", "peak_memory_bytes")
GROUNDS = {"light": "#ffffff", "dark": "#14181d"}


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(make_frames(40, confirm=4))


@pytest.fixture(scope="module")
def found(evidence: Evidence) -> AnswerMarks:
    marks = collect_marks(evidence)
    assert marks is not None
    return marks


@pytest.fixture(scope="module")
def picture(evidence: Evidence) -> ET.Element:
    drawn = draw_first_pictures(evidence, describe_first(evidence).finding)
    assert drawn is not None
    return ET.fromstring(drawn.tradeoff[0])


def classed(root: ET.Element, kind: str) -> list[ET.Element]:
    return [each for each in root.iter() if kind in each.get("class", "").split()]


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
        same = named[name]["n"] == named["val_accuracy"]["n"]
        assert ("with fresh seeds" in chip.sure) == same


def test_what_cannot_be_recommended_yet_is_named_with_the_command() -> None:
    searched = gather_evidence(make_frames(20))
    first, named = describe_first(searched), searched.answer.batch_size.named
    assert "cannot be recommended yet: no eligible configuration has 3 fresh seeds" in first.headline
    assert (first.command, first.chips) == (named.missing, ())
    empty = gather_evidence(make_frames(0))
    assert "cannot be recommended yet: no trial is complete" in describe_first(empty).headline
    assert describe_first(empty).command.startswith("sweep run")
    assert draw_first_pictures(empty, "") is None


def test_the_provenance_holds_what_is_on_record_and_names_what_is_not(evidence: Evidence) -> None:
    parts = describe_first(evidence).provenance
    assert parts[0] == "digits (images not on record)"
    assert parts[1] == "resnet8, vit_micro"
    assert "4 configurations trained again with 3 fresh seeds" in parts[4]
    assert parts[5:] == ("cpu: made", "date not on record", "commit not on record")


def test_doubtful_times_are_explained_in_words(evidence: Evidence) -> None:
    frames = make_frames(40, confirm=4)
    frames.trials["quality_flags"] = "uncertain_time,spread"
    first = describe_first(gather_evidence(frames))
    doubts = {chip.label: chip.doubt for chip in first.chips}
    assert "the times of 4 of 4 trainings are unreliable (the mean step time is known" in doubts["Training time"]
    assert doubts["Validation accuracy"] == ""
    assert all(chip.doubt == "" for chip in describe_first(evidence).chips)


def read_axis(root: ET.Element, kind: str, *, is_error: bool) -> tuple[float, float]:
    """Slope and offset of pixels over the logarithm of what the first and the last tick label state."""
    ticks = classed(root, kind)
    values = [float(each.text or "") for each in ticks]
    logarithms = [math.log(1 - value / 100 if is_error else value) for value in values]
    pixels = [float(each.get("y", "")) - 4 if is_error else float(each.get("x", "")) for each in ticks]
    slope = (pixels[-1] - pixels[0]) / (logarithms[-1] - logarithms[0])
    return slope, pixels[0] - slope * logarithms[0]


def test_marks_lie_where_the_ticks_put_their_values(picture: ET.Element, found: AnswerMarks) -> None:
    across, up = read_axis(picture, "x-tick", is_error=False), read_axis(picture, "y-tick", is_error=True)
    marks = {int(each.get("data-configuration", "")): each for each in classed(picture, "mark")}
    assert set(marks) == {mark.number for mark in found.shown}
    assert len(marks) >= 5
    for mark in found.shown:
        place = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", marks[mark.number].get("transform", ""))
        assert place is not None
        expected = [math.log(mark.seconds.median), math.log(1 - mark.accuracy.median)]
        pixels = [slope * value + offset for (slope, offset), value in zip((across, up), expected, strict=True)]
        assert [float(each) for each in place.groups()] == pytest.approx(pixels, abs=0.6)


def test_intervals_are_drawn_for_fresh_seeds_only(picture: ET.Element, found: AnswerMarks) -> None:
    confirmed = [mark for mark in found.shown if mark.num_seeds]
    assert len(classed(picture, "interval")) == len(confirmed) >= 3
    assert len(classed(picture, "hollow")) == len(found.shown) - len(confirmed)
    assert len(classed(picture, "ring")) == 1


def test_each_tuned_batch_and_each_configuration_of_the_front_has_its_label(
    picture: ET.Element, found: AnswerMarks
) -> None:
    labels = [(each.text or "").removeprefix("batch ") for each in classed(picture, "label")]
    chosen = [mark for mark in found.shown if mark.is_tuned or mark.is_front or mark.is_named]
    assert sorted(labels) == sorted(str(mark.batch) for mark in chosen)
    assert {mark.batch for mark in found.shown if mark.is_tuned} <= {int(label) for label in labels}


def test_a_tuned_accuracy_below_the_cut_has_its_value_beside_it(found: AnswerMarks) -> None:
    first, *rest = found.curve
    low = replace(first, accuracy=Interval(0.3812, 0.36, 0.40, 3))
    marks = replace(found, curve=(low, *rest))
    texts = [each.text for each in classed(ET.fromstring(draw_tuned_accuracies(marks, "finding")), "remark")]
    assert "▾ 38 %" in texts
    assert all(point.accuracy.median >= found.cut for point in rest) == (texts == ["▾ 38 %"])


def test_what_lies_below_is_counted_and_ticked(picture: ET.Element, found: AnswerMarks) -> None:
    assert found.below
    assert len(classed(picture, "below")) == len(found.below)
    (text,) = classed(picture, "count-below")
    assert (text.text or "").startswith(f"{len(found.below)} configuration")
    assert max(mark.accuracy.median for mark in found.below) < found.floor
    assert found.cut <= found.floor


def test_the_name_of_each_picture_begins_with_the_finding(evidence: Evidence) -> None:
    finding = describe_first(evidence).finding
    drawn = draw_first_pictures(evidence, finding)
    for text in (*drawn.tradeoff, *drawn.beside):
        root = ET.fromstring(text)
        assert root.get("aria-label", "").startswith(finding)
        assert (root[0].text or "").startswith(finding)
        assert "<script" not in text
        assert float(root.get("font-size", "")) >= 11


def test_text_of_the_records_does_not_become_markup() -> None:
    rows = [
        {"number": n, "config.model.name": "<script>x</script>", "global_batch_size": 2**n * 16, "val_accuracy": 0.9,
         "train_seconds": 1.0 + n}
        for n in range(3)
    ]  # fmt: skip
    drawn = draw_first_pictures(gather_evidence(frames_of(make_spec(), rows)), "")
    assert "&lt;script&gt;" in drawn.tradeoff[0]
    assert "<script" not in "".join((*drawn.tradeoff, *drawn.beside))


def contrast(color: str, ground: str) -> float:
    both = sorted((luminance(color), luminance(ground)))
    return (both[1] + 0.05) / (both[0] + 0.05)


def luminance(color: str) -> float:
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_color_of_a_mark_stands_out_in_both_themes() -> None:
    batches = [2.0**power for power in range(4, 14)]
    for batch in batches:
        for part in hue_of(batch, batches).split(";"):
            theme, color = part.removeprefix("--").split(":")
            assert contrast(color, GROUNDS[theme]) >= 3.0, (batch, theme, color)


def test_labels_of_near_marks_do_not_cover_each_other() -> None:
    labels = [Label("1024", 100.0 + 3 * n, 100.0 + 2 * n) for n in range(6)]
    boxes = place_labels(labels, Box(0.0, 0.0, 300.0, 300.0), [], 13.0)
    assert all(one.overlap(other) == 0 for n, one in enumerate(boxes) for other in boxes[:n])
    assert all(box.left >= 0 and box.top >= 0 for box in boxes)


@pytest.mark.parametrize(("low", "high"), [(0.9, 3.1), (2.0, 900.0), (0.1067, 0.1093), (0.003, 0.4)])
def test_an_axis_has_round_ticks_within_it(low: float, high: float) -> None:
    axis = make_axis([low, high], 0.0, 400.0)
    ticks = axis.ticks(30.0)
    places = [axis.place(value) for value in ticks]
    assert len(ticks) >= 3
    assert all(after - before >= 30 for before, after in pairwise(places))
    assert all(axis.low <= value <= axis.high for value in ticks)
    assert LogAxis(low=1.0, high=100.0, start=0.0, end=10.0).place(10.0) == pytest.approx(5.0)


def test_the_first_screen_stands_before_the_recommendations(evidence: Evidence, tmp_path: Path) -> None:
    from reports.writing import write_frames_report

    text = write_frames_report(evidence.frames, tmp_path / "report.html", formats=()).read_text(encoding="utf-8")
    head = text.partition('id="answer"')[0]
    assert head.count("<svg") == 4
    assert json.dumps(describe_first(evidence).headline).strip('"') in head


def test_one_trial_alone_has_axes_and_a_legend_of_what_is_drawn() -> None:
    alone = gather_evidence(make_frames(1))
    pictures = draw_first_pictures(alone, "")
    assert pictures is not None
    assert "Pareto front" not in pictures.caption  # a line of one place is not drawn
    assert "ideal" not in pictures.beside[1]
    axis = make_axis([183.0], 0.0, 400.0)
    assert axis.high / axis.low == pytest.approx(1.25)
    assert len(axis.ticks(40.0)) <= 10
    assert make_error_axis([0.9, 0.95], Box(0, 0, 9, 9)).high == 1.0  # no accuracy is below 0
    assert describe_first(alone).provenance[4].startswith("1 search trial completed with one seed;")


def test_a_label_keeps_off_the_line_of_the_useful_accuracy(evidence: Evidence) -> None:
    found = collect_marks(evidence)
    assert found is not None
    drawing = TradeOff(found, WIDE)
    height = drawing.up(found.floor)
    assert any(box.top < height < box.bottom and box.right - box.left > 400 for box in _list_obstacles(drawing))
