"""The executor that gathers trials of one shape, its processes, and a study that uses it."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from executor_contract import await_childless

from sweep.config.study_file import build_study
from sweep.config.trial_config import build_config
from sweep.executors.packed.stack_key import explain_alone, find_stack_key
from sweep.executors.packed.stacked_executor import StackedExecutor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.table import ExecutorSettings
from sweep.records.attempt_causes import LEFT
from sweep.records.frames.frames import load_frames
from sweep.records.messages import Ending, Message, Progress, TrialTask
from sweep.search.loop.run_options import Options
from sweep.search.loop.session import run_study

BASE: dict[str, Any] = {"data.name": "digits", "data.subset": 128, "batch.micro": 32, "budget.epochs": 1}
LONG = {"budget.epochs": 10_000.0}


def make_task(number: int, **changes: Any) -> TrialTask:
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return TrialTask(number=number, config=build_config({**BASE, "seed": number, **values}, "test"), device="cpu")


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessExecutor]:
    """One for all tests, because its start imports torch."""
    with ProcessExecutor(["cpu"]) as made:
        yield made


@pytest.fixture(scope="module")
def shared_stacks(process: ProcessExecutor) -> Iterator[StackedExecutor]:
    with StackedExecutor(process) as made:
        yield made


@pytest.fixture
def stacks(shared_stacks: StackedExecutor) -> Iterator[StackedExecutor]:
    shared_stacks.depth = 3
    yield shared_stacks
    for number in range(10):
        shared_stacks.stop(number)


def receive(executor: StackedExecutor, until: int) -> dict[int, list[Message]]:
    """The messages until so many trials have ended."""
    found: dict[int, list[Message]] = {}
    deadline = time.monotonic() + 240
    while sum(isinstance(said[-1], Ending) for said in found.values()) < until:
        assert time.monotonic() < deadline
        for number, message in executor.poll(1.0):
            found.setdefault(number, []).append(message)
    return found


def await_progress(executor: StackedExecutor, numbers: set[int]) -> None:
    deadline = time.monotonic() + 240
    while numbers:
        assert time.monotonic() < deadline
        numbers = numbers - {number for number, said in executor.poll(1.0) if isinstance(said, Progress)}


def endings(found: dict[int, list[Message]]) -> dict[int, Ending]:
    return {number: said[-1] for number, said in found.items() if isinstance(said[-1], Ending)}


def test_trials_of_one_shape_share_a_process_and_others_have_their_own(stacks: StackedExecutor) -> None:
    assert stacks.slots == 3
    for task in (make_task(0), make_task(1, model__norm="group"), make_task(2, optimizer__lr=0.02)):
        stacks.start(task)
    with pytest.raises(RuntimeError, match=r"trials \[0, 1, 2\] are running"):
        stacks.start(make_task(3))
    assert stacks.devices_of(0) == ()
    found = endings(receive(stacks, 3))
    assert {number: ending.outcome for number, ending in found.items()} == dict.fromkeys(range(3), "complete")
    assert {number for number, ending in found.items() if "stacked" in ending.quality_flags} == {0, 2}
    stacks.depth = 1  # refused while a process is left
    stacks.start(make_task(4))
    assert endings(receive(stacks, 1))[4].outcome == "complete"


def test_a_killed_process_loses_no_trial(stacks: StackedExecutor, process: ProcessExecutor) -> None:
    for number in (8, 9):  # no other test has these, because they are not stacked again
        stacks.start(make_task(number, **LONG))
    await_progress(stacks, {8, 9})
    (child,) = psutil.Process(process.forkserver_pid).children()
    child.kill()
    found = endings(receive(stacks, 2))
    assert {(ending.outcome, ending.cause) for ending in found.values()} == {("crashed", "SIGKILL")}
    (first, second) = (make_task(number) for number in (8, 9))
    stacks.start(first)
    stacks.start(second)
    again = endings(receive(stacks, 2))
    assert {ending.outcome for ending in again.values()} == {"complete"}
    assert not any("stacked" in ending.quality_flags for ending in again.values())  # each alone now


def test_stopping_one_leaves_the_others_and_stopping_all_ends_the_process(
    stacks: StackedExecutor, process: ProcessExecutor
) -> None:
    stacks.start(make_task(0, **LONG))
    stacks.start(make_task(1, **LONG))
    await_progress(stacks, {0, 1})
    stacks.stop(0)
    await_progress(stacks, {1})
    assert all(number == 1 for number, _ in stacks.poll(1.0))
    stacks.stop(1)
    await_childless(process.forkserver_pid)
    assert stacks.poll(0.0) == []


def test_preempted_trials_leave_also_those_that_wait(stacks: StackedExecutor) -> None:
    stacks.start(make_task(0, **LONG))
    stacks.start(make_task(1, **LONG))
    await_progress(stacks, {0, 1})
    stacks.start(make_task(2))
    for number in range(3):
        stacks.preempt(number)
    found = endings(receive(stacks, 3))
    assert {(ending.outcome, ending.cause) for ending in found.values()} == {("cancelled", LEFT)}


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [
        ({"seed": 9, "optimizer__name": "adamw", "schedule__name": "cosine"}, True),
        ({"regularization__grad_clip": 1.0, "regularization__ema_decay": 0.9}, True),
        ({"batch__micro": 16}, False),
        ({"regularization__label_smoothing": 0.1}, False),
        ({"model__name": "resnet20"}, False),
        ({"budget__epochs": 2}, False),
    ],
)
def test_trials_of_one_key_differ_in_their_recipe_alone(changes: dict[str, Any], is_equal: bool) -> None:
    key = find_stack_key(make_task(0))
    assert key is not None
    assert (find_stack_key(make_task(1, **changes)) == key) == is_equal


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model__name": "vit_micro"}, "model.name = vit_micro"),
        ({"model__dropout": 0.1}, "model.dropout"),
        ({"precision__channels_last": True}, "precision.channels_last"),
        ({"diagnostics__noise_scale": True}, "diagnostics.noise_scale"),
    ],
)
def test_what_keeps_a_trial_alone_is_named(changes: dict[str, Any], word: str) -> None:
    assert explain_alone(make_task(0, **changes).config) == word
    assert find_stack_key(make_task(0, **changes)) is None
    assert find_stack_key(replace(make_task(0), memory_limit_bytes=1)) is None


def test_a_stacked_study_states_what_was_shared(tmp_path: Path) -> None:
    settings = ExecutorSettings(stack=2, device="cpu", per_device=1)
    spec = build_study(
        {
            "name": "stacked",
            "trials": 3,
            "sampler": "random",
            "pruner": "none",
            "confirm": {"max_configurations": 1, "seeds": 2},
            "base": BASE,
            "space": {"optimizer.lr": {"log": [1e-3, 0.1]}},
        },
        "test",
    )
    trials = load_frames(run_study(spec, Options(root=tmp_path, executor=settings))).trials
    assert (trials["outcome"] == "complete").all()
    assert set(trials["phase"]) == {"search", "confirm"}
    flags = trials["quality_flags"].str.split(",")
    assert all(each[0] == "packed" for each in flags)
    assert sum("stacked" in each for each in flags) >= 4  # two of three, and both seeds
    assert trials["train_seconds"].nunique() == 1  # of the probe
    assert trials["test_accuracy"].notna().sum() == 2
