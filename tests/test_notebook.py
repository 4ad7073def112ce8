"""The notebook of the documentation runs in a real kernel, and what it shows is what the page and the commands show."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import DOCS, ROOT

from sweep.analysis.recommendation import recommend
from sweep.cli.answer import describe_batch_sizes
from sweep.records.loading import load_frames

pytest.importorskip("nbclient", reason="the extra [test] is not installed: make setup")
pytest.importorskip("ipykernel", reason="the extra [test] is not installed: make setup")

NOTEBOOK = DOCS / "notebook.ipynb"
EXECUTE = """
import sys
from pathlib import Path
import nbformat
from generators.notebook import execute_notebook
nbformat.write(execute_notebook(Path(sys.argv[1])), Path(sys.argv[1]) / "executed.ipynb")
"""
Cell = dict[str, Any]


def read_cells(path: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def form_of(cell: Cell, kind: str) -> str:
    """That form of the last output of ``cell``, or ""."""
    outputs = [output["data"] for output in cell["outputs"] if kind in output.get("data", {})]
    return "".join(outputs[-1][kind]) if outputs else ""


def text_of(cell: Cell) -> str:
    """The HTML that ``cell`` shows, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", " ", form_of(cell, "text/html")))


def cell_of(cells: list[Cell], last_line: str) -> Cell:
    (found,) = (cell for cell in cells if "".join(cell["source"]).splitlines()[-1] == last_line)
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the notebook ran."""
    folder = tmp_path_factory.mktemp("notebook")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{DOCS}", "JUPYTER_PLATFORM_DIRS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_a_study_runs_from_a_kernel_and_shows_its_progress_once(executed: Path) -> None:
    trials = load_frames(executed / "runs/notebook").trials
    assert trials["outcome"].tolist() == ["complete"] * len(trials)
    assert (trials["phase"] == "search").sum() == 6
    assert (trials["phase"] == "confirm").sum() >= 3
    cell = cell_of(read_cells(executed / "executed.ipynb"), "folder = run_study(study)")
    assert len(cell["outputs"]) == 1  # one, which was replaced again and again
    lines = text_of(cell).splitlines()
    for number in trials["number"]:
        assert sum(bool(re.search(rf"^ *trial +{number} (search|confirm) +complete", line)) for line in lines) == 1
    assert f"{len(trials)}/" in text_of(cell)


@pytest.mark.slow
def test_a_notebook_shows_the_words_of_the_command_line(executed: Path) -> None:
    cells, frames = read_cells(executed / "executed.ipynb"), load_frames(executed / "runs/notebook", evaluations=True)
    shown = " ".join(text_of(cell_of(cells, "answer")).split())
    answer = recommend(frames)
    assert answer.batch_size is not None
    for statement in answer.batch_size.statements:
        assert " ".join(statement.text.split()) in shown
    assert len(list(describe_batch_sizes(answer.batch_size))) > 4
    records = text_of(cell_of(cells, "frames"))
    assert "Records of notebook" in records
    assert f"{len(frames.trials)} complete" in records
    study = text_of(cell_of(cells, "study"))
    assert '{ "choice" = [16, 64] }' in study
    assert "stderr" not in {output.get("name") for cell in cells for output in cell["outputs"]}
    assert "6 trainings of 2 epochs" in study


@pytest.mark.slow
def test_figures_are_drawn(executed: Path) -> None:
    cells = read_cells(executed / "executed.ipynb")
    assert form_of(cell_of(cells, 'figures["answer"]'), "image/png").startswith("iVBOR")
    assert "answer" in text_of(cell_of(cells, "figures")).split()
    assert (executed / "runs/notebook/report.html").exists()


def test_the_committed_notebook_has_its_outputs() -> None:
    cells = read_cells(NOTEBOOK)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for name in ("study", "frames", "answer", "figures"):
        assert "<table>" in form_of(cell_of(cells, name), "text/html")
    assert form_of(cell_of(cells, 'figures["answer"]'), "image/png")
    assert "/tmp" not in NOTEBOOK.read_text(encoding="utf-8")
