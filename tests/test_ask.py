"""The guide: its decision tree, the size of a study, the file that it writes, and the command on real digits."""

import itertools
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_folder_factory import list_images, write_files
from PIL import Image

from benchmarks import datasets
from reports import write_report
from sweep.cli import ask as ask_command
from sweep.cli import study_run
from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study, load_study
from sweep.probing.gate import MemoryRoom
from sweep.probing.memory import estimate_memory
from sweep.probing.prober import Prober
from sweep.records.loading import load_frames
from sweep.search import guided_study, study_forecast
from sweep.search.ask import (
    Answers,
    Decisions,
    Facts,
    Size,
    StudyDraft,
    check_time_left,
    choose_size,
    cut_images,
    decide,
    describe_left_out,
    describe_part,
    find_full_size,
    find_uses,
    list_sizes,
    pick_batches,
    resize,
    write_study,
)
from sweep.search.guided_study import GuideTask, look_at_images
from sweep.search.session import Options

FACTS = Facts(side=32, num_train=45_000, num_validation=5000)
FEW = {"num_train": 1300, "num_validation": 228}


def values_of(decisions: Decisions) -> dict[str, Any]:
    """Every key that is decided, with its value."""
    return {each.key: each.value for part in (decisions.study, decisions.base, decisions.space) for each in part}


def draft_of(decisions: Decisions, **fields: Any) -> StudyDraft:
    size = resize(find_full_size(decisions, FACTS.num_train), num_models=1)
    return StudyDraft(**{"name": "s", "question": "Which?", "decisions": decisions, "size": size, **fields})


def build(draft: StudyDraft) -> StudySpec:
    return build_study(tomllib.loads(write_study(draft)), "the guide's file")


# ---------------------------------------------------------------------- the decision tree


@pytest.mark.parametrize(("target", "batches", "accumulations"), [
    ("balanced", (32, 64, 128, 256, 512), [1]), ("accuracy", (16, 32, 64, 128, 256), [1]),
    ("speed", (64, 128, 256, 512, 1024), [1]), ("memory", (8, 16, 32, 64, 128), [1, 2, 4]),
])  # fmt: skip
def test_the_target_decides_the_batch_sizes(target: str, batches: tuple[int, ...], accumulations: list[int]) -> None:
    decisions = decide(Answers(target=target), FACTS)
    assert decisions.batches == batches
    assert decisions.accumulation.value == {"choice": accumulations}
    assert find_uses(Answers(target=target)) == (target,)
    assert values_of(decisions).get("model.norm") == ("group" if target == "memory" else None)


@pytest.mark.parametrize(
    ("largest", "accumulations", "micro"), [(None, [1], 512), (512, [1], 512), (100, [1, 2, 4, 8], 64), (1, None, 1)]
)
def test_what_does_not_fit_is_accumulated(largest: int | None, accumulations: list[int] | None, micro: int) -> None:
    decisions = decide(Answers(), replace(FACTS, largest_micro=largest))
    spec = build(draft_of(decisions))
    assert max(spec.space["batch.micro"].extremes()) == micro
    if accumulations is not None:
        assert decisions.accumulation.value == {"choice": accumulations}
    reached = max(each.global_batch_size for each in spec.list_corners())
    assert reached >= 512


@pytest.mark.parametrize(("answers", "largest", "least"), [
    (Answers(), None, 32),
    (Answers(), 8, 8),  # 32 samples are four micro batches of 8
    (Answers(num_devices=4), None, 8),  # 32 samples are 8 on each device
    (Answers(batch=8), None, 8),
])  # fmt: skip
def test_small_micro_batches_have_no_batch_normalization(answers: Answers, largest: int | None, least: int) -> None:
    facts = replace(FACTS, largest_micro=largest)
    decisions = decide(answers, facts)
    assert min(each.micro_batch for each in build(draft_of(decisions)).list_corners()) == least
    assert values_of(decisions).get("model.norm") == ("group" if least < 16 else None)
    assert "model.norm" not in values_of(decide(replace(answers, models=("vit_tiny",)), facts))


def test_fine_tuning_takes_small_batches_and_small_rates() -> None:
    answers = Answers(weights="w.safetensors", models=("resnet20",), target="speed")
    decisions = decide(answers, FACTS)
    assert decisions.batches == (16, 32, 64, 128)
    scratch = values_of(decide(Answers(), FACTS))["optimizer.lr"]["log"]
    tuning = values_of(decisions)["optimizer.lr"]["log"]
    assert all(10 <= high / low <= 100 for low, high in zip(tuning, scratch, strict=True))
    assert values_of(decisions)["model.weights"] == "w.safetensors"
    assert "model.norm" not in values_of(decisions)  # the weights have their own
    assert find_uses(answers) == ("fine_tune", "speed")
    assert find_uses(replace(answers, target="accuracy")) == ("fine_tune",)


def test_several_devices_share_the_effective_batch() -> None:
    answers = Answers(num_devices=4, target="speed", batch=200)
    on_gpus = values_of(decide(answers, replace(FACTS, device_type="cuda")))
    assert (on_gpus["distributed.world_size"], on_gpus["model.norm"]) == (4, "sync")
    assert "model.norm" not in values_of(decide(answers, FACTS))  # not available on a CPU
    spec = build(draft_of(decide(answers, FACTS)))
    sizes = {each.global_batch_size for each in spec.list_corners()}
    assert {64, 1024, 200} <= sizes
    assert spec.config(spec.first[0]).global_batch_size == 200
    assert find_uses(answers) == ("distributed",)


@pytest.mark.parametrize(("answers", "facts", "key", "value"), [
    (Answers(target="speed"), {"device_type": "cuda"}, "precision.dtype", "bf16"),
    (Answers(target="accuracy"), {"device_type": "cuda"}, "precision.dtype", None),
    (Answers(target="speed"), {}, "precision.dtype", None),
    # twice the root of 0.02 / n in steps of 0.005
    (Answers(), {"num_validation": 100}, "answer.tolerance.accuracy", 0.03),
    (Answers(), {"num_validation": 504}, "answer.tolerance.accuracy", 0.015),
    (Answers(), {"num_validation": 5000}, "answer.tolerance.accuracy", 0.005),
    (Answers(), {"num_validation": 1000, "disagreement": 0.3}, "answer.tolerance.accuracy", 0.035),
    (Answers(), {**FEW, "validation_share": 0.33}, "data.validation_share", 0.33),
    (Answers(), FEW, "data.validation_share", None),
    (Answers(), {"subset": 2000}, "data.subset", 2000),
])  # fmt: skip
def test_what_is_known_decides_a_key(answers: Answers, facts: dict[str, Any], key: str, value: Any) -> None:
    assert values_of(decide(answers, replace(FACTS, **facts))).get(key) == value


@pytest.mark.parametrize(("answers", "side", "models"), [
    (Answers(), 8, ("resnet8", "vit_micro")), (Answers(), 224, ("resnet18", "vit_small")),
    (Answers(models=("resnet56",)), 32, ("resnet56",)),
])  # fmt: skip
def test_the_size_of_the_images_decides_the_models(answers: Answers, side: int, models: tuple[str, ...]) -> None:
    assert decide(answers, replace(FACTS, side=side)).models == models


@pytest.mark.parametrize(("answers", "num_train", "batches", "note"), [
    (Answers(target="speed"), 1000, (32, 64, 128), "above 128 are left out:"),
    (Answers(target="speed", batch=300), 1000, (32, 64, 128, 300), "above 128 are left out but for the given 300:"),
    (Answers(), 60, (2, 4, 8), "above 8 are left out:"),
    (Answers(batch=256), 258, (16, 32, 64, 256), "258 training images at an effective batch size of 256 are 2 opt"),
    (Answers(num_devices=2), 45_000, (32, 64, 128, 256, 512), ""),
    (Answers(num_devices=3), 45_000, (24, 48, 96, 192, 384), ""),
    (Answers(num_devices=64), 45_000, (128, 256, 512), ""),
    (Answers(num_devices=512), 45_000, (1024, 2048), ""),
])  # fmt: skip
def test_batch_sizes_leave_enough_steps_and_every_device_has_the_same_share(
    answers: Answers, num_train: int, batches: tuple[int, ...], note: str
) -> None:
    decisions = decide(answers, replace(FACTS, num_train=num_train))
    assert decisions.batches == batches
    assert note in " ".join(decisions.notes)
    assert bool(decisions.notes) == bool(note)
    assert {each.global_batch_size for each in build(draft_of(decisions)).list_corners()} == set(batches)


# ---------------------------------------------------------------------- the size


HELD_OUT = replace(FACTS, has_own_validation=False, num_classes=10)
FULL = find_full_size(decide(Answers(), HELD_OUT), HELD_OUT.num_train)


def price(size: Size) -> float:
    """A machine on which 1,000 images take a second, a quarter with the smaller model."""
    pace = 0.25 if size.is_smaller else 1.0
    return pace * size.num_trials * (1 + size.confirm_share) * size.epochs * (size.subset or 45_000) / 1000


@pytest.mark.parametrize("budget", [20.0, 100.0, 1000.0, 10_000.0, 100_000.0])
def test_a_study_takes_the_time_that_there_is(budget: float) -> None:
    sizes = list_sizes(FULL, Answers(), HELD_OUT)
    size = choose_size(sizes, budget, price)
    assert price(replace(size, num_trials=1)) <= budget
    assert size.epochs <= size.most_epochs
    # the time limit and not the number of trials ends the search
    assert price(size) > budget
    per_batch = size.num_trials / size.num_batches / size.num_models
    assert size.epochs == size.most_epochs or per_batch <= 6, "epochs come before more trials"
    larger = choose_size(sizes, 2 * budget, price)
    kept = [(each.num_models, each.num_batches, not each.is_smaller, each.subset or 45_000) for each in (larger, size)]
    assert kept == sorted(kept, reverse=True)


def test_the_sizes_fall_from_full_to_least() -> None:
    sizes = list_sizes(FULL, Answers(), HELD_OUT)
    prices = [price(size) for size in sizes]
    assert prices == sorted(prices, reverse=True)
    assert [size.subset for size in sizes if size.subset] == [20_000, 10_000, 5000, 2000, 1000, 1000, 1000]
    least = sizes[-1]
    assert (least.epochs, least.num_batches, least.num_trials, least.is_smaller) == (3, 2, 4, True)
    assert describe_part(least, Answers(), HELD_OUT) == (
        "1,000 of your 45,000 training images and resnet8 instead of resnet20"
    )
    assert choose_size(sizes, 5.0, price) == replace(least, num_trials=6)
    assert choose_size(sizes, 60.0, lambda _size: None) == resize(FULL, num_models=1)  # without a probe limits hold


@pytest.mark.parametrize(("answers", "facts", "fixed", "subset", "is_smaller"), [
    (Answers(), {"num_classes": 100}, (), 5000, True),  # 50 images of a class
    (Answers(batch=512), {}, (), 5000, True),  # four steps an epoch
    (Answers(), {"num_train": 900}, (), None, True),
    (Answers(), {}, ("data.subset",), None, True),  # what was given stays
    (Answers(models=("resnet20",)), {}, (), 1000, False),
    (Answers(), {"side": 224}, (), 1000, False),  # no smaller one of the family
])  # fmt: skip
def test_no_less_is_left_than_teaches_something(
    answers: Answers, facts: dict[str, Any], fixed: tuple[str, ...], subset: int | None, is_smaller: bool
) -> None:
    found = replace(HELD_OUT, **facts)
    least = list_sizes(find_full_size(decide(answers, found), found.num_train), answers, found, fixed)[-1]
    assert (least.subset, least.is_smaller) == (subset, is_smaller)
    assert least.epochs * (subset or found.num_train) >= 3000
    assert (
        build(replace(draft_of(decide(answers, cut_images(found, subset))), size=least)).base.get("data.subset")
        == subset
    )


@pytest.mark.parametrize(("facts", "subset", "num_validation", "share"), [
    ({}, 20_000, 2222, 0.0444), ({}, 1000, 1000, 0.02), ({}, None, 5000, None),
    ({"has_own_validation": True}, 1000, 5000, None), ({"num_validation": 800}, 1000, 800, None),
])  # fmt: skip
def test_fewer_images_are_fewer_for_validation_too(
    facts: dict[str, Any], subset: int | None, num_validation: int, share: float | None
) -> None:
    cut = cut_images(replace(HELD_OUT, **facts), subset)
    assert (cut.num_train, cut.num_validation, cut.validation_share) == (subset or 45_000, num_validation, share)


@pytest.mark.parametrize(
    ("overhead", "study", "named"), [(0.0, 100.0, "80s"), (40.0, 75.0, "110s"), (40.0, 0.0, "50s")]
)
def test_the_numbers_of_a_refusal_agree(overhead: float, study: float, named: str) -> None:
    with pytest.raises(InputError, match=rf"of 30 s, {overhead:.0f} s are for .* Give --budget {named} or more"):
        check_time_left(30.0, overhead, study, "the smallest question")
    check_time_left(float(named[:-1]), overhead, study, "the smallest question")


def test_what_is_left_out_is_named() -> None:
    decisions, whole = decide(Answers(batch=48), FACTS), (decide(Answers(batch=48), FACTS), FACTS)
    full = find_full_size(decisions, FACTS.num_train)
    assert describe_left_out(full, full, decisions, whole) == []
    size = replace(full, num_models=1, num_batches=2, epochs=5, tunes_decay=False)
    assert pick_batches(decisions, 2) == (48, 128)
    assert describe_left_out(size, full, decisions, whole) == [
        "the model vit_tiny", "the effective batch sizes 32, 64, 256, 512",
        f"{full.epochs - 5} of {full.epochs} epochs", "tuning of the weight decay",
    ]  # fmt: skip
    fixed = {"budget.steps": 100, "optimizer.weight_decay": 0.01}  # what is given is not left out for lack of time
    assert describe_left_out(size, full, decisions, whole, fixed) == [
        "the model vit_tiny",
        "the effective batch sizes 32, 64, 256, 512",
    ]
    assert describe_left_out(replace(full, num_batches=5), full, decisions, whole) == ["the effective batch size 128"]
    cut = replace(size, subset=1000, is_smaller=True, num_batches=6)
    assert describe_left_out(cut, full, decide(Answers(batch=48), cut_images(FACTS, 1000)), whole, fixed) == [
        "the models resnet20, vit_tiny", "the effective batch sizes 256, 512", "44,000 of 45,000 training images",
    ]  # fmt: skip


@pytest.mark.parametrize(("answers", "num_train", "is_few"), [
    (Answers(), 26, True), (Answers(), 500, False), (Answers(weights="w.pt", models=("resnet20",)), 26, False),
])  # fmt: skip
def test_too_few_images_are_called_too_few(answers: Answers, num_train: int, is_few: bool) -> None:
    notes = decide(answers, replace(FACTS, num_train=num_train)).notes
    assert any("too few to train a network from random weights" in note for note in notes) == is_few


# ---------------------------------------------------------------------- the file


def test_the_file_has_a_reason_for_each_key_and_is_a_study() -> None:
    decisions = decide(Answers(batch=96), FACTS)
    changes = {"budget.steps": 50, "optimizer.weight_decay": 0.5, "trials": 7, "data.root": 'a "b"\\c'}
    draft = draft_of(decisions, changes=changes)
    spec = build(replace(draft, seconds=60.0))
    assert (spec.trials, spec.timeout, spec.base["budget.steps"]) == (7, 60.0, 50)
    assert 0.7 * spec.confirm.share < 60.0 / (spec.search_timeout or 0) - 1.0 < spec.confirm.share
    assert spec.base["data.root"] == changes["data.root"]
    assert "optimizer.weight_decay" not in spec.space
    assert spec.first == ({"batch.micro": 96, "optimizer.lr": 0.01},)
    lines = write_study(draft, ["Of the guide."]).splitlines()
    assert lines[0] == "# Of the guide."
    for index, line in enumerate(lines):
        if "=" in line and not line.startswith(("#", "question")):
            assert "  # " in line or lines[index - 1].startswith("# "), line
    assert max(map(len, lines)) <= 120


# ---------------------------------------------------------------------- the command

QUICK = ("--set", "data.subset=200", "--set", "trials=3", "--set", "confirm.max_configurations=1", "--set")
FAST = (*QUICK, "budget.epochs=1", "--set", "confirm.seeds=3", "--set", "data.validation_share=0.2")
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """Runs ``sweep ask`` in an empty folder: exit code, standard output and standard error."""
    monkeypatch.setattr(study_run, "write_report", partial(write_report, formats=()))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run_app(["ask", "--on", "cpu", *arguments])
        return code, *capsys.readouterr()

    return call


def test_a_study_is_written_priced_run_and_answered(ask: Ask, tmp_path: Path) -> None:
    given = ("--data", "digits", "--batch", "48", "--budget", "20m", "--yes", "--root", "mine")
    code, shown, _ = ask("own.toml", *given, *FAST, "--json")
    assert code == 0
    document = json.loads(shown)
    trials = load_frames(tmp_path / "mine/own").trials
    assert (document["study"], document["file"]) == ("own", "own.toml")
    assert document["forecast"]["num_trials"] == 3
    assert trials["phase"].tolist() == ["search"] * 3 + ["confirm"] * 3
    assert trials["global_batch_size"][0] == 48
    assert document["run"]["num_trials"] == 6
    statements = {each["name"]: each["text"] for each in document["answer"]["batch_size"]["statements"]}
    assert "Your effective batch size, 48" in statements["given"]
    assert list(document["answer"]["uses"]) == ["balanced"]
    assert run_app(["check", "own.toml", "--root", "mine"]) == 0
    assert run_app(["recommend", "own", "--root", "mine", "--batch", "51"]) == 0


def test_without_a_budget_only_the_file_is_written(ask: Ask, tmp_path: Path) -> None:
    subset = ("--set", "data.subset=200")
    code, shown, errors = ask("--yes", "--target", "speed", *subset)
    assert code == 0, errors
    assert "forecast: " in shown
    assert "run it with: sweep run digits_batch.toml" in shown
    assert "left out because there is no --budget: the model vit_micro" in " ".join(errors.split())
    assert not (tmp_path / "runs/digits_batch").exists()
    assert "search_timeout" not in (tmp_path / "digits_batch.toml").read_text()
    assert ask("digits_batch.toml", "--yes")[0] == 2
    (tmp_path / "own_plugin.py").touch()
    code, shown, errors = ask("--yes", *subset, "--root", "my runs", "--plugin", "own_plugin.py")
    assert code == 0, errors
    root = f"--root '{tmp_path / 'my runs'}'"
    assert f"run it with: sweep run digits_batch_2.toml {root} --on cpu --plugin own_plugin.py" in shown


def test_a_study_file_has_one_forecast(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_probe = Prober._run_probe  # the start of a process takes as long as other programs let it
    monkeypatch.setattr(Prober, "_run_probe", lambda *given: (run_probe(*given)[0], 0.5))
    made, within = {}, ("--budget", "20m", "--dry-run")
    short = ("--set", "trials=3", "--set", "budget.epochs=1", "--set")
    for name, subset, budget in (("small.toml", 64, ()), ("large.toml", 1000, within)):  # their probes are in one place
        code, shown, errors = ask(name, "--yes", *short, f"data.subset={subset}", *budget, "--json")
        assert code == 0, errors
        made[name] = json.loads(shown)["forecast"]
    monkeypatch.setattr(study_forecast, "_MAX_PROBES", 0)  # what more probes tell is another forecast
    for name, forecast in made.items():
        assert run_app(["run", name, "--dry-run", "--on", "cpu", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        for key in ("expected_total_seconds", "expected_total_seconds_low", "expected_total_seconds_high"):
            assert again[key] == pytest.approx(forecast[key], rel=1e-3)


def test_without_a_terminal_the_command_to_use_is_named(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["ask", "asked.toml"]) == 2
    assert "Run `sweep ask FILE.toml --yes`" in " ".join(capsys.readouterr().err.split())
    Path("asked.toml").touch()
    assert run_app(["ask", "asked.toml"]) == 2
    assert "asked.toml exists already" in capsys.readouterr().err
    Path("mine/old").mkdir(parents=True)
    for arguments in (("old.toml",), ("new.toml", "--set", "name=old")):
        code, _, errors = ask(*arguments, "--yes", "--root", "mine")
        assert code == 2
        assert "mine/old: it has the records of a study 'old' already; choose another name" in errors
        assert "--fresh" not in errors


def test_what_fits_is_found_out(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_forecast, "measure_room", lambda _machine: MemoryRoom(4 * 2**20 * 10 // 9, 0))
    code, _, errors = ask("small.toml", "--yes", "--data", "digits")
    assert code == 0, errors
    spec = load_study(tmp_path / "small.toml")
    largest = max(int(str(size)) for size in spec.space["batch.micro"].extremes())
    assert largest < 256
    assert spec.space["batch.accumulation"].choice == tuple(2**power for power in range(len(bin(256 // largest)) - 2))
    for count in (1, 2):
        point = {**spec.corners.anywhere, "batch.micro": largest, "batch.accumulation": count}
        assert estimate_memory(spec.config(point)).peak_memory_bytes <= 4 * 2**20


def test_a_model_that_does_not_fit_at_all_is_refused(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_forecast, "measure_room", lambda _machine: MemoryRoom(1000, 0))
    code, _, errors = ask("small.toml", "--yes", "--data", "digits", "--set", "data.subset=200")
    assert code == 2
    assert "does not fit with a single sample" in " ".join(errors.split())
    assert not (tmp_path / "small.toml").exists()


@pytest.mark.parametrize(
    ("data", "num_train", "num_validation", "has_own"),
    [("digits", 1024, 504, False), (datasets.ASK_TASKS[1], 200, 500, True), (datasets.ASK_TASKS[2], 1500, 1000, True)],
)
def test_the_images_are_counted(data: str, num_train: int, num_validation: int, has_own: bool) -> None:
    facts, summary = look_at_images(GuideTask(name="s", answers=Answers(data=data), options=Options()))
    assert (facts.num_train, facts.num_validation, facts.has_own_validation) == (num_train, num_validation, has_own)
    assert (summary.num_train, summary.num_val) == (num_train, num_validation)
    assert ("data.validation_share" in values_of(decide(Answers(data=data), facts))) != has_own


def test_what_is_lost_of_images_is_said_before_the_budget_is_spent(ask: Ask, tmp_path: Path) -> None:
    write_files(tmp_path / "photos", list_images({"a": 12, "b": 12}) | {"a/r.jpg": "rotated"})
    code, _, errors = ask("--yes", "--data", "photos", "--budget", "1s")
    assert code == 2, "the budget is below the start, and was not spent"
    assert "note: 1 image with an EXIF rotation, which is not applied" in errors


def pretend_to_cost(_forecaster: object, spec: StudySpec, *_images: int) -> float:
    """Seconds of a study on a machine that is slow for all images and for the usual model."""
    pace = 0.1 if spec.base.get("model.name") == "resnet8" else 1.0
    return (
        pace * float(str(spec.base.get("data.subset", 100_000))) * float(spec.base["budget.epochs"]) * spec.trials / 50
    )


@pytest.fixture
def rings(tmp_path: Path) -> str:
    """A folder with more images than the guide needs at least, of 24 pixels."""
    pixels, labels = datasets.draw_rings(3000, 0, 20.0)
    images = np.kron(pixels[..., 0], np.ones((1, 2, 2), dtype=np.uint8))
    for label in range(5):
        (tmp_path / f"many rings/radius{label}").mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(tmp_path / f"many rings/radius{label}/{number}.png")
    return "many rings"


def test_a_question_that_does_not_fit_is_answered_for_a_part(
    ask: Ask, tmp_path: Path, rings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_forecast.Forecaster, "estimate_seconds", pretend_to_cost)
    given = ("--data", rings, "--budget", "10m", "--root", "mine", "--set", "trials=3", "--set", "budget.epochs=1")
    quick = ("--set", "confirm.seeds=3")  # of any configuration: one of them can be named
    code, shown, errors = ask("part.toml", "--yes", *given, *quick)
    assert code == 0, errors
    part = "1,000 of your 1,710 training images and resnet8 instead of resnet20"
    assert f"the study is about {part}" in " ".join(errors.split())
    assert f"This answer is about {part}." in " ".join(shown.split())
    assert "710 of 1,710 training images" in " ".join(errors.split())
    assert "Use an effective batch size of" in " ".join(shown.split())
    text, frames = (tmp_path / "part.toml").read_text(), load_frames(tmp_path / "mine/part")
    assert f"# For lack of time it is about {part}." in text
    assert frames.spec is not None
    assert frames.spec.question.startswith(f"Which batch size for many rings ({part})")
    assert frames.data is not None
    assert (frames.data.num_train, frames.data.num_val) == (1000, 840)
    assert set(frames.trials["config.model.name"]) == {"resnet8"}
    assert "validation images (assumed)" in " ".join(text.replace("#", "").split())
    assert ask("again.toml", "--yes", *given, "--dry-run")[0] == 0
    again = " ".join((tmp_path / "again.toml").read_text().replace("#", "").split())
    assert "validation images (measured in an earlier study)" in again


@pytest.mark.parametrize("is_wanted", [True, False])
def test_on_a_terminal_a_part_is_offered(
    ask: Ask, rings: str, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(study_forecast.Forecaster, "estimate_seconds", pretend_to_cost)
    monkeypatch.setattr(ask_command, "_check_terminal", lambda **_: None)
    monkeypatch.setattr(ask_command.typer, "prompt", lambda _text, default, **_: default)
    monkeypatch.setattr(ask_command.typer, "confirm", lambda text, **_: "1,000 of your" in text and is_wanted)
    monkeypatch.setattr(ask_command, "_run", lambda spec, *_, **__: ran.append(spec.name) or 0)
    code, shown, errors = ask("part.toml", "--data", rings, "--budget", "10m")
    assert code == 0, errors
    assert ran == (["part"] if is_wanted else [])
    assert ("run it with: sweep run part.toml" in shown) == (not is_wanted)


def test_the_budget_that_a_refusal_names_suffices(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))  # the same for each command, as no machine is
    monkeypatch.setattr(guided_study, "time", clock)
    monkeypatch.setattr(ask_command, "time", clock)
    monkeypatch.setattr(study_forecast.Forecaster, "estimate_seconds", lambda *_: 150.0)
    given, found = ("--yes", "--dry-run", "--data", "digits", "--set", "data.subset=200"), None
    for budget in ("1s", "14s", "1m"):
        code, _, errors = ask("short.toml", *given, "--budget", budget)
        assert code == 2
        found = re.search(r"takes 120 s or more. Give --budget (\w+) or more", " ".join(errors.split()))
        assert found, errors
    assert found
    assert ask("short.toml", *given, "--budget", found[1])[0] == 0


@pytest.mark.parametrize(("arguments", "reason"), [
    (("--yes", "--data", "digitz"), "Did you mean 'digits'?"),
    (("--yes", "--target", "fast"), "unknown target 'fast'"),
    (("--yes", "--metric", "val_loss:min"), "--metric: about a script"),
    (("--yes", "--script", " "), "--script: no command"),
    (("--yes", "--weights", "none.pt", "--model", "resnet8"), "--weights none.pt: no such file"),
    (("--yes", "--batch", "many"), "--batch many: give a whole number"),
    (("--yes", "--devices", "100"), "not what they cost: for that give --set distributed.world_size=100."),
    (("--yes", "--batch", "5000"), "the training split has"),
    (("--yes", "--budget", "soon"), "--budget soon"),
    (("--yes", "--data", "./photoss"), "--data ./photoss: there is no such folder"),
    (("--yes", "--model", "resnet9000"), "--model: unknown model"),
    (("--yes", "--set", "model.name=resnet9000"), "unknown model"),
    (("--yes", "--set", "space.batch.micro=64"), "give a range, such as {choice = [1, 2]}"),
    (("--yes", "--set", "trials.most=3"), "write --set trials=VALUE"),
    (("--yes", "--set", "confirm=3"), "this makes no study file"),
    (("--yes", "study.txt"), "ends in .toml"),
    (("--yes", "nowhere/study.toml"), "there is no folder nowhere"),
    (("--yes", "--set", "batch.micro=32"), "compare one of your own with --batch"),
    ((), "--budget"),
])  # fmt: skip
def test_what_cannot_be_is_refused_at_once(ask: Ask, tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    code, shown, errors = ask(*arguments)
    assert (code, shown) == (2, "")
    assert reason in errors.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_questions_are_put_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []

    def prompt(text: str, default: str, **_how: Any) -> str:
        put.append(text)
        return "memory" if text.startswith("What counts") else "2h" if text.startswith("How long") else default

    monkeypatch.setattr(ask_command.typer, "prompt", prompt)
    found = ask_command.collect_answers(("digits", None), {"--batch": "64"}, (), num_devices=1, takes_defaults=False)
    assert found == (Answers(target="memory", batch=64), 7200.0)
    assert [text.split()[0] for text in put] == ["What", "Fine-tuning", "How"]  # the devices were found out
    ask_command.collect_answers(("digits", None), {}, (), num_devices=2, takes_defaults=False)
    assert len(put) == 3 + 5


def test_a_typed_answer_that_is_not_valid_is_followed_by_the_same_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["fast", "speed", "none.pt", "", "0", "3", "2", "65", "64", "soon", "1h"])
    monkeypatch.setattr(ask_command.typer, "prompt", lambda *_, **__: next(typed))
    found = ask_command.collect_answers(("digits", None), {}, (), num_devices=2, takes_defaults=False)
    assert found == (Answers(target="speed", num_devices=2, batch=64), 3600.0)
    reasons = capsys.readouterr().err.splitlines()
    starts = ["--target: unknown", "--weights none.pt", "--devices 0", "--devices 3: this machine has 2 GPUs"]
    starts += ["--batch 65: 2 devices cannot share it evenly; give a multiple of 2", "--budget soon"]
    assert [reason.startswith(start) for reason, start in zip(reasons, starts, strict=True)] == [True] * 6
