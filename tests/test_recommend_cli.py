"""``sweep recommend`` as a user meets it."""

import contextlib
import json
from pathlib import Path

import pytest
from records_factory import add_trials, make_spec, make_store

from sweep.cli.app import run_app
from sweep.cli.arguments import parse_bytes
from sweep.config.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Records in which accuracy, time and memory all grow with the number."""
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 7 + ["out_of_memory", "crashed", None])
    return tmp_path


def test_text(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", "s", "--root", str(root)]) == 0
    shown = capsys.readouterr()
    assert "accuracy: the highest validation accuracy\n  trial 6: micro batch 1024" in shown.out
    assert "from one seed, not confirmed" in shown.out
    assert "to increase confidence: sweep run s.toml --set confirm.max_configurations=" in shown.out
    command = f"run: sweep run s.toml --set name=s_distributed --set distributed.world_size=2 --root {root}"
    assert command in shown.out
    assert "Findings: " in shown.out
    assert shown.err == ""


def test_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", str(root / "s"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["uses"]) == ["accuracy", "speed", "memory", "balanced", "fine_tune", "distributed"]
    assert document["uses"]["accuracy"]["config"]["batch.micro"] == 1024
    assert document["uses"]["accuracy"]["train_seconds"]["median"] == 16.1
    assert len(document["findings"]) == 19
    assert document["facts"]["largest_micro_batch"]["value"] == 1024


def test_limits_and_uses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-memory", "3GiB", "--max-seconds", "1m", "--min-accuracy", "0.5"]
    assert run_app(["recommend", "s", "--root", str(root), "--use", "accuracy", "--json", *limits]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["uses"]) == ["accuracy"]
    # 1,000,000,007 bytes each: the fourth has more than 3 GiB
    assert document["uses"]["accuracy"]["number"] == 2
    assert document["limits"] == {"max_memory_bytes": 3 * 2**30, "max_seconds": 60.0, "min_accuracy": 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-memory", "lots"], "--max-memory lots: give a number of bytes"),
        (["--max-seconds", "soon"], "--max-seconds soon"),
        (["--min-accuracy", "93"], "accuracies are fractions; give 0.93 for 93 %"),
        (["--use", "fun"], "unknown use 'fun'"),
    ],
)
def test_mistakes_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_app(["recommend", "s", "--root", str(root), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err.replace("\n", " ")
    assert shown.out == ""


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", "nowhere", "--root", str(tmp_path)]) == 2
    assert "no such study folder" in capsys.readouterr().err


def test_an_empty_study_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "study.sqlite").close()
    assert run_app(["recommend", str(tmp_path)]) == 0
    assert "not enough data; run: sweep run s.toml --trials 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * 2**30), ("24 GB", 24e9), ("1.5MiB", 1.5 * 2**20), ("2000", 2000), ("8k", 8000)]
)
def test_sizes(text: str, size: float) -> None:
    assert parse_bytes(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1e9x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--max-memory"):
        parse_bytes(text, "--max-memory")
