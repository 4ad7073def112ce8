"""What is commonly said about batch sizes, tested on records whose truth is known."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of, make_frames, make_spec
from scipy import stats

from sweep.analysis.claims.findings import Finding, evaluate_claims, findings_document
from sweep.analysis.rate_powers import fit_rate_power
from sweep.analysis.statistics.estimates import (
    Estimate,
    Region,
    assess_region,
    confidence_interval,
    correct_holm,
    mean_estimate,
    slope_estimate,
)
from sweep.config.command_lines import StudyOrigin, find_study_commands
from sweep.config.trial_config import build_config, flatten_config

MIB = 2.0**20


def row(
    number: int, seed: int = 0, phase: str = "search", measured: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """A complete trial of a real configuration; ``batch__micro`` stands for ``batch.micro``."""
    values = {key.replace("__", "."): value for key, value in keys.items()}
    config = build_config(values | {"seed": seed}, "test")
    named = {f"config.{key}": value for key, value in flatten_config(config).items()}
    base = {"number": number, "seed": seed, "phase": phase, "global_batch_size": config.global_batch_size}
    return named | base | {"val_accuracy": 0.9, "train_seconds": 10.0} | (measured or {})


def found(rows: list[dict[str, Any]], name: str) -> Finding:
    return next(item for item in evaluate_claims(frames_of(make_spec(), rows)) if item.name == name)


# ------------------------------------------------------------------ the learning rate


def surface(power: float, optimizer: str, noise: float = 0.002, **keys: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    rows = []
    for number, (batch, step) in enumerate(itertools.product([32, 64, 128, 256, 512], np.linspace(-1.2, 1.2, 9))):
        best = 0.05 * (batch / 128) ** power
        accuracy = 0.93 - 0.03 * step**2 + noise * rng.normal()
        lr = float(best * 10**step)
        measured = {"val_accuracy": float(accuracy)}
        rows.append(
            row(number, 0, "search", measured, batch__micro=batch, optimizer__lr=lr, optimizer__name=optimizer, **keys)
        )
    return rows


@pytest.mark.parametrize(
    ("power", "optimizer", "name", "verdict"),
    [
        (1.0, "momentum", "lr_rule_linear", "supported"),
        (0.0, "momentum", "lr_rule_linear", "contradicted"),
        (0.5, "adamw", "lr_rule_sqrt", "supported"),
        (1.0, "adamw", "lr_rule_sqrt", "contradicted"),
    ],
)
def test_how_the_best_rate_follows_the_batch(power: float, optimizer: str, name: str, verdict: str) -> None:
    item = found(surface(power, optimizer), name)
    assert item.effect == pytest.approx(power, abs=0.1)
    assert item.low < power < item.high
    assert item.verdict == verdict
    other = "lr_rule_sqrt" if name == "lr_rule_linear" else "lr_rule_linear"
    assert found(surface(power, optimizer), other).n == 0


def test_a_scaling_rule_counts_into_the_rate() -> None:
    # rates that are written down for the reference batch and scaled linearly: at one best written rate the power is 1
    rows = surface(0.0, "momentum", rules__lr="linear")
    assert found(rows, "lr_rule_linear").effect == pytest.approx(1.0, abs=0.1)
    rows = surface(0.0, "momentum", rules__lr=0.6)
    assert found(rows, "lr_rule_linear").effect == pytest.approx(0.6, abs=0.1)


def test_the_plan_of_a_claim_is_on_the_images_of_the_records() -> None:
    plan = "sweep claims muon_ahead --plan --data"
    run = "&& sweep run claim_muon_ahead.toml"
    assert found([row(0)], "muon_ahead").settle == f"{plan} digits {run}"
    own = found([row(0, data__name="imagefolder", data__root="my images")], "muon_ahead")
    assert own.settle == f"{plan} imagefolder --set 'data.root=my images' {run}"


def test_tuned_values_count_after_their_rules() -> None:
    def rows(name: str, given: str, rule: str, scaled: bool) -> list[dict[str, Any]]:
        made = []
        for each in surface(0.0, "adamw", optimizer__weight_decay=0.1):
            batch, value = each["global_batch_size"], each["config.optimizer.lr"]
            given_value, ruled = (value, value * batch / 256) if given == "weight_decay" else (1 - value / 20, np.nan)
            if given == "beta2":
                ruled = given_value ** (batch / 256)
            measured = {name: ruled if scaled else np.nan, "config.optimizer.lr": 0.001}
            keys = {f"config.optimizer.{given}": given_value, f"config.rules.{rule[0]}": rule[1]}
            made.append(each | measured | keys)
        return made

    decays = ("scaled_weight_decay", "weight_decay", ("weight_decay", "linear"))
    assert found(rows(*decays, scaled=True), "weight_decay_sqrt").effect == pytest.approx(1.0, abs=0.1)
    assert found(rows(*decays, scaled=False), "weight_decay_sqrt").verdict == "not tested"  # the rule gave other values
    betas = ("scaled_beta2", "beta2", ("betas", "half_life"))
    assert found(rows(*betas, scaled=True), "beta2_half_life").effect == pytest.approx(1.0, abs=0.1)


def test_where_the_linear_rule_breaks() -> None:
    within = "the best rates that were tried stay within a factor of two of the rule up to an effective batch size of"
    assert f"{within} 512" in found(surface(1.0, "momentum", 0.0), "lr_rule_linear").detail
    assert f"{within} 64, and are lower beyond" in found(surface(0.0, "momentum", 0.0), "lr_rule_linear").detail


def test_rate_power_wants_a_peak() -> None:
    rng = np.random.default_rng(0)
    batches, rates = np.repeat([16.0, 32.0, 64.0, 128.0], 6), np.tile(np.geomspace(0.01, 1.0, 6), 4)
    assert not fit_rate_power(batches, rates, rng.normal(size=24)).degrees > 0
    peak = 0.9 - 0.1 * (np.log(rates) - np.log(batches) / 2) ** 2
    assert fit_rate_power(batches, rates, peak).value == pytest.approx(0.5)
    assert fit_rate_power(batches[:8], rates[:8], peak[:8]).n == 0


def test_warm_up_in_pairs_of_equal_seed() -> None:
    rows = []
    for seed, warm in itertools.product(range(5), [0.0, 0.1]):
        accuracy = 0.8 + 0.02 * seed + (0.03 + 0.001 * seed) * (warm > 0)
        keys = {"batch__micro": 2048, "schedule__warmup": warm}
        rows.append(row(len(rows), seed, "confirm", {"val_accuracy": accuracy}, **keys))
        # at the reference batch it does harm, which is not the claim
        rows.append(
            row(len(rows), seed, "confirm", {"val_accuracy": 0.9 - 0.1 * (warm > 0)}, **keys | {"batch__micro": 256})
        )
    item = found(rows, "warmup_needed")
    assert item.effect == pytest.approx(0.032)
    assert (item.n, item.verdict) == (5, "supported")
    assert item.high - item.low < 0.01  # the seeds' own differences have gone


# ------------------------------------------------------------------ accuracy against the batch


def ladder(
    loss: float, model: str = "resnet8", noise: float = 0.0005, start: int = 0, **budget: Any
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(start + 5)
    rows = []
    for step, batch in enumerate([32, 64, 128, 256, 512, 1024]):
        for lr in (0.05, 0.1):
            for seed in (1, 2, 3):
                accuracy = 0.95 - loss * step - 0.02 * (lr < 0.1) + noise * rng.normal()
                keys = {"batch__micro": batch, "optimizer__lr": lr, "model__name": model} | budget
                rows.append(
                    row(start + len(rows), seed, "confirm", {"val_accuracy": float(accuracy), "num_steps": 500}, **keys)
                )
    return rows


def test_equal_epochs_and_equal_steps_are_told_apart() -> None:
    epochs = ladder(0.01, budget__epochs=10)
    steps = ladder(0.0, budget__steps=500, start=100)
    worse = found([*epochs, *steps], "large_batch_equal_epochs")
    assert worse.effect == pytest.approx(-0.01, abs=0.001)
    assert (worse.n, worse.verdict) == (6, "supported")
    same = found([*epochs, *steps], "large_batch_equal_steps")
    assert same.effect == pytest.approx(0.0, abs=0.001)
    assert same.verdict == "contradicted"
    missing = found(epochs, "large_batch_equal_steps")
    assert missing.verdict == "not tested"
    assert missing.reason.startswith(
        "0 effective batch sizes with 2 learning rates or more at an equal number of steps"
    )
    assert missing.settle == "sweep run made.toml --set name=made_equal_steps --set budget.steps=500"


def test_epochs_that_follow_the_batch_are_not_equal_epochs() -> None:
    ruled = found(ladder(0.01, budget__epochs=10, rules__epochs=0.4), "large_batch_equal_epochs")
    assert ruled.verdict == "not tested"
    assert ruled.reason.startswith("0 effective batch sizes")
    name = "sweep run made.toml --set name=made_equal_epochs"
    assert ruled.settle == f"{name} --set budget.epochs=10 --set rules.epochs=none"
    assert ruled.remark == "the study requires four effective batch sizes or more"


def test_a_claim_about_an_optimizer_that_no_training_has_names_those_on_record() -> None:
    rows = surface(0.5, "adamw")
    reason = "no training has an optimizer that the claim is about; those on record have adamw"
    linear, sqrt = (found(rows, f"lr_rule_{rule}") for rule in ("linear", "sqrt"))
    assert (linear.verdict, linear.reason) == ("not tested", reason)
    assert sqrt.verdict != "not tested"


def test_a_command_replaces_the_budget_that_was_typed() -> None:
    typed = find_study_commands(
        "made", None, origin=StudyOrigin(argument="made.toml", changes={"budget.epochs": 5, "trials": 9})
    )
    variant = typed.run_variant("long", {"budget.steps": 500})
    assert variant == "sweep run made.toml --set trials=9 --set name=made_long --set budget.steps=500"


def test_small_batches_and_sensitivity() -> None:
    rows = [*ladder(0.01), *ladder(0.002, "vit_micro", start=100)]
    assert found(ladder(0.01), "small_batches_best").verdict == "supported"
    assert found(ladder(-0.01), "small_batches_best").verdict == "contradicted"
    unknown = found(ladder(0.0), "small_batches_best")
    assert unknown.verdict == "undecided"
    assert unknown.settle == "sweep run made.toml --set confirm.share=1.0"  # more seeds
    sensitivity = found(rows, "vit_less_sensitive")
    assert sensitivity.effect == pytest.approx(0.008, abs=0.001)
    assert sensitivity.verdict == "supported"


# ------------------------------------------------------------------ accumulation and costs


def test_accumulation_in_pairs_of_equal_global_batch() -> None:
    rows = []
    for dtype, count in itertools.product(["fp32", "bf16", "fp16"], [1, 2, 4, 8]):
        micro = 256 // count
        slow = {"fp32": 1.1, "bf16": 1.12, "fp16": 1.08}[dtype] if count > 1 else 1.0
        measured = {"train_seconds": 100 * slow, "peak_memory_bytes": (20 + micro) * MIB}
        keys = {"batch__micro": micro, "batch__accumulation": count, "precision__dtype": dtype}
        rows.append(row(len(rows), 0, "search", measured, optimizer__lr=0.1 + 0.01 * len(rows), **keys))
    time, memory = found(rows, "accumulation_time"), found(rows, "accumulation_memory")
    assert time.effect == pytest.approx(1.1, abs=0.005)
    # a cell each: its trial with one micro batch is in three pairs
    assert (time.n, time.verdict) == (3, "contradicted")
    # of 1 - 1/k only the share of what is in proportion, 256 of 276, is saved
    assert memory.effect == pytest.approx(256 / 276)
    assert memory.verdict == "supported"


@pytest.mark.parametrize(("effect", "verdict"), [(0.0, "supported"), (-0.03, "contradicted")])
def test_accumulation_with_batch_normalisation(effect: float, verdict: str) -> None:
    rows = []
    rng = np.random.default_rng(0)
    for seed, count in itertools.product(range(6), [1, 8]):
        accuracy = 0.9 + 0.02 * seed + effect * (count > 1) + 0.0005 * rng.normal()
        keys = {"batch__micro": 256 // count, "batch__accumulation": count}
        rows.append(row(len(rows), seed, "confirm", {"val_accuracy": float(accuracy)}, **keys))
        # without batch normalisation nothing is compared
        rows.append(row(len(rows), seed, "confirm", {"val_accuracy": 0.1}, model__name="vit_micro", **keys))
    item = found(rows, "accumulation_batch_norm")
    assert item.effect == pytest.approx(effect, abs=0.001)
    assert (item.n, item.verdict) == (6, verdict)


def test_accumulation_with_which_trainings_diverge() -> None:
    rows = []
    for seed, count in itertools.product(range(6), [1, 8, 32]):
        measured: dict[str, Any] = {"val_accuracy": 0.8 + 0.01 * seed}
        if count == 32 and seed < 3:
            measured = {"val_accuracy": None, "outcome": "diverged"}
        keys = {"model__name": "vit_micro", "batch__micro": 256 // count, "batch__accumulation": count}
        rows.append(row(len(rows), seed, "confirm", measured, **keys))
    item = found(rows, "accumulation_diverges")
    # a training that diverged has reached no accuracy, so that it loses all of what its pair has
    assert item.effect == pytest.approx(-np.mean([0.8, 0.81, 0.82, 0, 0, 0]))
    assert item.n == 6


@pytest.mark.parametrize(("ranks", "num_pairs"), [(2, 6), (1, 0)])
def test_synchronized_normalization_is_another_one_on_several_ranks(ranks: int, num_pairs: int) -> None:
    rows = []
    for seed, norm in itertools.product(range(6), ["batch", "sync"]):
        measured = {"val_accuracy": 0.8 + 0.01 * seed + (0.05 + 0.001 * seed) * (norm == "sync")}
        keys = {"batch__micro": 8, "model__norm": norm, "distributed__world_size": ranks}
        rows.append(row(len(rows), seed, "confirm", measured, **keys))
    item = found(rows, "small_batch_norm")
    assert item.n == num_pairs
    if num_pairs:
        assert (item.effect, item.verdict) == (pytest.approx(0.0525), "supported")


@pytest.mark.parametrize(("power", "verdict"), [(1.0, "supported"), (1.5, "contradicted")])
def test_memory_against_the_micro_batch(power: float, verdict: str) -> None:
    sizes = [16, 32, 64, 128, 256, 512]
    rows = [
        row(n, 0, "search", {"peak_memory_bytes": round((8 + 0.3 * size**power) * MIB)}, batch__micro=size)
        for n, size in enumerate(sizes)
    ]
    item = found(rows, "memory_linear")
    assert item.effect == pytest.approx(power, abs=0.01)
    assert item.verdict == verdict


def test_precision_and_checkpointing_in_pairs_of_equal_cost() -> None:
    rows = []
    micros = [32, 64, 128, 256]
    for micro, dtype, again in itertools.product(micros, ["fp32", "bf16"], [False, True]):
        seconds = 100 / micro * (0.6 if dtype == "bf16" else 1.0) * (1.3 + 0.001 * micro / 32 if again else 1.0)
        memory = (10 + micro * (0.5 if dtype == "bf16" else 1.0)) * MIB * (0.5 if again else 1.0)
        keys = {"precision__dtype": dtype, "precision__checkpointing": again, "optimizer__lr": 0.01 * (len(rows) + 1)}
        rows.append(
            row(
                len(rows),
                0,
                "search",
                {"train_seconds": seconds, "peak_memory_bytes": memory},
                batch__micro=micro,
                **keys,
            )
        )
    assert found(rows, "mixed_precision_time").effect == pytest.approx(0.6, abs=0.001)
    assert found(rows, "mixed_precision_time").verdict == "supported"
    assert 0.5 < found(rows, "mixed_precision_memory").effect < 0.7
    assert found(rows, "checkpointing_memory").effect == pytest.approx(0.5)
    price = found(rows, "checkpointing_time")
    assert price.effect == pytest.approx(1.303, abs=0.002)
    assert (price.n, price.verdict) == (8, "supported")


@pytest.mark.parametrize(("last", "verdict"), [(390.0, "contradicted"), (600.0, "supported")])
def test_throughput_saturates_or_does_not(last: float, verdict: str) -> None:
    rng = np.random.default_rng(2)
    rates = {32: 200.0, 64: 300.0, 128: 380.0, 256: last}
    rows = [
        row(
            n,
            0,
            "search",
            {"images_per_second": rates[size] * float(rng.lognormal(0, 0.01))},
            batch__micro=size,
            optimizer__lr=0.01 * (n + 1),
        )
        for n, size in enumerate(sorted([*rates] * 5))
    ]
    item = found(rows, "larger_is_faster")
    assert item.effect == pytest.approx(last / 380, rel=0.03)
    assert item.verdict == verdict


# ------------------------------------------------------------------ noise, sharpness


def test_noise_and_sharpness() -> None:
    rng = np.random.default_rng(4)
    rows = []
    for batch, lr in itertools.product([32, 64, 128, 256], [0.05, 0.1, 0.2]):
        measured = {
            "num_noise_steps": 50,
            "noise_scale_run": float(10 * batch / lr / 100 * rng.lognormal(0, 0.05)),
            "sharpness_eigenvalue": float(batch**0.5 * rng.lognormal(0, 0.05)),
        }
        rows.append(row(len(rows), 0, "search", measured, batch__micro=batch, optimizer__lr=lr))
    noise = found(rows, "noise_scale_temperature")
    assert noise.effect == pytest.approx(1.0, abs=0.1)
    assert noise.verdict == "supported"
    sharp = found(rows, "large_batches_sharp")
    assert sharp.effect == pytest.approx(0.5, abs=0.1)
    assert sharp.verdict == "supported"


# ------------------------------------------------------------------ verdicts


def test_holm_as_in_the_definition() -> None:
    assert correct_holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert correct_holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert correct_holm([]).tolist() == []


def test_a_verdict_needs_the_interval_on_one_side() -> None:
    region = Region(0.75, 1.25)
    inside, outside, between = (Estimate(value, 0.05, 50, 60) for value in (1.0, 0.3, 0.8))
    assert assess_region(inside, region) == ("supported", pytest.approx(stats.t.sf(5, 50)))
    assert assess_region(outside, region) == ("contradicted", pytest.approx(stats.t.sf(9, 50)))
    assert assess_region(between, region)[1] > 0.05
    assert assess_region(Estimate(1.0, math.nan, 0, 1), region) == ("undecided", 1.0)
    assert assess_region(Estimate(5.0, 1.0, 9, 10), Region(0.0, math.inf))[0] == "supported"
    ratio = Estimate(math.log(1.3), 0.01, 9, 10, is_ratio=True)
    assert assess_region(ratio, Region(1.2, 1.4))[0] == "supported"
    assert confidence_interval(ratio)[0] == pytest.approx(1.3)


def test_estimates_as_scipy_has_them() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.3, 1.0, 12)
    mean = mean_estimate(values)
    test = stats.ttest_1samp(values, 0.0)
    assert mean.value / mean.error == pytest.approx(test.statistic)
    assert confidence_interval(mean)[1:] == pytest.approx(tuple(test.confidence_interval()))
    x = rng.normal(size=20)
    y = 2 * x + rng.normal(size=20)
    slope, line = slope_estimate(x, y), stats.linregress(x, y)
    assert (slope.value, slope.error) == pytest.approx((line.slope, line.stderr))
    assert mean_estimate([0.1]).degrees == 0
    assert slope_estimate(x[:2], y[:2]).degrees == 0


def test_many_claims_are_corrected_for() -> None:
    items = evaluate_claims(make_frames(200, confirm=4))
    tested = [item for item in items if item.p < 1]
    assert len(tested) >= 2
    assert all((item.verdict == "undecided") == (item.p > 0.05) for item in tested)


@pytest.mark.parametrize("rows", [[], [{"number": 0, "outcome": "crashed"}], [row(0)]], ids=["none", "crashed", "one"])
def test_too_little_is_not_tested_and_tells_why_and_what_would_settle_it(rows: list[dict[str, Any]]) -> None:
    items = evaluate_claims(frames_of(make_spec(), rows))
    assert len({item.name for item in items}) == 39
    assert {item.verdict for item in items} == {"not measured"}
    assert all(math.isnan(item.effect) for item in items)
    assert all(item.reason and item.settle and item.published and item.statement for item in items)
    assert "the records have too little for an interval" not in {item.reason for item in items}  # each has its own
    json.dumps(findings_document(items), allow_nan=False)


def test_one_pair_is_no_number() -> None:
    rows = [row(n, measured={"train_seconds": 9.0 + n}, precision__checkpointing=bool(n)) for n in range(2)]
    item = found(rows, "checkpointing_time")
    assert (item.verdict, math.isnan(item.effect)) == ("not tested", True)
    assert item.reason.startswith("the records have only one pair of equal cost but for activation checkpointing")
