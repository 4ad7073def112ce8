"""The contract that every executor keeps, with one forkserver, one Ray and one Slurm for all tests."""

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import executor_runners
import pytest
from executor_contract import EXECUTORS, TRAINING, Make, await_dead, hear_first, hear_out, hear_some, run, task

from sweep.config.trial import TrialConfig, build_config
from sweep.executors.base import Executor, WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Evaluation, Heartbeat, Progress, TrialTask
from sweep.training.processes import load_plugin

CLUSTERS = ("ray", "slurm")
PLUGIN = str(Path(__file__).with_name("patient_plugin.py"))


@pytest.fixture(scope="module")
def patience(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of ``patient_plugin.py``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)  # which is recorded, and which Ray sets
        patch.setenv("PATIENT", str(folder := tmp_path_factory.mktemp("patience")))
        yield folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.wide) if name in CLUSTERS else name for name in EXECUTORS],
)
def kind(request: pytest.FixtureRequest, patience: Path) -> Iterator[tuple[str, Make]]:
    del patience  # set before processes inherit it
    with EXECUTORS[request.param]() as make_one:
        yield request.param, make_one


@pytest.fixture
def make(kind: tuple[str, Make]) -> Iterator[Make]:
    made: list[Executor] = []

    def build(runner: str) -> Executor:
        made.append(kind[1](runner))
        return made[-1]

    yield build
    for executor in made:
        executor.close()


@pytest.fixture
def make_outside(kind: tuple[str, Make], make: Make) -> Make:
    """Executors that do not train in this very process."""
    if kind[0] == "inline":
        pytest.skip("a crash here is one of this process")
    return make


def test_messages_arrive_whole_and_in_order(make: Make) -> None:
    messages = run(make("complete"), task())
    assert messages == list(executor_runners.complete(task()))


def test_a_diverged_trial_keeps_its_measurements_and_text(make: Make) -> None:
    *before, ending = run(make("diverged"), task())
    assert before == [executor_runners.evaluation(1)]
    assert ending == Ending(outcome="diverged", measurements={"train_seconds": 1.5}, error=executor_runners.ERROR_TEXT)


def test_out_of_memory_is_passed_on(make: Make) -> None:
    (ending,) = run(make("out_of_memory"), task())
    assert (ending.outcome, ending.error[:18]) == ("out_of_memory", "CUDA out of memory")


@pytest.mark.parametrize(
    ("runner", "reason"),
    [("raises", "KeyError: 'the reason'"), ("no_ending", "without"), ("exits", "7"), ("missing", "missing")],
)
def test_a_trial_that_breaks_off_has_crashed_and_says_why(make: Make, runner: str, reason: str) -> None:
    *before, ending = run(make(runner), task())
    assert before == ([] if runner == "missing" else [executor_runners.evaluation(1)])
    assert ending.outcome == "crashed"
    assert reason in ending.error


def test_the_task_arrives_as_it_was_given(make: Make) -> None:
    given = TrialTask(number=5, config=TrialConfig(seed=77), threads=1)
    assert run(make("echo_task"), given) == [
        Ending(outcome="complete", measurements={"seed": 77, "threads": 1}, device="cpu")
    ]


def test_one_trial_after_the_other_and_none_twice(make: Make) -> None:
    executor = make("echo_task")
    for seed in (1, 2):
        (ending,) = run(executor, task(number=seed, seed=seed))
        assert ending.measurements["seed"] == seed
    assert executor.poll(0.0) == []


def test_a_stopped_trial_is_not_heard_again_and_frees_its_slot(make: Make) -> None:
    executor = make("endless")
    executor.start(task(number=1))
    heard = executor.poll(30.0)
    assert all(number == 1 and isinstance(message, Progress | Heartbeat) for number, message in heard)
    assert heard
    executor.stop(1)
    assert executor.poll(0.2) == []
    executor.start(task(number=2))
    assert {number for number, _ in executor.poll(30.0)} == {2}
    executor.stop(2)
    executor.stop(2)
    executor.stop(99)


def test_a_trial_that_is_asked_to_leave_says_that_it_left_and_frees_its_slot(make: Make) -> None:
    executor = make("leaves")
    for number in (1, 2):  # the second was not asked yet
        executor.start(task(number=number))
        heard = [message for _, message in executor.poll(30.0)]
        executor.preempt(99)
        heard += [message for _, message in executor.poll(30.0)]
        assert all(isinstance(message, Progress | Heartbeat) for message in heard)
        executor.preempt(number)
        while not isinstance(heard[-1], Ending):
            heard += [message for _, message in executor.poll(30.0)]
        assert (heard[-1].outcome, heard[-1].cause) == ("cancelled", "left")
        assert heard[-1].measurements["num_steps"] == sum(isinstance(message, Progress) for message in heard)
    executor.preempt(2)
    assert executor.poll(0.0) == []


def test_polling_nothing_returns_at_once(make: Make) -> None:
    executor = make("complete")
    assert executor.poll(3600.0) == []  # longer than any test may last


def test_no_more_trials_than_slots(make: Make) -> None:
    executor = make("endless")
    assert executor.slots == 1
    executor.start(task(number=1))
    with pytest.raises(RuntimeError, match="running"):
        executor.start(task(number=2))


def test_an_interrupted_trial_in_this_process_has_ended() -> None:
    executor = InlineExecutor("cpu", WorkerProgram("executor_runners:interrupted"))
    executor.start(task())
    assert executor.poll(1.0) == [(12, executor_runners.evaluation(1))]
    with pytest.raises(KeyboardInterrupt):
        executor.poll(1.0)
    ((_, ending),) = executor.poll(1.0)
    assert isinstance(ending, Ending)
    assert ending.outcome == "crashed"
    assert executor.poll(1.0) == []


def test_the_machine_is_described(make: Make) -> None:
    assert make("complete").describe()["device"] == "class of cpu"


def test_a_machine_that_cannot_be_described_says_why() -> None:
    badly = WorkerProgram("executor_runners:complete", "executor_runners:describe_badly", ())
    with ProcessExecutor(["cpu"], program=badly) as executor, pytest.raises(RuntimeError, match="no such machine"):
        executor.describe()


def test_closing_stops_what_runs_and_may_be_repeated(make: Make) -> None:
    with make("endless") as executor:
        executor.start(task())
        assert executor.poll(30.0)
    executor.close()
    assert executor.poll(0.1) == []


# ------------------------------------------------------------------ faults


def test_a_killed_trial_has_crashed_by_that_signal(make_outside: Make) -> None:
    before, ending = run(make_outside("sigkill"), task())
    assert before == executor_runners.evaluation(1)
    assert (ending.outcome, ending.cause) == ("crashed", "SIGKILL")
    assert "these were the last words" in ending.error


@pytest.mark.parametrize("holder", [1, 2])
def test_who_holds_a_trial_dies_and_another_takes_the_next(holder: int, kind: tuple[str, Make], make: Make) -> None:
    lost = {(name, 1): "forkserver_lost" for name in ("process", "ray", "slurm")}
    lost |= {("ray", 2): "actor_lost", ("slurm", 2): "job_lost"}
    if (kind[0], holder) not in lost:
        pytest.skip("that one is this process, or a machine")
    executor = make("holders")
    for number in (1, 2):
        executor.start(task(number=number))
        told = hear_first(executor)
        os.kill((told.step, told.num_steps, int(told.epoch))[holder], signal.SIGKILL)
        (ending,) = hear_out(executor, number)
        assert (ending.outcome, ending.cause) == ("crashed", lost[kind[0], holder])
        await_dead([told.step])


# ------------------------------------------------------------------ real trainings

TRAINED = {
    "complete": {"budget.epochs": 2.0},
    "patient": {"budget.epochs": 30.0, "model.name": "patient"},
    "diverged": {"optimizer.lr": 1e4, "optimizer.name": "sgd", "budget.epochs": 5.0},
}


def test_trainings_are_the_same_everywhere(make: Make) -> None:
    executor = make(TRAINING)
    with EXECUTORS["inline"]() as make_here:
        for outcome in ("complete", "diverged"):
            messages = run(executor, trained(outcome))
            assert lasting(messages) == lasting(run(make_here(TRAINING), trained(outcome)))
            ending = messages[-1]
            assert ending.outcome == outcome


def test_a_training_that_left_goes_on_where_it_was(
    kind: tuple[str, Make], make: Make, patience: Path, tmp_path: Path
) -> None:
    executor = make(TRAINING)
    load_plugin(PLUGIN)
    unbroken = replace(trained("patient"), plugin=PLUGIN, checkpoint_dir=str(tmp_path), checkpoint_seconds=1e9)
    if kind[0] != "inline":  # that one cannot be told while it waits, and does nothing between two messages
        (patience / "once.wait").touch()
    executor.start(unbroken)
    heard = hear_some(executor)
    while (patience / "once.wait").exists():
        heard += [message for _, message in executor.poll(0.1)]
    executor.preempt(unbroken.number)
    heard += hear_out(executor, unbroken.number)
    left = heard[-1]
    assert (left.outcome, left.cause) == ("cancelled", "left")
    heard += run(executor, unbroken)
    usual = run(executor, replace(unbroken, checkpoint_dir=None))
    assert lasting(heard) == lasting(usual)
    assert 0 < left.measurements["num_steps"] < lasting(usual)[-1]["num_steps"]


def trained(outcome: str) -> TrialTask:
    values = {"data.name": "digits", "data.subset": 128, "batch.micro": 64, "seed": 5, **TRAINED[outcome]}
    return TrialTask(number=3, config=build_config(values, "test"), device="cpu", threads=1)


def lasting(messages: list[Any]) -> list[dict[str, Any]]:
    """What does not depend on how long anything took."""
    evaluations = {message.step: message for message in messages if isinstance(message, Evaluation)}
    ending = messages[-1]
    counted = ("val_accuracy", "val_loss", "train_accuracy", "num_steps", "num_epochs", "num_parameters")
    figures = {name: ending.measurements.get(name) for name in counted}
    environment = ending.environment | {"project_commit": ""}  # somebody may commit meanwhile
    whole = {"outcome": ending.outcome, "device": ending.device, "environment": environment, **figures}
    return [*(asdict(each) | {"train_seconds": 0.0} for each in evaluations.values()), whole]
