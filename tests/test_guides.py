"""The tutorial and the how-to guides: every shell block runs as it is printed, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guide_blocks import GUIDES, PAGES, ROOT, list_commands, read_blocks
from PIL import Image
from postgres_server import Server, postgres

from sweep.analysis.recommendation import recommend
from sweep.cli.app import COMMANDS, load_command
from sweep.records.loading import load_frames

__all__ = ["postgres"]

# Replaced before a block runs: what is done already, and what would take minutes.
_REPLACED = {
    "make setup": ":", ". .venv/bin/activate": ":", "pip install": ": pip install", "trials = 12": "trials = 2",
    "budget.epochs = 5": "budget.epochs = 1\ndata.subset = 200",
    "--set confirm.share=1.6": "--set confirm.share=1.6 --timeout 5s",
}  # fmt: skip
_SMALL = (
    "--set data.subset=200 --set budget.epochs=1 --set confirm.seeds=3 --set confirm.max_configurations=1 --trials 2"
)
_DATABASE = "postgresql+psycopg://user@host/database"
# of tests of their own: tests/test_ray.py, test_slurm.py, test_ask.py, test_script_frameworks.py
_NOT_RUN = {"cluster.md", "ask.md", "plain-pytorch.md"}


def _prepare(folder: Path) -> dict[str, str]:
    """Environment variables with which a shell in ``folder`` finds `sweep` and `python` of this test."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, words in (("sweep", "-m sweep.cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    return os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def run_guide(name: str, folder: Path, replaced: dict[str, str] | None = None) -> str:
    """Writes the files that the page shows and runs its shell blocks, in order, in one shell: what they print."""
    page = next(page for page in GUIDES if page.name == name)
    environment, script = _prepare(folder), ["set -eu"]
    for block in read_blocks(page):
        text = block.text
        for printed, run in (_REPLACED | (replaced or {})).items():
            text = text.replace(printed, run)
        if block.title:
            (folder / block.title).write_text(text)
        elif block.language == "sh":
            script.append(text)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
    return done.stdout


def save_photos(folder: Path) -> None:
    """Two classes of 40 images each, of several sizes."""
    generator = np.random.default_rng(0)
    for number in range(80):
        side = 20 + number % 5
        pixels = generator.integers(0, 120, (side, side, 3), dtype=np.uint8)
        pixels[: side // 2] += 100 * (number % 2)
        path = folder / "photos" / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_have_the_options_that_pages_show(document: Path) -> None:
    for name, *words in list_commands(document):
        if name.startswith("--"):  # an option of `sweep` itself
            continue
        assert name in COMMANDS
        command: Any = load_command(name)
        given = command.make_context(name, list(words)).params  # raises for an unknown option or a missing argument
        assert given


def test_every_guide_with_commands_is_run_below() -> None:
    run = set(re.findall(r'run_guide\("([\w.-]+)"', Path(__file__).read_text(encoding="utf-8")))
    with_commands = {page.name for page in GUIDES if any(block.language == "sh" for block in read_blocks(page))}
    assert run | _NOT_RUN == with_commands


@pytest.mark.wide
@pytest.mark.timeout(1500)
def test_the_tutorial_leads_from_images_to_an_answer(tmp_path: Path) -> None:
    # without a budget the guide writes the study and does not run it, so that the test does not depend on the clock
    shorter = "s/^trials = .*/trials = 6/; s/^budget.epochs = .*/budget.epochs = 1/"
    ask = f"sweep ask --data photos --yes; sed -i '{shorter}' photos_batch.toml; sweep run photos_batch.toml"
    output = run_guide("tutorial.md", tmp_path, {"sweep ask --data photos --budget 5m --yes": ask})
    assert "1,300 training, 228 validation and 269 test images" in output
    frames = load_frames(tmp_path / "runs/photos_batch")
    assert frames.data is not None
    assert (frames.data.num_train, frames.data.num_val) == (1024, 504)  # the guide holds more out for validation
    assert (frames.trials["phase"] == "confirm").any()
    assert "effective batch size, 32" in output
    assert (tmp_path / "runs/photos_batch/answer.png").exists()
    assert (tmp_path / "weights.safetensors").stat().st_size > 100_000


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_study_of_ones_own_is_run_changed_and_compared(tmp_path: Path) -> None:
    output = run_guide("study.md", tmp_path, {"--trials 14": "--trials 3"})
    trials = load_frames(tmp_path / "runs/lr_for_batch").trials
    assert (trials["phase"] == "search").sum() == 3
    assert trials["config.data.subset"].tolist() == [200] * len(trials)
    assert set(load_frames(tmp_path / "runs/lr_at_64").trials["config.batch.micro"]) == {64}
    assert "lr_at_64" in output


@pytest.mark.wide
def test_own_data_is_counted_and_trained(tmp_path: Path) -> None:
    save_photos(tmp_path)
    output = run_guide("own-data.md", tmp_path, {"--set budget.epochs=5 --trials 4": _SMALL})
    assert "imagefolder in photos: 58 training, 10 validation and 12 test images" in output
    assert "scans in .: 433 training, 75 validation and 92 test images" in output
    assert set(load_frames(tmp_path / "runs/my_study").trials["outcome"]) == {"complete"}


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_model_of_ones_own_is_swept(tmp_path: Path) -> None:
    run_guide("own-model.md", tmp_path, {"sweep run my_study.toml": f"sweep run my_study.toml {_SMALL}"})
    trials = load_frames(tmp_path / "runs/my_study").trials
    assert set(trials["config.model.name"]) == {"perceptron"}
    assert set(trials["num_parameters"]) == {64 * 64 + 64 + 64 * 10 + 10}
    from_python = load_frames(tmp_path / "runs/from_python").trials
    assert from_python["config.model.name"].tolist() == ["perceptron"] * 2
    assert from_python["outcome"].tolist() == ["complete"] * 2


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_script_on_text_is_swept_and_answered_for_in_tokens(tmp_path: Path) -> None:
    small = "--trials 4 --set script.tokens=8000 --set confirm.max_configurations=1 --set confirm.seeds=3"
    output = run_guide("scripts.md", tmp_path, {"sweep run gpt_micro": f"sweep run gpt_micro --on cpu {small}"})
    assert re.search(r"step 293 of 293: [\d.]+ nats a byte on 1000 sequences", output)  # the script alone
    trials = load_frames(tmp_path / "runs/gpt_micro").trials
    assert trials["outcome"].tolist() == ["complete"] * 7
    assert (trials["tokens_per_second"] / trials["images_per_second"]).tolist() == pytest.approx([64] * 7)
    assert re.search(r"[\d,]+ tokens/s", (tmp_path / "runs/gpt_micro/report.html").read_text(encoding="utf-8"))


@pytest.mark.wide
def test_records_of_ones_own_loop_have_an_answer(tmp_path: Path) -> None:
    output = run_guide("own-loop.md", tmp_path)
    trials = load_frames(tmp_path / "runs/own_loop").trials
    assert trials["phase"].value_counts().to_dict() == {"confirm": 27, "search": 9}
    assert set(trials["config.model.name"]) == {"logistic"}
    assert "Use an effective batch size of" in output
    assert (tmp_path / "runs/own_loop/report.html").exists()


def test_records_from_elsewhere_have_an_answer(tmp_path: Path) -> None:
    output = run_guide("records-from-elsewhere.md", tmp_path)
    assert "These records are from elsewhere: CSV, lab.csv, 6 runs, SHA-256 " in output
    assert "Columns ignored: run, host." in output
    assert "Use an effective batch size of" in output
    assert "2 configurations in both" in output
    assert '"val_accuracy" = { column = "top1", unit = "?" }' in (tmp_path / "draft.toml").read_text()
    assert "These records are from elsewhere" in (tmp_path / "page/report.html").read_text()


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_figures_for_a_paper_are_written(tmp_path: Path) -> None:
    run_guide("paper-figures.md", tmp_path)
    assert (tmp_path / "figures/answer.pdf").read_bytes().startswith(b"%PDF")
    rows = (tmp_path / "records/trials.csv").read_text().splitlines()
    assert len(rows) == 1 + len(load_frames(tmp_path / "runs/paper").trials)


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_a_team_reads_what_one_of_it_ran(tmp_path: Path, postgres: Server) -> None:
    small = {"sweep run my_study.toml": f"sweep run my_study.toml {_SMALL}", _DATABASE: postgres.url}
    small["--trials 14"] = "--trials 3"
    output = run_guide("team-store.md", tmp_path, small)
    trials = load_frames(f"{postgres.url}#my_study").trials
    assert "complete    " in output
    assert trials["is_enqueued"].sum() == 1
    assert trials.loc[trials["is_enqueued"], "config.batch.micro"].tolist() == [64]
    assert (tmp_path / "shared_report/report.html").exists()
    assert (tmp_path / "records/trials.parquet").exists()


@pytest.mark.wide
def test_the_answer_of_the_demo_is_that_of_its_records() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 60
    frames = load_frames(ROOT / "docs/gallery/quickstart", evaluations=True)
    found = recommend(frames).batch_size
    assert found is not None
    (batch,) = re.findall(r"use an effective batch size of (\d+)", readme)
    assert int(batch) == found.named.global_batch_size
    use = next(each for each in found.statements if each.name == "use")
    (percent,) = re.findall(r"probability of this statement is (\d+) %", readme)
    assert int(percent) == pytest.approx(100 * use.probability, abs=3)  # draws differ between processors
