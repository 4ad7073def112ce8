"""Findings of studies of two models, each of which has a best rate, a noise and a time of its own."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of, make_spec
from test_findings import MIB, found, ladder, row

from sweep.analysis.claims.findings import Finding, evaluate_claims
from sweep.analysis.claims.learning_rates import CLAIMS
from sweep.analysis.comparable_trials import select_comparable
from sweep.analysis.statistics.estimates import confidence_interval

# how far apart the best rates of two recipes are, as a logarithm
APART = 2.0
DECAYS = (1e-4, 1e-2)
RULE = next(claim for claim in CLAIMS if claim.name == "lr_rule_linear")
TEMPLATE = row(0)


def simulate_study(
    seed: int, power: float = 1.0, num_models: int = 2, num_decays: int = 1, noise: float = 0.01
) -> list[dict[str, Any]]:
    """A random search of 120 trials over batch and rate. The best rate grows with the batch by ``power``; that of the
    second model and of the second weight decay is e^2 times as large each. The second model does not fit beyond a batch
    of 256, and the second weight decay was tried at large batches more than at small ones."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(120):
        is_second = num_models > 1 and bool(rng.integers(2))
        batch = int(2 ** rng.integers(4, 9 if is_second else 11))
        is_strong = num_decays > 1 and bool(rng.random() < (0.2 if batch < 128 else 0.8))
        best = math.log(0.02) + power * math.log(batch / 128) + APART * is_second + APART * is_strong
        lr = rng.uniform(math.log(1e-4), math.log(10.0))
        accuracy = 0.93 - 0.006 * (lr - best) ** 2 + noise * rng.normal()
        keys = {
            "model.name": "vit_micro" if is_second else "resnet8",
            "batch.micro": batch,
            "optimizer.lr": math.exp(lr),
            "optimizer.weight_decay": DECAYS[is_strong],
        }
        rows.append(
            TEMPLATE
            | {f"config.{key}": value for key, value in keys.items()}
            | {"number": number, "global_batch_size": batch, "val_accuracy": float(accuracy)}
        )
    return rows


def measure_power(rows: list[dict[str, Any]]) -> tuple[float, float, float]:
    return confidence_interval(RULE.measure(select_comparable(frames_of(make_spec(), rows))).estimate)


def count_covered(seeds: range, power: float = 1.0, **kinds: int) -> tuple[int, int]:
    """Of simulated studies: those with an estimate, and those whose interval holds the true power."""
    intervals = [measure_power(simulate_study(seed, power, **kinds)) for seed in seeds]
    known = [each for each in intervals if math.isfinite(each[1])]
    return len(known), sum(low <= power <= high for _, low, high in known)


# Without the weight decay in the fit a quarter of the intervals holds the true power where decays differ
@pytest.mark.parametrize(
    "kinds", [{}, {"num_models": 1, "num_decays": 2}, {"num_decays": 2}], ids=["models", "decays", "both"]
)
def test_the_rule_of_the_rate_covers_the_truth_where_best_rates_differ(kinds: dict[str, int]) -> None:
    num_known, num_covered = count_covered(range(24), **kinds)
    assert num_known == 24
    assert num_covered >= 21


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.0])
@pytest.mark.parametrize(
    "kinds", [{}, {"num_models": 1, "num_decays": 2}, {"num_decays": 2}], ids=["models", "decays", "both"]
)
def test_the_rule_of_the_rate_covers_the_truth_in_many_studies(kinds: dict[str, int], power: float) -> None:
    num_known, num_covered = count_covered(range(400), power, **kinds)
    assert num_known >= 396
    assert num_covered >= 0.93 * num_known


def test_the_detail_names_what_is_held_equal() -> None:
    measured = RULE.measure(select_comparable(frames_of(make_spec(), simulate_study(0, num_decays=2))))
    assert "effective batch sizes, at equal weight decay; " in measured.detail


def test_a_rate_that_follows_the_batch_is_no_test_of_the_rule() -> None:
    # one written rate, scaled linearly, and a little scatter
    rng = np.random.default_rng(0)
    rows = [
        row(n, measured={"val_accuracy": 0.9 - 0.01 * rng.random()}, batch__micro=int(2 ** (4 + n % 6)),
            optimizer__lr=0.1 * (1 + 0.001 * n), rules__lr="linear")
        for n in range(48)
    ]  # fmt: skip
    item = found(rows, "lr_rule_linear")
    assert (item.verdict, math.isnan(item.effect)) == ("not tested", True)
    assert "the learning rate follows the effective batch size" in item.reason
    until = [each | {"config.budget.target_accuracy": 0.9} for each in simulate_study(0)]
    assert found(until, "lr_rule_linear").reason.startswith("no training of a fixed length")


def test_the_rule_of_the_rate_is_of_one_model_and_optimizer() -> None:
    alone = [each for each in simulate_study(0) if each["config.model.name"] == "resnet8"]
    assert RULE.measure(select_comparable(frames_of(make_spec(), alone))).detail.startswith("resnet8, momentum: ")
    others = [each | {"config.optimizer.name": "sgd", "number": 500 + each["number"]} for each in simulate_study(1)]
    assert measure_power(alone + others[:40]) == measure_power(alone)


def settle_sharpness(rows: list[dict[str, Any]], losses: list[float]) -> Finding:
    made = frames_of(make_spec(), rows)
    points = made.evaluations.assign(train_loss=np.repeat(losses, 10))
    frames = dataclasses.replace(made, evaluations=points)
    return next(item for item in evaluate_claims(frames) if item.name == "large_batches_sharp")


@pytest.mark.parametrize("driver", ["rate", "loss", "batch", "decay"])
def test_sharpness_is_compared_at_equal_rate_and_loss_and_settings(driver: str) -> None:
    # everything that drives sharpness grows with the batch, but one thing does so by itself
    rng, rows, losses = np.random.default_rng(5), [], []
    for number in range(40):
        batch = int(2 ** rng.integers(4, 10))
        drawn = {name: 0.7 * math.log(batch) + rng.normal() for name in ("rate", "loss", "decay")}
        power = 0.5 * math.log(batch) if driver == "batch" else drawn[driver]
        keys = {"optimizer__lr": math.exp(drawn["rate"] - 8), "optimizer__weight_decay": math.exp(drawn["decay"] - 12)}
        sharpness = math.exp(power + 0.1 * rng.normal())
        rows.append(row(number, measured={"sharpness_keskar": sharpness}, batch__micro=batch, **keys))
        losses.append(math.exp(drawn["loss"] - 5))
    item = settle_sharpness(rows, losses)
    assert item.effect == pytest.approx(0.5 if driver == "batch" else 0.0, abs=0.1)
    assert (item.verdict == "supported") == (driver == "batch")
    assert "40 configurations at equal learning rate and training loss, at equal weight decay" in item.detail


def test_where_the_rate_follows_the_batch_sharpness_is_not_tested() -> None:
    rng = np.random.default_rng(6)
    rows = [
        row(n, measured={"sharpness_keskar": 2.0 ** (n % 6), "noise_scale_run": 2.0 ** (n % 6), "num_noise_steps": 50},
            batch__micro=int(2 ** (4 + n % 6)), optimizer__lr=0.1 + 0.0001 * n, rules__lr="linear")
        for n in range(30)
    ]  # fmt: skip
    item = settle_sharpness(rows, rng.lognormal(size=30).tolist())
    assert (item.verdict, math.isnan(item.effect), item.n) == ("not tested", True, 0)
    assert "the learning rate follows the effective batch size" in item.reason
    noise = found(rows, "noise_scale_temperature")
    assert (noise.verdict, noise.reason) == ("not tested", item.reason)


def test_a_configuration_with_an_undefined_noise_scale_is_counted() -> None:
    rng, rows = np.random.default_rng(2), []
    for batch, lr in itertools.product([32, 64, 128, 256], [0.05, 0.1, 0.2]):
        value = math.nan if (batch, lr) == (32, 0.05) else batch / lr * rng.lognormal(0, 0.05)
        keys = {"batch__micro": batch, "optimizer__lr": lr, "diagnostics__noise_scale": True}
        steps = 9 if (batch, lr) == (64, 0.05) else 10
        rows.append(row(len(rows), measured={"noise_scale_run": value, "num_noise_steps": steps}, **keys))
    item = found(rows, "noise_scale_temperature")
    assert (item.n, item.verdict) == (10, "supported")
    other = "in 1 further configuration"
    missing = f"{other} the estimate of |G|^2 is not above 0; {other} fewer than 10 steps were measured"
    assert item.detail.endswith(missing)
    none = [each | {"noise_scale_run": math.nan, "num_noise_steps": 10} for each in rows]
    settle = found(none, "noise_scale_temperature").settle
    assert settle.endswith("--set diagnostics.noise_scale=true --set budget.steps=2000")
    reason = found(none, "noise_scale_temperature").reason
    assert reason.endswith("in 12 further configurations the estimate of |G|^2 is not above 0")


@pytest.mark.parametrize(
    ("claim", "metric", "power"),
    [("noise_scale_temperature", "noise_scale_run", 1.0), ("large_batches_sharp", "sharpness_keskar", 0.5)],
)
def test_noise_and_sharpness_are_of_one_model(claim: str, metric: str, power: float) -> None:
    # the second model, which ran with small batches alone, has a hundred times the values of the first
    rng, rows = np.random.default_rng(2), []
    for model, batch, lr in itertools.product(["resnet8", "vit_micro"], [32, 64, 128, 256], [0.05, 0.1, 0.2]):
        heat = batch / lr if metric == "noise_scale_run" else batch
        value = heat**power * float(rng.lognormal(0, 0.05)) * (100 if model == "vit_micro" else 1)
        if model == "resnet8" or batch <= 64:
            keys = {"batch__micro": batch, "optimizer__lr": lr, "model__name": model}
            rows.append(row(len(rows), 0, "search", {metric: value, "num_noise_steps": 99}, **keys))
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


def test_pairs_are_of_one_model() -> None:
    # a model with three settings, and another one of which checkpointing costs twice as much
    rows = []
    for model, micro, again in itertools.product(["resnet8", "vit_micro"], [16, 32, 64], [False, True]):
        if model == "resnet8" or micro > 16:
            factor = (1.3 if model == "resnet8" else 2.6) + 0.001 * micro if again else 1.0
            keys = {"batch__micro": micro, "precision__checkpointing": again, "model__name": model}
            rows.append(row(len(rows), measured={"train_seconds": 10 * factor}, **keys))
    item = found(rows, "checkpointing_time")
    assert (item.n, item.effect) == (3, pytest.approx(1.337, abs=0.01))
    assert item.detail.startswith("resnet8, momentum: 3 pairs")


def test_times_of_trainings_of_no_fixed_length_are_not_compared() -> None:
    rows = [
        row(n, measured={"train_seconds": 10.0 + n}, batch__micro=2 ** (4 + n // 2),
            precision__checkpointing=bool(n % 2), budget__target_accuracy=0.9)
        for n in range(8)
    ]  # fmt: skip
    assert found(rows, "checkpointing_time").verdict == "not tested"


def test_accuracies_are_compared_at_one_length_of_training() -> None:
    # long trainings with small batches alone reach more; those until a target all end with it
    long = [each for each in ladder(-0.03, start=100, budget__epochs=50) if each["global_batch_size"] <= 64]
    until = ladder(-0.05, start=200, budget__target_accuracy=0.99)
    alone = found(ladder(-0.01, budget__epochs=10), "small_batches_best")
    mixed = found([*ladder(-0.01, budget__epochs=10), *long, *until], "small_batches_best")
    assert alone.verdict == mixed.verdict == "contradicted"
    assert mixed.effect == pytest.approx(alone.effect, abs=5e-3)
    # of a batch with one rate nothing shows that the rate is the best there
    one = [each for each in ladder(-0.01) if each["config.optimizer.lr"] == 0.1]
    assert found(one, "small_batches_best").verdict == "not tested"


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
            measured = {"train_seconds": 100 / (lucky if count == 1 else 1.0), "peak_memory_bytes": 300 * MIB}
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
