"""How the cores of a machine are divided among what trains on it at once."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.config.trial import TrialConfig
from sweep.executors import devices as cpu_cores
from sweep.executors.base import WorkerProgram
from sweep.executors.devices import divide_cores
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, Message, TrialTask


def machine(folder: Path, nodes: dict[int, str], siblings: dict[int, str], gpus: dict[str, str]) -> None:
    """The kernel's files about such a machine: the cores of each node, of each core, and near each GPU."""
    for core, listed in siblings.items():
        files = folder / "cpu" / f"cpu{core}"
        (files / "topology").mkdir(parents=True)
        (files / "topology" / "thread_siblings_list").write_text(f"{listed}\n")
        (files / next(f"node{node}" for node, held in nodes.items() if str(core) in held.split(","))).mkdir()
    for address, listed in gpus.items():
        (folder / "pci" / address).mkdir(parents=True)
        (folder / "pci" / address / "local_cpulist").write_text(f"{listed}\n")


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # eight threads of four cores on two nodes; one GPU on each
    siblings = {core: f"{core % 4},{core % 4 + 4}" for core in range(8)}
    machine(tmp_path, {0: "0,1,4,5", 1: "2,3,6,7"}, siblings, {"0000:01:00.0": "0-1,4-5", "0000:02:00.0": "2-3,6-7"})
    monkeypatch.setattr(cpu_cores, "_CPUS", tmp_path / "cpu")
    monkeypatch.setattr(cpu_cores, "_BUS", tmp_path / "pci")
    monkeypatch.setattr(cpu_cores, "find_bus_address", {"cuda:0": "0000:02:00.0", "cuda:1": "0000:01:00.0"}.get)


ALL = frozenset(range(8))


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize(("devices", "allowed", "expected"), [
    (["cpu"], ALL, []),  # one has everything
    (["cpu"] * 3, frozenset({0, 1}), []),  # fewer cores than slots
    (["cpu"] * 2, ALL, [(0, 4, 1, 5), (2, 6, 3, 7)]),  # a node each
    (["cpu"] * 4, ALL, [(0, 4), (1, 5), (2, 6), (3, 7)]),  # a core with its two threads each
    (["cpu"] * 3, ALL, [(0, 4), (1, 5, 2), (6, 3, 7)]),  # nothing is left over
    (["cuda:0", "cuda:1"], ALL, [(2, 6, 3, 7), (0, 4, 1, 5)]),  # each on the node of its GPU
    (["cuda:0", "cuda:1"] * 2, ALL, [(2, 6), (0, 4), (3, 7), (1, 5)]),
    (["cuda:0", "cuda:1"], frozenset({0, 1, 2}), [(2,), (0, 1)]),
    (["cuda:0", "cuda:1"] * 2, frozenset({0, 1, 2, 4}), [(0,), (4,), (1,), (2,)]),  # too few near the first
    (["cuda:0", "cuda:7"], ALL, [(0, 4, 1, 5), (2, 6, 3, 7)]),  # nobody knows where the second is
])  # fmt: skip
def test_cores_are_divided(devices: list[str], allowed: frozenset[int], expected: list[tuple[int, ...]]) -> None:
    assert divide_cores(devices, allowed) == expected


def test_a_machine_that_tells_nothing_is_divided_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_cores, "_CPUS", tmp_path)
    assert divide_cores(["cpu"] * 2, frozenset({3, 5, 7})) == [(3,), (5, 7)]


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
    shares = divide_cores(["cpu"] * 2, frozenset(allowed))
    program = WorkerProgram("test_cores:places", "executor_runners:describe", ())
    with ProcessExecutor(["cpu"], program=program) as executor:
        assert said(executor, 1) == {f"{allowed} None"}
        executor.divide(2)
        assert executor.slots == 2
        assert said(executor, 2) == {f"{sorted(share)} {len(allowed) // 2}" for share in shares}
        executor.start(TrialTask(number=0, config=TrialConfig()))
        with pytest.raises(RuntimeError, match=r"cannot be divided.*\[0\]"):
            executor.divide(1)
