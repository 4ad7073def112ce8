"""Advice on a study before it runs."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from studies import shipped_studies
from sweep.analysis.findings import find_claim, write_plan
from sweep.cli.app import run_app
from sweep.config.advice import find_pitfalls
from sweep.config.errors import InputError
from sweep.config.study_file import build_study, load_study

# a study without a fault
CLEAN: dict[str, Any] = {
    "name": "clean",
    "base": {"rules.lr": "linear", "rules.reference_batch": 256, "schedule.warmup": 0.1, "budget.steps": 500},
    "space": {"batch.micro": {"log2": [4, 7]}, "optimizer.lr": {"log": [0.01, 1.0]}},
}


def names(base: dict[str, Any] | None = None, space: dict[str, Any] | None = None, **rest: Any) -> list[str]:
    table = CLEAN | rest | {"base": CLEAN["base"] | (base or {}), "space": CLEAN["space"] | (space or {})}
    found = find_pitfalls(build_study(table, "test"))
    assert all(find_claim(item.finding) for item in found if item.finding)
    return [item.name for item in found]


_FREE, _ADAMW = {"optimizer.name": "schedule_free"}, {"optimizer.name": "adamw"}
_WIDE = {"batch.micro": {"log2": [5, 11]}}
_NO_WARMUP = {"schedule.warmup": 0.0}
_WEIGHTS = {"model.weights": "w.safetensors"}
_SMALL = {"batch.micro": {"log2": [2, 7]}}
_SWEPT_DECAY = {"optimizer.weight_decay": {"float": [0.0, 0.1]}}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("", {}, {}),
    ("much_accumulation", {}, {"batch.accumulation": {"choice": [1, 32]}}),
    ("", {}, {"batch.accumulation": {"choice": [1, 16]}, "batch.micro": {"choice": [16, 32]}}),
    ("few_samples_to_normalise", {}, _SMALL),
    ("", {"model.norm": "group"}, _SMALL),
    ("", {"model.name": "vit_micro"}, _SMALL),
    ("only_large_batches", {}, {"batch.micro": {"log2": [9, 11]}}),
    ("", {}, {"batch.micro": {"log2": [8, 11]}}),
    ("only_large_batches", {}, {"batch.micro": {"log2": [7, 8]}, "batch.accumulation": {"choice": [4]}}),
    ("no_warmup", _NO_WARMUP, _WIDE),
    ("", {}, _WIDE | {"schedule.warmup": {"choice": [0.0, 0.1]}}),  # which the study will show
    ("no_warmup", {}, _WIDE | {"schedule.warmup": {"choice": [0.0]}}),
    ("", _NO_WARMUP | {"schedule.name": "triangular"}, _WIDE),
    ("", _NO_WARMUP | {"rules.reference_batch": 512}, _WIDE),
    ("", {"rules.warmup": "graded"}, _WIDE),
    ("no_warmup key_without_effect", _NO_WARMUP | {"rules.warmup": "graded"}, _WIDE),
    ("large_batch_for_fine_tuning", _WEIGHTS, {"batch.micro": {"log2": [4, 10]}}),
    ("", {"rules.lr": "none"}, {}),  # the rate is swept
    ("schedule_free_decays", _FREE, {}),  # cosine is the default
    ("schedule_free_decays", _FREE | {"schedule.name": "step"}, {}),
    ("", _FREE | {"schedule.name": "constant"}, {}),
    ("", _FREE | {"schedule.final": 1.0}, {}),  # cosine from the highest rate to itself
    ("schedule_free_decays", {}, {"optimizer.name": {"choice": ["momentum", "schedule_free"]}}),
    ("key_without_effect", {"batch.schedule_lr": "rule"}, {}),
    ("key_without_effect", {"batch.plateau_patience": 5}, {}),
    ("", {"batch.plateau_patience": 5, "batch.schedule": "plateau"}, {}),
    ("", {"rules.weight_decay": "timescale"}, _SWEPT_DECAY),
    ("", {"rules.betas": "half_life"}, {"optimizer.name": {"choice": ["sgd", "adamw"]}}),
    ("key_without_effect", {"rules.warmup": "graded", "schedule.name": "triangular"}, {}),
    ("key_without_effect", {"model.norm_momentum": 0.01, "model.norm": "group"}, {}),
    ("", {"model.norm_momentum": 0.01}, {"model.norm": {"choice": ["batch", "group"]}}),
    ("", {"budget.steps": None, "budget.target": 0.9}, {}),
]


@pytest.mark.parametrize(("expected", "base", "space"), CASES)
def test_each_pitfall(expected: str, base: dict[str, Any], space: dict[str, Any]) -> None:
    assert names(base, space) == expected.split()


@pytest.mark.parametrize(("key", "value", "cure"), [
    ("rules.weight_decay", 0.7, {"optimizer.weight_decay": 0.1}),
    ("rules.betas", 0.7, {"optimizer.name": "adamw"}),
    ("rules.betas", "half_life", {"optimizer.name": "adamw"}),
    ("rules.weight_decay", "timescale", {"optimizer.weight_decay": 0.1}),
    ("rules.dropout", "sqrt", {"model.dropout": 0.1}),
    ("rules.label_smoothing", "sqrt", {"regularization.label_smoothing": 0.1}),
    ("schedule.decay_share", 0.5, {"schedule.name": "wsd"}),
    ("data.prefetch", 4, {"data.workers": 1}),
])  # fmt: skip
def test_keys_that_no_training_depends_on(key: str, value: object, cure: dict[str, Any]) -> None:
    assert names({key: value}) == ["key_without_effect"]
    assert names({key: value} | cure) == []


def test_no_advice_on_what_the_study_chooses_on_purpose() -> None:
    assert names(confirm={"seeds": 0}) == names(confirm={"seeds": 2}) == ["one_seed"]
    assert names(_NO_WARMUP, _WIDE, deliberate=["schedule.warmup"]) == []
    assert names(confirm={"seeds": 0}, deliberate=["confirm"]) == []
    with pytest.raises(InputError, match=r"unknown key 'schedule.warm'. Did you mean 'schedule.warmup'"):
        names(deliberate=["schedule.warm"])


def test_a_key_that_the_user_set_over_the_study_of_a_claim_draws_advice() -> None:
    claim = find_claim("memory_linear")
    assert claim is not None
    text = write_plan(claim, changes={"optimizer.name": "schedule_free", "schedule.name": "cosine"})
    found = find_pitfalls(build_study(tomllib.loads(text), claim.name))
    assert [item.name for item in found] == ["schedule_free_decays"]


@pytest.mark.parametrize(("base", "samples"), [
    ({"model.norm": "ghost", "model.ghost_batch": 8}, 8),
    ({"model.norm": "ghost", "model.ghost_batch": 16}, None),
    ({"model.norm": "sync", "distributed.world_size": 4}, None),
    ({"model.norm": "sync", "distributed.world_size": 2}, 8),
    ({"distributed.world_size": 4}, 4),
    ({"batch.micro": 64, "batch.global": 12}, 12),
    ({"batch.micro": "auto", "batch.global": 8}, None),
])  # fmt: skip
def test_the_samples_of_a_statistic_depend_on_the_normalization(base: dict[str, Any], samples: int | None) -> None:
    micro = 16 if base.get("model.norm") == "ghost" else 4
    table = {"name": "normed", "base": CLEAN["base"] | {"batch.micro": micro} | base}
    found = [item for item in find_pitfalls(build_study(table, "test")) if item.key == "model.norm"]
    assert [item.name for item in found] == ["few_samples_to_normalise"] * (samples is not None)
    assert all(f"takes each of its statistics from {samples} samples." in item.statement for item in found)


def find_growing(table: dict[str, Any], num_train: int | None) -> list[str]:
    found = find_pitfalls(build_study(table, "test"), num_train)
    return [item.statement for item in found if item.name == "growth_on_short_training"]


@pytest.mark.parametrize(("budget", "epochs"), [
    ({"budget.epochs": 20}, 20), ({"budget.epochs": 21}, None), ({"budget.seconds": 1.0}, None),
    ({"budget.epochs": 12, "rules.epochs": 0.4, "rules.reference_batch": 8}, None),
    # 8 times the batch of 32 at most, of 320 images: 25 steps are 20 epochs
    ({"budget.steps": 25}, 20), ({"budget.steps": 26}, None), ({"budget.samples": 320}, 1),
    ({"budget.target": 0.9, "budget.max_epochs": 9.0}, 9), ({"budget.target": 0.9}, None),
])  # fmt: skip
def test_a_batch_that_grows_in_a_short_training(budget: dict[str, Any], epochs: int | None) -> None:
    table = {"name": "mine", "base": {"batch.micro": 32, "batch.schedule": "linear", **budget}}
    expected = [f"The batch grows during trainings of {epochs} epochs."] * (epochs is not None)
    assert find_growing(table, 320) == expected
    compared = table | {"space": {"batch.schedule": {"choice": ["constant", "linear"]}}}
    compared["base"] = {key: value for key, value in table["base"].items() if key != "batch.schedule"}
    assert find_growing(compared, 320) == []


def test_a_growing_batch_of_unknown_data_is_judged_by_its_epochs_alone() -> None:
    base = {"batch.schedule": "stepwise", "batch.micro": 32}
    assert len(find_growing({"name": "mine", "base": base | {"budget.epochs": 5}}, None)) == 1
    assert find_growing({"name": "mine", "base": base | {"budget.steps": 5}}, None) == []


def test_a_rate_that_does_not_follow_the_batch() -> None:
    space = {"batch.micro": {"log2": [4, 7]}}
    unscaled = CLEAN | {"base": CLEAN["base"] | {"rules.lr": "none"}, "space": space}
    assert [item.name for item in find_pitfalls(build_study(unscaled, "test"))] == ["rate_does_not_follow"]
    assert names({"rules.lr": "none"}) == []  # the rate is swept
    fixed = unscaled | {"space": {"batch.micro": {"choice": [64, 128]}}}
    assert find_pitfalls(build_study(fixed, "test")) == []  # hardly varies
    found = find_pitfalls(build_study(unscaled | {"base": unscaled["base"] | {"optimizer.name": "adamw"}}, "test"))
    assert found[0].finding == "lr_rule_sqrt"


def test_a_rule_that_counts_from_a_batch_which_is_neither_stated_nor_trained() -> None:
    bare = {key: value for key, value in CLEAN["base"].items() if key != "rules.reference_batch"}
    (found,) = find_pitfalls(build_study(CLEAN | {"base": bare}, "test"))
    assert (found.name, found.key) == ("rule_without_reference", "rules.reference_batch")
    assert "count from an effective batch size of 256" in found.statement
    assert "16 to 128" in found.statement
    wide = CLEAN["space"] | {"batch.micro": {"log2": [4, 9]}}
    assert find_pitfalls(build_study(CLEAN | {"base": bare, "space": wide}, "test")) == []
    assert find_pitfalls(build_study(CLEAN | {"base": bare | {"rules.lr": "none"}}, "test")) == []


@pytest.mark.parametrize(("rule", "expected"), [("none", ["only_fixed_epochs"]), (1.0, [])])
def test_comparing_at_fixed_epochs_only(rule: str | float, expected: list[str]) -> None:
    base = {key: value for key, value in CLEAN["base"].items() if key != "budget.steps"}
    base |= {"budget.epochs": 10, "rules.epochs": rule}
    found = find_pitfalls(build_study(CLEAN | {"base": base}, "test"))
    assert [item.name for item in found] == expected
    assert all("8 times fewer steps" in item.reason for item in found)


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_shipped_studies_walk_into_nothing_but_fixed_epochs(name: str) -> None:
    spec = load_study(shipped_studies()[name])
    assert (spec.name, spec.question[-1]) == (name, "?")
    assert {item.name for item in find_pitfalls(spec)} <= {"only_fixed_epochs"}


_LIKE_TOKENS: dict[str, Any] = {"script.beta2": 0.95}


@pytest.mark.parametrize(("expected", "base", "largest"), [
    ("", {}, 7), ("beta2_does_not_follow", _LIKE_TOKENS, 7), ("", _LIKE_TOKENS, 6),
    ("beta2_does_not_follow", {"optimizer.beta2": 0.99}, 7), ("", _LIKE_TOKENS | {"script.beta2_halflife": 1e5}, 7),
    ("beta2_does_not_follow", _LIKE_TOKENS | {"script.beta2_halflife": 0}, 7),
    ("law_of_steps_does_not_hold", {"script.schedule": "wsd"}, 7), ("", {"script.schedule": "constant"}, 7),
])  # fmt: skip
def test_pitfalls_of_a_script(expected: str, base: dict[str, Any], largest: int) -> None:
    # what the model and the data of a script are is not known: nothing is said on norms, warm-up and epochs
    table = {"name": "own", "script": {"command": "train"}, "base": base}
    table["space"] = {"batch.micro": {"log2": [4, largest]}, "optimizer.lr": {"log": [1e-4, 1e-2]}}
    found = find_pitfalls(build_study(table, "test"))
    assert [item.name for item in found] == expected.split()
    deliberate = table | {"deliberate": [item.key for item in found]}
    assert find_pitfalls(build_study(deliberate, "test")) == []
    assert all("16 to 128" in item.statement for item in found if item.name == "beta2_does_not_follow")


def test_the_command_counts_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[base]\ndata.subset = 60\nbudget.steps = 9\nschedule.warmup = 0.1\n')
    words = ["check", str(path), "--root", str(tmp_path), "--set", "batch.accumulation=2"]
    for micro, expected in ((30, []), (31, ["batch_exceeds_data"])):
        assert run_app([*words, "--set", f"batch.micro={micro}", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["study"], document["data"]["num_train"]) == ("mine", 60)
        assert [item["name"] for item in document["advice"]] == expected
    assert run_app([*words, "--set", "confirm.seeds=0"]) == 0
    shown = capsys.readouterr().out
    assert "mine: 2 known pitfalls" in shown
    assert "confirm: With 0 fresh seeds nothing can be recommended." in shown
