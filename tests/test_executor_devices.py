"""Which devices are found, and what a child is shown of them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweep.config.errors import InputError
from sweep.executors import devices, table
from sweep.executors.devices import limit_spinning, list_devices, list_nvml_names, make_pinned_environment
from sweep.measurement.monitor import find_gpu


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
])  # fmt: skip
def test_a_gpu_is_found_by_what_cuda_accepts(entry: str, found: str) -> None:
    assert find_gpu(fake_driver(), entry) == found


@pytest.mark.parametrize("entry", ["GPU-1f7", "MIG-c"])
def test_a_name_of_several_gpus_or_of_none_is_refused(entry: str) -> None:
    with pytest.raises(RuntimeError, match="Not Found"):
        find_gpu(fake_driver(), entry)


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


def test_the_supervisor_needs_no_torch() -> None:
    program = (
        "import sys, sweep.executors.process, sweep.executors.inline;"
        "from sweep.executors.devices import list_devices; list_devices(); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


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
