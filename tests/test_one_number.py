"""A configuration has one estimate: the same on the page, in the terminal, in the JSON document and in Python."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from cli_calls import INLINE

from reports.labels import format_estimate, format_value, metric_label
from reports.writing import write_report
from sweep.analysis import recommend
from sweep.analysis.answer import Answer, to_document
from sweep.analysis.statistics import Interval
from sweep.cli.app import run_app
from sweep.config.metrics import format_probability
from sweep.records.loading import load_frames

STUDY = """
name = "small"
question = "Which batch size is best?"
trials = 6
sampler = "grid"
confirm = { max_configurations = 2, seeds = 3, share = 10.0 }
[base]
data.name = "digits"
data.subset = 200
model.name = "vit_micro"
optimizer.name = "adamw"
budget.epochs = 2
[space]
"batch.global" = { choice = [32, 64, 128] }
"optimizer.lr" = { choice = [0.001, 0.003] }
"""
CURVE = {"accuracy": "val_accuracy", "seconds": "train_seconds", "memory_bytes": "peak_memory_bytes"}


class Page(HTMLParser):
    """The text of each row of the uses (by the number of its trial) and of each row of each table, in pieces."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cards: dict[int, list[str]] = {}
        self.rows: list[list[str]] = []
        self._pieces: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._pieces = [] if tag == "tr" else self._pieces
        trial = dict(attributes).get("data-trial")
        if tag == "button" and trial and self.get_starttag_text() and self._pieces:
            self.cards.setdefault(int(trial), []).extend(self._pieces)

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr":
            self.rows.append(self._pieces)

    def handle_data(self, data: str) -> None:
        self._pieces += [data.strip()] if data.strip() else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that really ran."""
    root = tmp_path_factory.mktemp("one_number")
    (root / "small.toml").write_text(STUDY)
    words = ["run", str(root / "small.toml"), "--root", str(root), *INLINE]
    assert run_app([*words, "--json"]) == 0
    return root / "small"


@pytest.fixture(scope="module")
def answer(folder: Path) -> Answer:
    return recommend(load_frames(folder, evaluations=True))


@pytest.fixture(scope="module")
def shown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    frames, path = load_frames(folder, evaluations=True), tmp_path_factory.mktemp("page") / "report.html"
    return Page(write_report(frames, path, formats=()).read_text(encoding="utf-8"))


def read_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_app(["recommend", str(folder), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def format_both(name: str, value: Interval | dict[str, float]) -> list[str]:
    """A value and its interval as they are printed."""
    parts = value.values() if isinstance(value, dict) else value
    return [text for text in format_estimate(name, *(float("nan") if part is None else part for part in parts)) if text]


def test_every_use_has_one_number_everywhere(
    folder: Path, answer: Answer, shown: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    document = read_document(folder, capsys)
    assert run_app(["recommend", str(folder)]) == 0
    printed = capsys.readouterr().out
    estimates = {item.number: item for item in answer.configurations}
    listed = {item["number"]: item for item in document["configurations"]}
    table = {int(row[0]): row for row in shown.rows if row[1:2] == ["Show"] and row[0].isdigit()}
    named = {use: item for use, item in answer.uses.items() if item.number is not None}
    assert len(named) >= 3
    for use, item in named.items():
        assert item.number is not None
        assert to_document(item.values) == to_document(estimates[item.number].values)  # no interval is null, not NaN
        assert {"val_accuracy", "train_seconds", "peak_memory_bytes"} <= set(item.values)
        for name, value in item.values.items():
            texts = format_both(name, value)
            assert (
                texts == format_both(name, document["uses"][use][name]) == format_both(name, listed[item.number][name])
            )
            card = shown.cards[item.number]
            assert card[card.index(texts[0]) :][: len(texts) + 1] == [*texts, f"n = {value.n}"]
            assert table[item.number][table[item.number].index(texts[0]) :][: len(texts)] == texts
            interval = f" ({texts[1]})" if texts[1:] else ""
            assert f"{metric_label(name)}: {texts[0]}{interval}, n = {value.n}" in printed
        assert format_probability(item.on_front) + " probability" in table[item.number]


def test_every_point_of_the_curve_has_one_number_everywhere(
    folder: Path, answer: Answer, shown: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    document = read_document(folder, capsys)
    assert answer.batch_size is not None
    estimates = {item.number: item for item in answer.configurations}
    both = [row for row in shown.rows if row[:1] == ["vit_micro"]]
    rows, costs = both[:3], both[3:]
    assert [point.batch for point in answer.batch_size.curve] == [32, 64, 128] == [int(row[1]) for row in rows]
    points = zip(answer.batch_size.curve, document["batch_size"]["curve"], rows, costs, strict=True)
    for point, entry, row, cells in points:
        assert cells[:3] == ["vit_micro", str(point.batch), f"trial {point.number}"]
        assert cells[3] == str(round(entry["num_steps"]["median"])) == str(2 * -(-200 // point.batch))
        assert cells[5] == "400"
        pace = [part for key, part in entry["images_per_second"].items() if key != "n"]
        assert pace == [part if math.isfinite(part) else None for part in point.images_per_second[:3]]
        assert format_value("images/second", pace[0]) in cells
        for field, name in CURVE.items():
            texts = format_both(name, getattr(point, field))
            assert texts == format_both(name, entry[field])
            shown_row = [text.partition("; ")[0] for text in row]  # behind it: why it is above what was measured
            assert shown_row[shown_row.index(texts[0]) :][: len(texts)] == texts
            assert to_document(getattr(point, field)) == to_document(estimates[point.number].values[name])
        assert format_probability(entry["p_without_loss"]) in row


@pytest.mark.parametrize(
    ("probability", "shown"),
    [
        (0.946, "94 %"), (0.9499, "94 %"), (0.95, "95 %"), (0.29, "29 %"), (0.989, "98 %"), (0.9999, "over 99 %"),
        (1.0, "over 99 %"), (0.009, "under 1 %"), (0.0, "under 1 %"),
    ],
)  # fmt: skip
def test_a_probability_below_the_confidence_reads_below_it(probability: float, shown: str) -> None:
    assert format_probability(probability) == shown
