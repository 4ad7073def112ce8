"""The ranking of scaling rules against truths that are known, and on the recorded experiment."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rules import (
    COMBINATIONS,
    RECORDS,
    REFERENCE,
    Combination,
    Ranking,
    build_setting,
    collect_settings,
    rank_rules,
    scale_recipe,
)
from sweep.config.trial import TrialConfig, build_config
from sweep.records.loading import load_frames

pytestmark = pytest.mark.wide
ROOT = Path(__file__).resolve().parent.parent
BATCHES = (8, 32, 512, 2048)
BASE: dict[str, object] = {"optimizer.name": "adamw", "optimizer.lr": 0.004, "optimizer.weight_decay": 0.1}
Rows = list[tuple[TrialConfig, float]]


def follow_sqrt(config: TrialConfig) -> float:
    """The best rate is 0.004 at 128 images and follows the square root; each factor of 4 costs 3 points. Weight decay
    has no effect, half-life betas gain half a point for each factor of 4, and another beta1
    costs a point."""
    batch = config.global_batch_size
    recipe = scale_recipe(config, batch)
    best = 0.004 * math.sqrt(batch / REFERENCE)
    assert recipe.beta2 is not None
    missed = abs(math.log(math.log(recipe.beta2) / math.log(0.999) / (batch / REFERENCE), 4))
    return 0.95 - 0.03 * math.log(recipe.lr / best, 4) ** 2 - 0.005 * missed - 0.01 * (recipe.beta1 != 0.9)


def train(points: Sequence[dict[str, object]], truth: Callable[[TrialConfig], float], noise: float) -> Rows:
    rng = np.random.default_rng(0)
    configs = [build_config(BASE | point | {"seed": seed}, "test") for point in points for seed in range(3)]
    return [(config, truth(config) + noise * rng.standard_normal()) for config in configs]


def list_rates() -> list[dict[str, object]]:
    """Rates a factor of four apart at batches a factor of four apart, without a rule."""
    rates = (0.001, 0.004, 0.016)
    return [{"batch.micro": batch, "optimizer.lr": lr} for batch in (*BATCHES, REFERENCE) for lr in rates]


def rank(noise: float = 0.001) -> Ranking:
    base = build_config(BASE | {"rules.reference_batch": REFERENCE}, "test")
    rows = train(list_rates(), follow_sqrt, noise)
    rng = np.random.default_rng(1)
    for combination in COMBINATIONS:
        for batch in BATCHES:
            ruled = combination.apply(base)
            config = ruled.model_copy(update={"batch": ruled.batch.model_copy(update={"micro": batch})})
            for seed in range(3):
                trained = config.model_copy(update={"seed": seed})
                rows.append((trained, follow_sqrt(trained) + noise * rng.standard_normal()))
    return rank_rules((build_setting(rows),))


def test_the_rule_of_the_truth_is_the_best_and_regrets_are_those_of_the_truth() -> None:
    ranking = rank()
    assert (ranking.untrained, len(ranking.places)) == ((), 4)
    assert {(each.lr, each.betas) for each in ranking.rules[0].combinations} == {("sqrt", "half_life")}
    by_rule = {each: rule for rule in ranking.rules for each in rule.combinations}
    assert len(by_rule) == 60
    # the mean over 1/16, 1/4, 4 and 16 times the batch of what the truth takes away
    for lr, power in (("none", 0.0), ("power 0.25", 0.25), ("linear", 1.0)):
        rule = by_rule[Combination(lr, "none", "half_life")]
        expected = 0.03 * (power - 0.5) ** 2 * np.mean([4, 1, 1, 4])
        assert rule.regret == pytest.approx(expected, abs=0.002)
        assert rule.low < expected < rule.high
        assert rule.standing == "worse"
    # weight decay has no effect: these are not told apart
    level = [rule for rule in ranking.rules if rule.standing == "not told apart"]
    assert {(each.lr, each.betas) for rule in level for each in rule.combinations} == {("sqrt", "half_life")}


def test_the_recorded_experiment_ranks_as_its_page_says() -> None:
    ranking = rank_rules(collect_settings([load_frames(folder) for folder in RECORDS]))
    starts = [(start.setting.config.model.name, start.recipe.lr) for start in ranking.starts]
    assert starts == [("resnet8", 0.008), ("vit_micro", 0.004)]
    assert (sum(start.setting.num_trainings for start in ranking.starts), len(ranking.places)) == (1374, 8)
    counts = [sum(len(rule.combinations) for rule in ranking.rules if rule.standing == name)
              for name in ("best", "not told apart", "worse")]  # fmt: skip
    assert counts == [1, 27, 32]
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    by_rule = {each: rule for rule in ranking.rules for each in rule.combinations}
    for lr in ("none", "power 0.25", "sqrt", "power 0.75", "linear"):
        rule = by_rule[Combination(lr)]
        row = next(line for line in page.splitlines() if line.startswith(f"| {'as it is' if lr == 'none' else lr} |"))
        figures = [float(cell.split()[0]) for cell in row.split("|")[2:-1]]
        assert figures == pytest.approx([100 * rule.regret, *(100 * each for each in rule.regrets)], abs=0.011)
