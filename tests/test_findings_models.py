"""Findings of studies of two models, each of which has a best rate, a noise and a time of its own."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of, make_spec
from test_findings import MIB, found, ladder, row

from sweep.analysis.claims.learning_rates import CLAIMS
from sweep.analysis.comparable_trials import select_comparable
from sweep.analysis.statistics.estimates import confidence_interval

# how far apart the best rates of two recipes are, as a logarithm
APART = 2.0
RULE = next(claim for claim in CLAIMS if claim.name == "lr_rule_linear")
TEMPLATE = row(0)


def simulate_study(seed: int, power: float = 1.0, num_trials: int = 120, noise: float = 0.01) -> list[dict[str, Any]]:
    """A random search over batch, rate and model. The best rate grows with the batch by ``power``; that of the second
    model is e^2 times as large, and it does not fit beyond a batch of 256."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(num_trials):
        is_second = bool(rng.integers(2))
        batch = int(2 ** rng.integers(4, 9 if is_second else 11))
        best = math.log(0.02) + power * math.log(batch / 128) + APART * is_second
        lr = rng.uniform(math.log(1e-4), math.log(10.0))
        accuracy = 0.93 - 0.006 * (lr - best) ** 2 + noise * rng.normal()
        keys = {
            "model.name": "vit_micro" if is_second else "resnet8",
            "batch.micro": batch,
            "optimizer.lr": math.exp(lr),
        }
        rows.append(
            TEMPLATE
            | {f"config.{key}": value for key, value in keys.items()}
            | {"number": number, "global_batch_size": batch, "val_accuracy": float(accuracy)}
        )
    return rows


def measure_power(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    return confidence_interval(RULE.measure(select_comparable(frames_of(make_spec(), rows))).estimate)


def count_covered(seeds: range, power: float = 1.0) -> tuple[int, int]:
    """Of simulated studies: those with an estimate, and those whose interval holds the true power."""
    intervals = [measure_power(simulate_study(seed, power)) for seed in seeds]
    known = [each for each in intervals if math.isfinite(each[1])]
    return len(known), sum(low <= power <= high for _, low, high in known)


def test_the_rule_of_the_rate_covers_the_truth_where_models_differ() -> None:
    num_known, num_covered = count_covered(range(24))
    assert num_known == 24
    assert num_covered >= 21  # over 400 studies 95 % of the intervals hold the true power


def test_the_rule_of_the_rate_is_of_one_model_and_optimizer() -> None:
    alone = [each for each in simulate_study(0) if each["config.model.name"] == "resnet8"]
    assert RULE.measure(select_comparable(frames_of(make_spec(), alone))).detail.startswith("resnet8, momentum: ")
    others = [each | {"config.optimizer.name": "sgd", "number": 500 + each["number"]} for each in simulate_study(1)]
    assert measure_power(alone + others[:40]) == measure_power(alone)


@pytest.mark.parametrize(
    ("claim", "metric", "power"),
    [("noise_scale_temperature", "noise_scale", 1.0), ("large_batches_sharp", "sharpness_keskar", 0.5)],
)
def test_noise_and_sharpness_are_of_one_model(claim: str, metric: str, power: float) -> None:
    # the second model, which ran with small batches alone, has a hundred times the values of the first
    rng, rows = np.random.default_rng(2), []
    for model, batch, lr in itertools.product(["resnet8", "vit_micro"], [32, 64, 128, 256], [0.05, 0.1, 0.2]):
        heat = batch / lr if metric == "noise_scale" else batch
        value = heat**power * float(rng.lognormal(0, 0.05)) * (100 if model == "vit_micro" else 1)
        if model == "resnet8" or batch <= 64:
            keys = {"batch__micro": batch, "optimizer__lr": lr, "model__name": model}
            rows.append(row(len(rows), 0, "search", {metric: value}, **keys))
    item = found(rows, claim)
    assert item.effect == pytest.approx(power, abs=0.1)
    assert (item.n, item.verdict) == (12, "supported")
    assert item.detail.startswith("resnet8, momentum: 12 configurations")
    assert ("Dinh et al. 2017" in item.detail) == (metric == "sharpness_keskar")


def test_a_family_is_judged_by_one_of_its_models() -> None:
    # the better one of the second ViT, which ran with large batches alone, hides what the first loses
    rows = [*ladder(0.01), *ladder(0.004, "vit_micro", start=100)]
    alone = found(rows, "vit_less_sensitive")
    better = [each for each in ladder(-0.02, "vit_tiny", start=300) if each["global_batch_size"] >= 512]
    assert found(rows + better, "vit_less_sensitive").effect == pytest.approx(alone.effect, abs=5e-4)
    assert alone.effect == pytest.approx(0.006, abs=1e-3)


def test_a_last_doubling_is_of_one_model() -> None:
    # each size of a micro batch ran with another model, but for those of the first
    rows = []
    for model, micro, rate in (("resnet8", 64, 100.0), ("resnet8", 128, 101.0), ("vit_micro", 256, 900.0)):
        for seed in range(4):
            measured = {"images_per_second": rate + seed}
            rows.append(row(len(rows), seed, "confirm", measured, batch__micro=micro, model__name=model))
    item = found(rows, "larger_is_faster")
    assert item.effect == pytest.approx(1.01, abs=0.002)


def test_a_trial_that_is_in_several_pairs_counts_once() -> None:
    # one trial with a whole batch, unlucky in its time, against three that accumulate; and a second setting
    rows = []
    for lucky, dtype in ((1.3, "fp32"), (1.0, "fp64")):
        for count in (1, 2, 4, 8):
            measured = {"images_per_second": 1000 * (lucky if count == 1 else 1.0), "peak_memory_bytes": 300 * MIB}
            keys = {"batch__micro": 256 // count, "batch__accumulation": count, "precision__dtype": dtype}
            rows.append(row(len(rows), 0, "search", measured, **keys))
    time = found(rows, "accumulation_time")
    assert (time.n, time.effect) == (2, pytest.approx(math.sqrt(1.3)))
    assert found(rows, "accumulation_memory").n == 2


def test_settings_that_ran_with_many_seeds_count_once() -> None:
    rows = []
    for lr, gain, num_seeds in ((0.1, 0.0, 6), (0.2, 0.03, 1), (0.4, 0.03, 1)):
        for seed, warm in itertools.product(range(num_seeds), [0.0, 0.1]):
            keys = {"batch__micro": 2048, "schedule__warmup": warm, "optimizer__lr": lr}
            rows.append(row(len(rows), seed, "confirm", {"val_accuracy": 0.8 + gain * (warm > 0)}, **keys))
    item = found(rows, "warmup_needed")
    assert (item.n, item.effect) == (3, pytest.approx(0.02))
