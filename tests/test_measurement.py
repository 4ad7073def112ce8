"""Clocks, memory, device and environment."""

import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scripted_clock import ScriptedClock

from sweep.config.errors import InputError
from sweep.measurement.clock import Ledger
from sweep.measurement.device import describe_environment, name_device_class, read_cpu_model, resolve_device
from sweep.measurement.host_memory import name_storage
from sweep.measurement.memory import MemoryPeak, count_held_bytes, measure_step_peak
from sweep.records.inputs import environment_digest

CPU = torch.device("cpu")


def test_window_time_is_data_wait_or_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock(monkeypatch)

    def slow_items() -> Iterator[int]:
        for item in range(3):
            clock.pass_seconds(2.0)
            yield item

    ledger = Ledger()
    ledger.open_window()
    for _ in ledger.waiting(slow_items()):
        clock.pass_seconds(1.0)
    ledger.close_window(num_steps=3, samples=96, is_full=True)
    assert (ledger.seconds["data_wait"], ledger.seconds["step"]) == (6.0, 3.0)
    assert ledger.train_seconds == ledger.windows[0].seconds == 9.0
    assert ledger.images_per_second == pytest.approx(96 / 9)


def test_time_between_windows_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock(monkeypatch)
    ledger = Ledger()
    for pause in (0.0, 0.0, 50.0):
        clock.pass_seconds(pause)
        ledger.open_window()
        clock.pass_seconds(3.0)
        ledger.close_window(1, 1, is_full=True)
    assert ledger.train_seconds == 9.0
    assert ledger.total_seconds == 59.0
    assert ledger.spans == [(1000.0, 1006.0), (1056.0, 1059.0)]  # windows that follow closely are one span


def test_phases_add_up_and_count_when_they_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock(monkeypatch)
    ledger = Ledger()
    with ledger.phase("setup"):
        clock.pass_seconds(2.0)
    with pytest.raises(ArithmeticError), ledger.phase("setup"):
        clock.pass_seconds(3.0, ArithmeticError())
    assert ledger.seconds["setup"] == ledger.total_seconds == 5.0


def test_steps_do_not_wait_for_the_device_and_read_the_clock_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("sweep.measurement.clock.time", SimpleNamespace(perf_counter=clock.__next__))
    calls: list[int] = []
    ledger = Ledger()
    ledger.synchronize = lambda: calls.append(1)
    ledger.open_window()
    before = next(clock)
    for _ in ledger.waiting(range(2000)):
        pass
    assert next(clock) - before - 1 == 2 * 2001  # and for the end of the items
    ledger.close_window(2000, 2000, is_full=True)
    with ledger.phase("eval"):
        pass
    assert len(calls) == 3


def test_step_seconds_are_quantiles_over_windows_of_whole_steps() -> None:
    ledger = Ledger()
    assert math.isnan(ledger.step_seconds())
    assert ledger.images_per_second == 0.0
    for index in range(11):
        ledger.open_window()
        ledger.close_window(2, 8, is_full=True)
        ledger.windows[-1] = ledger.windows[-1]._replace(seconds=2.0 * index)
    ledger.windows.append(ledger.windows[-1]._replace(seconds=1e6, is_full=False))
    assert ledger.step_seconds() == pytest.approx(5.0)


def test_peak_is_what_the_allocator_held_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        del first
        second = torch.empty(2_000_000, dtype=torch.uint8)
        third = torch.empty(500_000, dtype=torch.uint8)
        del second, third

    assert measure_step_peak(step, lambda: 300, CPU, other_bytes=0) == MemoryPeak(2_500_300, 0)
    assert capfd.readouterr().err == ""  # the profiler is silent


def test_held_bytes_count_a_shared_storage_once() -> None:
    tensor = torch.empty(100)
    assert count_held_bytes([tensor, tensor[:50], torch.empty(10)]) == 440


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", ""])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown device"):
        resolve_device(name)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="cuda:99"):
        resolve_device("cuda:99")
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_environment_is_json_with_versions_and_allowed_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_TOKEN", "canary-7361")
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    environment = describe_environment(CPU)
    text = json.dumps(environment)
    assert "canary-7361" not in text
    assert environment["variables"]["OMP_SCHEDULE"] == "static"
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["versions"]["optuna"].startswith("5.")
    assert environment["threads"] == torch.get_num_threads()
    assert environment_digest(environment) == environment_digest(json.loads(text))
    monkeypatch.setenv("OMP_SCHEDULE", "dynamic")
    assert environment_digest(describe_environment(CPU)) != environment_digest(environment)


def test_storage_is_named_by_the_kernel(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:999 / / rw - ext4 /dev/x rw\n36 35 {device} / /data rw,noatime shared:1 - nfs4 host:/ rw\n"
    )
    nothing = tmp_path / "nothing"
    assert name_storage(tmp_path / "not" / "there", nothing, mounts) == "nfs4"
    assert name_storage(tmp_path, nothing, nothing) == ""
    disk = tmp_path / "disk"
    (disk / "queue").mkdir(parents=True)
    (disk / "part").mkdir()
    links = tmp_path / "links"
    links.mkdir()
    for target in (disk, disk / "part"):  # a partition has the queue of its disk
        (links / device).unlink(missing_ok=True)
        (links / device).symlink_to(target)
        for content, kind in (("0", "solid-state disk"), ("1", "rotational disk"), ("?", "nfs4")):
            (disk / "queue" / "rotational").write_text(f"{content}\n")
            assert name_storage(tmp_path, links, mounts) == kind


def test_device_class_names_processor_and_threads() -> None:
    assert name_device_class(CPU) == f"CPU {read_cpu_model()} x{torch.get_num_threads()} threads"
    assert read_cpu_model()
