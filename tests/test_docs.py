"""The pages under docs and the site: tables are the code's, examples run, links lead somewhere, the answers of the
gallery are those of its records. The shell blocks of tutorial and guides are in test_guides.py."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from frames_factory import make_frames
from guide_blocks import DOCS, PAGES, ROOT, read_blocks

import reports
import sweep
from reports.evidence import gather_evidence
from reports.figure import Absent
from reports.figures.marks import to_floats
from reports.labels import format_interval
from studies import template
from sweep.analysis.findings import evaluate_claims
from sweep.config.study_file import load_study
from sweep.config.tables import DATASETS, MODELS, ModelEntry
from sweep.config.trial import build_config
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.data.sources import look_at_data
from sweep.training.processes import load_plugin
from sweep.training.trial import run_trial


def examples(kind: str) -> Iterator[tuple[str, str]]:
    """File name ("" without one) and text of each example of that language."""
    for page in PAGES:
        for block in read_blocks(page):
            if block.language == kind:
                yield block.title, block.text


def example(name: str, folder: Path) -> Path:
    """The example called ``name`` as a file in ``folder``."""
    path = folder / name
    path.write_text(dict(examples("python"))[name])
    return path


def test_tables_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_study_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "logistic", ModelEntry(build=None))  # of docs/guides/own-loop.md
    names = set()
    for _, text in examples("toml"):
        if "[space]" in text or "\nspace." in text:
            path = tmp_path / "study.toml"
            path.write_text(text)
            names.add(load_study(path).name)
    of_scripts = {"script", "plain", "trainer", "lightning", "detector"}
    assert names == {"lr_for_batch", "own_loop", "width_of_batch"} | of_scripts


def test_the_python_page_describes_every_public_name() -> None:
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    public = {*(f"sweep.{name}" for name in sweep.__all__), *(f"reports.{name}" for name in reports.__all__)}
    assert set(re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == public


def test_the_example_of_an_answer_reads_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = next(text for _, text in examples("python") if "found.curve" in text)
    text = text.replace("runs/my_study", str(ROOT / "docs/gallery/quickstart"))
    exec(text, {name: getattr(sweep, name) for name in sweep.__all__})
    batch, accuracy, curve, statements = capsys.readouterr().out.splitlines()
    assert batch.startswith("256 ")
    assert 0.9 < float(accuracy) < 1.0
    assert curve.startswith("[(")
    assert "Use an effective batch size of 256" in statements


def test_the_python_example_runs_a_small_study(tmp_path: Path) -> None:
    study = template()
    for usual, fast in (
        ("trials = 12", "trials = 2"), ("budget.epochs = 5", "budget.epochs = 1\ndata.subset = 200"),
        ("log2 = [4, 8]", "log2 = [4, 5]"), ("max_configurations = 16", "max_configurations = 1"),
        ("confirm.seeds = 20", "confirm.seeds = 1"),
    ):  # fmt: skip
        assert usual in study
        study = study.replace(usual, fast)
    (tmp_path / "my_study.toml").write_text(study)
    script = example("run_and_read.py", tmp_path)
    command = [sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "global_batch_size" in result.stdout
    assert result.stdout.splitlines()[-1] == "runs/my_study/report.html"


def test_the_plug_in_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = str(example("mine.py", tmp_path))
    monkeypatch.setitem(MODELS, "perceptron", ModelEntry(build=None))  # forgotten afterwards
    load_plugin(plugin)
    values = {"model.name": "perceptron", "data.name": "digits", "budget.epochs": 5.0}
    *messages, ending = run_trial(TrialTask(number=0, config=build_config(values, "test"), device="cpu", plugin=plugin))
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert ending.measurements["num_parameters"] == 64 * 64 + 64 + 64 * 10 + 10
    assert ending.measurements["val_accuracy"] > 0.8
    assert sum(isinstance(message, Evaluation) for message in messages) == 5


def save_arrays(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "scans.npz", pixels=pixels, labels=np.arange(200) % 10)


def save_tensors(folder: Path) -> None:
    for name, count in (("train", 200), ("test", 40)):
        images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))
        torch.save({"x": images, "y": torch.arange(count) % 10}, folder / f"{name}.pt")


@pytest.mark.parametrize(("name", "data_set", "save", "counts"), [
    ("arrays.py", "scans", save_arrays, (140, 30, 30)),
    ("tensors.py", "cells", save_tensors, (180, 20, 40)),
    ("torchvision_set.py", "fake", None, (270, 30, 60)),
])  # fmt: skip
def test_the_data_sets_are_counted_and_train(
    tmp_path: Path, name: str, data_set: str, save: Callable[[Path], None] | None, counts: tuple[int, int, int]
) -> None:
    if save:
        save(tmp_path)
    plugin = str(example(name, tmp_path))
    load_plugin(plugin)
    try:
        config = build_config({"data.name": data_set, "data.root": str(tmp_path), "budget.steps": 2}, "test")
        found = look_at_data(config.data)
        assert (found.num_train, found.num_val, found.num_test) == counts
        assert found.digest
        *_, ending = run_trial(TrialTask(number=0, config=config, device="cpu", plugin=plugin))
        assert isinstance(ending, Ending)
        assert (ending.outcome, ending.error) == ("complete", "")
    finally:
        del DATASETS[data_set]


def test_the_figure_holds_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example("gap.py", tmp_path).parent)
    module = importlib.import_module("gap")
    evidence = gather_evidence(make_frames(20))
    (figure,) = module.make_gap(evidence)
    (points,) = figure.panels[0].layers
    assert points.y == to_floats(evidence.search["generalization_gap"])
    assert points.x == to_floats(evidence.search["global_batch_size"])
    assert points.trials == tuple(evidence.search["number"])  # by which filters and clicks find the marks
    assert len(points.texts) == len(points.x) > 10
    monkeypatch.setattr(reports.evidence, "MAX_DETAILED", 8)
    (figure,) = module.make_gap(gather_evidence(make_frames(20)))
    assert f" {len(figure.panels[0].layers[0].x)} of them are drawn." in figure.caption
    assert len(figure.panels[0].layers[0].x) < len(points.x)
    assert isinstance(module.make_gap(gather_evidence(make_frames(0))), Absent)


def test_examples_pass_the_linter() -> None:
    # what is added to the project passes all of its rules; other examples lie in folders of users
    for page in PAGES:
        of_project = page.name == "extend.md"
        for block in read_blocks(page):
            if block.language != "python" or not block.title:
                continue
            name = f"{'reports' if of_project else 'docs'}/{block.title}"
            for command in (["check", *([] if of_project else ["--select", "E,F,W"])], ["format", "--check"]):
                line = [sys.executable, "-m", "ruff", *command, "--stdin-filename", name, "-"]
                done = subprocess.run(line, input=block.text, cwd=ROOT, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{page.name}: {block.title}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8")):
        page, _, anchor = link.partition("#")
        target = document.parent / page if page else document
        assert target.exists(), link
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
        assert not anchor or anchor in anchors, link


def test_files_that_are_named_are_there() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:sweep|reports|studies|tests|docs)/[\w./]+\.\w+)`", text):
            assert (ROOT / name).exists(), name


def test_the_site_builds_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra [docs] is not installed: make docs")
    pytest.importorskip("mkdocstrings", reason="the extra [docs] is not installed: make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    expected = {name.replace("README.html", "index.html") for name in expected}
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    others = {"changelog.html", "contributing.html", "benchmark-notes.html", "notebook.html"}
    assert expected | others == found - {"404.html"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "claim"),
    [
        ("gpt_beta2", "beta2_follows_batch"),
        ("gpt_decay", "decay_follows_batch"),
        ("gpt_critical", "critical_batch_grows"),
    ],
)
def test_a_result_on_text_is_that_of_its_records(study: str, claim: str) -> None:
    lines = (DOCS / "explanation/text-results.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| `{claim}`"))
    frames = load_frames(ROOT / "benchmarks/tables" / study, evaluations=True)
    (found,) = (item for item in evaluate_claims(frames) if item.name == claim)
    assert f"| {found.verdict} |" in row
    assert found.reason or format_interval(found.unit, found.low, found.high, found.effect, 0) in row
    assert frames.spec is not None
    shipped = load_study(study)
    assert (frames.spec.base, frames.spec.space) == (shipped.base, shipped.space)
    assert list(frames.trials["outcome"]) == ["complete"] * shipped.trials


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DOCS / "gallery").glob("*.json")), ids=lambda path: path.stem)
def test_an_answer_of_the_gallery_is_that_of_its_records(path: Path) -> None:
    # in a process of its own: reading adds the names of plug-ins to the tables
    script = f"import json; from generators.gallery import answer; print(json.dumps(answer({path.stem!r})))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{DOCS}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    stored, found = json.loads(path.read_text(encoding="utf-8")), json.loads(done.stdout)
    for key in ("question", "trainings", "seeds", "device", "date"):
        assert found[key] == stored[key]
    assert len(found["statements"]) == len(stored["statements"])
    assert len(found["curve"]) == len(stored["curve"]) > 4
    for here, there in zip(found["curve"], stored["curve"], strict=True):
        assert here[:2] == there[:2]  # model and batch size
        # the last digits of a fit differ between processors
        assert here[2] == pytest.approx(there[2], abs=0.003)
        assert here[3] == pytest.approx(there[3], rel=0.02)
