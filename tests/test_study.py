"""Study files: the documented example loads as it stands, and mistakes are refused with their place."""

import re
from pathlib import Path
from typing import Any

import pytest

from sweep.config.errors import InputError
from sweep.config.study_file import CHANGEABLE, apply_changes, build_study, find_differences, load_study

EXAMPLE = """
name = "batch_size"
question = "How far does a larger global batch buy time before it costs accuracy?"
seed = 0
trials = 60                      # search trials that trained or were reused; not_fitting ones do not count
timeout = "1.5h"                 # of the study; optional
trial_timeout = "10m"            # of one trial; optional
objectives = ["val_accuracy", "train_seconds", "peak_memory_bytes"]
sampler = "tpe"
pruner = "none"
confirm = { max_configurations = 4, seeds = 3 }

[base]                           # any configuration key; the rest has defaults
data.name = "cifar10"
budget.epochs = 10

[space]
"model.name" = { choice = ["resnet20", "vit_micro"] }
"batch.micro" = { log2 = [5, 10] }                 # 32 ... 1024
"batch.accumulation" = { choice = [1, 2, 4] }
"optimizer.lr" = { log = [1e-3, 1.0] }
"optimizer.weight_decay" = { float = [0.0, 1e-3] }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_documented_example_loads(tmp_path: Path) -> None:
    spec = load_study(write(tmp_path, EXAMPLE))
    assert (spec.timeout, spec.trial_timeout, spec.trials) == (5400.0, 600.0, 60)
    config = spec.config({"batch.micro": 128, "batch.accumulation": 4})
    assert config.global_batch_size == 512
    assert (config.data.name, config.budget.epochs, config.seed) == ("cifar10", 10.0, 0)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("trials = 60", "trails = 60", r"study.toml: unknown key 'trails'. Did you mean 'trials'"),
    ("trials = 60", "trials = 0", r"trials: .*greater than or equal to 1 \(given: 0\)"),
    ('"1.5h"', '"2 weeks"', r"timeout: give a number of seconds or a duration"),
    ('"val_accuracy"', '"accuracy"', r"unknown objective 'accuracy'. Did you mean 'val_accuracy'\?"),
    ('"val_accuracy"', '"test_accuracy"', r"unknown objective 'test_accuracy'"),
    ('"tpe"', '"bayes"', r"sampler: .*'tpe'"),
    ('"tpe"', '"grid"', r"a grid cannot hold optimizer.lr, optimizer.weight_decay"),
    ("data.name", "data.nme", r"base: unknown key 'data.nme'. Did you mean 'data.name'"),
    ('"batch.micro" =', '"batch.mirco" =', r"unknown key 'batch.mirco'. Did you mean 'batch.micro'"),
    ("[5, 10]", "[10, 5]", r"space.batch.micro: log2 requires \[low, high\] with low < high"),
    ("[1e-3, 1.0]", "[1e-3, 1e9]", r"space.optimizer.lr: optimizer.lr: .*less than or equal to 10000"),
    ('"resnet20"', '"resnet21"', r"unknown model 'resnet21'. Did you mean 'resnet20'\?"),
    ("[base]", "[base]\nseed = 3", r"the seed is the study's own key"),
    ("[base]", "[base]\nbatch.global = 64", r"space.batch.accumulation: batch.global is set too"),
    ('"batch_size"', '"../batch"', r"name: use letters, digits, _ and -"),
    ("[space]", "[space", r"study.toml: not valid TOML"),
    ('["val_accuracy", "train_seconds", "peak_memory_bytes"]', '"val_accuracy"', r"objectives: give a list"),
    ("{ choice = [1, 2, 4] }", "4", r"space.batch.accumulation: give a table"),
    ("seeds = 3", "sedes = 3", r"unknown key 'confirm.sedes'. Did you mean 'confirm.seeds'"),
    ("{ log2 = [5, 10] }", "{ int = [1, 100000000000000] }", r"space.batch.micro: batch.micro: .*less than or equal"),
])  # fmt: skip
def test_mistakes_are_refused_with_place_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(InputError, match=message):
        load_study(write(tmp_path, EXAMPLE.replace(old, new, 1)))


def test_set_changes_the_study_the_base_and_fixes_what_was_swept(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLE)
    spec = load_study(path, {"trials": 5, "confirm.seeds": 1, "batch.micro": 64, "budget.steps": 9})
    assert (spec.trials, spec.confirm.seeds, spec.confirm.max_configurations) == (5, 1, 4)
    assert "batch.micro" not in spec.space
    config = spec.config({})
    assert (config.batch.micro, config.budget.steps, config.budget.epochs) == (64, 9, None)


def test_sections_are_set_key_by_key() -> None:
    table = {"name": "s", "confirm": {"seeds": 5}, "answer": {"tolerance": {"time": 0.1}}}
    changes = {"answer.tolerance.accuracy": 0.02, "answer.confidence": 0.9, "confirm.share": 2.0}
    spec = build_study(table, "test", changes)
    assert (spec.answer.tolerance.accuracy, spec.answer.tolerance.time, spec.answer.confidence) == (0.02, 0.1, 0.9)
    assert (spec.confirm.seeds, spec.confirm.share) == (5, 2.0)
    with pytest.raises(InputError, match=r"answer\.tolerance\.acuracy"):
        build_study(table, "test", {"answer.tolerance.acuracy": 0.02})


def test_setting_the_global_batch_fixes_accumulation_too() -> None:
    table = {"name": "a", "space": {"batch.accumulation": {"choice": [1, 2]}}}
    assert apply_changes(table, {"batch.global": 96})["space"] == {}


def test_differences_name_what_the_records_depend_on(tmp_path: Path) -> None:
    old = load_study(write(tmp_path, EXAMPLE))
    same = load_study(write(tmp_path, EXAMPLE), {"trials": 7, "timeout": 5, "confirm.seeds": 9, "question": "?"})
    assert find_differences(old, same) == []
    new = load_study(write(tmp_path, EXAMPLE), {"budget.epochs": 3, "sampler": "qmc"})
    assert find_differences(old, new) == ["sampler: tpe -> qmc", "base.budget.epochs: 10 -> 3"]
    assert {"trials", "timeout", "trial_timeout", "confirm"} <= CHANGEABLE


@pytest.mark.parametrize(("tables", "largest"), [
    ({}, 1),
    ({"base": {"distributed": {"world_size": 4}}}, 4),
    ({"space": {"distributed.world_size": {"choice": [2, 8, 1]}}}, 8),
    ({"space": {"distributed.world_size": {"log2": [0, 3]}}}, 8),
])  # fmt: skip
def test_the_most_ranks_of_a_study(tables: dict[str, object], largest: int) -> None:
    assert build_study({"name": "ranks", **tables}, "test").largest_world_size == largest


def test_a_swept_value_is_recorded_as_it_is_written() -> None:
    swept = build_study(
        {"name": "s", "base": {"schedule.warmup_unit": "steps"}, "space": {"schedule.warmup": {"choice": [100, 200]}}},
        "here",
    )
    assert swept.config({"schedule.warmup": 200}).schedule.warmup == 200.0


SPACE = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"log": [1e-3, 1.0]}}


@pytest.mark.parametrize(("tables", "changes", "message"), [
    ({}, {"trials.x": 1}, "trials is one value of the study"),
    ({}, {"space.batch.micro": 3}, "fixes a swept key"),
    ({"space": {"schedule.warmup": {"choice": ["100 steps", "1 epoch"]}}}, {},
     "space.schedule.warmup: '100 steps' is recorded as 100.0 and a unit"),
    *(({"space": {key: {"choice": choices}}}, {}, f"{key} cannot be swept, because results on different images")
      for key, choices in (("data.name", ["digits", "synthetic"]), ("data.on_bad_image", ["refuse", "skip"]),
                           ("data.validation_share", [0.1, 0.3]))),
    *(({"space": SPACE, "first": [point]}, {}, f"first: point 1: {complaint}") for point, complaint in (
        ({"batch.micro": 48, "optimizer.lr": 0.1}, "batch.micro = 48 is outside its range"),
        ({"batch.micro": 64, "optimizer.lr": 2.0}, "optimizer.lr = 2.0 is outside its range"),
        ({"batch.micro": 64}, "it has no optimizer.lr"),
        ({"batch.micro": 64, "optimizer.lr": 0.1, "model.name": "resnet8"}, "model.name does not vary"),
    )),
])  # fmt: skip
def test_what_makes_no_study_is_refused(tables: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        build_study({"name": "s", **tables}, "here", changes)


def test_a_fixed_key_leaves_the_points_that_are_tried_first() -> None:
    points = [{"batch.micro": 16, "optimizer.lr": 0.1}, {"batch.micro": 32, "optimizer.lr": 0.1}]
    space = {"batch.micro": {"choice": [16, 32]}, "optimizer.lr": {"log": [0.01, 1.0]}}
    table = {"name": "s", "first": points, "space": space}
    assert build_study(table, "s.toml").first == tuple(points)
    assert build_study(table, "s.toml", {"batch.micro": 256}).first == ({"optimizer.lr": 0.1},)
