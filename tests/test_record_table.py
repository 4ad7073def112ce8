"""The recorder of tables: real trainings of a small grid, in pieces, with times measured apart."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import record_table, table_data, table_times
from benchmarks.made_images import NUM_VALIDATION, classify_best, draw_prototypes, draw_shapes
from benchmarks.made_tasks import (
    classify_mixtures,
    draw_blended,
    draw_dots,
    draw_gratings,
    draw_mixtures,
)
from benchmarks.record_table import main
from benchmarks.replay import make_replay_study, read_table, replay_search
from benchmarks.table_data import load_design
from benchmarks.table_design import LOOKED_AT, all_jobs
from benchmarks.table_times import read_times, shape_of, spreads
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.records.correct_images import decode_correct
from sweep.records.frames.frames import load_frames

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
    recorded, shipped = (
        load_frames(place, evaluations=True, correct_images=True) for place in (root / "small", to / "small")
    )
    assert recorded.correct_images is not None
    assert shipped.correct_images is not None
    whole_correct = list(shipped.correct_images["correct_images"])
    assert len(whole_correct) == 8
    assert whole_correct == list(recorded.correct_images["correct_images"])
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
    assert about["looked_at"] == "not before its recording"
    assert about["num_validation_images"] == len(decode_correct(whole_correct[0]))
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


def test_a_table_requires_a_grid(design: Path) -> None:
    design.write_text(DESIGN.replace("{ choice = [0.01, 0.1] }", "{ log = [0.01, 0.1] }").replace('"grid"', '"tpe"'))
    with pytest.raises(InputError, match="requires a grid"):
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


SHIPPED = sorted(record_table.FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_designs_are_grids_of_the_sizes_that_they_say(path: Path) -> None:
    spec = load_design(path)
    assert spec.name == path.stem
    jobs = list(all_jobs(spec, 1))
    assert len(jobs) == spec.trials
    assert len({job.config.global_batch_size for job in jobs}) >= 5
    assert len({job.config.optimizer.lr for job in jobs}) >= 5


def test_what_is_recorded_by_default_was_not_looked_at() -> None:
    designs = {path.stem for path in record_table.DESIGNS}
    assert designs == {path.stem for path in SHIPPED} - set(LOOKED_AT)
    for name in LOOKED_AT:
        about = json.loads((record_table.FOLDER / f"{name}.json").read_text())
        assert about["looked_at"].startswith("the search or the answer was changed while")


def test_a_made_data_set_is_trained_on_as_any_other(design: Path, tmp_path: Path) -> None:
    design.write_text(DESIGN.replace('"digits"', '"shapes"').replace("data.subset = 96", "data.subset = 64"))
    spec = load_design(design)
    root = tmp_path / "root"
    assert record_table.record(spec, root, 1, 1, time.monotonic() + 300) == (4, 4)
    frames = load_frames(root / "small", correct_images=True)
    assert frames.correct_images is not None
    assert {len(decode_correct(text)) for text in frames.correct_images["correct_images"]} == {NUM_VALIDATION}


def test_no_classifier_is_better_than_what_the_prototypes_design_names() -> None:
    shares = []
    for seed in range(2, 6):
        pixels, classes = draw_prototypes(50_000, seed)
        shares.append((classify_best(pixels) == classes).mean())
    assert sum(shares) / 4 == pytest.approx(0.942, abs=0.002)
    assert "94.2 %" in load_design(record_table.FOLDER / "prototypes.toml").question


def test_shapes_have_classes_that_differ_and_places_that_vary() -> None:
    pixels, classes = draw_shapes(1600, 0)
    assert pixels.shape == (1600, 12, 12, 1)
    assert list(np.bincount(classes)) == [200] * 8
    drawn = pixels[..., 0].astype(np.float64)
    across, along = (np.abs(np.diff(drawn, axis=axis)).mean(axis=(1, 2)) for axis in (1, 2))
    ratio = [np.median(across[classes == label] / along[classes == label]) for label in range(8)]
    assert ratio[0] > 1.2 > 1 / 1.2 > ratio[1]  # stripes across and along
    assert all(0.85 < each < 1.15 for each in ratio[2:])
    assert not np.array_equal(pixels, draw_shapes(1600, 1)[0])
    np.testing.assert_array_equal(pixels, draw_shapes(1600, 0)[0])


def test_no_classifier_is_better_than_what_the_mixtures_design_names() -> None:
    pixels, classes = draw_mixtures(50_000, 2)
    assert (classify_mixtures(pixels) == classes).mean() == pytest.approx(0.981, abs=0.002)
    assert "98.1 %" in (record_table.FOLDER / "mixtures.toml").read_text()


@pytest.mark.parametrize(("draw", "num_classes"), [(draw_gratings, 6), (draw_dots, 5), (draw_blended, 10)])
def test_drawn_tasks_repeat_and_differ_between_training_and_validation(draw: Any, num_classes: int) -> None:
    pixels, classes = draw(300, 0)
    assert set(classes.tolist()) == set(range(num_classes))
    np.testing.assert_array_equal(pixels, draw(300, 0)[0])
    other = {image.tobytes() for image in draw(300, 1)[0]}
    assert not other & {image.tobytes() for image in pixels}


def test_more_dots_are_brighter_and_gratings_vary_across_their_lines() -> None:
    pixels, classes = draw_dots(2000, 0)
    means = [pixels[classes == label].mean() for label in range(5)]
    assert means == sorted(means)
    steps = np.diff(means)
    assert (steps > 2).all()  # gray levels
    pixels, classes = draw_gratings(2000, 0)
    gray = pixels[..., 0].astype(np.float64)
    down, right = (np.abs(np.diff(gray[classes == 0], axis=axis)).mean() for axis in (1, 2))
    assert down > 1.1 * right  # orientation 0 varies from line to line
