"""``sweep estimate`` as a user meets it."""

import json
from pathlib import Path
from typing import Any

import pytest

import sweep.probing.memory
from sweep.cli.app import run_app
from sweep.probing.memory import MemoryEstimate
from sweep.records.records import MEMORY_LABELS

CATEGORIES = ("parameter", "gradient", "optimizer", "activation", "temporary", "scratch")

STUDY = """
name = "sizes"

[base]
data.name = "digits"
optimizer.name = "sgd"

[space]
"batch.micro" = { choice = [16, 64] }
"batch.accumulation" = { choice = [1, 2] }
"optimizer.lr" = { log = [1e-3, 1.0] }
"""


def documented(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_app(["estimate", "--json", "--device", "cpu", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_configuration_by_category(capsys: pytest.CaptureFixture[str]) -> None:
    found = documented(capsys, "--set", "optimizer.name=sgd")
    assert found["peak_memory_bytes"] == sum(found[f"{name}_bytes"] for name in CATEGORIES)
    assert found["optimizer_bytes"] == 0
    assert found["unmeasured_operations"] == 0
    assert found["space"] == []
    assert found["steps_per_epoch"] == 21  # of 64 of 1300 images
    half = documented(capsys, "--set", "optimizer.name=sgd", "--set", "batch.micro=32")
    grown = found["peak_memory_bytes"] - half["peak_memory_bytes"]
    assert found["bytes_per_sample"] == grown / 32 > 0
    single = documented(capsys, "--set", "batch.micro=1", "--set", "model.norm=group")
    assert (single["bytes_per_sample"], single["steps_per_epoch"]) == (None, 1300)


def test_operations_that_could_not_be_measured_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MemoryEstimate(
        parameter_bytes=1, gradient_bytes=1, optimizer_bytes=1, activation_bytes=1, temporary_bytes=1, scratch_bytes=1,
        unmeasured_operations=3,
    )  # fmt: skip
    monkeypatch.setattr(sweep.probing.memory, "estimate_memory", lambda _config, **_options: made)
    assert documented(capsys)["unmeasured_operations"] == 3
    assert documented(capsys)["peak_memory_bytes"] == 6
    assert run_app(["estimate"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("unmeasured operations: 3; their scratch memory is not included.\n")
    assert "unmeasured_operations" not in shown


def test_a_study_has_its_base_its_micro_batches_and_its_ends(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sizes.toml"
    path.write_text(STUDY)
    found = documented(capsys, str(path))
    assert [(each["name"], each["config"]["batch.micro"]) for each in found["space"]] == [
        ("micro batch", 16),
        ("micro batch", 64),
        ("smallest corner", 16),
        ("largest corner", 64),
    ]
    smallest, largest = found["space"][2:]
    assert (smallest["config"]["batch.accumulation"], largest["config"]["batch.accumulation"]) == (1, 2)
    assert smallest["peak_memory_bytes"] < found["peak_memory_bytes"] < largest["peak_memory_bytes"]
    assert found["space"][1]["peak_memory_bytes"] == found["peak_memory_bytes"]  # 64 is the default
    assert [each["steps_per_epoch"] for each in found["space"]] == [82, 21, 82, 11]  # of 16, 64, 16, 2 x 64 of 1300
    fixed = documented(capsys, str(path), "--set", "batch.micro=16")
    assert fixed["peak_memory_bytes"] == smallest["peak_memory_bytes"]
    assert all("batch.micro" not in each["config"] for each in fixed["space"])


def test_the_table_names_categories_and_corners(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "sizes.toml"
    path.write_text(STUDY)
    assert run_app(["estimate", str(path), "--device", "cuda"]) == 0
    shown = capsys.readouterr().out
    assert all(label in shown for label in MEMORY_LABELS.values())
    # 64 images, two micro batches and one: an epoch of 1300 images has 21 steps
    assert "steps per epoch: 21; memory per sample of a micro batch: " in shown
    row = next(line for line in shown.splitlines() if "batch.micro=64 batch.accumulation=2" in line)
    assert row.split()[-3] == "11"  # steps per epoch, before the memory and its unit
    assert "MiB" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "--device tpu"),
        (["--set", "precision.dtype=tf32", "--device", "cpu"], "tf32"),
        (["--set", "batch.micro=0"], "batch.micro"),
        (["--set", "data.name=imagefolder", "--set", "data.root=nowhere"], "data.root = 'nowhere'"),
        (["no_such_study"], "no_such_study"),
    ],
)
def test_mistakes_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run_app(["estimate", *arguments]) == 2
    streams = capsys.readouterr()
    assert words in streams.err
    assert streams.out == ""
    assert "Traceback" not in streams.err
