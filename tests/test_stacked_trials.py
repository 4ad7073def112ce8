"""Trials that one process trains together: what each of them learns, alone and beside the others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sweep.config.tables.datasets import ImageShape
from sweep.config.tables.models import MODELS
from sweep.config.trial_config import TrialConfig, build_config
from sweep.records.attempt_causes import LEFT
from sweep.records.messages import Ending, Evaluation, MemberMessage, Message, StackTask, TrialTask, decode_message
from sweep.records.quality_flags import STACKED, find_time_doubts
from sweep.training.loop.trial import run_trial
from sweep.training.models.resnets import PadShortcut
from sweep.training.models.table import build_model
from sweep.training.stacked.stack import run_stack
from sweep.training.stacked.stacked_layers import find_unstackable, stack_layers
from sweep.training.supervisor_link import SUPERVISOR_LINK

# 64 bits: what differs by the order of sums alone stays far below what a wrong step would change
BASE: dict[str, Any] = {
    "data.name": "digits",
    "data.subset": 72,
    "batch.micro": 16,
    "budget.epochs": 2,
    "precision.dtype": "fp64",
}
OWN: list[dict[str, Any]] = [
    {"optimizer.lr": 0.01, "seed": 3},
    {"optimizer.name": "adamw", "optimizer.lr": 1e-3, "optimizer.weight_decay": 0.1, "regularization.grad_clip": 0.5},
    {"optimizer.name": "lamb", "schedule.name": "cosine", "regularization.ema_decay": 0.9, "seed": 4},
]
TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    SUPERVISOR_LINK.reset()


def make_tasks(*changes: dict[str, Any], folder: Path | None = None) -> list[TrialTask]:
    return [
        TrialTask(
            number=number,
            config=build_config({**BASE, **each}, "test"),
            device="cpu",
            checkpoint_dir=str(folder / str(number)) if folder else None,
        )
        for number, each in enumerate(changes)
    ]


def stacked_messages(tasks: Sequence[TrialTask], folder: Path, preempt_after: int = 0) -> dict[int, list[Message]]:
    """The messages of each member; the process is told to stop after so many evaluations of all."""
    task = StackTask(number=-1, config=tasks[0].config, members=tuple(tasks), stop_folder=str(folder), device="cpu")
    found: dict[int, list[Message]] = {each.number: [] for each in tasks}
    num_evaluations = 0
    for message in run_stack(task):
        if isinstance(message, Ending):
            assert message.outcome == "complete", message.error
            continue
        assert isinstance(message, MemberMessage)
        found[message.number].append(decode_message(message.text.encode()))
        num_evaluations += isinstance(found[message.number][-1], Evaluation)
        if num_evaluations == preempt_after > 0:
            SUPERVISOR_LINK.preempt()
    return found


def curve(messages: Sequence[Message]) -> list[tuple[float, ...]]:
    return [
        (each.step, each.samples, each.train_loss, each.val_loss, each.val_accuracy, each.learning_rate)
        for each in messages
        if isinstance(each, Evaluation)
    ]


def ending_of(messages: Sequence[Message]) -> Ending:
    assert isinstance(messages[-1], Ending)
    return messages[-1]


@pytest.mark.parametrize(
    "shared",
    [
        {"data.augment": "crop_flip", "regularization.label_smoothing": 0.1},
        {"batch.accumulation": 2, "model.norm": "ghost", "model.ghost_batch": 4},
        {"model.norm": "group", "regularization.mixup": 0.4},
    ],
    ids=["augmented", "accumulated", "mixed"],
)
def test_each_member_learns_what_it_learns_alone(shared: dict[str, Any], tmp_path: Path) -> None:
    tasks = make_tasks(*({**shared, **own} for own in OWN))
    together = stacked_messages(tasks, tmp_path)
    for task in tasks:
        alone = list(run_trial(task))
        assert len(curve(alone)) == 2
        for ours, theirs in zip(curve(together[task.number]), curve(alone), strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)
        own, single = ending_of(together[task.number]), ending_of(alone)
        assert own.outcome == single.outcome == "complete"
        assert own.correct_images == single.correct_images
        for name in ("train_accuracy", "num_steps", "micro_batch_size", "peak_learning_rate", "num_parameters"):
            assert own.measurements[name] == single.measurements[name]
        assert "peak_memory_bytes" not in own.measurements
        assert STACKED in own.quality_flags
    assert len({tuple(curve(said)) for said in together.values()}) == len(tasks)


def test_a_member_that_diverges_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    overflow = {"optimizer.lr": 1e4, "optimizer.weight_decay": 1e3}  # weights grow by 1e7 a step
    tasks = make_tasks(*({**each, "precision.dtype": "fp32"} for each in (OWN[0], overflow, OWN[1])))
    together = stacked_messages(tasks, tmp_path)
    assert ending_of(together[1]).outcome == "diverged"
    for number in (0, 2):
        assert ending_of(together[number]).outcome == "complete"
        alone = curve(list(run_trial(tasks[number])))
        assert curve(together[number])[-1] == pytest.approx(alone[-1], abs=1e-3)


def test_a_stopped_member_trains_no_further(tmp_path: Path) -> None:
    tasks = make_tasks(*OWN)
    (tmp_path / "1").touch()
    together = stacked_messages(tasks, tmp_path)
    assert together[1] == []
    assert [ending_of(together[number]).outcome for number in (0, 2)] == ["complete", "complete"]


def test_members_that_leave_resume_alone_or_together(tmp_path: Path) -> None:
    tasks = make_tasks(*OWN, folder=tmp_path / "checkpoints")
    whole = {task.number: curve(list(run_trial(task))) for task in make_tasks(*OWN)}
    first = stacked_messages(tasks, tmp_path, preempt_after=2)
    assert {ending_of(said).cause for said in first.values()} == {LEFT}
    assert {len(curve(said)) for said in first.values()} <= {0, 1}
    SUPERVISOR_LINK.reset()
    resumed = {0: list(run_trial(tasks[0])), **stacked_messages(tasks[1:], tmp_path)}
    for number, said in resumed.items():
        assert ending_of(said).outcome == "complete"
        for ours, theirs in zip(curve(said), whole[number], strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)
    assert find_time_doubts(ending_of(resumed[0]).quality_flags)  # a part of its time was that of several trials


def test_the_table_of_models_states_which_can_be_stacked() -> None:
    shape = ImageShape(3, 32, 10)
    for name, entry in MODELS.items():
        if entry.family not in {"resnet", "vit"} or name in {"resnet50", "resnet56", "vit_base", "vit_small"}:
            continue  # of the same layers as the smaller ones, and slow to build
        assert entry.is_stackable == (
            not find_unstackable(build_model(TrialConfig().model.model_copy(update={"name": name}), shape))
        )


def test_an_unknown_layer_is_named() -> None:
    class Doubled(nn.ReLU):
        pass

    models = [nn.Sequential(nn.Conv2d(1, 2, 3), Doubled()) for _ in range(2)]
    with pytest.raises(ValueError, match="Doubled"):
        stack_layers(models)


def test_every_layer_keeps_the_models_apart() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = (nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), PadShortcut(4), nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 1 * 1, 5, bias=False), nn.Linear(5, 2)).double()

    models = [build(seed) for seed in range(3)]
    images = torch.randn(3, 7, 3, 6, 6, dtype=torch.float64)
    logits = stack_layers(models)(torch.cat(list(images), dim=1)).view(7, 3, 2)
    for number, model in enumerate(models):
        assert torch.allclose(logits[:, number], model(images[number]), atol=1e-12)
