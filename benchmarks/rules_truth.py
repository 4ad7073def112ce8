"""``python -m benchmarks rules_truth``: how often the ranking of scaling rules is right where the truth is known.

Each made-up atlas has all 60 combinations at four batch sizes with three seeds, and rates without a rule. The best rate
follows a power of the batch, half-lives of the betas and of the weight decay have an effect or none, and the scatter
between seeds differs from batch to batch, from 0.3 to 2 points.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness import RESULTS as FOLDER
from benchmarks.harness import share_of
from benchmarks.rules import (
    COMBINATIONS,
    REFERENCE,
    Ranking,
    Recipe,
    TrainedSetting,
    rank_rules,
    scale_recipe,
    start_from,
)
from sweep.config.trial import TrialConfig, build_config
from sweep.measurement.device import describe_environment

BATCHES = (8, 32, 512, 2048)
_SEEDS = range(3)
_RATES = (0.001, 0.002, 0.004, 0.008, 0.016)
_BASE = {"optimizer.name": "adamw", "optimizer.lr": 0.004, "optimizer.weight_decay": 0.1}
_MATTERS = 0.01  # of accuracy: a rule that loses as much should be found to be worse
MOST_WRONG = 0.05


class Truth(NamedTuple):
    """The accuracy of a recipe: the power that the best rate follows, what a factor of 4 beside it costs, and a factor
    of 4 beside the best half-life of the second moment and the best timescale of weight decay."""

    power: float
    rate_cost: float
    betas_cost: float
    decay_cost: float

    def accuracy(self, recipe: Recipe, batch: int) -> float:
        """That of ``recipe`` at the effective batch size ``batch``, without scatter."""
        ratio = batch / REFERENCE
        assert recipe.beta2 is not None
        rate = math.log(recipe.lr / 0.004 / ratio**self.power, 4)
        betas = math.log(math.log(recipe.beta2) / math.log(0.999) / ratio, 4)
        decay = math.log(recipe.weight_decay * recipe.lr / (0.1 * 0.004) / ratio, 4)
        costs = (self.rate_cost * rate**2, self.betas_cost * betas**2, self.decay_cost * decay**2)
        return 0.95 - sum(costs)


class Judged(NamedTuple):
    """Of one atlas: whether a rule that is the best in truth counts as worse; of the rules, how many intervals hold the
    true regret; of those which lose a point or more, how many count as worse."""

    is_wrong: bool
    held: list[bool]
    found: list[bool]


def draw_truth(rng: np.random.Generator) -> Truth:
    """A truth by the ``rng``: every second one has no effect of the betas, every second none of the weight decay."""
    betas, decay = (float(rng.choice([0.0, 0.004])) for _ in range(2))
    return Truth(float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0])), float(rng.uniform(0.005, 0.04)), betas, decay)


def make_setting(truth: Truth, rng: np.random.Generator) -> TrainedSetting:
    """The trainings of one atlas."""
    base = build_config(_BASE, "truth")
    start = start_from(base, scale_recipe(base, 256), REFERENCE)
    accuracies = {}
    for batch in (*BATCHES, REFERENCE):
        spread = float(np.exp(rng.uniform(math.log(0.003), math.log(0.02))))
        recipes = {scale_recipe(each.apply(start), batch) for each in COMBINATIONS}
        recipes |= {scale_recipe(_set_rate(start, rate), batch) for rate in _RATES}
        accuracies[batch] = {
            recipe: {seed: truth.accuracy(recipe, batch) + spread * float(rng.standard_normal()) for seed in _SEEDS}
            for recipe in sorted(recipes)
        }
    return TrainedSetting(name="made", config=start, accuracies=accuracies)


def _set_rate(start: TrialConfig, rate: float) -> TrialConfig:
    return start.model_copy(update={"optimizer": start.optimizer.model_copy(update={"lr": rate})})


def judge_atlas(number: int) -> Judged:
    """One made-up atlas, by its number."""
    rng = np.random.default_rng([7, number])
    truth = draw_truth(rng)
    setting = make_setting(truth, rng)
    ranking = rank_rules((setting,))
    regrets = _list_true_regrets(truth, ranking)
    least = min(regrets)
    is_worse = [rule.standing == "worse" for rule in ranking.rules]
    return Judged(
        is_wrong=any(worse for regret, worse in zip(regrets, is_worse, strict=True) if regret < least + 1e-9),
        held=[rule.low <= regret <= rule.high for regret, rule in zip(regrets, ranking.rules, strict=True)],
        found=[worse for regret, worse in zip(regrets, is_worse, strict=True) if regret >= least + _MATTERS],
    )


def _list_true_regrets(truth: Truth, ranking: Ranking) -> list[float]:
    # against the best recipe of the atlas at each batch
    (start,) = ranking.starts
    regrets = []
    for rule in ranking.rules:
        losses = []
        for batch in BATCHES:
            best = max(truth.accuracy(recipe, batch) for recipe in start.setting.accuracies[batch])
            losses.append(best - truth.accuracy(start.scale(rule.combinations[0], batch), batch))
        regrets.append(float(np.mean(losses)))
    return regrets


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where at most 5 % of the atlases are wrong, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rules_truth", description=__doc__)
    parser.add_argument("--atlases", type=int, default=200, help="made-up truths (200)")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    judged = [judge_atlas(number) for number in range(options.atlases)]
    result = {
        "wrong": share_of([each.is_wrong for each in judged]),
        "intervals that hold the truth": share_of([held for each in judged for held in each.held]),
        "rules that lose a point found worse": share_of([found for each in judged for found in each.found]),
    }
    print(json.dumps(result, indent=1))
    if options.save:
        path = FOLDER / f"rules_truth-{datetime.now(UTC).date()}.json"
        result["environment"] = describe_environment(torch.device("cpu"))
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path}", file=sys.stderr)
    return 0 if np.mean([each.is_wrong for each in judged]) <= MOST_WRONG else 1


if __name__ == "__main__":
    sys.exit(main())
