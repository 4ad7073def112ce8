"""Faults of a trial's process, of the forkserver and of the supervisor, and what is left afterwards."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import executor_runners
import pytest
from executor_contract import (
    await_childless,
    await_dead,
    choose_runners,
    endings,
    hear_first,
    lives,
    marked,
    program,
    run,
    task,
)

from sweep.config.trial import TrialConfig
from sweep.executors.devices import list_devices
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Progress, TrialTask

Make = Callable[..., ProcessExecutor]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProcessExecutor, Path]]:
    """One executor for the tests that leave its forkserver alone, and the file that names its runner."""
    logs = tmp_path_factory.mktemp("logs")
    with choose_runners() as (chooser, file), ProcessExecutor(["cpu"], logs, chooser) as executor:
        yield executor, file


@pytest.fixture
def use(shared: tuple[ProcessExecutor, Path]) -> Iterator[Make]:
    """The shared executor with the runner of that name."""
    executor, file = shared

    def choose(runner: str) -> ProcessExecutor:
        file.write_text(f"executor_runners:{runner}")
        return executor

    yield choose
    for number in range(20):
        executor.stop(number)
    executor.poll(0.0)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """An executor of its own."""
    with ExitStack() as made:

        def build(runner: str, devices: Sequence[str] = ("cpu",), modules: tuple[str, ...] = ()) -> ProcessExecutor:
            chosen = replace(program(runner), modules=modules)
            return made.enter_context(ProcessExecutor(list(devices), tmp_path, chosen))

        yield build


def start_workers(executor: ProcessExecutor, number: int = 12) -> list[int]:
    """Starts a trial that has workers; the process ids of the trial, its worker and the worker's worker."""
    executor.start(task(number=number))
    told = hear_first(executor)
    return [told.step, told.num_steps, int(told.epoch)]


# ------------------------------------------------------------------ a trial's process


@pytest.mark.parametrize(("runner", "error"), [
    ("sigkill", r"killed by SIGKILL.*out of memory.*\n(?s:.*)these were the last words$"),
    ("segfault", r"killed by SIGSEGV(?s:.*)in segfault"),
    ("exit_code", r"exit code 42(?s:.*)unflushed words"),
])  # fmt: skip
def test_how_a_child_ended_is_told_with_its_last_words(
    use: Make, shared: tuple[ProcessExecutor, Path], runner: str, error: str
) -> None:
    log_dir = shared[0]._log_dir
    assert log_dir is not None
    log = log_dir / "trial-00012.log"
    log.write_text("from an earlier attempt\n")
    *before, ending = run(use(runner), task(number=12, seed=42))
    assert before == [executor_runners.evaluation(1)]
    assert ending.outcome == "crashed"
    assert re.match(error, ending.error)
    assert "earlier attempt" not in ending.error
    assert log.read_text().startswith("from an earlier attempt\n")
    assert log.read_text().endswith(ending.error.splitlines()[-1] + "\n")


def test_an_ending_that_was_told_counts_whatever_comes_after(use: Make) -> None:
    assert run(use("silent_after_ending"), task()) == [Ending(outcome="complete", measurements={"num_steps": 3})]


@pytest.mark.parametrize("runner", ["hung", "stopped"])
def test_a_child_that_heeds_nothing_is_stopped(use: Make, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.forkserver._STOP_SECONDS", 0.3)
    executor = use(runner)
    executor.start(task(number=1))
    assert hear_first(executor) == executor_runners.evaluation(1)
    executor.stop(1)  # returns, although the runner itself sleeps for ever
    assert executor.poll(0.1) == []


def test_workers_that_a_trial_leaves_behind_are_ended_before_its_ending_is_told(use: Make) -> None:
    told, ending = run(use("ends_with_workers"), task())
    assert ending == Ending(outcome="complete")
    await_dead([told.step, told.num_steps, int(told.epoch)])


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_end_of_a_trial_ends_its_workers(use: Make, is_killed: bool) -> None:
    executor = use("with_workers")
    child, *workers = start_workers(executor)
    assert all(lives(pid) for pid in (child, *workers))
    if is_killed:
        os.kill(child, signal.SIGKILL)
    else:
        executor.stop(12)
    await_dead([child, *workers])


def test_a_burst_of_messages_arrives_whole_and_in_order(use: Make) -> None:
    *before, ending = run(use("burst"), task())
    assert [message.step for message in before if isinstance(message, Progress)] == list(range(20_000))
    assert len(ending.error) == 1_000_000


def test_a_child_that_sends_nonsense_is_ended(use: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.process._EXIT_SECONDS", 0.1)
    *_, ending = run(use("nonsense"), task())
    assert ending.outcome == "crashed"
    assert "rumour" in ending.error


def test_fifty_trials_leave_no_process_and_no_descriptor(use: Make) -> None:
    executor = use("complete")
    run(executor, task(number=0))
    before = len(list(Path("/proc/self/fd").iterdir()))
    server_before = len(list(Path(f"/proc/{executor.forkserver_pid}/fd").iterdir()))
    for number in range(1, 51):
        assert len(run(executor, task(number=number))) == 11
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(list(Path(f"/proc/{executor.forkserver_pid}/fd").iterdir())) == server_before
    await_childless(executor.forkserver_pid)


# ------------------------------------------------------------------ the place of a trial


def test_a_child_stands_alone(use: Make) -> None:
    executor = use("echo_environment")
    (ending,) = run(executor, task())
    seen = ending.environment
    assert seen["ppid"] == executor.forkserver_pid
    assert seen["pgid"] == seen["pid"]
    assert seen["sigint_ignored"] is True
    assert seen["main"] == "__main__"
    assert len(seen["fds"]) <= 5, "0, 1, 2, the messages, and the folder that is being listed"


def test_a_gpu_is_pinned_before_the_trial_can_ask_for_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-abc")
    executor = make("echo_environment", devices=["cuda:0", "cuda:1"])
    for number in (1, 2):
        executor.start(task(number=number))
    seen = [messages[-1] for messages in endings(executor, 2).values()]
    assert {ending.environment["CUDA_VISIBLE_DEVICES"] for ending in seen} == {"5", "GPU-abc"}
    assert seen[0].environment["CUDA_DEVICE_ORDER"] is None  # the order in which the user's numbers are meant
    assert {ending.device for ending in seen} == {"cuda"}
    assert executor.describe()["device"] == "class of cuda"
    assert executor.describe()["visible"] == "5"


@pytest.mark.gpu
def test_every_gpu_serves_trials_one_after_the_other(make: Make) -> None:
    devices = list_devices()
    if devices == ["cpu"]:
        pytest.skip("no CUDA device")
    executor = make("uses_gpu", devices=devices, modules=("torch",))
    for number in range(2):
        told, ending = run(executor, task(number=number))
        assert (told.step, told.epoch, ending.outcome) == (1, 4.0, "out_of_memory")


def test_cores_are_shared_out_between_the_slots(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    executor = make("echo_task", devices=["cpu", "cpu"])
    (ending,) = run(executor, task())
    assert ending.measurements["threads"] == 3
    assert executor.describe()["threads"] == 3
    (alone,) = run(make("echo_task"), task())
    assert alone.measurements["threads"] == 0, "torch's own choice"


def test_a_forked_child_multiplies_on_all_its_threads(make: Make) -> None:
    executor = make("threads", modules=("torch",))
    (ending,) = run(executor, TrialTask(number=1, config=TrialConfig(), threads=2))
    assert ending.measurements["num_threads"] >= 2
    assert ending.measurements["cores"] > 0.1, "it worked and did not wait"


# ------------------------------------------------------------------ the forkserver and the supervisor


def test_a_forkserver_killed_between_trials_goes_unnoticed(make: Make) -> None:
    executor = make("complete")
    for number in range(3):
        messages = run(executor, task(number=number))
        assert messages[-1] == list(executor_runners.complete(task()))[-1]
        os.kill(executor.forkserver_pid, signal.SIGKILL)


def test_a_module_that_cannot_be_preloaded_fails_nothing(make: Make, tmp_path: Path) -> None:
    assert len(run(make("complete", modules=("no_such_module",)), task())) == 11
    assert "No module named 'no_such_module'" in (tmp_path / "forkserver.log").read_text()


SUPERVISOR = """
import signal
import sys
from sweep.executors.process import ProcessExecutor
from executor_contract import program, task

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started these tests with nohup has it ignored
executor = ProcessExecutor(["cpu"], program=program("with_workers"))
executor.start(task(number=1))
(_, told), *_ = executor.poll(30.0)
print(told.step, told.num_steps, int(told.epoch), executor.forkserver_pid, flush=True)
while True:
    executor.poll(60.0)
"""


def start_supervisor(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The process, and the marker in the environment of all that it starts."""
    value = f"{folder.name}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR], cwd=Path(__file__).parent, env=os.environ | {"SWEEP_TEST_MARKER": value},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    return process, f"SWEEP_TEST_MARKER={value}"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A supervisor with a trial that has workers; its marker in the environment, and the ids it told."""
    process, marker = start_supervisor(tmp_path)
    assert process.stdout is not None
    with process, process.stdout:
        told = [int(word) for word in process.stdout.readline().split()]
        yield process, marker, told
        process.kill()
    for pid in marked(marker):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_outlives_the_supervisor(supervisor: tuple[subprocess.Popen[str], str, list[int]], number: int) -> None:
    process, marker, told = supervisor
    assert set(marked(marker)) == {process.pid, *told}
    os.kill(process.pid, number)
    process.wait(5)
    await_dead(told)
    assert marked(marker) == []


def test_nothing_outlives_a_supervisor_killed_at_once(tmp_path: Path) -> None:
    for delay in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        process, marker = start_supervisor(tmp_path)
        with process:
            time.sleep(delay)
            process.kill()
        await_dead(marked(marker))
        assert marked(marker) == []
