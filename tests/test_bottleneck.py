"""What limited the speed of a training: from measured times, of real trials, and what `sweep check` says of it."""

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from records_factory import make_config, make_ending, make_spec, make_store
from training_factory import make_config as make_training_config
from training_factory import train_whole

from sweep.cli.app import run_app
from sweep.cli.check import Check, check_trials
from sweep.measurement.clock import Ledger, StepWindow
from sweep.measurement.memory import MemoryUse
from sweep.records.loading import load_frames
from sweep.records.messages import Ending
from sweep.search.session import keep_portable
from sweep.training import finish
from sweep.training.data.feeders import ReadyFeeder
from sweep.training.finish import CachedSteps, classify_bottleneck, find_fixed_share


def ledger_of(step_seconds: float, waited: float = 0.0) -> Ledger:
    """Thirty windows of ten steps each; ``waited`` is the share of data wait."""
    ledger = Ledger()
    ledger.windows = [StepWindow(10 * step_seconds, 10, 640, True)] * 30
    ledger.seconds["data_wait"] = 300 * step_seconds * waited
    ledger.seconds["step"] = 300 * step_seconds * (1 - waited)
    return ledger


@pytest.mark.parametrize(("cached", "share", "waited", "expected"), [
    (0.0079, 0.1, 0.2, "data_bound"), (0.0081, 0.1, 0.2, "compute_bound"), (0.0100, 0.49, 0.0, "compute_bound"),
    (0.0100, 0.51, 0.0, "launch_bound"),
    (0.0020, 0.9, 0.2, "data_bound"),  # what a step waits for comes first
    (0.0150, 0.0, 0.0, "compute_bound"),
    (0.0100, None, 0.0, ""),  # a smaller micro batch could not be tried
    (0.0050, 0.1, 0.051, "data_bound"),
    (0.0050, 0.1, 0.049, "compute_bound"),  # nearly no wait: cached steps were faster for another reason
    (0.0050, None, 0.006, ""),
])  # fmt: skip
def test_the_bottleneck_of_a_step_of_10_ms(cached: float, share: float | None, waited: float, expected: str) -> None:
    assert classify_bottleneck(ledger_of(0.01, waited), CachedSteps(cached, share)) == expected


def test_without_cached_steps_only_waiting_can_be_seen() -> None:
    assert classify_bottleneck(ledger_of(0.01, waited=0.3), None) == "data_bound"
    assert classify_bottleneck(ledger_of(0.01, waited=0.1), None) == ""
    assert classify_bottleneck(ledger_of(1.0, waited=0.1), None, is_long=True) == "compute_bound"
    assert classify_bottleneck(ledger_of(1.0), CachedSteps(1.0, None), is_long=True) == "compute_bound"


@pytest.mark.parametrize("size_ratio", [0.5, 2.0, 0.45])
def test_the_fixed_share_is_that_of_a_line(size_ratio: float) -> None:
    fixed, each, micro = 3.0, 0.1, 20
    ratio = (fixed + each * micro * size_ratio) / (fixed + each * micro)
    assert find_fixed_share(ratio, size_ratio) == pytest.approx(0.6)


def train(**settings: Any) -> Ending:
    values = {"data.name": "digits", "budget.epochs": 8.0, "batch.micro": 64}
    if "budget__steps" in settings:
        del values["budget.epochs"]
    return train_whole(make_training_config(values, **settings))[1]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Looks at short trainings as well, and on however slow a machine."""
    for name, value in (("SHARE", 10.0), ("SECONDS", 60.0), ("STEPS", 4)):
        monkeypatch.setattr(finish, f"BOTTLENECK_{name}", value)
    monkeypatch.setattr(finish, "_LONG_SECONDS", 60.0)
    return monkeypatch


def test_a_training_on_slow_data_is_data_bound(eager: pytest.MonkeyPatch) -> None:
    given = ReadyFeeder.micro_batches

    def slow(self: ReadyFeeder, window: Any) -> Iterator[Any]:
        for batch in given(self, window):
            time.sleep(0.05)
            yield batch

    eager.setattr(ReadyFeeder, "micro_batches", slow)
    ending = train(budget__steps=12, batch__micro=4)
    assert ending.bottleneck == "data_bound"
    assert ending.measurements["diagnostics_seconds"] > 0.0


def test_a_training_that_the_allocator_holds_up_is_thrashing_and_flagged(eager: pytest.MonkeyPatch) -> None:
    num_retries = itertools.count()  # none before the training, and one more at each reading
    eager.setattr("sweep.training.trial.read_memory", lambda _device: MemoryUse(100, 100, 100, next(num_retries)))
    ending = train(budget__steps=12, batch__micro=4)
    assert ending.bottleneck == "thrashing"
    assert "allocator_retries" in ending.quality_flags


@pytest.mark.parametrize(
    ("fixed_seconds", "seconds_each", "expected"), [(0.1, 0.0, "launch_bound"), (0.0, 0.025, "compute_bound")]
)
def test_a_step_is_bound_by_launches_or_computing(eager, fixed_seconds, seconds_each, expected) -> None:
    forward = torch.nn.Linear.forward

    def slow(self: torch.nn.Linear, images: torch.Tensor) -> torch.Tensor:
        time.sleep(fixed_seconds + seconds_each * len(images))
        return forward(self, images)

    eager.setattr(finish, "_DATA_SHARE", 10.0)  # a machine that others leave meanwhile would look like slow data
    eager.setattr(torch.nn.Linear, "forward", slow)
    assert train(budget__steps=12, batch__micro=4).bottleneck == expected


def test_looking_changes_no_measurement_and_may_fail(eager: pytest.MonkeyPatch, caplog) -> None:
    looked = train(budget__steps=25, batch__micro=16)

    def fail(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("no room for a second batch")

    eager.setattr(finish, "_time_cached_steps", fail)
    failed = train(budget__steps=25, batch__micro=16)
    assert (failed.outcome, failed.bottleneck) == ("complete", "")
    assert "no room" in caplog.text
    assert looked.bottleneck
    for name in ("val_accuracy", "val_loss", "train_accuracy", "peak_memory_bytes", "num_steps"):
        assert looked.measurements[name] == failed.measurements[name]


@pytest.mark.parametrize("seconds_of_a_long_step", [0.0, 60.0])
def test_sixty_steps_are_looked_at_and_fewer_are_not_judged(monkeypatch, seconds_of_a_long_step: float) -> None:
    monkeypatch.setattr(finish, "BOTTLENECK_SECONDS", 60.0)  # on however slow a machine
    monkeypatch.setattr(finish, "_LONG_SECONDS", seconds_of_a_long_step)
    monkeypatch.setattr(finish, "_DATA_SHARE", 10.0)
    small = {"batch__micro": 4, "data__subset": 300, "model__name": "vit_micro"}
    short, long = train(budget__steps=59, **small), train(budget__steps=60, **small)
    assert short.bottleneck == ("" if seconds_of_a_long_step else "compute_bound")
    assert long.bottleneck in ("launch_bound", "compute_bound")


def test_a_bottleneck_is_kept_and_goes_with_a_reused_trial_on_the_same_device_only(tmp_path: Path) -> None:
    store = _study(tmp_path, [make_ending(0, bottleneck="launch_bound", quality_flags=("few_steps",))])
    trials = load_frames(tmp_path).trials
    assert trials["bottleneck"].tolist() == ["launch_bound"]
    known = store.find_by_key("key 0").ending
    assert keep_portable(known, {"device": "cpu"}) == known
    assert keep_portable(known, {"device": "another"}).bottleneck == ""
    assert "train_seconds" not in keep_portable(known, {"device": "another"}).measurements
    store.close()


def _study(folder: Path, endings: list[Ending]) -> Any:
    spec = make_spec()
    store = make_store(folder / "study.sqlite", spec)
    for number, ending in enumerate(endings):
        store.add_trial(spec.name, number, "search", make_config(number), f"key {number}")
        store.finish_trial(spec.name, number, ending)
    return store


def test_a_check_says_what_held_trials_up_and_what_to_change(tmp_path: Path) -> None:
    endings = [
        make_ending(0, bottleneck="launch_bound"),
        make_ending(1, bottleneck="launch_bound", quality_flags=("spread", "busy_host")),
        make_ending(2, bottleneck="compute_bound", quality_flags=("spread",)),
        make_ending(3, quality_flags=("slowed_by_others",)), make_ending(4, quality_flags=("slowed_by_others",)),
    ]  # fmt: skip
    endings[3].measurements["slowdown_by_others"] = 0.4
    _study(tmp_path, endings).close()
    launch, compute, spread, slowed, busy, _data = check_trials(load_frames(tmp_path))
    assert (launch.name, launch.status, compute.name) == ("launch bound", "note", "compute bound")
    assert launch.found.startswith("2 of 5 trials: ")
    assert "raise batch.micro" in launch.remedy
    assert spread.found.startswith("2 of 5 trials: ")
    assert slowed.name == "slowed by others"  # nothing stands for one of them
    assert slowed.found.startswith("2 of 5 trials: ")
    assert slowed.found.endswith("(another time stands for 1)")
    assert all("--no-reuse" in check.remedy for check in (slowed, busy))
    assert [check.status for check in (compute, spread, slowed, busy)] == ["ok", "noticed", "note", "noticed"]


def test_a_check_of_a_study_speaks_json_where_nothing_was_looked_for(tmp_path: Path, capsys) -> None:
    _study(tmp_path / "runs" / "made", [make_ending(0)]).close()
    assert run_app(["check", "made", "--root", str(tmp_path / "runs"), "--json"]) == 0
    found, data = json.loads(capsys.readouterr().out)["trials"]
    assert (data["name"], data["status"]) == ("data", "note")
    assert found == Check("bottleneck", "ok", "not determined in any of 1 trial", "train for longer")._asdict()
