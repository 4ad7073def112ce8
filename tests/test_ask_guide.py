"""The benchmark of `sweep ask`: its tasks, and the arithmetic of its comparison with the oracle."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ask_guide, ask_regret, ask_runs, ask_tasks
from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.trial_config import TrialConfig

STUDY = """
name = "task"
timeout = "60s"
search_timeout = "40s"
trials = 5
[base]
model.name = "resnet8"
rules.lr = "auto"
budget.epochs = 2
[space]
batch.micro = { choice = [8, 32] }
optimizer.lr = { log = [0.001, 0.1] }
"""


def test_differences_are_paired_by_seed() -> None:
    values = {"guide": [0.5, 0.7, 0.9], "oracle_named": [0.52, 0.71, 0.93], "usual": [0.9, 0.9, 0.9]}
    found = ask_regret.compare_arms(values, "oracle_named", "guide")
    assert found is not None
    # of 0.02, 0.01 and 0.03: their standard deviation is 0.01, and the quantile of t with 2 degrees is 4.303
    assert (found.mean, found.high - found.mean, found.n) == pytest.approx((0.02, 4.303 * 0.01 / 3**0.5, 3), rel=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert ask_regret.compare_arms({"guide": [0.5, 0.6]}, "oracle_named", "guide") is None


def test_the_figures_over_all_tasks() -> None:
    def row(share: float, regret: float, gain: float) -> dict[str, object]:
        guide = [0.5, 0.51, 0.52]
        arms = {"oracle_named": regret, "oracle_most_accurate": 2 * regret, "usual": -gain, "guide_all_epochs": 0.1}
        arms |= {"usual_all_epochs": 0.1 + regret}
        test = {"guide": guide} | {arm: [each + change for each in guide] for arm, change in arms.items()}
        return {"share": share, "accuracies": {"test": test, "val": {}}}

    rows = {"a": row(1.05, 0.01, 0.1), "b": row(0.93, -0.02, 0.2), "c": row(1.3, 0.04, -0.1)}
    summary = ask_regret.summarize(rows)
    assert summary["within_budget"]["share"] == pytest.approx(2 / 3)
    assert summary["median_regret"] == pytest.approx({"oracle_named": 0.01, "oracle_most_accurate": 0.02})
    assert summary["better_than_usual"]["share"] == summary["better_for_certain"]["share"] == pytest.approx(2 / 3)
    assert summary["median_gain_of_all_epochs"] == pytest.approx(0.1)
    assert summary["better_with_all_epochs"]["share"] == pytest.approx(1 / 3)  # by more than 0 where regret is below 0
    alone = {"share": 1.0, "accuracies": {"test": {}, "val": {}}}  # no configuration was named
    assert ask_regret.summarize({"a": alone})["median_regret"] == {"oracle_named": None, "oracle_most_accurate": None}


def test_each_seed_is_trained_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, int]] = []

    def train(config: TrialConfig) -> tuple[float, float]:
        trained.append((config.seed, config.batch.micro))
        return config.seed / 1000, 0.0

    monkeypatch.setattr(ask_regret, "train_once", train)
    monkeypatch.setattr(ask_regret, "SEEDS", (201, 202))
    small, large = (TrialConfig.model_validate({"batch": {"micro": size}}) for size in (16, 32))
    found: ask_regret.Accuracies = {"test": {"guide": [0.9]}, "val": {"guide": [0.8]}}
    kept: list[int] = []
    arms = {"guide": small, "usual": large, "oracle_named": small}
    ask_regret.train_missing(arms, found, lambda: kept.append(len(trained)))
    assert found["test"] == {"guide": [0.9, 0.202], "usual": [0.201, 0.202], "oracle_named": [0.201, 0.202]}
    # of the first seed the guide's is known; of the second its equal is not trained again
    assert trained == [(201, 32), (201, 16), (202, 16), (202, 32)]
    assert kept == [2, 4]


def test_one_training_is_judged_on_test_images() -> None:
    base = {"data": {"name": "ask_digits_few"}, "model": {"name": "resnet8"}, "budget": {"steps": 2}}
    test, val = ask_regret.train_once(TrialConfig.model_validate(base))
    assert round(200 * test, 6) % 1 == round(500 * val, 6) % 1 == 0.0  # of 200 test and 500 validation images


def test_the_arms_differ_in_what_was_chosen(tmp_path: Path) -> None:
    ask_runs.find_file("task", tmp_path).write_text(STUDY)
    guide, best = {"batch.micro": 8, "optimizer.lr": 0.002}, {"batch.micro": 32, "optimizer.lr": 0.02}
    row = {"guide": {"points": {"named": guide}}, "oracle": {"points": {"named": guide, "most_accurate": best}}}
    configs = ask_runs.find_configs("task", tmp_path, row)
    assert configs["guide"] == configs["oracle_named"]
    assert {arm: (config.batch.micro, config.optimizer.lr) for arm, config in configs.items()} == {
        "guide": (8, 0.002), "usual": (128, 0.001), "oracle_named": (8, 0.002), "oracle_most_accurate": (32, 0.02),
        "guide_all_epochs": (8, 0.002), "usual_all_epochs": (128, 0.001),
    }  # fmt: skip
    assert (configs["usual"].rules.lr, configs["guide"].rules.lr) == ("none", "auto")
    epochs = {arm: config.budget.epochs for arm, config in configs.items()}
    assert set(epochs.values()) == {2, 30}
    assert [arm for arm, count in epochs.items() if count == 30] == ["guide_all_epochs", "usual_all_epochs"]
    assert ask_runs.find_configs("task", tmp_path, {"guide": {"points": {}}}) == {}


def test_a_task_that_is_done_is_read_and_another_budget_refused(tmp_path: Path) -> None:
    place = tmp_path / "ask_digits_few"
    place.mkdir()
    row = {"budget": "3m", "guide": {"points": {}}, "share": 1.0, "oracle": {}}
    (place / "result.json").write_text(json.dumps(row))
    ask_runs.find_file("ask_digits_few", place).write_text(STUDY)
    options = argparse.Namespace(root=tmp_path, budget="3m", oracle=True)
    assert ask_guide._run_task("ask_digits_few", options) == row | {"accuracies": {"test": {}, "val": {}}}
    options.budget = "5m"
    with pytest.raises(InputError, match="its budget was 3m, not 5m"):
        ask_guide._run_task("ask_digits_few", options)


def test_the_tasks_of_the_benchmark_are_what_they_are_named_after(tmp_path: Path) -> None:
    noisy, few = (
        ask_tasks.load_digits_task(DataSection(), **each)
        for each in ({"num_train": None, "wrong_share": 0.2}, {"num_train": 200, "wrong_share": 0.0})
    )
    clean = ask_tasks.load_digits_task(DataSection(), num_train=None, wrong_share=0.0)
    assert len(few.train.labels) == 200
    assert 0.15 < np.mean(noisy.train.labels != clean.train.labels) < 0.25
    assert np.array_equal(few.train.labels, clean.train.labels[:200])
    pixels, labels = ask_tasks.draw_rings(50, 0, 20.0)
    assert pixels.shape == (50, 12, 12, 1)
    brightness = [pixels[labels == radius].mean() for radius in range(5)]
    assert brightness == sorted(brightness)  # a larger ring has more of it
    ask_tasks.write_folder(tmp_path / "rings")
    assert sorted(path.name for path in (tmp_path / "rings").iterdir()) == [f"radius{each}" for each in range(5)]
