"""``sweep cost`` and the forecast of ``sweep run`` as a user meets them, on real digits."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_calls import INLINE, TINY, call_sweep

from sweep import load_frames
from sweep.cli.app import run_app
from sweep.records.records import MEMORY_LABELS, MEMORY_PARTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("probe")
    (made / "tiny.toml").write_text(TINY)
    return made


@pytest.fixture(scope="module")
def probed(folder: Path) -> dict[str, Any]:
    """Every size that fits 1.3 MB, of a split of 60 images."""
    arguments = ("tiny.toml", "--set", "data.subset=60", "--set", "batch.micro=16", "--memory", "3MB", "--json")
    result = call_sweep("cost", "--measure", *arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_probe_finds_the_largest_that_fits_among_those_it_ran(folder: Path, probed: dict[str, Any]) -> None:
    tried = {row["micro_batch"]: row for row in probed["tried"]}
    fitting = [size for size, row in tried.items() if row["outcome"] == "complete"]
    assert probed["memory_limit_bytes"] == 3_000_000
    assert probed["is_limited_by_memory"] is True
    assert probed["largest_micro_batch"] == max(fitting)
    assert max(tried[size]["peak_memory_bytes"] for size in fitting) <= 3_000_000
    refused = [size for size, row in tried.items() if row["outcome"] == "not_fitting"]
    assert min(refused) - max(fitting) <= max(1, 0.05 * max(fitting))
    assert probed["knee_micro_batch"] in fitting
    frame = load_frames(folder / "runs/probes.sqlite").probes
    assert set(frame["micro_batch"]) == set(tried)


def test_probe_says_what_it_measured(probed: dict[str, Any]) -> None:
    probe = probed["probe"]
    assert (probe["micro_batch"], probe["outcome"]) == (16, "complete")
    assert probe["step_seconds_median"] > probe["update_seconds"] > 0
    assert probe["num_windows"] >= 3
    assert probe["data_images_per_second"] > probe["images_per_second"] > 0
    splits = {split["accumulation"]: split for split in probed["accumulation"]}
    assert sorted(splits) == [1, 2, 4, 8]
    assert {split["accumulation"] * split["micro_batch"] for split in splits.values()} == {
        probed["knee_micro_batch"] // 8 * 8
    }
    assert splits[8]["peak_memory_bytes"] < splits[1]["peak_memory_bytes"]
    assert all(split["global_batch_seconds"] > 0 for split in splits.values())
    fitting = sorted((row["micro_batch"], row) for row in probed["tried"] if row["outcome"] == "complete")
    (_, smallest), *_, (_, largest) = fitting
    assert all(row["steps_per_epoch"] == -(-60 // row["micro_batch"]) for row in probed["tried"])
    grown = largest["peak_memory_bytes"] - smallest["peak_memory_bytes"]
    assert probed["bytes_per_sample"] == grown / (largest["micro_batch"] - smallest["micro_batch"])
    assert probed["steps_per_epoch"] == 4  # of 16 of 60 images
    assert probed["peak_memory_bytes"] == sum(probed[f"{part}_bytes"] for part in MEMORY_PARTS)
    assert probed["peak_memory_bytes"] == pytest.approx(probe["peak_memory_bytes"], rel=0.3)


def test_one_shape_is_printed_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = ["cost", "--measure", "--one", "--set", "data.subset=60", "--set", "batch.micro=8"]
    one += ["--root", str(folder / "one")]
    assert run_app(one) == 0
    printed = capsys.readouterr().out
    for word in ("device", "median of", "data alone", "peak memory", "steps per epoch", "optimizer state"):
        assert word in printed
    assert run_app([*one, "--memory", "1kB"]) == 1
    assert "above the limit of 1000" in capsys.readouterr().out


def test_a_dry_run_says_the_cost_and_leaves_no_study(folder: Path) -> None:
    first = call_sweep("run", "tiny.toml", "--dry-run", "--json", "--root", "dry", *INLINE, cwd=folder)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    low, high = document["expected_total_seconds_low"], document["expected_total_seconds_high"]
    assert 0 < low < document["expected_total_seconds"] < high
    assert (document["num_trials"], document["num_confirm"], document["num_not_fitting"]) == (3, 1, 0)
    assert 0 < document["peak_memory_bytes_low"] <= document["peak_memory_bytes_high"] < document["memory_limit_bytes"]
    assert document["num_probes"] >= 1
    assert sorted(path.name for path in (folder / "dry").iterdir() if "-" not in path.name) == ["probes.sqlite"]


def test_a_study_tells_its_forecast_first_and_keeps_the_probes_it_used(folder: Path) -> None:
    result = call_sweep("run", "tiny.toml", "--root", "runs", *INLINE, cwd=folder)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    forecast = next(index for index, line in enumerate(lines) if line.startswith("forecast: "))
    assert lines[forecast].startswith("forecast: 3 trials, and up to about 1 to confirm: about")
    assert "all fit into" in lines[forecast + 1]
    assert not any(line.startswith("trial ") for line in lines[:forecast])
    assert set(load_frames(folder / "runs/tiny").probes["micro_batch"]) <= {16, 32, 64}
    finished = call_sweep("run", "tiny.toml", "--root", "runs", "--dry-run", "--json", cwd=folder)
    document = json.loads(finished.stdout)
    assert (document["num_trials"], document["num_confirm"], document["expected_total_seconds"]) == (0, 0, 0.0)


# ---------------------------------------------------------------------- the forecast without training

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
    assert run_app(["cost", "--json", "--on", "cpu", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_configuration_by_category(capsys: pytest.CaptureFixture[str]) -> None:
    found = documented(capsys, "--set", "optimizer.name=sgd")
    assert found["peak_memory_bytes"] == sum(found[f"{name}_bytes"] for name in MEMORY_PARTS)
    assert found["optimizer_bytes"] == 0
    assert found["space"] == []
    assert found["steps_per_epoch"] == 21  # of 64 of 1300 images
    half = documented(capsys, "--set", "optimizer.name=sgd", "--set", "batch.micro=32")
    grown = found["peak_memory_bytes"] - half["peak_memory_bytes"]
    assert found["bytes_per_sample"] == grown / 32 > 0
    single = documented(capsys, "--set", "batch.micro=1", "--set", "model.norm=group")
    assert (single["bytes_per_sample"], single["steps_per_epoch"]) == (None, 1300)


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
    assert run_app(["cost", str(path), "--on", "cuda"]) == 0
    shown = capsys.readouterr().out
    assert all(label in shown for label in MEMORY_LABELS.values())
    fixed = documented(capsys, str(path), "--set", "batch.micro=16")
    assert fixed["peak_memory_bytes"] == smallest["peak_memory_bytes"]
    assert all("batch.micro" not in each["config"] for each in fixed["space"])


@pytest.mark.parametrize(("arguments", "words"), [
    (["--on", "tpu"], "--on tpu"),
    (["--set", "precision.dtype=tf32", "--on", "cpu"], "tf32"),
    (["--set", "batch.micro=0"], "batch.micro"),
    (["--set", "data.name=imagefolder", "--set", "data.root=nowhere"], "data.root = 'nowhere'"),
    (["--memory", "8GiB"], "--memory requires --measure"),
    (["--measure", "--memory", "lots"], "--memory lots"),
    (["--measure", "--set", "distributed.world_size=2"], "a probe is of one rank"),
    (["--measure", "--on", "cuda:7"], "unknown device"),
    (["--measure", "no_such_study"], "unknown study"),
])  # fmt: skip
def test_what_cannot_be_told_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run_app(["cost", *arguments, "--root", str(tmp_path / "runs")]) == 2
    streams = capsys.readouterr()
    assert words in streams.err.replace("\n", " ")
    assert streams.out == ""
    assert "Traceback" not in streams.err
    assert not (tmp_path / "runs").exists()
