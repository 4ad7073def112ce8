"""What the README shows, works."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from sweep.config.data_sections import DataSection
from sweep.config.study_file import build_study
from sweep.config.tables.datasets import DATASETS
from sweep.training.data.summaries import look_at_data
from sweep.training.plugins import load_plugin

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_study_loads() -> None:
    (text,) = blocks("toml")
    spec = build_study(tomllib.loads(text), "README")
    assert spec.config({"batch.micro": 1024}).data.name == "cifar10"


def test_the_python_example_runs_on_a_small_study(tmp_path: Path) -> None:
    example = next(block for block in blocks("python") if "run_study" in block)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    from studies import template

    study = template()
    for usual, fast in (
        ("trials = 12", "trials = 2"),
        ("budget.epochs = 5", "budget.epochs = 1\ndata.subset = 200"),
        ("log2 = [4, 8]", "log2 = [4, 5]"),
        ("max_configurations = 16", "max_configurations = 1"),
        ("confirm.seeds = 20", "confirm.seeds = 1"),
    ):
        assert usual in study
        study = study.replace(usual, fast)
    (tmp_path / "my_study.toml").write_text(study)
    short = example.replace("TrialConfig()", "TrialConfig.model_validate({'budget': {'steps': 3}})")
    assert short != example
    result = subprocess.run(
        [sys.executable, "-c", short], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "runs/my_study/report.html" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("complete ")


def test_the_plug_in_example_adds_a_model(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("python") if "MODELS[" in block)
    ast.parse(text)
    (tmp_path / "mine.py").write_text(text)
    from sweep.config.recipe_sections import ModelSection
    from sweep.config.tables.datasets import ImageShape
    from sweep.config.tables.models import MODELS
    from sweep.training.models.table import build_model

    load_plugin(str(tmp_path / "mine.py"))
    try:
        section = ModelSection(name="perceptron")
        model = build_model(section, ImageShape(channels=1, side=8, num_classes=10))
        assert sum(weight.numel() for weight in model.parameters()) == 64 * 64 + 64 + 64 * 10 + 10
    finally:
        del MODELS["perceptron"]


def test_the_plug_in_example_adds_a_data_set(tmp_path: Path) -> None:
    (text,) = (block for block in blocks("python") if "DATASETS[" in block)
    (tmp_path / "scans.py").write_text(text)
    pixels = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "scans.npz", pixels=pixels, labels=np.arange(200) % 10)
    load_plugin(str(tmp_path / "scans.py"))
    try:
        found = look_at_data(DataSection(name="scans", root=str(tmp_path)))
        assert found.counts() == "140 training, 30 validation and 30 test images"
    finally:
        del DATASETS["scans"]


@pytest.mark.parametrize("command", re.findall(r"^\| `sweep (\w+)", README, re.MULTILINE))
def test_the_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sweep.cli.app import run_app

    assert run_app([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_pictures_and_pages_that_it_names_exist() -> None:
    root = Path(__file__).parents[1]
    named = [*re.findall(r"\]\(([\w./]+)\)", README), *re.findall(r"`(docs/\w+\.md|CONTRIBUTING\.md)`", README)]
    assert named
    assert [name for name in named if not (root / name).exists()] == []
