"""A trial that says nothing any more is stopped and tried again; one that was only not listened to is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from executor_contract import await_childless, await_dead
from test_retries import causes, run, small, store

from sweep.config.trial import TrialConfig, build_config
from sweep.executors.base import QueryableExecutor, WorkerProgram
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Heartbeat, Progress, TrialTask
from sweep.records.store import Store, open_store
from sweep.training import processes as supervisor_link
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.trial import run_trial

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
    deadline = time.monotonic() + 60
    while not (tmp_path / "logs" / "trial-00000.log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
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
        deadline = time.monotonic() + 30
        while not (tmp_path / "beats").exists():  # written after 20,000 beats, more than the pipe holds
            assert time.monotonic() < deadline
            time.sleep(0.05)
        news = [message for _, message in executor.poll(5.0)]
        while not isinstance(news[-1], Ending):
            news += [message for _, message in executor.poll(5.0)]
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
    ending = None
    while not isinstance(ending, Ending):
        ending = next((said for _, said in executor.poll(60.0) if isinstance(said, Ending)), None)
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
