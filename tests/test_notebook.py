"""What a notebook shows of a study, records, an answer and figures; the notebook of the documentation in a kernel."""

import html
import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import DOCS, ROOT
from hostile import HOSTILE
from records_factory import add_seeds, add_trials, make_spec, make_store

from reports import collect_figures
from reports.texts import describe_batch_answer
from sweep import load_frames, load_study, recommend
from sweep.config.errors import InputError
from sweep.config.study_file import build_study

TAGS = {"div", "p", "strong", "br", "table", "thead", "tbody", "tr", "th", "td", "small", "ul", "li", "em", "code"}
NOTEBOOK = DOCS / "notebook.ipynb"
Cell = dict[str, Any]


def read_words(markup: str) -> str:
    """What a reader sees of HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


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
    shown = spec._repr_html_()
    assert set(re.findall(r"</?(\w*)", shown)) <= TAGS
    assert set(re.findall(r"<\w+([^>]*)>", shown)) <= {"", ' style="text-align: left"'}  # the theme gives the colors
    assert " ".join(text.split()) in read_words(shown)


def test_an_answer_has_the_texts_of_the_page(folder: Path) -> None:
    answer = recommend(folder)
    assert answer.batch_size is not None
    plain = read_words(answer._repr_html_())
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
    found = read_words(frames._repr_html_())
    assert "9 rows" in found
    assert "8 complete, 1 diverged" in found
    assert "load_frames(..., evaluations=True)" in found
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


def read_cells(path: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def form_of(cell: Cell, kind: str) -> str:
    """That form of the last output of ``cell``, or ""."""
    outputs = [output["data"] for output in cell["outputs"] if kind in output.get("data", {})]
    return "".join(outputs[-1][kind]) if outputs else ""


def text_of(cell: Cell) -> str:
    """The HTML that ``cell`` shows, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", " ", form_of(cell, "text/html")))  # with its line ends


def cell_of(cells: list[Cell], last_line: str) -> Cell:
    (found,) = (cell for cell in cells if "".join(cell["source"]).splitlines()[-1] == last_line)
    return found


def test_the_committed_notebook_has_its_outputs() -> None:
    cells = read_cells(NOTEBOOK)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for name in ("study", "answer", "figures"):
        assert "<table>" in form_of(cell_of(cells, name), "text/html")
    assert form_of(cell_of(cells, 'figures["answer"]'), "image/png")
    assert "/tmp" not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel_and_shows_the_words_of_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="the extra [test] is not installed: make setup")
    pytest.importorskip("ipykernel", reason="the extra [test] is not installed: make setup")
    script = (
        "import sys, nbformat; from pathlib import Path; from generators.notebook import execute_notebook; "
        "nbformat.write(execute_notebook(Path(sys.argv[1])), Path(sys.argv[1]) / 'executed.ipynb')"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{DOCS}", "JUPYTER_PLATFORM_DIRS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells, frames = read_cells(tmp_path / "executed.ipynb"), load_frames(tmp_path / "runs/notebook", evaluations=True)
    assert frames.trials["outcome"].tolist() == ["complete"] * len(frames.trials)
    assert frames.trials["phase"].value_counts()["search"] == 6
    progress = cell_of(cells, "folder = run_study(study)")
    assert len(progress["outputs"]) == 1  # one, which was replaced again and again
    lines = text_of(progress).splitlines()
    for number in frames.trials["number"]:
        assert sum(bool(re.search(rf"^ *trial +{number} (search|confirm) +complete", line)) for line in lines) == 1
    answer = recommend(frames).batch_size
    assert answer is not None
    shown = " ".join(text_of(cell_of(cells, "answer")).split())
    assert all(" ".join(statement.text.split()) in shown for statement in answer.statements)
    assert f"{len(frames.trials)} complete" in text_of(cell_of(cells, "frames"))
    assert "6 trainings of 2 epochs" in text_of(cell_of(cells, "study"))
    assert "stderr" not in {output.get("name") for cell in cells for output in cell["outputs"]}
    assert form_of(cell_of(cells, 'figures["answer"]'), "image/png").startswith("iVBOR")
    assert (tmp_path / "runs/notebook/report.html").exists()
