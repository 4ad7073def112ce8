"""The answer: which configuration for which use, how sure, and what is missing."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames_factory import MadeFrames, frames_of, make_frames, make_spec
from simulated_studies import simulate

from studies import shipped_studies
from sweep.analysis import recommend
from sweep.analysis.answer import USES, Limits, to_document
from sweep.analysis.candidates import config_of, select_candidates
from sweep.analysis.comparable import MEMORY, SECONDS, select_comparable
from sweep.analysis.findings import evaluate_claims
from sweep.analysis.recommendation import as_document
from sweep.cli.arguments import parse_sets
from sweep.config.commands import StudyOrigin, find_study_commands
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.config.trial import build_config, flatten_config

MIB = 2.0**20


def trial(number: int, accuracy: float, seconds: float, memory: float = 10 * MIB, **rest: Any) -> dict[str, Any]:
    keys = {"config.model.name": "resnet8", "config.batch.micro": 32, "config.optimizer.lr": 0.01 * (number + 1)}
    values = {"number": number, "val_accuracy": accuracy, "train_seconds": seconds, "peak_memory_bytes": memory}
    return keys | values | {"global_batch_size": 32} | rest


def confirm(of: dict[str, Any], first: int, values: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """Fresh seeds of a trial, numbered from ``first``, with their accuracies and seconds."""
    return [
        of | {"number": first + i, "phase": "confirm", "seed": i + 1, "config.seed": i + 1}
        | {"val_accuracy": accuracy, "train_seconds": seconds}
        for i, (accuracy, seconds) in enumerate(values)
    ]  # fmt: skip


ACCURATE = trial(0, 0.95, 100.0, 40 * MIB, **{"config.batch.micro": 64})
FAST = trial(1, 0.94, 10.0, 80 * MIB, **{"config.batch.micro": 128})
SMALL = trial(2, 0.935, 150.0, 5 * MIB, **{"config.batch.micro": 8})
USELESS = trial(3, 0.5, 1.0, 1 * MIB, **{"config.batch.micro": 256})
BEATEN = trial(4, 0.90, 160.0, 90 * MIB, **{"config.batch.micro": 512})
SEARCH = [ACCURATE, FAST, SMALL, USELESS, BEATEN]


def tried_spec(**changes: Any) -> StudySpec:
    """A study whose space holds only what was tried: nothing else can be better."""
    return make_spec(space={"optimizer.lr": {"choice": [0.01 * (number + 1) for number in range(5)]}}, **changes)


def study(*more: dict[str, Any], spec: Any = None) -> MadeFrames:
    rows = [*SEARCH, *more]
    return frames_of(spec or tried_spec(), rows)


def confirmed_rows() -> list[dict[str, Any]]:
    """Three fresh seeds of all but ``BEATEN``."""
    rows = confirm(ACCURATE, 15, [(0.951, 99.0), (0.949, 101.0), (0.950, 102.0)])
    rows += confirm(FAST, 18, [(0.941, 10.2), (0.939, 9.9), (0.940, 10.0)])
    rows += confirm(SMALL, 21, [(0.936, 151.0), (0.934, 149.0), (0.935, 152.0)])
    return rows + confirm(USELESS, 24, [(0.501, 1.01), (0.499, 0.99), (0.500, 1.0)])


def confirmed() -> MadeFrames:
    return study(*confirmed_rows())


def test_each_use_gets_its_configuration() -> None:
    answer = recommend(confirmed())
    numbers = {name: item.number for name, item in answer.uses.items()}
    # the useless one is fastest and smallest, but no use is without a useful accuracy
    del numbers["balanced"]  # a matter of taste
    assert numbers == {"accuracy": 0, "speed": 1, "memory": 2, "fine_tune": None, "distributed": None}
    accuracy = answer.uses["accuracy"]
    assert (accuracy.values["val_accuracy"].median, accuracy.values["val_accuracy"].n) == (
        pytest.approx(0.95, abs=1e-4),
        3,
    )
    assert accuracy.values["val_accuracy"].low < 0.949 < 0.951 < accuracy.values["val_accuracy"].high
    assert accuracy.is_settled
    assert accuracy.probability > 0.95
    assert accuracy.on_front > 0.95
    assert accuracy.missing is None
    assert accuracy.evidence[:2] == (
        "3 trials with fresh seeds: 15, 16, 17",
        "compared with all 5 eligible configurations, 4 of them with 3 fresh seeds or more",
    )


def test_what_is_given_up_against_the_next_best() -> None:
    following = recommend(confirmed()).uses["accuracy"].next_best
    assert following is not None
    assert following.number == 1
    assert following.changes == {"batch.micro": 128, "optimizer.lr": 0.02}
    gap, times = following.differences["val_accuracy"], following.differences["train_seconds"]
    assert gap.median == pytest.approx(0.01, abs=0.003)
    assert gap.low < 0.01 < gap.high
    assert times.median == pytest.approx(10.0, rel=0.05)
    assert (following.units["val_accuracy"], following.units["train_seconds"]) == ("fraction", "ratio")


@pytest.mark.parametrize(("limits", "use", "number"), [
    ({"max_seconds": 50.0}, "accuracy", 1), ({"max_memory_bytes": 20 * MIB}, "accuracy", 2),
    ({"min_accuracy": 0.945}, "speed", 0), ({"min_accuracy": 0.4}, "speed", 3),
    ({"max_seconds": 0.5}, "accuracy", None),
    ({"max_memory_bytes": 20 * MIB, "max_seconds": 20.0, "min_accuracy": 0.9}, "balanced", None),
])  # fmt: skip
def test_limits_are_kept(limits: dict[str, float], use: str, number: int | None) -> None:
    item = recommend(confirmed(), **limits, uses=(use,)).uses[use]  # type: ignore[arg-type]
    assert item.number == number
    if number is None:
        assert item.missing is None  # more training does not move a limit


@pytest.mark.parametrize(("num_seeds", "number"), [(0, None), (2, None), (3, 0)])
def test_nothing_is_named_with_fewer_than_three_fresh_seeds(num_seeds: int, number: int | None) -> None:
    seeds = confirm(ACCURATE, 15, [(0.951, 99.0), (0.949, 101.0), (0.950, 102.0)][:num_seeds])
    answer = recommend(study(*seeds))
    item = answer.uses["accuracy"]
    assert item.number == number
    assert any(
        "spread of validation accuracy, training time and peak memory between seeds is assumed" in note
        for note in answer.notes
    ) == (not seeds)
    begin = f"{int(number is not None)} of 5 configurations have at least 3 fresh seeds"
    assert any(note.startswith(begin) for note in answer.notes)
    if number is None:
        assert (item.config, item.values, item.next_best, item.evidence) == ({}, {}, None, ())
        assert (item.probability, item.is_settled) == (0.0, False)
        assert item.missing == "sweep run made.toml --set confirm.share=1.0"


@pytest.mark.parametrize(("given", "named"), [
    ({}, "confirm.share=1.0"),
    ({"share": 2.0}, "confirm.share=4.0"),
    ({"max_configurations": 1}, "confirm.share=1.0 --set confirm.max_configurations=16"),
    ({"seeds": 2}, "confirm.share=1.0 --set confirm.seeds=20"),
    ({"max_configurations": 0}, "confirm.share=1.0 --set confirm.max_configurations=16"),
])  # fmt: skip
def test_the_command_for_more_seeds_raises_the_limits_that_are_in_the_way(given: dict[str, Any], named: str) -> None:
    seeds = confirm(ACCURATE, 15, [(0.951, 99.0), (0.949, 101.0)])
    item = recommend(study(*seeds, spec=tried_spec(confirm=given))).uses["accuracy"]
    assert item.missing == f"sweep run made.toml --set {named}"


@pytest.mark.parametrize(("changes", "num_confirmed", "outcome", "is_unfinished"), [
    ({"trials": 6}, 0, "complete", True),  # interrupted in the search
    ({"trials": 5}, 0, "complete", False),
    ({"trials": 6}, 2, "complete", False),  # the search ended by itself
    ({"trials": 6, "search_timeout": "60s"}, 2, "complete", True),
    ({"trials": 5, "search_timeout": "60s"}, 2, "complete", False),
    ({"trials": 6, "confirm": {"seeds": 0}}, 0, "complete", False),
    ({"trials": 5}, 2, "", True),  # interrupted in the confirming
])  # fmt: skip
def test_the_next_step_of_an_unfinished_study_is_its_own_command(
    changes: dict[str, Any], num_confirmed: int, outcome: str, is_unfinished: bool
) -> None:
    seeds = confirm(ACCURATE, 15, [(0.951, 99.0), (0.949, 101.0)][:num_confirmed])
    for row in seeds[1:]:
        row["outcome"] = outcome
    space = {"optimizer.lr": {"log": [0.01, 0.05]}}
    records = select_comparable(study(*seeds, spec=make_spec(space=space, **changes)))
    for command in (records.command_for_more, records.command_for_more_seeds):
        assert (command == "sweep run made.toml") == is_unfinished


def test_an_answer_that_is_not_settled_names_what_it_requires() -> None:
    # half a point apart by the medians, two points of spread
    rows = confirm(ACCURATE, 15, [(0.970, 99.0), (0.930, 101.0), (0.950, 102.0)])
    rows += confirm(FAST, 18, [(0.925, 10.2), (0.965, 9.9), (0.945, 10.0)])
    item = recommend(study(*rows)).uses["accuracy"]
    assert item.number == 0
    assert 0.3 < item.probability < 0.95
    assert not item.is_settled
    assert item.missing == "sweep run made.toml --set confirm.share=1.0"
    # the user decides how sure is sure, and which difference does not matter
    lenient = recommend(study(*rows, spec=tried_spec(answer={"confidence": 0.51, "tolerance": {"accuracy": 0.03}})))
    assert lenient.uses["accuracy"].is_settled
    assert lenient.uses["accuracy"].probability > item.probability
    assert lenient.uses["accuracy"].missing is None
    assert (lenient.confidence, lenient.tolerance.accuracy) == (0.51, 0.03)


def test_fine_tuning_and_ranks_are_answered_by_trials_that_did_so() -> None:
    tuned = trial(5, 0.97, 30.0, **{"config.model.weights": "w.safetensors"})
    ranks = trial(6, 0.95, 20.0, **{"config.distributed.world_size": 2})
    seeds = confirm(tuned, 30, [(0.971, 30.0), (0.969, 30.5), (0.970, 31.0)])
    seeds += confirm(ranks, 33, [(0.951, 20.0), (0.949, 20.5), (0.950, 19.8)])
    answer = recommend(study(tuned, ranks, *seeds, *confirmed_rows()))
    assert answer.uses["fine_tune"].number == 5
    assert answer.uses["distributed"].number == 6


@pytest.mark.parametrize("rows", [
    [], [trial(0, 0.9, 1.0)], [{"number": n, "outcome": "crashed"} for n in range(3)],
    [trial(0, 0.9, 1.0, outcome=None)],
], ids=["none", "one", "all failed", "running"])  # fmt: skip
@pytest.mark.parametrize("has_spec", [True, False])
def test_few_records_are_no_crash(rows: list[dict[str, Any]], has_spec: bool) -> None:
    answer = recommend(frames_of(make_spec() if has_spec else None, rows))
    assert set(answer.uses) == set(USES)
    assert len(answer.facts) == 3
    is_hopeless = any(row.get("outcome") == "crashed" for row in rows)
    assert (answer.no_complete_trial is None) == (len(rows) == 1 and "outcome" not in rows[0])
    for item in answer.uses.values():
        assert (item.missing is None) == is_hopeless  # more trials would fail too
        assert item.number is None
        assert (item.probability, item.is_settled) == (0.0, False)
    json.dumps(as_document(answer), allow_nan=False)


def test_the_document_keeps_its_contract() -> None:
    document = as_document(recommend(confirmed()))
    json.dumps(document, allow_nan=False)
    assert set(document["uses"]) == set(USES)
    item = document["uses"]["accuracy"]
    assert {"config", "val_accuracy", "train_seconds", "peak_memory_bytes", "evidence", "missing"} <= set(item)
    assert set(item["val_accuracy"]) == {"median", "low", "high", "n"}
    assert item["probability"] > 0.95
    assert item["settled"] is True
    assert item["front_probability"] > 0.95
    assert document["confidence"] == 0.95
    assert document["tolerance"] == {"accuracy": 0.005, "time": 0.05, "memory": 0.05}
    named = document["batch_size"]["named"]
    assert (named["number"], named["settled"], named["config"]["batch.micro"]) == (0, True, 64)
    assert isinstance(item["evidence"], list)
    assert item["config"]["batch.micro"] == 64
    assert set(document["facts"]["throughput_knee"]) >= {"value", "unit", "n", "missing"}


def test_the_configuration_can_be_trained_again() -> None:
    simulated = simulate(3)
    item = recommend(simulated.frames).uses["accuracy"]
    rebuilt = flatten_config(
        build_config({key: value for key, value in item.config.items() if value is not None}, "test")
    )
    frame = simulated.frames.trials
    recorded = config_of(frame[frame["number"] == item.number].iloc[0])
    assert {key: rebuilt[key] for key in recorded} == recorded
    assert item.global_batch_size == frame.loc[frame["number"] == item.number, "global_batch_size"].iloc[0]


def test_a_lucky_single_seed_does_not_beat_confirmed_ones() -> None:
    rows = confirm(ACCURATE, 5, [(0.960, 99.0), (0.940, 101.0), (0.950, 102.0)])
    lucky = trial(9, 0.958, 99.0, 40 * MIB, **{"config.batch.micro": 64})
    assert recommend(study(*rows, lucky)).uses["accuracy"].number == ACCURATE["number"]
    # better by several times the spread: the one with fresh seeds is probably wrong
    better = trial(9, 0.956, 99.0, 40 * MIB, **{"config.batch.micro": 64})
    item = recommend(study(*confirmed_rows(), better)).uses["accuracy"]
    assert item.number == ACCURATE["number"]
    assert 0 < item.probability < 0.2
    assert item.regret == pytest.approx(0.006, abs=0.001)
    assert not item.is_settled
    assert item.missing == "sweep run made.toml --set confirm.share=1.0"
    # none with fresh seeds may be right: none is named
    best = trial(9, 0.999, 99.0, 40 * MIB, **{"config.batch.micro": 64})
    item = recommend(study(*confirmed_rows(), best)).uses["accuracy"]
    assert (item.number, item.missing) == (None, "sweep run made.toml --set confirm.share=1.0")
    seeds = confirm(best, 30, [(0.9985, 99.0), (0.9990, 101.0), (0.9988, 102.0)])
    item = recommend(study(*confirmed_rows(), best, *seeds)).uses["accuracy"]
    assert (item.number, item.is_settled) == (9, True)


def test_of_two_that_are_as_good_the_one_that_surely_costs_less_is_named() -> None:
    rows = confirmed_rows()
    cheaper = trial(9, 0.949, 30.0, 20 * MIB, **{"config.batch.micro": 32})
    seeds = confirm(cheaper, 30, [(0.950, 30.1), (0.948, 29.9), (0.949, 30.0)])
    item = recommend(study(*rows, cheaper, *seeds)).uses["accuracy"]
    assert item.number == 9  # a tenth of a point below, which is within the tolerance
    assert item.on_front > 0.95
    assert item.is_settled
    dear = trial(9, 0.949, 130.0, 60 * MIB, **{"config.batch.micro": 32})
    seeds = confirm(dear, 30, [(0.950, 130.5), (0.948, 129.0), (0.949, 130.0)])
    assert recommend(study(*rows, dear, *seeds)).uses["accuracy"].number == 0


def test_devices_and_data_sets_are_not_mixed() -> None:
    other = trial(5, 0.99, 1.0, 1 * MIB, device="cuda: other")
    digits = trial(6, 0.999, 1.0, 1 * MIB, **{"config.data.name": "digits"})
    others = confirm(other, 30, [(0.99, 1.0)] * 3)
    rows = [row | {"config.data.name": "cifar10"} for row in [*SEARCH, *confirmed_rows(), other, *others]]
    answer = recommend(frames_of(tried_spec(), [*rows, digits, *confirm(digits, 33, [(0.999, 1.0)] * 3)]))
    assert answer.uses["accuracy"].number == 0
    # the data set, the device, the configuration without fresh seeds, the short search
    assert len(answer.notes) == 4
    assert "'cifar10' are compared; 4 complete trials of others are not in the estimates" in answer.notes[0]
    assert "'cpu: made' are compared; 4 complete trials of others are not in the estimates" in answer.notes[1]


def test_times_of_one_cost_are_pooled_only_where_they_agree() -> None:
    # lr changes no cost: 8 configurations of one cost, the trials of one of them measured slow by chance
    rows = with_seeds([trial(n, 0.9 + 0.01 * n, 10.0 * (1.1 if n == 7 else 1.0)) for n in range(8)])
    item = recommend(frames_of(tried_spec(), rows), uses=("speed",)).uses["speed"]
    assert item.number == 7  # as fast as the others in truth, and the most accurate
    assert item.values["train_seconds"].n == 32
    rows = with_seeds([trial(n, 0.9 + 0.002 * n, 10.0 * 2**n) for n in range(8)])
    item = recommend(frames_of(tried_spec(), rows), uses=("speed",)).uses["speed"]
    assert (item.number, item.values["train_seconds"].n) == (0, 3)


def with_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The search trials ``rows``, and three fresh seeds of each with its own time."""
    seeds = []
    for row in rows:
        values = [(row["val_accuracy"] + gap, row["train_seconds"]) for gap in (-0.001, 0, 0.001)]
        seeds += confirm(row, 100 + 10 * row["number"], values)
    return [*rows, *seeds]


@pytest.mark.parametrize("seed", range(12))
def test_holes_in_the_records_are_no_crash(seed: int) -> None:
    """Missing, zero and equal measurements, with warnings as errors."""
    rng = np.random.default_rng(seed)
    made = make_frames(int(rng.integers(1, 30)), confirm=int(rng.integers(0, 4)), seed=seed)
    trials = made.trials.copy()
    for name in ("val_accuracy", "train_seconds", "peak_memory_bytes", "images_per_second"):
        hole = {0: None, 1: 1.0, 2: 0.0}.get(int(rng.integers(0, 6)), "none")
        if hole != "none":
            trials.loc[rng.random(len(trials)) < rng.choice([0.4, 1.0]), name] = hole
    frames = replace(made, trials=trials)
    answer = as_document(recommend(frames))
    json.dumps(answer, allow_nan=False)
    assert all(use["config"] or use["missing"] for use in answer["uses"].values())  # an answer, or how to get one
    json.dumps(to_document(evaluate_claims(frames)), allow_nan=False)


def test_limits_are_above_zero() -> None:
    with pytest.raises(InputError, match=r"max_seconds = -1.0: must be above 0"):
        recommend(study(), max_seconds=-1.0)


# --- facts


def knee_rows() -> list[dict[str, Any]]:
    rates = {16: 100.0, 32: 190.0, 64: 300.0, 128: 390.0, 256: 400.0}
    return [
        trial(number, 0.9, 14_000 / rate, micro * MIB, images_per_second=rate, global_batch_size=micro)
        | {"config.batch.micro": micro}
        for number, (micro, rate) in enumerate(rates.items())
    ]


def test_knee_and_largest_micro_batch() -> None:
    failed = trial(9, math.nan, math.nan, outcome="out_of_memory", **{"config.batch.micro": 1024})
    frames = frames_of(make_spec(), [*knee_rows(), failed | {"global_batch_size": 1024}])
    facts = recommend(frames).facts
    assert facts["throughput_knee"].value == 128  # 390 is within 5 % of 400
    assert facts["largest_micro_batch"].value == 256
    assert "1024 did not fit" in facts["largest_micro_batch"].detail
    probes = pd.DataFrame({"micro_batch": [512], "outcome": ["complete"]})
    assert recommend(replace(frames, probes=probes)).facts["largest_micro_batch"].value == 512


def test_the_noise_scale_is_of_the_training_and_no_critical_batch() -> None:
    # each row is a configuration; of the last no |G|^2 was above 0, and two are of another optimizer
    asked = {"config.diagnostics.noise_scale": True, "config.optimizer.name": "momentum", "num_noise_steps": 10}
    rows = [row | asked | {"noise_scale_run": 100.0 + n} for n, row in enumerate(knee_rows())]
    rows[-1] |= {"noise_scale_run": math.nan}
    rows += [rows[0] | {"number": 40, "config.optimizer.lr": 0.7, "noise_scale_run": 9999.0, "num_noise_steps": 9}]
    adam = {"config.optimizer.name": "adam", "noise_scale_run": 1e6}
    rows += [row | asked | adam | {"number": 50 + n} for n, row in enumerate(knee_rows()[:2])]
    facts = recommend(frames_of(make_spec(), rows)).facts
    # no rate of accuracy over time, which the fastest would win whatever it learns
    assert facts.keys() == {"largest_micro_batch", "throughput_knee", "noise_scale"}
    noise = facts["noise_scale"]
    assert (noise.value, noise.n) == (101.5, 4)
    assert "momentum: median over 4 configurations" in noise.detail
    assert "in 2 further configurations the estimate of |G|^2 is not above 0, or fewer than 10 steps" in noise.detail
    assert "B_simple" in noise.statement
    assert "not the critical batch" in noise.detail
    without = recommend(frames_of(make_spec(), knee_rows())).facts["noise_scale"]
    assert math.isnan(without.value)
    assert without.missing == "sweep run made.toml --set name=made_noise --set diagnostics.noise_scale=true"


def test_commands_carry_what_was_changed() -> None:
    changes = {"name": "quickstart_noise", "budget.epochs": 1, "batch.micro": 64, "sampler": "random"}
    spec = load_study(shipped_studies()["quickstart"], changes)
    commands = find_study_commands(spec.name, "", StudyOrigin(argument="quickstart", changes=changes))
    command = commands.run_more(9)
    assert command == (
        "sweep run quickstart --set name=quickstart_noise --set budget.epochs=1 --set batch.micro=64 "
        "--set sampler=random --trials 9"
    )
    # what the command line makes of it is the study that was recorded
    pairs = shlex.split(command)[4:-2:2]
    assert load_study(shipped_studies()["quickstart"], parse_sets(pairs)) == spec
    variant = commands.run_variant("tuned", {"model.weights": "my weights.safetensors"})
    assert "--set name=quickstart_noise_tuned" in variant
    assert variant.count("--set name=") == 1
    assert parse_sets(shlex.split(variant)[-1:]) == {"model.weights": "my weights.safetensors"}
    save = commands.train_and_save("my weights.safetensors", {"model.name": "vit_micro"})
    assert save == (
        "sweep train quickstart --set budget.epochs=1 --set batch.micro=64 --set model.name=vit_micro "
        "--save 'my weights.safetensors'"  # which takes no sampler
    )
    table = StudyOrigin(
        argument="a b.toml", changes={"confirm": {"seeds": 3, "share": 0.5}, "objectives": ["val_accuracy"]}
    )
    again = find_study_commands("x", "", table).run_again()
    assert parse_sets(shlex.split(again)[4:-1:2]) == table.changes
    slurm = StudyOrigin(argument="x.toml", options=("--on", "my cluster.toml"))
    assert find_study_commands("x", "", slurm).run_more(9) == "sweep run x.toml --on 'my cluster.toml' --trials 9"
    # of studies that Python code ran
    assert find_study_commands("quickstart").run_again() == "sweep run quickstart --fresh"
    assert find_study_commands("quickstart_of_mine").argument == "quickstart_of_mine.toml"


@pytest.mark.parametrize(("place", "command"), [
    ("", "sweep run s.toml --trials 9"),
    ("runs/s", "sweep run s.toml --trials 9"),
    ("other place/s", f"sweep run s.toml --root '{Path('other place').resolve()}' --trials 9"),
    ("/else/s/study.sqlite", "sweep run s.toml --root /else --trials 9"),
    ("exports/of_s", "# requires s.toml, not found here: sweep run s.toml --trials 9"),  # cannot be gone on with
    ("sqlite:////else/all.sqlite", "sweep run s.toml --store sqlite:////else/all.sqlite --trials 9"),
    ("sqlite:////else/all.sqlite#s", "sweep run s.toml --store sqlite:////else/all.sqlite --trials 9"),
])  # fmt: skip
def test_commands_lead_to_where_the_records_are(place: str, command: str) -> None:
    assert find_study_commands("s", place).run_more(9) == command


def test_what_was_not_tried_costs_what_some_trial_of_its_batch_size_did() -> None:
    # a batch of 256 at once is fast and large, 64 x 4 slow and small; neither time nor memory of both is one rival's
    whole = trial(0, 0.95, 10.0, 80 * MIB, **{"config.batch.micro": 256, "global_batch_size": 256})
    split = trial(1, 0.95, 20.0, 20 * MIB, **{"config.batch.micro": 64, "config.batch.accumulation": 4})
    split |= {"global_batch_size": 256}
    beaten = split | {"number": 2, "train_seconds": 30.0, "config.batch.micro": 32, "config.batch.accumulation": 8}
    space = {"batch.micro": {"choice": [32, 64, 256]}, "batch.accumulation": {"choice": [1, 4, 8]}}
    spec = make_spec(space=space | {"optimizer.lr": {"log": [1e-3, 1.0]}})
    rows = [whole, split, beaten | {"peak_memory_bytes": 20 * MIB}]
    rows += confirm(whole, 3, [(0.95, 10.0)] * 3) + confirm(split, 6, [(0.95, 20.0)] * 3)
    candidates = select_candidates(select_comparable(frames_of(spec, rows)), Limits())
    assert candidates is not None
    of_batch = candidates.rivals[:, candidates.untried.batches == 256]
    costs = np.median(of_batch, axis=0)[:, [candidates.names.index(name) for name in (SECONDS, MEMORY)]]
    assert sorted(costs.tolist()) == [
        pytest.approx([10.0, 80 * MIB], rel=0.1),
        pytest.approx([20.0, 20 * MIB], rel=0.1),
    ]


def test_a_batch_size_without_a_time_does_not_hide_the_others() -> None:
    timeless = trial(0, 0.95, 1.0, **{"config.batch.micro": 64, "global_batch_size": 64})
    timed = trial(1, 0.95, 1.02, **{"config.batch.micro": 16, "global_batch_size": 16})
    rows = [timeless, *confirm(timeless, 3, [(0.95, 1.0)] * 3)]
    rows = [row | {"train_seconds": None} for row in rows] + [timed, *confirm(timed, 6, [(0.95, 1.02)] * 3)]
    rows.append(trial(2, 0.95, 1.0, **{"config.batch.micro": 32, "global_batch_size": 32}))
    spec = make_spec(space={"batch.micro": {"choice": [16, 32, 64]}, "optimizer.lr": {"choice": [0.01, 0.02, 0.03]}})
    answer = recommend(frames_of(spec, rows)).batch_size
    assert answer is not None
    assert answer.named.global_batch_size == 16
