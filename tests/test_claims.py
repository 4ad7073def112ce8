"""Every claim on the records of its own planned study and on records whose truth is known: what counts, what does not,
and why; how many trainings a claim takes, and its picture."""

import dataclasses
import itertools
import json
import math
import tomllib
from typing import Any

import numpy as np
import pytest
from frames_factory import frames_of, make_frames, make_spec
from scipy import stats

from benchmarks.claims_truth import find_effect, make_records
from reports.labels import TOO_UNCERTAIN, describe_range
from reports.page.tables import WIDTH, draw_claim, list_claims, make_claim_axis
from sweep.analysis.answer import to_document
from sweep.analysis.claim_measures import expect_best
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import Claim
from sweep.analysis.comparable import select_comparable
from sweep.analysis.critical_batch import CriticalGrowth, estimate_growth
from sweep.analysis.findings import (
    Finding,
    assess_claim,
    count_needed,
    count_planned,
    count_tested,
    evaluate_claims,
    find_claim,
    find_verdicts,
    write_plan,
)
from sweep.analysis.rate_powers import fit_rate_power
from sweep.analysis.statistics import Estimate, Region, assess_region, confidence_interval, count_repetitions
from sweep.config.advice import find_pitfalls
from sweep.config.space import count_grid_points
from sweep.config.study_file import build_study
from sweep.config.trial import build_config, flatten_config

NAMES = [claim.name for claim in CLAIMS]
MIB = 2.0**20
APART = 2.0  # how far apart the best rates of two recipes are, as a logarithm
DECAYS = (1e-4, 1e-2)


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


TEMPLATE = row(0)


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


def test_a_scaling_rule_counts_into_the_rate() -> None:
    # rates that are written down for the reference batch and scaled linearly: at one best written rate the power is 1
    rows = surface(0.0, "momentum", rules__lr="linear")
    assert found(rows, "lr_rule_linear").effect == pytest.approx(1.0, abs=0.1)
    rows = surface(0.0, "momentum", rules__lr=0.6)
    assert found(rows, "lr_rule_linear").effect == pytest.approx(0.6, abs=0.1)


def test_the_plan_of_a_claim_is_on_the_images_of_the_records() -> None:
    plan = "sweep claims muon_ahead --plan --set"
    run = "&& sweep run claim_muon_ahead.toml"
    assert found([row(0)], "muon_ahead").settle == f"{plan} data.name=digits {run}"
    own = found([row(0, data__name="imagefolder", data__root="my images")], "muon_ahead")
    assert own.settle == f"{plan} data.name=imagefolder --set 'data.root=my images' {run}"


def test_a_rate_power_requires_a_peak() -> None:
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
    # by a rule each batch has a length of its own
    ruled = found(ladder(0.01, budget__epochs=10, rules__epochs=0.4), "large_batch_equal_epochs")
    assert (ruled.verdict, ruled.reason[:25]) == ("not tested", "0 effective batch sizes w")


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


def test_pairs_without_their_values_are_told_from_no_pairs() -> None:
    missing: dict[str, Any] = {"val_accuracy": None, "train_seconds": None, "peak_memory_bytes": 2.0 * MIB}
    rows = [row(n, 0, "search", missing, batch__micro=256 // n, batch__accumulation=n) for n in (1, 8)]
    pairs = "of equal cost and effective batch size, with accumulation (mean) against without"
    assert f"only one pair {pairs}" in found(rows, "accumulation_memory").reason
    unmeasured = [each | {"peak_memory_bytes": None, "train_seconds": 9.0} for each in rows]
    said = found([*unmeasured, row(2, measured={"peak_memory_bytes": 1.0})], "accumulation_memory").reason
    assert said.startswith(f"the records have no pair {pairs} with both values measured after an equal length")


@pytest.mark.parametrize("rows", [[], [{"number": 0, "outcome": "crashed"}], [row(0)]], ids=["none", "crashed", "one"])
def test_too_little_is_not_tested_and_tells_why_and_what_would_settle_it(rows: list[dict[str, Any]]) -> None:
    items = evaluate_claims(frames_of(make_spec(), rows))
    assert len({item.name for item in items}) == len(CLAIMS)
    assert {item.verdict for item in items} == {"not measured"}
    assert all(math.isnan(item.effect) for item in items)
    assert all(item.reason and item.settle and item.published and item.statement for item in items)
    json.dumps(to_document(items), allow_nan=False)


# --- several models and settings


def simulate_study(seed: int, num_models: int = 2, num_decays: int = 1) -> list[dict[str, Any]]:
    """A random search of 120 trials over batch and rate. The best rate grows as the batch; that of the second model and
    of the second weight decay is e^2 times as large each. The second model does not fit beyond a batch of 256, and the
    second weight decay was tried at large batches more than at small ones."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(120):
        is_second = num_models > 1 and bool(rng.integers(2))
        batch = int(2 ** rng.integers(4, 9 if is_second else 11))
        is_strong = num_decays > 1 and bool(rng.random() < (0.2 if batch < 128 else 0.8))
        best = math.log(0.02) + math.log(batch / 128) + APART * is_second + APART * is_strong
        lr = rng.uniform(math.log(1e-4), math.log(10.0))
        accuracy = 0.93 - 0.006 * (lr - best) ** 2 + 0.01 * rng.normal()
        keys = {
            "model.name": "vit_micro" if is_second else "resnet8", "batch.micro": batch, "optimizer.lr": math.exp(lr),
            "optimizer.weight_decay": DECAYS[is_strong],
        }  # fmt: skip
        rows.append(
            TEMPLATE
            | {f"config.{key}": value for key, value in keys.items()}
            | {"number": number, "global_batch_size": batch, "val_accuracy": float(accuracy)}
        )
    return rows


@pytest.mark.parametrize(
    "kinds", [{}, {"num_models": 1, "num_decays": 2}, {"num_decays": 2}], ids=["models", "decays", "both"]
)
def test_the_rule_of_the_rate_covers_the_truth_where_best_rates_differ(kinds: dict[str, int]) -> None:
    studies = (select_comparable(frames_of(make_spec(), simulate_study(seed, **kinds))) for seed in range(24))
    intervals = [confidence_interval(claim_of("lr_rule_linear").measure(each).estimate) for each in studies]
    assert all(math.isfinite(low) for _, low, _ in intervals)
    assert sum(low <= 1.0 <= high for _, low, high in intervals) >= 21


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
    until = [each | {"config.budget.target": 0.9} for each in simulate_study(0)]
    assert found(until, "lr_rule_linear").reason.startswith("no training of a fixed length")


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
    made = frames_of(make_spec(), rows)
    points = made.evaluations.assign(train_loss=np.repeat(losses, 10))
    items = evaluate_claims(dataclasses.replace(made, evaluations=points))
    item = next(each for each in items if each.name == "large_batches_sharp")
    assert item.effect == pytest.approx(0.5 if driver == "batch" else 0.0, abs=0.1)
    assert (item.verdict == "supported") == (driver == "batch")
    assert "40 configurations at equal learning rate and training loss, at equal weight decay" in item.detail


def test_a_configuration_with_an_undefined_noise_scale_is_counted() -> None:
    rng, rows = np.random.default_rng(2), []
    for batch, lr in itertools.product([32, 64, 128, 256], [0.05, 0.1, 0.2]):
        value = math.nan if (batch, lr) == (32, 0.05) else batch / lr * rng.lognormal(0, 0.05)
        keys = {"batch__micro": batch, "optimizer__lr": lr, "diagnostics__noise_scale": True}
        steps = 9 if (batch, lr) == (64, 0.05) else 10
        rows.append(row(len(rows), measured={"noise_scale_run": value, "num_noise_steps": steps}, **keys))
    item = found(rows, "noise_scale_temperature")
    assert (item.n, item.verdict) == (10, "supported")
    missing = "the estimate of |G|^2 is not above 0, or fewer than 10 steps were measured"
    assert item.detail.endswith(f"in 2 further configurations {missing}")
    none = [each | {"noise_scale_run": math.nan, "num_noise_steps": 10} for each in rows]
    reason = found(none, "noise_scale_temperature").reason
    assert reason.endswith(f"in 12 further configurations {missing}")


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
            precision__checkpointing=bool(n % 2), budget__target=0.9)
        for n in range(8)
    ]  # fmt: skip
    assert found(rows, "checkpointing_time").verdict == "not tested"


def test_accuracies_are_compared_at_one_length_of_training() -> None:
    # long trainings with small batches alone reach more; those until a target all end with it
    long = [each for each in ladder(-0.03, start=100, budget__epochs=50) if each["global_batch_size"] <= 64]
    until = ladder(-0.05, start=200, budget__target=0.99)
    alone = found(ladder(-0.01, budget__epochs=10), "small_batches_best")
    mixed = found([*ladder(-0.01, budget__epochs=10), *long, *until], "small_batches_best")
    assert alone.verdict == mixed.verdict == "contradicted"
    assert mixed.effect == pytest.approx(alone.effect, abs=5e-3)
    # of a batch with one rate nothing shows that the rate is the best there
    one = [each for each in ladder(-0.01) if each["config.optimizer.lr"] == 0.1]
    assert found(one, "small_batches_best").verdict == "not tested"


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


# --- on the records of their own studies


def claim_of(name: str) -> Claim:
    claim = find_claim(name)
    assert claim is not None
    return claim


@pytest.mark.parametrize("is_true", [True, False], ids=["true", "false"])
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_truth_is_found_by_the_planned_study(name: str, is_true: bool) -> None:
    claim = claim_of(name)
    effect = find_effect(claim, is_true=is_true, times=2.0)
    records = select_comparable(make_records(claim, effect, np.random.default_rng(1)))
    assert claim.find_lack(records) == ""
    found = claim.measure(records)
    verdict, p = assess_region(found.estimate, found.region or claim.region)
    assert (found.reason, verdict) == ("", "supported" if is_true else "contradicted")
    assert p < 0.05
    wanted = math.log(effect) if claim.is_ratio else effect
    assert abs(found.estimate.value - wanted) < 5 * found.estimate.error


@pytest.mark.parametrize(
    ("name", "effect", "columns"),
    [
        ("beta2_follows_batch", 0.06, {"config.script.beta2_halflife": lambda side: 200_000 * (side == "half_life")}),
        ("decay_follows_batch", 1.0, {}),
        ("critical_batch_grows", 4.0, {"config.script.schedule": lambda _: "constant"}),
    ],
)
def test_a_script_is_judged_by_its_own_loss_and_its_own_names(
    name: str, effect: float, columns: dict[str, Any]
) -> None:
    claim = claim_of(name)
    made = make_records(claim, effect, np.random.default_rng(3))
    rules = made.trials["config.rules.betas"]
    own: dict[str, Any] = {column: rules.map(make) for column, make in columns.items()}
    own |= {"config.script": [str(values) for values in zip(*own.values(), strict=True)]} if columns else {}
    none = {"config.optimizer.name": None, "config.rules.betas": None, "config.schedule.name": None}
    trials = made.trials.assign(**none, **own, quality=made.trials["val_loss"], val_loss=np.nan, val_accuracy=np.nan)
    points = made.evaluations.assign(quality=made.evaluations["val_loss"], val_loss=np.nan)
    script = {"command": "python train.py", "metric": "bits", "unit": "number", "direction": "minimize"}
    spec = make_spec(script=script, space={"batch.micro": {"choice": [1, 2]}})
    frames = dataclasses.replace(frames_of(spec, []), trials=trials, evaluations=points)
    item = next(each for each in evaluate_claims(frames) if each.name == name)
    assert (item.reason, item.verdict) == ("", "supported")
    assert abs(item.effect - effect) < (item.high - item.low)
    assert item.detail.startswith("train.py: ")
    # without its own names, or at a rate that falls, nothing is measured
    without = dataclasses.replace(frames, trials=trials.drop(columns=list(own)))
    lack = next(each for each in evaluate_claims(without) if each.name == name).reason
    assert all(column.removeprefix("config.") in lack for column in columns)


def test_the_critical_batch_is_named_only_at_losses_where_every_seed_has_one() -> None:
    made = make_records(claim_of("critical_batch_grows"), 4.0, np.random.default_rng(3))
    frames = dataclasses.replace(frames_of(make_spec(), []), trials=made.trials, evaluations=made.evaluations)
    growth = estimate_growth(select_comparable(frames))
    edge = made.trials[(made.trials["seed"] == 0) & (made.trials["config.optimizer.lr"] == 0.03)]["number"]
    is_early = made.evaluations["number"].isin(edge) & (made.evaluations["val_loss"] > 1.2)
    steps = made.evaluations["step"].where(~is_early, made.evaluations["step"] / 100)  # the best rate is at the edge
    points = made.evaluations.assign(step=steps)
    lacking = estimate_growth(select_comparable(dataclasses.replace(frames, evaluations=points)))
    assert isinstance(growth, CriticalGrowth)
    assert isinstance(lacking, CriticalGrowth)
    assert (growth.detail.count(" at "), "nan" in growth.detail + lacking.detail) == (6, False)
    assert 0 < lacking.detail.count(" at ") < 6


def test_what_a_study_did_not_vary_is_not_measured_with_what_would() -> None:
    rows = [row(number, number, measured={"peak_memory_bytes": 1e6 + number}) for number in range(4)]
    found = {item.name: item for item in evaluate_claims(frames_of(make_spec(), rows))}
    assert list(found) == NAMES
    for claim in CLAIMS:
        item = found[claim.name]
        assert (item.verdict, item.n, math.isnan(item.effect)) == ("not measured", 0, True)
        assert item.reason.startswith("not measured by this study: to test it, a study has to ")
        assert item.trainings == claim.design.count_trainings(count_planned(claim)) > 0
    assert found["warmup_needed"].reason.endswith("has to vary warm-up (schedule.warmup)")
    assert found["ema_follows_batch"].reason.endswith(
        "has to vary EMA rule (rules.ema), and set ema decay (regularization.ema_decay)"
    )
    assert found["large_batches_sharp"].reason.endswith(" or sharpness (Keskar) (sharpness_keskar)")


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_a_study_that_tests_its_claim(name: str) -> None:
    claim = claim_of(name)
    spec = build_study(tomllib.loads(write_plan(claim)), name)
    trainings = claim.design.count_trainings(count_planned(claim))
    assert (spec.trials, count_grid_points(spec.space), spec.confirm.most_trials) == (trainings, trainings, 0)
    # two hours of a CPU that takes 4 s for each
    assert trainings <= 1800
    assert {key for key in claim.varies if "." in key} <= {*spec.space, "batch.accumulation"}
    assert set(claim.sets) <= set(spec.base)
    assert find_pitfalls(spec) == []


def test_repetitions_have_the_power_that_is_stated() -> None:
    distance, spread = 0.005, 0.01
    count = count_repetitions([(distance, 0.8)], spread, lost=1, alpha=0.05, fewest=2)

    def power(n: int) -> float:
        return float(stats.nct.sf(stats.t.isf(0.05, n - 1), n - 1, distance * math.sqrt(n) / spread))

    assert power(count - 1) < 0.8 <= power(count)
    assert count_repetitions([(distance, 0.8)], spread / 100, lost=1, alpha=0.05, fewest=7) == 7
    # beyond a thousand by the normal distribution: (1.645 + 0.842)^2 times the squared ratio
    assert count_repetitions([(distance, 0.8)], 0.5, lost=1, alpha=0.05, fewest=2) == pytest.approx(61_826, abs=5)
    # more claims in the same study require more trainings
    assert count_repetitions([(distance, 0.8)], spread, lost=1, alpha=0.005, fewest=2) > count


def test_the_records_own_spread_replaces_the_assumed_one() -> None:
    claim = claim_of("warmup_needed")
    assert count_tested(claim) == 1
    few = count_needed(claim, Estimate(0.006, 0.001, 19, 20), claim.region, 40, 1)
    many = count_needed(claim, Estimate(0.006, 0.004, 19, 20), claim.region, 40, 1)
    assert few < claim.design.count_trainings(count_planned(claim)) < many
    # pairs of two trainings that scatter by 0.001 * sqrt(20)
    pairs = count_repetitions([(claim.matters, 0.8)], 0.001 * math.sqrt(20), 1, 0.05, 2)
    assert few == 2 * pairs
    assert count_needed(claim, Estimate(math.nan, math.nan, 0, 0), Region(0, 1), 7, 1) == 52


def test_the_best_of_fewer_tries_is_lower() -> None:
    values = np.array([0.3, 0.9, 0.5])
    assert expect_best(values, 3) == pytest.approx(0.9)
    assert expect_best(values, 1) == pytest.approx(values.mean())
    assert expect_best(values, 2) == pytest.approx((0.9 + 0.9 + 0.5) / 3)  # of the three pairs


def test_equal_accuracies_of_a_few_images_have_the_error_of_their_rounding() -> None:
    claim = claim_of("ema_follows_batch")
    made = make_records(claim, 0.0, np.random.default_rng(1))
    trials = made.trials.assign(val_accuracy=0.875).query("seed < 4")
    spec = make_spec(name=str(trials["study"].iloc[0]))
    records = dataclasses.replace(made, spec=spec, trials=trials, num_images=504)
    (finding,) = find_verdicts([assess_claim(claim, select_comparable(records))])
    error = 1 / (504 * math.sqrt(6 * 4))
    assert (finding.n, finding.effect) == (4, 0.0)
    assert finding.high == pytest.approx(stats.t.ppf(0.975, 3) * error)
    assert finding.p == pytest.approx(stats.t.sf(0.005 / error, 3))
    assert finding.verdict == "contradicted"


# --- as a forest plot


def make_finding(unit="ratio", effect=1.3, low=0.9, high=1.9, claimed=(1.5, 2.0), verdict="undecided", reason=""):
    return Finding(
        name="made", statement="A claim.", effect=effect, low=low, high=high, unit=unit, claimed=Region(*claimed), n=4,
        verdict=verdict, settle="", published="", detail="", p=1.0, reason=reason,
    )  # fmt: skip


def test_a_ratio_lies_on_a_logarithmic_scale_between_the_bounds_of_the_claim():
    found = make_finding(effect=math.sqrt(3.0))  # the middle of 1.5 and 2 by their logarithms
    picture, axis = draw_claim(found, "text"), make_claim_axis(found)
    left, right = picture.claimed
    assert picture.is_open
    assert picture.effect == pytest.approx((left + right) / 2, abs=0.02)
    (neutral,) = (x for x, kind in picture.lines if kind == "neutral")
    assert (left - neutral) / (right - left) == pytest.approx(math.log(1.5) / math.log(2 / 1.5), abs=0.01)
    assert [text for _, text in picture.numbers] == ["1.5", "2", "1"]
    assert picture.interval == (axis.locate(0.9), axis.locate(1.9))
    assert picture.is_cut == (False, False)


@pytest.mark.parametrize(("low", "high", "is_so"), [(0.1, 10.0, False), (0.1, 10.1, True), (0.5, math.inf, True)])
def test_an_effect_that_is_too_uncertain_is_not_printed(low, high, is_so):
    (each,) = list_claims([make_finding("ratio", 0.641, low, high, (0.5, 1.0))])
    assert (each["effect"] == TOO_UNCERTAIN) is (each["picture"].effect is None) is is_so
    if is_so:
        assert each["interval"] == ""
        assert f"Measured: {TOO_UNCERTAIN}." in each["picture"].name


@pytest.mark.parametrize(
    ("low", "high", "num_arrows"), [(6.69e-05, 6_133.0, 2), (math.nan, math.nan, 2), (0.9, 900.0, 1)]
)
def test_an_interval_without_meaning_has_no_effect_over_the_claimed_range(low, high, num_arrows):
    picture = draw_claim(make_finding(effect=0.641, low=low, high=high), "text")
    assert (picture.effect, sum(picture.is_cut)) == (None, num_arrows)
    assert picture.interval[1] == WIDTH - 2.0
    assert 30 < picture.claimed[1] - picture.claimed[0] < WIDTH / 2


def test_each_tested_claim_has_one_picture_with_its_numbers():
    rows = list_claims(evaluate_claims(make_frames(60, confirm=3)))
    assert len(rows) == len(CLAIMS)
    tested = [each for each in rows if each["picture"]]
    assert tested
    for each in tested:
        item, whole = each["finding"], f"{each['effect']} ({each['interval']})" if each["interval"] else each["effect"]
        name = f"Claimed: {describe_range(item.unit, *item.claimed)}. Measured: {whole}. {item.verdict.capitalize()}."
        assert each["picture"].name == name
    assert all(each["finding"].reason for each in rows if not each["picture"])
