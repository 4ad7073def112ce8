"""A trial that is told to end finishes its step and writes a checkpoint; the same command resumes it from there."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_retries import causes, run, small, store
from test_run_trial import tell_curve

from sweep.config.trial import build_config, flatten_config
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Evaluation, Message, Progress, TrialTask
from sweep.records.records import TrialRecord
from sweep.records.store import Store
from sweep.search.shutdown import Shutdown, shutdown_on_signals
from sweep.search.study_forecast import list_remaining
from sweep.search.tuner import AttemptEnded, Stopped, Stopping
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.trial import run_trial

__all__ = ["store"]  # a fixture

NEVER = 1e9


def task(weights: Path, checkpoints: Path | None = None, **values: Any) -> TrialTask:
    settings: dict[str, Any] = {
        "data.subset": 300, "budget.epochs": 3.0, "seed": 3, "optimizer.lr": 0.02, "model.dropout": 0.1,
    }  # fmt: skip
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    folder = str(checkpoints) if checkpoints else None
    task = TrialTask(
        number=0, config=build_config(settings, "test"), device="cpu", checkpoint_dir=folder, weights_path=str(weights)
    )
    return replace(task, checkpoint_seconds=NEVER, threads=1)


def leave_at(given: TrialTask, step: int) -> list[Message]:
    """The messages of a trial that is told to stop when it has reported that step."""
    heard = []
    for message in run_trial(given):
        heard.append(message)
        if isinstance(message, Progress | Evaluation) and message.step >= step:
            SUPERVISOR_LINK.preempt()
    SUPERVISOR_LINK.reset()
    return heard


def test_a_trial_that_left_goes_on_as_if_it_had_stayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.count_window_steps", lambda *_: 1)
    monkeypatch.setattr("sweep.training.trial.PROGRESS_SECONDS", 0.0)
    expected = list(run_trial(task(tmp_path / "unbroken")))
    broken = task(tmp_path / "broken", tmp_path / "checkpoints")
    busy_seconds, steps = 0.0, []
    for step in (0, 7):
        began = time.perf_counter()
        *_, ending = leave_at(broken, step)
        busy_seconds += time.perf_counter() - began
        assert isinstance(ending, Ending)
        assert (ending.outcome, ending.cause) == ("cancelled", "left")
        assert ending.error == f"stopped on request after step {ending.measurements['num_steps']}"
        steps.append(ending.measurements["num_steps"])
        assert len(list((tmp_path / "checkpoints").iterdir())) == len(steps)
        time.sleep(0.5)  # a gap that must count nowhere
    assert steps == [1, 8]
    began = time.perf_counter()
    found = list(run_trial(broken))
    busy_seconds += time.perf_counter() - began
    assert tell_curve(found) == tell_curve(expected)
    one, two = load_file(tmp_path / "unbroken"), load_file(tmp_path / "broken")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert isinstance(found[-1], Ending)
    assert (found[-1].outcome, found[-1].measurements["num_steps"]) == ("complete", 15)
    # all segments, and neither gap
    assert 0.5 * busy_seconds < found[-1].measurements["total_seconds"] <= busy_seconds


def test_without_checkpoints_a_trial_leaves_as_well(tmp_path: Path) -> None:
    *_, ending = leave_at(task(tmp_path / "weights"), 0)
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.measurements["num_steps"] < 15) == ("cancelled", True)
    assert not (tmp_path / "weights").exists()


@pytest.mark.wide
def test_ranks_leave_together_and_go_on_together(tmp_path: Path) -> None:
    ranks: dict[str, Any] = {"distributed__world_size": 2, "batch__micro": 16, "budget__epochs": 4.0}
    with ProcessExecutor(["cpu"]) as executor:
        expected = heard_of(executor, task(tmp_path / "unbroken", **ranks))
        broken = task(tmp_path / "broken", tmp_path / "checkpoints", **ranks)
        left = heard_of(executor, broken, ask_at=1)
        assert isinstance(left[-1], Ending)
        assert (left[-1].outcome, left[-1].cause) == ("cancelled", "left")
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
        found = heard_of(executor, broken)
    assert tell_curve(found) == tell_curve(expected)
    one, two = load_file(tmp_path / "unbroken"), load_file(tmp_path / "broken")
    assert all(torch.equal(one[name], two[name]) for name in one)


def heard_of(executor: ProcessExecutor, given: TrialTask, ask_at: int | None = None) -> list[Message]:
    executor.start(given)
    messages: list[Message] = []
    while not (messages and isinstance(messages[-1], Ending)):
        messages += [message for _, message in executor.poll(60.0)]
        if ask_at is not None and any(isinstance(said, Evaluation) and said.step >= ask_at for said in messages):
            executor.preempt(given.number)
            ask_at = None
    return messages


# ---------------------------------------------------------------------- the study


def test_a_study_that_is_asked_to_leave_ends_with_its_trial_open(store: Store, tmp_path: Path) -> None:
    shutdown = Shutdown()
    threading.Timer(2.0, shutdown.request, (signal.SIGTERM,)).start()
    events = run(store, small(trials=3), "leaving", tmp_path, shutdown=shutdown)
    (record,) = store.trial_records("s")
    assert (record.outcome, causes(store)) == (None, ["terminated"])
    assert [event for event in events if isinstance(event, Stopping | AttemptEnded | Stopped)] == [
        Stopping("terminated", 1),
        AttemptEnded(0, "terminated"),
        Stopped("terminated; run the same command again to resume."),
    ]
    run(store, small(trials=1), "leaving", tmp_path)
    (record,) = store.trial_records("s")
    assert (record.outcome, causes(store)) == ("complete", ["terminated", ""])


@pytest.mark.parametrize("runner", ["stubborn", "killed_at_once"])
def test_whoever_does_not_leave_is_stopped_and_stays_open(store: Store, tmp_path: Path, runner: str) -> None:
    shutdown = Shutdown()
    shutdown.request(signal.SIGUSR1)
    store.create_study(small())
    config = small().config({"batch.micro": 64, "optimizer.lr": 0.01})
    store.add_trial("s", 0, "search", config, config.model_dump_json())
    run(store, small(), runner, tmp_path, shutdown=shutdown)
    assert causes(store) == []  # nothing begins any more
    shutdown.cause = ""
    threading.Timer(1.5, shutdown.request, (signal.SIGUSR1,)).start()
    if runner == "stubborn":
        run(store, small(), runner, tmp_path, shutdown=shutdown, grace_seconds=0.3)
        assert causes(store) == ["preempted"]
        assert store.trial_records("s")[0].outcome is None


# ---------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("number", "cause", "code"),
    [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143), (signal.SIGUSR1, "preempted", 75)],
)
def test_the_first_signal_asks_and_the_second_stops(number: int, cause: str, code: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    told: list[str] = []
    expected = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with shutdown_on_signals(lambda: told.append(cause)) as shutdown:
        assert shutdown.cause == ""
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a wrapper that hands on the terminal's
        assert (shutdown.cause, shutdown.exit_code, told) == (cause, code, [cause])
        time.sleep(0.3)
        with pytest.raises(expected) as stopped:
            os.kill(os.getpid(), number)
        if isinstance(stopped.value, SystemExit):
            assert stopped.value.code == code
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before
    with pytest.raises(expected):
        shutdown.raise_if_requested()


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with shutdown_on_signals() as shutdown:
            os.kill(os.getpid(), signal.SIGINT)
            assert shutdown.cause == ""
    finally:
        signal.signal(signal.SIGINT, before)
    Shutdown().raise_if_requested()


def test_outside_of_the_main_thread_nothing_is_touched() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with shutdown_on_signals() as shutdown:
            seen.append((shutdown.cause, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [("", True)]


def test_the_forecast_counts_an_open_trial_as_one_to_come() -> None:
    spec = small(trials=5, sampler="random")
    values = flatten_config(spec.config({"batch.micro": 64, "optimizer.lr": 0.01}))
    records = [
        TrialRecord(number=0, phase="search", values=values, outcome="complete"),
        TrialRecord(number=1, phase="search", values=values),
    ]
    outlook = list_remaining(spec, 1, records)
    assert (outlook.num_trials, len(outlook.sample), outlook.is_exact) == (4, 4, True)
