"""Settings that train identically are one configuration; what is printed to run is accepted and does what is said."""

import contextlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frames_factory import frames_of
from records_factory import add_trials, make_store

from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import evaluate_claims
from sweep.cli.app import run_app
from sweep.config.commands import StudyOrigin, find_study_commands
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study, load_study
from sweep.config.trial import EFFECTS, build_config, default_settings, flatten_config, normalize_values
from sweep.foreign.foreign_records import load_foreign_frames
from sweep.records.inputs import DataSummary, trial_key
from sweep.records.loading import normalize_trials
from sweep.search.samplers import make_sampler

# Each: settings that train identically.
IDENTICAL: dict[str, list[dict[str, Any]]] = {
    "a micro batch larger than the step": [{"batch.micro": m, "batch.global": 64} for m in (64, 256)],
    "one micro batch": [{"batch.micro": 64, "batch.accumulation": 1}, {"batch.micro": 64, "batch.global": 64}],
    "of two ranks": [{"distributed.world_size": 2, "batch.global": 64, "batch.micro": m} for m in (32, 64)],
    "momentum of SGD": [{"optimizer.name": "sgd", "optimizer.momentum": m} for m in (0.0, 0.9)],
    "eta of AdamW": [{"optimizer.name": "adamw", "optimizer.trust_coefficient": eta} for eta in (0.1, 0.2)],
    "beta2 of SGD": [{"optimizer.beta2": beta} for beta in (None, 0.9)],
    "a unit of no warm-up": [{"schedule.warmup": 0.0, "schedule.warmup_unit": u} for u in ("steps", "fraction")],
    "a reference without rules": [{"rules.reference_batch": size} for size in (32, 256)],
    "a milestone of cosine": [{"schedule.milestones": text} for text in ("0.5", "0.75")],
    "a factor of no growth": [{"batch.schedule_factor": factor} for factor in (2.0, 8.0)],
}
OTHER: list[list[dict[str, Any]]] = [
    [{"batch.micro": m, "batch.global": 64, "batch.schedule": "linear"} for m in (64, 256)],  # the batch grows
    [{"batch.micro": m, "batch.global": 64} for m in (32, 64)],
    [{"optimizer.name": "adamw", "optimizer.momentum": m} for m in (0.8, 0.9)],
    [{"rules.lr": "sqrt", "rules.reference_batch": size} for size in (32, 256)],
]


def act(values: dict[str, Any]) -> dict[str, Any]:
    return normalize_values(flatten_config(build_config(values, "test")))


@pytest.mark.parametrize("pair", IDENTICAL.values(), ids=IDENTICAL)
def test_what_trains_identically_is_one_configuration(pair: list[dict[str, Any]]) -> None:
    first, second = map(act, pair)
    assert first == second
    keys = {trial_key(build_config(values, "test"), "data", "code", {}) for values in pair}
    assert len(keys) == 1


@pytest.mark.parametrize("pair", OTHER)
def test_what_trains_differently_stays_apart(pair: list[dict[str, Any]]) -> None:
    first, second = map(act, pair)
    assert first != second


def test_every_effect_is_of_keys_that_exist() -> None:
    assert {key for key, (others, _) in EFFECTS.items() for key in (key, *others)} <= default_settings().keys()


CROSSED: dict[str, Any] = {
    "batch.micro": {"choice": [64, 256]}, "batch.global": {"choice": [64, 256]},
    "optimizer.lr": {"choice": [0.01, 0.1]},
}  # fmt: skip
PARTLY = {"optimizer.name": {"choice": ["adamw", "lars"]}, "optimizer.trust_coefficient": {"choice": [0.001, 0.01]}}


def crossed(**changes: Any) -> StudySpec:
    table = {"name": "s", "trials": 8, "sampler": "grid", "base": {"data.name": "digits"}, "space": CROSSED}
    return build_study(table | changes, "test")


@pytest.mark.parametrize(("space", "num"), [(CROSSED, 6), (PARTLY, 3), ({"batch.micro": {"choice": [32, 64]}}, 2)])
def test_a_grid_proposes_each_configuration_once(space: dict[str, Any], num: int) -> None:
    spec = crossed(space=space)
    proposed = [point for index in range(9) if (point := make_sampler(spec, []).propose(index)) is not None]
    assert len(proposed) == num
    assert len({repr(act(dict(spec.base) | point)) for point in proposed}) == num
    for point in proposed:  # what is recorded is a point of the space
        assert all(spec.space[path].has(flatten_config(spec.config(point))[path]) for path in spec.space)


def rows_of(points: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    rows = []
    for number, point in enumerate(points):
        config = build_config({"data.name": "digits"} | point, "test")
        flat = {f"config.{key}": value for key, value in flatten_config(config).items()}
        rows.append(flat | {"number": number, "seed": 0, "global_batch_size": config.global_batch_size} | more)
    return rows


def test_old_records_of_one_configuration_are_grouped_and_equal_results_count_once() -> None:
    points = [{"batch.micro": m, "batch.global": g} for m in (64, 256) for g in (64, 256)]
    rows = rows_of(points, val_accuracy=0.5) + rows_of(points[::2], val_accuracy=0.5, phase="confirm", seed=1)
    frames = frames_of(crossed(), [row | {"number": number} for number, row in enumerate(rows)])
    read = select_comparable(replace(frames, trials=normalize_trials(frames.trials)))
    assert read.grouping.size == 3
    assert len(read.done) == 4  # without the search trial and the fresh seed that repeat others
    assert sorted(read.num_seeds) == [0, 0, 1]
    assert any("2 trials repeat other ones" in note for note in read.notes)


# ------------------------------------------------------------------ what is printed to run

STUDIES: dict[str, dict[str, Any]] = {
    "a grid": {},
    "a part of a grid": {"trials": 3},
    "one micro batch": {"space": {"optimizer.lr": {"choice": [0.01, 0.1]}}, "trials": 2},
    "seeds in the space": {
        "space": CROSSED | {"seed": {"choice": [0, 1]}}, "trials": 12,
        "confirm": {"max_configurations": 0, "seeds": 0},
    },
    "a search": {"sampler": "cost_aware", "space": {"optimizer.lr": {"log": [0.01, 0.1]}}},
}  # fmt: skip


@pytest.mark.parametrize("changes", STUDIES.values(), ids=STUDIES)
def test_a_printed_command_is_accepted_and_adds_what_it_says(changes: dict[str, Any]) -> None:
    spec = crossed(**changes)
    points = spec.list_points()
    commands = find_study_commands("s", spec=spec)
    num_tried = min(spec.trials, len(points)) if points is not None else spec.trials
    limits = spec.confirm.list_raises(1, 3)
    printed = [commands.run_more(2 * spec.trials, num_tried), commands.widen("batch.micro")]
    for command in (*printed, commands.confirm_more(limits)):
        changed = build_study({**spec.model_dump(by_alias=True, exclude_none=True)}, "s", changes_of(command))
        there = changed.list_points()
        if command == commands.confirm_more(limits) and "seed" not in spec.space:
            assert changed.confirm.share == 2 * spec.confirm.share
        else:  # there are further points, and trials for them
            assert changed.trials > num_tried or points is None
            assert there is None or len(there) >= changed.trials > num_tried
    batches = {config.micro_batch for config in build_study(
        spec.model_dump(by_alias=True, exclude_none=True), "s", changes_of(printed[1])
    ).list_corners()}  # fmt: skip
    assert len(batches) > 1


def changes_of(command: str) -> dict[str, Any]:
    from sweep.cli.arguments import parse_sets

    words = shlex.split(command)
    assert words[:3] == ["sweep", "run", "s.toml"]
    pairs = [words[index + 1] for index, word in enumerate(words) if word == "--set"]
    trials = {"trials": int(words[words.index("--trials") + 1])} if "--trials" in words else {}
    return parse_sets(pairs) | trials


def test_what_a_study_refuses_is_no_command() -> None:
    commands = find_study_commands("s", spec=crossed(base={"data.name": "digits", "budget.steps": 2}))
    assert commands.run_variant("x", {"rules.epochs": "sqrt"}).startswith("# the study refuses this: ")


def test_commands_are_right_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text('name = "s"')
    origin = StudyOrigin(argument="s.toml", options=("--on", "cpu")).locate()
    assert find_study_commands("s", "runs/s", origin).run() == "sweep run s.toml --on cpu"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for place in ("../runs/s", str(tmp_path / "runs" / "s"), "../runs/s/study.sqlite"):
        commands = find_study_commands("s", place, origin)
        assert commands.run() == f"sweep run {tmp_path}/s.toml --root {tmp_path}/runs --on cpu"
        assert commands.read_claims() == f"sweep claims s --root {tmp_path}/runs"
    assert find_study_commands("s", "../moved").examine() == f"sweep check {tmp_path}/moved"


@pytest.mark.parametrize(("num_train", "num_val", "name", "lack"), [
    (56, 8, "imagefolder", "more images"),
    (40_000, 100, "imagefolder", "more validation images than 100"),
    (40_000, 4_000, "imagefolder", ""),
    (1_200, 504, "digits", ""),
])  # fmt: skip
def test_a_plan_is_printed_only_for_data_on_which_it_settles(
    num_train: int, num_val: int, name: str, lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data.name": name} | ({"data.image_size": 32, "data.root": "photos"} if name == "imagefolder" else {})
    spec = crossed(base=given)
    rows = rows_of([given | {"optimizer.lr": lr} for lr in (0.01, 0.1)], val_accuracy=0.5)
    frames = frames_of(spec, rows)
    found = evaluate_claims(replace(frames, data=DataSummary(name=name, num_train=num_train, num_val=num_val)))
    settle = {item.name: item.settle for item in found}["warmup_needed"]
    if lack:
        assert settle.startswith(f"# {lack}")
        return
    plan, run = settle.split(" && ")
    assert run == "sweep run claim_warmup_needed.toml"
    assert run_app(shlex.split(plan)[1:]) == 0
    planned = load_study("claim_warmup_needed.toml")
    assert planned.base | given == planned.base


@pytest.mark.parametrize("key", ["batch.micro", "batch.global"])
def test_the_claims_of_a_script_plan_no_images_but_a_study_of_the_script(key: str, tmp_path: Path) -> None:
    script = {"command": "python train.py", "folder": str(tmp_path), "metric": "val_loss"}
    (tmp_path / "train.py").touch()
    space: dict[str, Any] = {key: {"choice": [4, 8]}, "optimizer.lr": {"choice": [0.01, 0.1]}}
    spec = build_study({"name": "s", "trials": 4, "sampler": "grid", "script": script, "space": space}, "s")
    rows = rows_of([{key: size, "optimizer.lr": lr} for size in (4, 8) for lr in (0.01, 0.1)], val_loss=0.5)
    found = {item.name: item.settle for item in evaluate_claims(frames_of(spec, rows)) if item.settle}
    assert len(found) == len(CLAIMS)
    assert not any("--plan" in settle or "data." in settle for settle in found.values())
    assert found["warmup_needed"] == "# not by this script: it has no validation accuracy on record"
    begin = "# a study of this script with script."
    assert found["beta2_follows_batch"].startswith(f"{begin}beta2_halflife at 2 values; optimizer.lr at 0.0001, ")
    assert found["critical_batch_grows"].startswith(f"{begin}schedule at constant; ")
    assert f"{key} at 16, 32, 64, 128, 256" in found["decay_follows_batch"]
    assert ("batch.micro" in found["decay_follows_batch"]) == (key == "batch.micro")


def test_every_plan_passes_a_dry_run_from_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else" / "s").mkdir(parents=True)
    with contextlib.closing(make_store(tmp_path / "else" / "s" / "study.sqlite", crossed())) as store:
        add_trials(store, ["complete"] * 2)
    from sweep.records.loading import load_frames

    frames = load_frames(tmp_path / "else" / "s")
    found = {item.name: item.settle for item in evaluate_claims(frames) if item.settle}
    assert len(found) == len(CLAIMS)
    for name, settle in found.items():
        plan, run = settle.split(" && ")
        assert run_app(shlex.split(plan)[1:]) == 0
        assert shlex.split(run) == ["sweep", "run", f"claim_{name}.toml", "--root", str(tmp_path / "else")]
        assert load_study(f"claim_{name}.toml").list_points()
    assert run_app([*shlex.split(found["warmup_needed"].split(" && ")[1])[1:], "--dry-run", "--on", "cpu"]) == 0


# ------------------------------------------------------------------ records of other programs

MAP = {
    "columns": {
        "batch.global": "size", "batch.accumulation": "accum", "optimizer.lr": "rate", "seed": "seed",
        "device": "device", "val_accuracy": {"column": "acc", "unit": "fraction"},
        "train_seconds": {"column": "s", "unit": "seconds"},
    },
    "constants": {"model.name": "own", "data.name": "mine", "budget.epochs": 3},
}  # fmt: skip


def test_accumulation_of_own_runs_is_seen_and_remedies_name_own_columns(tmp_path: Path) -> None:
    rows = [
        f"{size},{accum},{rate},{seed},{0.8 + seed / 100 + 1 / size},{accum * 1.1},gpu"
        for size, accum in ((32, 1), (128, 1), (128, 4), (512, 1), (512, 4))
        for rate in (0.02, 0.1) for seed in range(3)
    ]  # fmt: skip
    (tmp_path / "runs.csv").write_text("\n".join(["size,accum,rate,seed,acc,s,device", *rows]))
    frames = load_foreign_frames(tmp_path / "runs.csv", MAP)
    sizes = frames.trials[["global_batch_size", "config.batch.accumulation", "config.batch.micro"]].drop_duplicates()
    assert sorted(sizes.itertuples(index=False, name=None)) == [
        (32, 1, 32), (128, 1, 128), (128, 4, 32), (512, 1, 512), (512, 4, 128)
    ]  # fmt: skip
    found = {item.name: item for item in evaluate_claims(frames)}
    assert (found["accumulation_time"].verdict, found["accumulation_time"].n) != ("not measured", 0)
    assert found["accumulation_wasteful"].n > 0
    for item in found.values():
        assert "--plan" not in item.settle
        assert not item.settle or item.settle.startswith("# where these records were made: further runs with ")
    assert "a column for schedule.warmup at 0, 0.1" in found["warmup_needed"].settle
    assert "accum at 1, 4" in found["accumulation_memory"].settle
    assert "seed at 3, 4, 5" in found["accumulation_batch_norm"].settle
    assert "rate at 0.01, 0.03, 0.1, 0.3" in found["large_batch_equal_steps"].settle


def test_a_space_that_no_study_can_widen_is_no_crash() -> None:
    space = {"batch.micro": {"choice": [16]}, "optimizer.lr": {"choice": [0.05, 1e4]}}  # no rate is larger
    table = {"name": "s", "sampler": "grid", "trials": 2, "space": space, "base": {"data.name": "digits"}}
    commands = find_study_commands("s", spec=build_study(table, "s"))
    assert commands.run_more(4, num_tried=2).startswith("# the study refuses this: ")
    assert "--trials 2" in commands.run_more(4, num_tried=1)
