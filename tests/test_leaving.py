"""A trial that is told to end finishes its step and writes a checkpoint, from which the same command resumes it; one
that says nothing any more is stopped and tried again, and one that was only not listened to is not."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from executor_contract import await_childless, await_dead, await_true, endings, hear_out, hear_some
from executor_contract import run as run_task
from safetensors.torch import load_file
from test_retries import causes, run, small, store
from test_run_trial import tell_curve

from sweep.config.trial import TrialConfig, build_config, flatten_config
from sweep.executors.base import QueryableExecutor, WorkerProgram
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Evaluation, Heartbeat, Message, Progress, TrialTask
from sweep.records.records import TrialRecord
from sweep.records.store import Store, open_store
from sweep.search.shutdown import Shutdown, shutdown_on_signals
from sweep.search.study_forecast import list_remaining
from sweep.search.tuner import AttemptEnded, Stopped, Stopping
from sweep.training import processes as supervisor_link
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.trial import run_trial

__all__ = ["store"]  # a fixture


def task(weights: Path, checkpoints: Path | None = None, **values: Any) -> TrialTask:
    settings: dict[str, Any] = {
        "data.subset": 300, "budget.epochs": 3.0, "seed": 3, "optimizer.lr": 0.02, "model.dropout": 0.1,
    }  # fmt: skip
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    folder = str(checkpoints) if checkpoints else None
    return TrialTask(
        number=0, config=build_config(settings, "test"), device="cpu", checkpoint_dir=folder,
        weights_path=str(weights), checkpoint_seconds=1e9, threads=1,
    )  # fmt: skip


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
        expected = run_task(executor, task(tmp_path / "unbroken", **ranks))
        broken = task(tmp_path / "broken", tmp_path / "checkpoints", **ranks)
        executor.start(broken)
        while not any(isinstance(said, Evaluation) and said.step for said in hear_some(executor)):
            pass
        executor.preempt(broken.number)
        left = hear_out(executor, broken.number)[-1]
        assert (left.outcome, left.cause) == ("cancelled", "left")
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
        found = run_task(executor, broken)
    assert tell_curve(found) == tell_curve(expected)
    one, two = load_file(tmp_path / "unbroken"), load_file(tmp_path / "broken")
    assert all(torch.equal(one[name], two[name]) for name in one)


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


__all__ = ["store"]  # a fixture


def test_a_silent_trial_is_stopped_and_tried_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep.executors.forkserver._STOP_SECONDS", 0.3)  # it does not heed SIGTERM
    run(store, small(stall_timeout=1.0), "hangs_at_first", tmp_path)
    (record,) = store.trial_records("s")
    assert record.outcome == "complete"
    assert causes(store) == ["stalled", ""]


SUPERVISOR = """
import sys
from contextlib import closing
from pathlib import Path
from test_retries import open_store, run, small

folder = Path(sys.argv[1])
with closing(open_store(folder / "study.sqlite", create=True)) as store:
    run(store, small(stall_timeout=1.0), "beating", folder)
"""


def test_a_supervisor_that_was_suspended_declares_nothing_dead(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path)], cwd=Path(__file__).parent)
    await_true((tmp_path / "logs" / "trial-00000.log").exists)
    os.kill(supervisor.pid, signal.SIGSTOP)
    time.sleep(2.0)  # longer than the limit of a silent trial
    os.kill(supervisor.pid, signal.SIGCONT)
    assert supervisor.wait(60) == 0
    with closing(open_store(tmp_path / "study.sqlite")) as store:
        (record,) = store.trial_records("s")
        assert (record.outcome, causes(store)) == ("complete", [""])
        assert [each.step for each in store.evaluations("s", 0)] == [1, 2]


def test_small_work_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.base._QUERY_SECONDS", 0.1)
    executor = ProcessExecutor(["cpu"], program=WorkerProgram("executor_runners:stopped", modules=()))
    with QueryableExecutor(executor, stall_seconds=0.5) as consulted:
        ending = consulted.run_query(TrialTask(number=0, config=TrialConfig()))
        assert (ending.outcome, ending.cause) == ("crashed", "stalled")
        assert ending.error == "no message for 0.5 s"


# ---------------------------------------------------------------------- signs of life


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The moments at which this process said that it lives; without a pause between them."""
    monkeypatch.setattr(supervisor_link, "HEARTBEAT_SECONDS", 0.0)
    said: list[float] = []
    SUPERVISOR_LINK.connect(lambda: said.append(time.monotonic()))
    yield said
    SUPERVISOR_LINK.reset()


def test_every_micro_batch_and_every_batch_of_an_evaluation_is_a_beat(beats: list[float]) -> None:
    values = {"data.subset": 128, "batch.micro": 16, "batch.accumulation": 4, "budget.steps": 3}
    *_, ending = run_trial(TrialTask(number=0, config=build_config(values, "test"), device="cpu", threads=1))
    assert isinstance(ending, Ending)
    assert ending.outcome == "complete"
    assert len(beats) >= 3 * 4 + 2  # the steps, an evaluation and the accuracy on the train split


def test_a_beat_is_said_every_few_seconds_only() -> None:
    said: list[int] = []
    SUPERVISOR_LINK.connect(lambda: said.append(0))
    for _ in range(1000):
        SUPERVISOR_LINK.send_heartbeat()
    SUPERVISOR_LINK.reset()
    SUPERVISOR_LINK.send_heartbeat()
    assert said == [0]


def test_beats_do_not_wait_for_a_supervisor_that_does_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BEATS_FILE", str(tmp_path / "beats"))
    with ProcessExecutor(["cpu"], program=WorkerProgram("executor_runners:beats", modules=())) as executor:
        executor.start(TrialTask(number=0, config=TrialConfig()))
        await_true((tmp_path / "beats").exists)  # written after 20,000 beats, more than the pipe holds
        news = endings(executor, 1)[0]
    assert 100 < sum(isinstance(message, Heartbeat) for message in news) < 20_000


# ---------------------------------------------------------------------- the workers that read images


STREAMED = {"data.subset": 256, "data.placement": "host", "data.workers": 1, "budget.epochs": 10_000.0}


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    with ProcessExecutor(["cpu"]) as made:
        yield made


def start_streamed(executor: ProcessExecutor) -> tuple[int, int]:
    """Starts a real training; the process ids of the child and of the worker that reads its images."""
    executor.start(TrialTask(number=0, config=build_config(STREAMED, "test"), device="cpu", threads=1))
    while not any(isinstance(message, Progress) and message.step for _, message in executor.poll(60.0)):
        pass
    (child,) = psutil.Process(executor.forkserver_pid).children()
    return child.pid, child.children()[0].pid


def test_a_killed_data_worker_is_a_fault_of_the_machine(executor: ProcessExecutor) -> None:
    _, worker = start_streamed(executor)
    os.kill(worker, signal.SIGKILL)
    ending = hear_out(executor, 0)[-1]
    assert (ending.outcome, ending.cause) == ("crashed", "data_worker_lost")
    await_childless(executor.forkserver_pid)


def test_a_trial_whose_data_worker_hangs_says_nothing_and_leaves_nothing(executor: ProcessExecutor) -> None:
    child, worker = start_streamed(executor)
    os.kill(worker, signal.SIGSTOP)
    deadline, silent_since = time.monotonic() + 30, time.monotonic()
    while time.monotonic() - silent_since < 2.5:  # more than the time between two heartbeats
        assert time.monotonic() < deadline
        if executor.poll(0.5):
            silent_since = time.monotonic()
    executor.stop(0)
    await_dead([child, worker])
