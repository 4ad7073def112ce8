"""The contract that every executor keeps, with one forkserver, one Ray and one Slurm for all tests; and a study's
records, which are the same wherever its trials run."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import executor_runners
import pandas as pd
import pytest
from executor_contract import EXECUTORS, TRAINING, Make, await_dead, hear_first, hear_out, hear_some, run, task
from fake_slurm import FakeSlurm
from script_factory import write_script

from sweep import load_frames
from sweep.config.metrics import METRICS
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.base import WorkerProgram
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
    with ExitStack() as made:
        yield lambda runner: made.enter_context(kind[1](runner))


@pytest.mark.parametrize("runner", ["complete", "diverged", "out_of_memory"])
def test_messages_arrive_whole_and_in_order(make: Make, runner: str) -> None:
    assert run(make(runner), task()) == list(getattr(executor_runners, runner)(task()))


@pytest.mark.parametrize(
    ("runner", "reason"),
    [("raises", "KeyError: 'the reason'"), ("no_ending", "without"), ("exits", "7"), ("missing", "missing")],
)
def test_a_trial_that_breaks_off_has_crashed_and_says_why(make: Make, runner: str, reason: str) -> None:
    *before, ending = run(make(runner), task())
    assert before == ([] if runner == "missing" else [executor_runners.evaluation(1)])
    assert ending.outcome == "crashed"
    assert reason in ending.error


def test_each_task_arrives_as_it_was_given_and_none_twice(make: Make) -> None:
    executor = make("echo_task")
    for seed in (77, 78):
        given = TrialTask(number=seed, config=TrialConfig(seed=seed), threads=1)
        expected = Ending(outcome="complete", measurements={"seed": seed, "threads": 1}, device="cpu")
        assert run(executor, given) == [expected]
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


def test_the_machine_is_described_and_polling_nothing_returns_at_once(make: Make) -> None:
    executor = make("complete")
    assert executor.describe()["device"] == "class of cpu"
    assert executor.poll(3600.0) == []  # longer than any test may last


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


def test_a_killed_trial_has_crashed_by_that_signal(kind: tuple[str, Make], make: Make) -> None:
    if kind[0] == "inline":
        pytest.skip("a crash here is one of this process")
    before, ending = run(make("sigkill"), task())
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


STUDY = """
name = "same"
question = "Does it matter where trials run?"
sampler = "grid"
objectives = ["val_accuracy", "num_steps"]
trials = 4
confirm = {{ max_configurations = 1, seeds = 2 }}
{training}
[space]
"batch.micro" = {{ choice = [16, 64] }}
"optimizer.lr" = {{ choice = [0.05, {highest_rate}] }}
"""
OWN = """
[base]
data.name = "digits"
data.subset = 200
budget.epochs = 2
optimizer.name = "sgd"
"""
SCRIPT = """
[script]
command = "python train.py"
metric = "val_accuracy"
data = "made"  # without it no key of a trial equals another
"""
# What a clock, the load of the machine or the place of a process has a part in.
DIFFERING = {metric.name for metric in METRICS.values() if metric.is_of_a_device and not metric.is_memory}
DIFFERING |= {"environment_digest", "shape_digest", "quality_flags", "bottleneck"}


def records(executor: str, folder: Path, study: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The trials and evaluations of the study as it was run in a folder of its own."""
    write_script(folder)
    (folder / "study.toml").write_text(study)
    (folder / executor).mkdir()
    table = "[sbatch]\njobs = 1\ngpus_per_node = 0\n" if executor == "slurm" else ""
    (folder / "on.toml").write_text(f'executor = "{executor}"\ndevice = "cpu"\n{table}')
    words = ["run", "study.toml", "--on", "on.toml", "--no-reuse", "--root", executor]
    command = [sys.executable, "-m", "sweep.cli", *words]
    with closing(FakeSlurm(folder / executor)) as cluster:
        # the same share of the cores whatever the slots
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | cluster.environment
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=600)
    frames = load_frames(folder / executor / "same", evaluations=True)
    trials = frames.trials.set_index("number").sort_index()
    evaluations = frames.evaluations.sort_values(["number", "step"]).reset_index(drop=True)
    return tuple(  # type: ignore[return-value]
        frame.drop(columns=DIFFERING & set(frame.columns)) for frame in (trials, evaluations)
    )


@pytest.mark.wide
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("executor", "library"), [("inline", "torch"), ("ray", "ray"), ("slurm", "submitit")])
@pytest.mark.parametrize(("training", "highest_rate", "outcomes"), [
    (OWN, 1e4, {"complete", "diverged"}), (SCRIPT, 0.2, {"complete"}),
], ids=["own", "script"])  # fmt: skip
def test_records_are_the_same_wherever_trials_run(
    executor: str, library: str, training: str, highest_rate: float, outcomes: set[str], tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    study = STUDY.format(training=training, highest_rate=highest_rate)
    usual_trials, usual_evaluations = records("process", tmp_path, study)
    assert set(usual_trials["outcome"]) == outcomes
    assert set(usual_trials["phase"]) == {"search", "confirm"}
    trials, evaluations = records(executor, tmp_path, study)
    pd.testing.assert_frame_equal(trials, usual_trials)
    pd.testing.assert_frame_equal(evaluations, usual_evaluations)
