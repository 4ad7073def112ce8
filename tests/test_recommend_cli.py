"""``sweep recommend`` as a user meets it."""

import contextlib
import json
from pathlib import Path

import pytest
from records_factory import add_seeds, add_trials, make_spec, make_store

from sweep.analysis.claim_table import CLAIMS
from sweep.cli.app import run_app
from sweep.cli.arguments import parse_bytes
from sweep.config.errors import InputError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Records in which accuracy, time and memory all grow with the number; three fresh seeds of trials 2 and 6."""
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 7 + ["out_of_memory", "crashed", None])
        add_seeds(store, of=6, first=10, gaps=(-0.02, 0.0, 0.02))
        add_seeds(store, of=2, first=13)
    return tmp_path


def test_the_document_and_the_text_beside_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["recommend", str(root / "s"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["uses"]) == ["accuracy", "speed", "memory", "balanced", "fine_tune", "distributed"]
    assert document["uses"]["accuracy"]["config"]["batch.micro"] == 1024
    assert document["uses"]["accuracy"]["train_seconds"]["median"] == pytest.approx(16.1)
    assert document["uses"]["accuracy"]["train_seconds"]["n"] == 4  # of all trials of equal cost
    assert len(document["findings"]) == len(CLAIMS)
    assert document["facts"]["largest_micro_batch"]["value"] == 1024
    found = document["batch_size"]
    assert found["statements"][0]["text"].startswith("Use an effective batch size of 1024 (micro batch 1024, ")
    assert [point["batch"] for point in found["curve"]] == [16, 32, 64, 128, 256, 512, 1024]
    assert [point["num_seeds"] for point in found["curve"]] == [0, 0, 3, 0, 0, 0, 3]
    assert run_app(["recommend", "s", "--root", str(root)]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    first, curve = lines.index("Batch size"), lines.index("The configuration for each batch size")
    use = "accuracy: the highest validation accuracy, to within the tolerance"
    assert first < curve < lines.index(use)
    for line, statement in zip(lines[first + 1 :], found["statements"], strict=False):
        assert line.startswith(f"  {statement['text']}")
    for line, point in zip(lines[curve + 1 :], found["curve"], strict=False):
        assert line.startswith(f"  model resnet8, effective batch size {point['batch']} (trial {point['number']}), ")
        assert f", fresh seeds {point['num_seeds']}, " in line
        assert f"learning rate {point['learning_rate']:.3g}" in line
    assert f"{use}\n  trial 6: micro batch 1024" in shown.out
    assert "  3 trials with fresh seeds: 10, 11, 12.\n  Compared with all 7" in shown.out
    assert [line for line in lines if " step: " in line] == [f"  next step: {found['next_step']}"]
    assert "\n".join(lines[first:curve]).count("sweep run") == 1  # no statement has a command beside the next step
    command = f"to get it: sweep run s.toml --set name=s_distributed --set distributed.world_size=2 --root {root}"
    assert command in shown.out
    assert shown.err == ""


def test_limits_and_uses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-memory", "3GiB", "--max-seconds", "1m", "--min-accuracy", "0.5"]
    assert run_app(["recommend", "s", "--root", str(root), "--use", "accuracy", "--json", *limits]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["uses"]) == ["accuracy"]
    # 1,000,000,007 bytes each: the fourth has more than 3 GiB
    assert document["uses"]["accuracy"]["number"] == 2
    assert document["limits"] == {"max_memory_bytes": 3 * 2**30, "max_seconds": 60.0, "min_accuracy": 0.5}


@pytest.mark.parametrize(("arguments", "message"), [
    (["--max-memory", "lots"], "--max-memory lots: give a number of bytes"),
    (["--max-seconds", "soon"], "--max-seconds soon"),
    (["--min-accuracy", "93"], "accuracies are fractions; give 0.93 for 93 %"),
    (["--use", "fun"], "unknown use 'fun'"),
])  # fmt: skip
def test_mistakes_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_app(["recommend", "s", "--root", str(root), *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err.replace("\n", " ")
    assert shown.out == ""


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * 2**30), ("24 GB", 24e9), ("1.5MiB", 1.5 * 2**20), ("2000", 2000), ("8k", 8000)]
)
def test_sizes(text: str, size: float) -> None:
    assert parse_bytes(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1e9x"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--max-memory"):
        parse_bytes(text, "--max-memory")
