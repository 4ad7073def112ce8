"""Which devices are found, what a child is shown of them, and how the cores are divided among what trains at once."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from executor_contract import endings

from sweep.config.errors import InputError
from sweep.config.trial import TrialConfig
from sweep.executors import devices, table
from sweep.executors.base import WorkerProgram
from sweep.executors.devices import divide_cores, limit_spinning, list_devices, list_nvml_names, make_pinned_environment
from sweep.executors.process import ProcessExecutor
from sweep.measurement.monitor import find_gpu
from sweep.records.messages import Ending, Message, TrialTask


@pytest.mark.parametrize(("visible", "num_gpus", "found"), [
    (None, 0, ["cpu"]), (None, 2, ["cuda:0", "cuda:1"]), ("1", 2, ["cuda:0"]), ("1,0", 2, ["cuda:0", "cuda:1"]),
    ("GPU-1f2e, MIG-77", 2, ["cuda:0", "cuda:1"]), ("", 2, ["cpu"]), ("-1", 2, ["cpu"]), ("0,-1,1", 2, ["cuda:0"]),
    ("0", 0, ["cpu"]),
])  # fmt: skip
def test_devices_are_numbered_as_cuda_would(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, num_gpus: int, found: list[str]
) -> None:
    monkeypatch.setattr(devices, "_num_gpus", lambda: num_gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert list_devices() == found


def test_a_device_is_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert make_pinned_environment("cpu") == {}
    assert make_pinned_environment("cuda:3") == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")  # in CUDA's own order, which stays that of the child
    assert make_pinned_environment("cuda:1") == {"CUDA_VISIBLE_DEVICES": "7"}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert make_pinned_environment("cuda:1") == {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert make_pinned_environment("cuda")["CUDA_VISIBLE_DEVICES"] == "6"
    assert make_pinned_environment("cuda:1,cuda:0")["CUDA_VISIBLE_DEVICES"] == "7,6"


UUIDS = ("GPU-1f2e-00", "GPU-1f77-00")
PARTS = ("MIG-aa00-01", "MIG-bb00-02")  # of the second


def fake_driver() -> SimpleNamespace:
    """Two GPUs, of which the second is divided into two parts."""

    def find(uuid: str) -> str:
        if uuid not in (*UUIDS, *PARTS):
            raise RuntimeError("Not Found")
        return uuid

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: UUIDS[index],
        nvmlDeviceGetHandleByUUID=find,
        nvmlDeviceGetUUID=lambda device: device,
        NVMLError=RuntimeError,
    )


@pytest.mark.parametrize(("entry", "found"), [
    ("1", UUIDS[1]),
    (UUIDS[0], UUIDS[0]),
    ("MIG-bb00-02", PARTS[1]),
    ("GPU-1f7", None),
    ("MIG-c", None),
])  # fmt: skip
def test_a_gpu_is_found_by_what_cuda_accepts(entry: str, found: str | None) -> None:
    with nullcontext() if found else pytest.raises(RuntimeError, match="Not Found"):
        assert find_gpu(fake_driver(), entry) == found


@pytest.mark.parametrize(("visible", "order", "names"), [
    (None, None, ["1"]),
    ("1,0", "PCI_BUS_ID", ["0"]),
    ("1,0", None, ["0", "1"]),  # which one is CUDA's first is not known
    ("1,0", "FASTEST_FIRST", ["0", "1"]),
    (",".join(UUIDS), None, [UUIDS[1]]),
    (f"0,{PARTS[1]}", None, [PARTS[1]]),
])  # fmt: skip
def test_a_gpu_is_named_to_the_driver_where_their_order_is_known(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, order: str | None, names: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_driver())
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert list_nvml_names("cuda:1") == names


def test_a_device_that_is_not_shown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    with pytest.raises(ValueError, match=r"'cuda:2'.*shows 2"):
        make_pinned_environment("cuda:2")


def test_supervising_imports_neither_torch_nor_ray() -> None:
    program = (
        "import sys, sweep.search.session, sweep.executors.process, sweep.executors.inline, sweep.executors.ray;"
        "from sweep.executors.devices import list_devices; list_devices(); print({'ray', 'torch'} & sys.modules.keys())"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [({}, "1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None), ({"GOMP_SPINCOUNT": "77"}, "77")],
)
def test_idle_threads_spin_briefly_unless_the_user_chose(
    given: dict[str, str], spin_count: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spin_count


@pytest.mark.parametrize(("device", "world_size", "expected"), [
    ("auto", 1, ["cuda:0", "cuda:1", "cuda:2"]), ("auto", 2, ["cuda:0,cuda:1"]), ("auto", 3, ["cuda:0,cuda:1,cuda:2"]),
    ("cuda", 1, ["cuda:0"]), ("cuda", 2, ["cuda:0,cuda:1"]), ("cuda:2", 1, ["cuda:2"]), ("cpu", 4, ["cpu"]),
])  # fmt: skip
def test_a_trial_of_several_ranks_has_as_many_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, world_size: int, expected: list[str]
) -> None:
    monkeypatch.setattr(devices, "_num_gpus", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made: list[list[str]] = []
    monkeypatch.setattr(table, "ProcessExecutor", lambda devices, **_options: made.append(devices))
    settings = table.ExecutorSettings(device=device)
    table.check_ranks(settings, world_size)
    table.make_executor(settings, tmp_path, world_size)
    assert made == [expected]


@pytest.mark.parametrize(("device", "world_size", "count"), [("auto", 4, 3), ("cuda", 4, 3), ("cuda:1", 2, 1)])
def test_more_ranks_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, world_size: int, count: int
) -> None:
    monkeypatch.setattr(devices, "_num_gpus", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InputError, match=rf"world_size = {world_size} requires .*the device {device} has {count} here"):
        table.check_ranks(table.ExecutorSettings(device=device), world_size)


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
    return {messages[-1].error for messages in endings(executor, count).values()}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="requires two cores")
def test_trials_at_once_run_on_cores_of_their_own() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    shares = divide_cores(2, frozenset(allowed))
    program = WorkerProgram("test_executor_devices:places", "executor_runners:describe", ())
    with ProcessExecutor(["cpu"], program=program) as executor:
        assert said(executor, 1) == {f"{allowed} None"}
        executor.divide(2)
        assert executor.slots == 2
        assert said(executor, 2) == {f"{sorted(share)} {len(allowed) // 2}" for share in shares}
        executor.start(TrialTask(number=0, config=TrialConfig()))
        with pytest.raises(RuntimeError, match=r"cannot be divided.*\[0\]"):
            executor.divide(1)
