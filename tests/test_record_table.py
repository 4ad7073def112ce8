"""The recorder of tables: real trainings of a small grid, in pieces, with times measured apart."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import record_table, table_data, table_times
from benchmarks.record_table import main
from benchmarks.table_design import all_jobs
from benchmarks.table_times import read_times, shape_of, spreads
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.records.frames.frames import load_frames
from sweep.search.replay.recorded_table import make_replay_study, read_table
from sweep.search.replay.replay import replay_search

DESIGN = """
name = "small"
seed = 3
trials = 4
sampler = "grid"
confirm = { max_configurations = 0, seeds = 0 }
[base]
data.name = "digits"
data.subset = 96
budget.epochs = 2
[space]
"batch.micro" = { log2 = [5, 6] }
"optimizer.lr" = { choice = [0.01, 0.1] }
"""


@pytest.fixture
def design(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(DESIGN)
    return path


def test_all_points_are_trained_with_one_seed_before_any_with_the_next(design: Path) -> None:
    jobs = list(all_jobs(load_study(design), 3))
    assert [job.number for job in jobs] == list(range(12))
    assert [job.config.seed for job in jobs] == [3] * 4 + [4] * 4 + [5] * 4
    points = [(job.config.batch.micro, job.config.optimizer.lr) for job in jobs]
    assert set(points[:4]) == {(32, 0.01), (32, 0.1), (64, 0.01), (64, 0.1)}
    assert points[:4] == points[4:8] == points[8:]


@pytest.mark.slow
def test_a_table_is_recorded_in_pieces_timed_apart_and_replayed(
    design: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, root, to = load_study(design), tmp_path / "root", tmp_path / "tables"
    arguments = [str(design), "--root", str(root), "--to", str(to), "--seeds", "2"]
    assert main([*arguments, "--minutes", "0"]) == 1  # time for nothing
    assert record_table.record(spec, root, 1, 1, time.monotonic() + 300) == (4, 4)
    assert record_table.record(spec, root, 2, 1, time.monotonic() + 300) == (8, 8)  # goes on
    assert main([*arguments, "--export"]) == 2
    assert "measure the times first" in capsys.readouterr().err

    monkeypatch.setattr(table_times, "NUM_REPEATS", 2)
    assert main([*arguments, "--times"]) == 0
    assert main([*arguments, "--export"]) == 0
    assert "8 of 8 trainings" in capsys.readouterr().out

    times = read_times(root / "small" / "times.json")
    assert set(times) == {"batch.micro=32", "batch.micro=64"}
    assert 0 <= spreads(root / "small" / "times.json")["median"] < 10
    recorded, shipped = (load_frames(place, evaluations=True) for place in (root / "small", to / "small"))
    assert list(shipped.trials["val_accuracy"]) == list(recorded.trials["val_accuracy"])
    assert len(shipped.trials) == 8
    assert set(shipped.trials["seed"]) == {3, 4}
    # 96 images in whole steps of 32: six of them in two epochs
    whole = shipped.trials[shipped.trials["config.batch.micro"] == 32].iloc[0]
    costs = times["batch.micro=32"]
    assert whole["train_seconds"] == pytest.approx(6 * costs["step_seconds"])
    outside = costs["before_seconds"] + 3 * costs["evaluation_seconds"] + costs["rest_seconds"]
    assert whole["total_seconds"] == pytest.approx(whole["train_seconds"] + outside)
    assert shipped.evaluations is not None
    curve = shipped.evaluations[shipped.evaluations["number"] == whole["number"]]
    assert list(curve["train_seconds"]) == pytest.approx([3 * costs["step_seconds"], 6 * costs["step_seconds"]])

    about = json.loads((to / "small.json").read_text())
    assert (about["num_configurations"], about["num_trainings"], about["is_whole"]) == (4, 8, True)
    assert about["space"] == {"batch.micro": [32, 64], "optimizer.lr": [0.01, 0.1]}
    table = read_table(to / "small")
    search = replay_search(table, make_replay_study(table, "r", sampler="random", trials=4))
    assert search.outcomes == {"complete": 4}


def test_a_changed_design_does_not_mix_with_what_was_recorded(
    design: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(design), "--root", str(tmp_path / "root"), "--minutes", "0"]
    assert main(arguments) == 1
    design.write_text(DESIGN.replace("budget.epochs = 2", "budget.epochs = 3"))
    assert main(arguments) == 2
    assert "another design" in capsys.readouterr().err


def test_a_table_wants_a_grid(design: Path) -> None:
    design.write_text(DESIGN.replace("{ choice = [0.01, 0.1] }", "{ log = [0.01, 0.1] }").replace('"grid"', '"tpe"'))
    with pytest.raises(InputError, match="wants a grid"):
        list(all_jobs(load_study(design), 1))


def test_times_are_shared_by_what_has_the_same_shape(design: Path) -> None:
    spec = load_study(design)
    configs = [job.config for job in all_jobs(spec, 2)]
    assert len({shape_of(spec, config) for config in configs}) == 2


def test_without_the_archive_cifar_is_refused(
    design: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_data, "ARCHIVE", tmp_path / "absent.tar.xz")
    design.write_text(DESIGN.replace('"digits"', '"cifar10"'))
    assert main([str(design), "--root", str(tmp_path / "root"), "--times"]) == 2
    assert "not at" in capsys.readouterr().err


@pytest.mark.parametrize("path", record_table.DESIGNS)
def test_shipped_designs_are_grids_of_the_sizes_that_they_say(path: Path) -> None:
    spec = load_study(path)
    assert sum(1 for _ in all_jobs(spec, 1)) == spec.trials
    assert {"model.name", "batch.micro", "batch.accumulation", "optimizer.lr", "optimizer.weight_decay"} == set(
        spec.space
    )
