"""The executors that keep the contract of ``test_executors.py``, in one table, and helpers of executors' tests."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, final

import psutil
import pytest
from fake_slurm import FakeSlurm

from sweep.config.trial import TrialConfig
from sweep.executors import slurm
from sweep.executors.base import PROGRAM, Executor, ExecutorWrapper, WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.process import ProcessExecutor
from sweep.executors.ray import RayExecutor
from sweep.executors.slurm import SlurmExecutor, SlurmSettings
from sweep.records.messages import Ending, Heartbeat, Message, Task, TrialTask

TRAINING = ""  # in place of a runner's name: the real thing
Make = Callable[[str], Executor]  # with one slot, for the runner of that name in ``executor_runners.py``


@contextmanager
def _inline() -> Iterator[Make]:
    yield lambda runner: InlineExecutor("cpu", program(runner))


@contextmanager
def choose_runners(modules: tuple[str, ...] = ()) -> Iterator[tuple[WorkerProgram, Path]]:
    """A program whose processes run the runner that is named in a file, so that tests can share an executor."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = Path(folder) / "runner"
        patch.setenv("EXECUTOR_RUNNER_FILE", str(file))  # inherited by the executor's processes
        yield replace(program("chosen"), modules=modules), file


@contextmanager
def _process() -> Iterator[Make]:
    with choose_runners(PROGRAM.modules) as (chooser, file), ProcessExecutor(["cpu"], program=chooser) as executor:
        yield lambda runner: _Shared(executor, runner, file)


@contextmanager
def _ray() -> Iterator[Make]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with choose_runners(PROGRAM.modules) as (chooser, file), RayExecutor("cpu", num_cpus=1, program=chooser) as cluster:
        yield lambda runner: _Shared(cluster, runner, file)


@contextmanager
def fake_cluster(folder: Path) -> Iterator[FakeSlurm]:
    """A Slurm that is asked often, for whatever runs meanwhile."""
    with pytest.MonkeyPatch.context() as patch, closing(FakeSlurm(folder)) as fake:
        for name, value in fake.environment.items():
            patch.setenv(name, value)
        patch.setattr(slurm, "QUERY_SECONDS", 0.3)
        yield fake


@contextmanager
def _slurm() -> Iterator[Make]:
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("submitit is not installed")
    with TemporaryDirectory() as folder, fake_cluster(Path(folder)):
        settings = SlurmSettings(jobs=1, gpus_per_node=0)

        def make(runner: str) -> Executor:
            return SlurmExecutor(Path(mkdtemp(dir=folder)), "test", settings, "cpu", None, program(runner))

        yield make


# Each entry makes executors as long as it is open, because a cluster and a forkserver take seconds to start.
EXECUTORS: dict[str, Callable[[], AbstractContextManager[Make]]] = {
    "inline": _inline, "process": _process, "ray": _ray, "slurm": _slurm,
}  # fmt: skip


def program(runner: str) -> WorkerProgram:
    """The program of the runner of that name in ``executor_runners.py``."""
    if runner == TRAINING:
        return PROGRAM
    return WorkerProgram(f"executor_runners:{runner}", "executor_runners:describe", ())


@final
class _Shared(ExecutorWrapper):
    """An executor that several tests use one after the other; ``file`` names the runner of the present test."""

    def __init__(self, executor: Executor, runner: str, file: Path) -> None:
        super().__init__(executor)
        self._runner, self._file = program(runner).runner, file
        self._started: set[int] = set()

    def start(self, task: Task) -> None:
        self._file.write_text(self._runner)
        super().start(task)
        self._started.add(task.number)

    def close(self) -> None:
        for number in self._started:
            self.stop(number)


def task(number: int = 12, seed: int = 3) -> TrialTask:
    return TrialTask(number=number, config=TrialConfig(seed=seed))


def run(executor: Executor, given: TrialTask) -> list[Any]:
    """All messages of one trial, to its ending."""
    executor.start(given)
    return hear_out(executor, given.number)


def hear_out(executor: Executor, trial: int) -> list[Any]:
    """The further messages of a trial that was started, without signs of life."""
    messages: list[Message] = []
    while not (messages and isinstance(messages[-1], Ending)):
        heard = _poll(executor, f"no ending; heard {messages}")
        assert {number for number, _ in heard} == {trial}
        messages += [message for _, message in heard]
    return messages


def endings(executor: Executor, count: int) -> dict[int, list[Any]]:
    """What was said, by trial, until so many trials have ended."""
    said: dict[int, list[Message]] = {}
    deadline = time.monotonic() + 120
    while sum(isinstance(each[-1], Ending) for each in said.values()) < count:
        assert time.monotonic() < deadline, said
        for number, message in executor.poll(1.0):
            said.setdefault(number, []).append(message)
    return said


def hear_first(executor: Executor) -> Any:
    """The next message of the trial that was started, without signs of life; what came with it is passed over."""
    return hear_some(executor)[0]


def hear_some(executor: Executor) -> list[Any]:
    """The next messages of the trial that was started, without signs of life."""
    return [message for _, message in _poll(executor, "nothing is heard")]


def _poll(executor: Executor, complaint: str) -> list[tuple[int, Message]]:
    heard: list[tuple[int, Message]] = []

    def listen() -> bool:
        heard.extend((number, message) for number, message in executor.poll(1.0) if not isinstance(message, Heartbeat))
        return bool(heard)

    await_true(listen, complaint)
    return heard


def await_true(is_true: Callable[[], object], complaint: str = "", seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether the process still runs; one that is dead and not yet reaped does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def marked(marker: str) -> list[int]:
    """Every live process whose environment holds ``marker``."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if lives(pid) and pid != os.getpid()]


def await_dead(pids: list[int]) -> None:
    """Waits for the end of processes that would sleep for an hour if nobody ended them."""
    await_true(lambda: not any(map(lives, pids)), f"some of {pids} still lives")


def await_childless(pid: int) -> None:
    """Waits until the process has no descendant, the dead that are not yet reaped among them.

    A trial's own process may be reported as ended before those that it started are reaped.
    """
    await_true(lambda: not psutil.Process(pid).children(recursive=True), f"{pid} still has children")
