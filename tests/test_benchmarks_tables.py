"""What benchmarks train on and replay: drawn images, recorded tables, simulated workers, studies of the forecast."""

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import datasets, forecast, search, tables
from benchmarks.forecast import StudyFigures
from benchmarks.harness import TABLES
from benchmarks.memory_forecast import Judged, judge, list_configurations, summarize
from benchmarks.replay import make_replay_study, read_table, replay_search
from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study_file import load_study
from sweep.records.loading import load_frames
from sweep.search import study_forecast
from sweep.search.study_forecast import SampleCosts

pytestmark = pytest.mark.wide
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
    spec = load_study(design)
    jobs = list(tables.list_jobs(spec, 3))
    assert [job.number for job in jobs] == list(range(12))
    assert [job.config.seed for job in jobs] == [3] * 4 + [4] * 4 + [5] * 4
    points = [(job.config.batch.micro, job.config.optimizer.lr) for job in jobs]
    assert set(points[:4]) == {(32, 0.01), (32, 0.1), (64, 0.01), (64, 0.1)}
    assert points[:4] == points[4:8] == points[8:]
    assert len({tables.shape_of(spec, job.config) for job in jobs}) == 2


@pytest.mark.slow
def test_a_table_is_recorded_in_pieces_timed_apart_and_replayed(
    design: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, root, to = load_study(design), tmp_path / "root", tmp_path / "tables"
    arguments = ["tables", str(design), "--root", str(root), "--to", str(to), "--seeds", "2"]
    assert command.main([*arguments, "--minutes", "0"]) == 1  # time for nothing
    assert tables.record(spec, root, 1, 1, time.monotonic() + 300) == (4, 4)
    assert tables.record(spec, root, 2, 1, time.monotonic() + 300) == (8, 8)  # goes on
    assert command.main([*arguments, "--export"]) == 2
    assert "measure the times first" in capsys.readouterr().err
    monkeypatch.setattr(tables, "NUM_REPEATS", 2)
    assert command.main([*arguments, "--times"]) == command.main([*arguments, "--export"]) == 0
    assert "8 of 8 trainings" in capsys.readouterr().out

    costs = tables.find_medians(json.loads((root / "small/times.json").read_text()))["batch.micro=32"]
    recorded, shipped = (
        load_frames(place, evaluations=True, correct_images=True) for place in (root / "small", to / "small")
    )
    assert list(shipped.trials["val_accuracy"]) == list(recorded.trials["val_accuracy"])
    assert recorded.correct_images is not None
    assert shipped.correct_images is not None
    assert list(shipped.correct_images["correct_images"]) == list(recorded.correct_images["correct_images"])
    # 96 images in whole steps of 32: six of them in two epochs
    whole = shipped.trials[shipped.trials["config.batch.micro"] == 32].iloc[0]
    outside = costs["before_seconds"] + 3 * costs["evaluation_seconds"] + costs["rest_seconds"]
    assert whole["train_seconds"] == pytest.approx(6 * costs["step_seconds"])
    assert whole["total_seconds"] == pytest.approx(whole["train_seconds"] + outside)
    about = json.loads((to / "small.json").read_text())
    assert (about["num_configurations"], about["num_trainings"], about["is_whole"]) == (4, 8, True)
    replayed = replay_search(read_table(to / "small"), make_replay_study(read_table(to / "small"), "r", trials=4))
    assert replayed.outcomes == {"complete": 4}


def test_a_changed_design_or_a_missing_archive_is_refused(
    design: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tables", str(design), "--root", str(tmp_path / "root"), "--minutes", "0"]
    assert command.main(arguments) == 1
    design.write_text(DESIGN.replace("budget.epochs = 2", "budget.epochs = 3"))
    assert command.main(arguments) == 2
    assert "another design" in capsys.readouterr().err
    monkeypatch.setattr(tables, "ARCHIVE", tmp_path / "absent.tar.xz")
    design.write_text(DESIGN.replace('"digits"', '"cifar10"'))
    assert command.main([*arguments, "--times"]) == 2
    assert "CIFAR10_ARCHIVE" in capsys.readouterr().err
    design.write_text(DESIGN.replace("{ choice = [0.01, 0.1] }", "{ log = [0.01, 0.1] }").replace('"grid"', '"tpe"'))
    with pytest.raises(InputError, match="requires a grid"):
        list(tables.list_jobs(load_study(design), 1))


@pytest.mark.parametrize("path", sorted(TABLES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_designs_are_grids_of_the_sizes_that_they_say(path: Path) -> None:
    spec = load_study(path)
    jobs = list(tables.list_jobs(spec, 1))
    assert (spec.name, len(jobs)) == (path.stem, spec.trials)
    assert len({job.config.global_batch_size for job in jobs}) >= 5
    assert (path in tables.DESIGNS) == (path.stem not in search.LOOKED_AT)


def test_no_classifier_is_better_than_what_the_designs_name() -> None:
    pixels, classes = datasets.draw_mixtures(4000, 5)
    assert 0.8 < (datasets.classify_mixtures(pixels) == classes).mean() < 0.99


@pytest.mark.parametrize("name", [name for name in datasets.MADE if not name.startswith("cifar10")])
def test_drawn_images_have_every_class_and_are_the_same_again(name: str) -> None:
    made = datasets.MADE[name].load(DataSection(name=name))
    assert set(made.train.labels.tolist()) == set(range(made.num_classes))
    again = datasets.MADE[name].load(DataSection(name=name))
    assert np.array_equal(again.train.pixels, made.train.pixels)
    means = [made.train.pixels[made.train.labels == label].mean(axis=0) for label in range(made.num_classes)]
    assert min(np.abs(one - other).max() for one, other in pairwise(means)) > 1.0


def test_tasks_of_the_guide_are_what_they_are_named_after(tmp_path: Path) -> None:
    noisy, clean = (datasets.load_digits_task(DataSection(), num_train=None, wrong_share=share) for share in (0.2, 0.0))
    assert 0.15 < np.mean(noisy.train.labels != clean.train.labels) < 0.25
    pixels, labels = datasets.draw_rings(50, 0, 20.0)
    brightness = [pixels[labels == radius].mean() for radius in range(5)]
    assert brightness == sorted(brightness)  # a larger ring has more of it
    datasets.write_rings(tmp_path / "rings")
    assert sorted(path.name for path in (tmp_path / "rings").iterdir()) == [f"radius{each}" for each in range(5)]


def test_the_calibration_finds_the_factor_and_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_forecast, "FACTOR", 1.0)
    monkeypatch.setattr(study_forecast, "WIDTH", 1.0)
    ten = np.full(4, 10.0)  # 20 trials of 10 seconds each, whose drawn totals have a deviation of 0.1
    costs = SampleCosts(search_seconds=ten, confirm_seconds=ten, num_trials=20, share_guessed=0.0, is_cap=False)
    work = {"num_trials": 20, "most_confirm": 0, "is_exact": True}
    lists = {name: np.asarray(value).tolist() for name, value in vars(costs).items()}
    known = {"expected_seconds": 200.0, "low_seconds": 170.0, "high_seconds": 240.0, "probing_seconds": 1.0}
    totals = 200.0 * 1.3 * np.exp(np.random.default_rng(0).normal(0, 0.25, 400))
    found = [
        StudyFigures(study="made", total_seconds=float(each), work=work, costs=lists, trials=[], **known)
        for each in totals
    ]
    assert forecast.calibrate(found) == (pytest.approx(1.3, rel=0.05), pytest.approx(2.5, rel=0.1))


def test_memory_is_judged_by_the_median_and_the_worst_error() -> None:
    assert len(list_configurations()) == 30
    one = judge(list_configurations()[0], torch.device("cpu"))
    assert abs(one.error) < 0.12
    line, is_met = summarize([one, Judged({}, 100, 120, 0)])
    assert (is_met, "worst_error=0.2000" in line) == (False, True)
