"""What a notebook shows of a study, records, an answer and figures, without a kernel."""

import re
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hostile import HOSTILE
from records_factory import add_seeds, add_trials, make_spec, make_store

from reports import collect_figures
from reports.texts import describe_batch_answer
from sweep import load_frames, load_study, recommend
from sweep.config.errors import InputError
from sweep.config.study_file import build_study

TAGS = {"div", "p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td", "small", "ul", "li", "em", "code"}


class _Tags(HTMLParser):
    """The names and attributes of the tags of a text, and its plain text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.plain = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.plain += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("study")
    with closing(make_store(made / "study.sqlite", make_spec(question="Which batch?"))) as store:
        add_trials(store, ["complete", "complete", "diverged"])
        add_seeds(store, of=0, first=3)
        add_seeds(store, of=1, first=6)
    return made


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_is_escaped_and_without_color(text: str) -> None:
    spec = build_study({"name": "s", "question": text, "space": {"batch.micro": {"choice": [16, 32]}}}, "test")
    found = _Tags(spec._repr_html_())
    assert found.names <= TAGS
    assert found.attributes <= {("style", "text-align: left")}  # the theme of the notebook gives the colors
    assert " ".join(text.split()) in " ".join(found.plain.split())


def test_an_answer_has_the_texts_of_the_page(folder: Path) -> None:
    answer = recommend(folder)
    assert answer.batch_size is not None
    plain = " ".join(_Tags(answer._repr_html_()).plain.split())
    texts = describe_batch_answer(answer.batch_size)
    for text, certainty in texts.statements:
        assert text in plain
        assert certainty in plain
    for row in texts.rows:
        for value, note in row:
            assert value in plain
            assert note in plain


def test_records_name_each_frame_and_the_trials(folder: Path) -> None:
    frames = load_frames(folder)
    found = _Tags(frames._repr_html_())
    assert "9 rows" in found.plain
    assert "8 complete, 1 diverged" in found.plain
    assert "load_frames(..., evaluations=True)" in found.plain
    assert repr(frames) == "Frames(s: 9 trials)"


def test_figures_are_data_and_draw_themselves(folder: Path) -> None:
    figures = collect_figures(folder)
    assert figures["answer"]._repr_png_().startswith(b"\x89PNG")
    assert set(re.findall(r"<td[^>]*>([\w]+)</td>", figures._repr_html_())) >= set(figures)
    with pytest.raises(InputError, match="fronds"):
        figures["fronds"]
    assert ("fronts" in figures, "fronds" in figures, figures.get("fronds")) == (True, False, None)
    assert figures.get("fronts") is figures["fronts"]
    with pytest.raises(InputError, match="the evaluations were not loaded"):
        collect_figures(load_frames(folder))


def test_a_shipped_study_is_loaded_by_its_name() -> None:
    spec = load_study("quickstart", {"trials": 4})
    assert (spec.name, spec.trials) == ("quickstart", 4)
    with pytest.raises(InputError, match="quickstrat"):
        load_study("quickstrat")
