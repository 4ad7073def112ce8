"""How the cores of a machine are divided among what trains on it at once."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sweep.config.trial import TrialConfig
from sweep.executors import devices
from sweep.executors.base import WorkerProgram
from sweep.executors.devices import divide_cores
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Message, TrialTask


@pytest.mark.parametrize(("count", "allowed", "expected"), [
    (1, range(8), []),  # one has everything
    (3, (0, 1), []),  # fewer cores than slots
    (2, range(8), [(0, 4, 1, 5), (2, 6, 3, 7)]),  # a node each
    (4, range(8), [(0, 4), (1, 5), (2, 6), (3, 7)]),  # a core with its two threads each
    (3, range(8), [(0, 4), (1, 5, 2), (6, 3, 7)]),  # nothing is left over
])  # fmt: skip
def test_cores_are_divided(
    count: int, allowed: Iterable[int], expected: list[tuple[int, ...]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On eight threads of four cores on two nodes."""
    monkeypatch.setattr(devices, "_CPUS", tmp_path)
    for core in range(8):
        files = tmp_path / f"cpu{core}"
        (files / "topology").mkdir(parents=True)
        (files / "topology" / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
        (files / f"node{core % 4 // 2}").mkdir()
    assert divide_cores(count, frozenset(allowed)) == expected


def test_a_machine_that_tells_nothing_is_divided_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CPUS", tmp_path)
    assert divide_cores(2, frozenset({3, 5, 7})) == [(3,), (5, 7)]


def places(task: TrialTask) -> Iterator[Message]:
    """Reports on which cores it may run, and with how many threads, half a second after its start."""
    time.sleep(0.5)
    yield Ending(outcome="complete", error=f"{sorted(os.sched_getaffinity(0))} {task.threads}")


def said(executor: ProcessExecutor, count: int) -> set[str]:
    for number in range(count):
        executor.start(TrialTask(number=number, config=TrialConfig()))
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline
        found += [message.error for _, message in executor.poll(1.0) if isinstance(message, Ending)]
    return set(found)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two cores")
def test_trials_at_once_run_on_cores_of_their_own() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    shares = divide_cores(2, frozenset(allowed))
    program = WorkerProgram("test_cores:places", "executor_runners:describe", ())
    with ProcessExecutor(["cpu"], program=program) as executor:
        assert said(executor, 1) == {f"{allowed} None"}
        executor.divide(2)
        assert executor.slots == 2
        assert said(executor, 2) == {f"{sorted(share)} {len(allowed) // 2}" for share in shares}
        executor.start(TrialTask(number=0, config=TrialConfig()))
        with pytest.raises(RuntimeError, match=r"cannot be divided.*\[0\]"):
            executor.divide(1)
