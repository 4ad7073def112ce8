"""Checkpoints: whole or not there, and a training that is resumed from one equals the unbroken one, bit for bit."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_factory import ScriptedClock, make_config

from sweep.measurement.clock import Ledger, StepWindow
from sweep.records.messages import Evaluation, Message, Progress, TrialTask
from sweep.training.checkpoints import CheckpointFolder, RandomState
from sweep.training.trial import run_trial


@final
class Part:
    """The simplest thing with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def come_back(state: Any, folder: Path) -> Any:
    """``state`` as it is read from a checkpoint of it."""
    CheckpointFolder(folder, "mine").save({"part": Part(state)})
    found = CheckpointFolder(folder, "mine").load()
    return found and found["part"]


def test_any_nested_state_comes_back_as_it_was_and_code_does_not(tmp_path: Path) -> None:
    channels_last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    state = {
        "a": [1, 2.5, None, True, "text", float("inf")], 0: {"t": (torch.arange(3.0), (1, 2)), 2.0: {}},
        "bits": torch.tensor([1, 255], dtype=torch.uint8), "half": torch.tensor(3.0, dtype=torch.bfloat16),
        "nothing": torch.zeros(0), "images": channels_last,
    }  # fmt: skip
    again = come_back(state, tmp_path)
    assert str(again) == str(state)
    assert again["images"].stride() == channels_last.stride()
    assert torch.equal(again["images"], channels_last)
    assert come_back({"a": [1, Part(3)]}, tmp_path / "other") is None  # an object, whose loading could run code


def test_randomness_goes_on_where_it_was(tmp_path: Path) -> None:
    randomness = RandomState(torch.device("cpu"))
    random.gauss(0, 1)  # leaves half of a pair behind
    np.random.standard_normal()
    state = come_back(randomness.state_dict(), tmp_path)

    def draw() -> list[float]:
        numbers = [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand()]
        return [*numbers, *torch.randn(3).tolist(), *torch.nn.functional.dropout(torch.ones(9)).tolist()]

    first = draw()
    assert draw() != first
    randomness.load_state_dict(state)
    assert draw() == first


def test_the_last_two_are_kept_and_a_torn_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path / "deep" / "folder", "mine")
    assert folder.load() is None
    for number in range(5):
        folder.save({"part": Part({"number": number, "tensor": torch.full((1000,), float(number))})})
    files = sorted((tmp_path / "deep" / "folder").iterdir())
    assert [file.name[:8] for file in files] == ["00000004", "00000005"]
    assert not caplog.records
    content = files[1].read_bytes()
    for torn in (content[:-1], content[:100], b"", content[:3000] + b"\1" + content[3001:]):
        files[1].write_bytes(torn)
        assert folder.load()["part"]["number"] == 3
        assert "torn" in caplog.records[-1].message
    (tmp_path / "deep" / "folder" / ".00000006.part").write_bytes(b"half of one")
    folder.save({"part": Part({"number": 9})})
    assert folder.load()["part"]["number"] == 9
    assert [file.name[:8] for file in sorted((tmp_path / "deep" / "folder").iterdir())] == ["00000005", "00000006"]


def task(tmp_path: Path | None, **values: object) -> TrialTask:
    settings = {"data.subset": 300, "budget.epochs": 3.0, "seed": 3, "optimizer.lr": 0.02, "model.dropout": 0.1}
    folder = str(tmp_path / "checkpoints") if tmp_path else None
    given = {"config": make_config(settings, **values), "checkpoint_dir": folder, "checkpoint_seconds": 0.0}
    return TrialTask(number=0, device="cpu", **given)


def until(messages: Iterator[Message], step: int) -> list[Message]:
    """What is said until that step; then the attempt is cut off."""
    heard = []
    for message in messages:
        heard.append(message)
        if isinstance(message, Evaluation | Progress) and message.step >= step:
            break
    messages.close()  # type: ignore[attr-defined]
    return heard


def curve(messages: list[Message]) -> list[tuple[float, ...]]:
    told = [message for message in messages if isinstance(message, Evaluation)]
    return [(each.step, each.samples, each.train_loss, each.val_loss, each.learning_rate) for each in told]


@pytest.fixture
def every_step_is_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.WINDOW_SECONDS", 0.0)
    monkeypatch.setattr("sweep.training.trial.PROGRESS_SECONDS", 0.0)


RECIPES: dict[str, dict[str, object]] = {
    "momentum": {"data__augment": "crop_flip"},
    "adamw_vit": {"optimizer__name": "adamw", "optimizer__lr": 0.003, "model__name": "vit_micro"},
    "channels_last": {"precision__channels_last": True},
    "streamed": {"data__placement": "host", "batch__accumulation": 2, "data__augment": "random_resized_crop"},
    "growing": {"batch__schedule": "linear", "batch__micro": 16, "batch__schedule_lr": "rule"},
    "plateau": {"batch__schedule": "plateau", "batch__micro": 16, "batch__plateau_patience": 1, "optimizer__lr": 1e-4,
        "batch__schedule_lr": "seesaw"},
    "averaged": {"regularization__ema_decay": 0.9, "regularization__mixup": 0.2, "regularization__cutmix": 1.0,
        "data__augment": "randaugment", "model__stochastic_depth": 0.2},
    "schedule_free": {"optimizer__name": "schedule_free", "optimizer__lr": 0.003},
    "muon": {"optimizer__name": "muon", "optimizer__lr": 0.003, "model__norm": "ghost", "model__ghost_batch": 16},
    "lamb": {"optimizer__name": "lamb", "precision__checkpointing": True, "model__dropout": 0.2},
    "lars": {"optimizer__name": "lars", "optimizer__lr": 2.0, "data__augment": "alternating_flip"},
}  # fmt: skip


@pytest.mark.usefixtures("every_step_is_an_edge")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_continued_trial_is_the_unbroken_one_bit_for_bit(tmp_path: Path, recipe: str) -> None:
    settings = RECIPES[recipe]
    unbroken = replace(task(None, **settings), weights_path=str(tmp_path / "unbroken.safetensors"))
    expected = list(run_trial(unbroken))
    broken = replace(task(tmp_path, **settings), weights_path=str(tmp_path / "broken.safetensors"))
    for step in (2, 7, 11):  # within an epoch, of 5 steps where the batch is constant
        until(run_trial(broken), step)
        random.seed(step)
        torch.manual_seed(step)  # another process draws other numbers
    found = list(run_trial(broken))
    assert curve(found) == curve(expected)  # the evaluations before the checkpoint are told again
    wanted, got = (load_file(tmp_path / f"{name}.safetensors") for name in ("unbroken", "broken"))
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
    ending, other = found[-1], expected[-1]
    for name in ("num_steps", "num_epochs", "val_accuracy", "train_accuracy", "val_loss"):
        assert ending.measurements[name] == other.measurements[name]


def test_the_time_between_two_attempts_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock(monkeypatch)
    first = Ledger()
    with first.phase("step"):
        clock.pass_seconds(20.0)
    first.windows.append(StepWindow(0.02, 3, 96, True))
    state = come_back(first.state_dict(), tmp_path)
    clock.pass_seconds(500.0)
    second = Ledger()
    with second.phase("setup"):
        clock.pass_seconds(3.0)
    second.load_state_dict(state)
    assert second.seconds["step"] == first.seconds["step"]
    assert second.seconds["setup"] == 3.0
    assert second.windows == first.windows
    assert second.total_seconds == 23.0


@pytest.mark.usefixtures("every_step_is_an_edge")
def test_a_checkpoint_of_another_configuration_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    until(run_trial(task(tmp_path)), 6)
    assert "another configuration" not in caplog.text
    changed = task(tmp_path, optimizer__lr=0.01)
    assert curve(list(run_trial(changed))) == curve(list(run_trial(task(None, optimizer__lr=0.01))))
    assert "another configuration" in caplog.text


def test_a_checkpoint_that_cannot_be_written_costs_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sweep.training.checkpoints.write_atomically", full)
    *_, ending = run_trial(task(tmp_path))
    assert ending.outcome == "complete"
    assert "No space left" in caplog.text
