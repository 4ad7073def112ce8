"""Clocks, windows that waited for processors, phases of real trials, memory, device and environment."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_factory import CPU, ScriptedClock, make_config, train_whole

from sweep.config.errors import InputError
from sweep.measurement import clock
from sweep.measurement.clock import PHASES, Ledger, find_longest_wait, read_waits
from sweep.measurement.device import describe_environment, name_device_class, read_cpu_model, resolve_device
from sweep.measurement.memory import MemoryPeak, count_held_bytes, measure_step_peak
from sweep.measurement.quality import StepWindow, select_undisturbed
from sweep.records.inputs import environment_digest
from sweep.records.messages import Ending


def test_window_time_is_data_wait_or_step(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedClock(monkeypatch)

    def slow_items() -> Iterator[int]:
        for item in range(3):
            scripted.pass_seconds(2.0)
            yield item

    ledger = Ledger()
    ledger.open_window()
    for _ in ledger.waiting(slow_items()):
        scripted.pass_seconds(1.0)
    ledger.close_window(num_steps=3, samples=96, is_full=True)
    assert (ledger.seconds["data_wait"], ledger.seconds["step"]) == (6.0, 3.0)
    assert ledger.train_seconds == ledger.windows[0].seconds == 9.0
    assert ledger.images_per_second == pytest.approx(96 / 9)


def test_time_between_windows_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedClock(monkeypatch)
    ledger = Ledger()
    for pause in (0.0, 0.0, 50.0):
        scripted.pass_seconds(pause)
        ledger.open_window()
        scripted.pass_seconds(3.0)
        ledger.close_window(1, 1, is_full=True)
    assert ledger.train_seconds == 9.0
    assert ledger.total_seconds == 59.0
    assert ledger.spans == [(1000.0, 1006.0), (1056.0, 1059.0)]  # windows that follow closely are one span


def test_phases_add_up_and_count_when_they_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedClock(monkeypatch)
    ledger = Ledger()
    with ledger.phase("setup"):
        scripted.pass_seconds(2.0)
    with pytest.raises(ArithmeticError), ledger.phase("setup"):
        scripted.pass_seconds(3.0, ArithmeticError())
    assert ledger.seconds["setup"] == ledger.total_seconds == 5.0


def test_steps_do_not_wait_for_the_device_and_read_the_clock_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=ticks.__next__))
    calls: list[int] = []
    ledger = Ledger()
    ledger.synchronize = lambda: calls.append(1)
    ledger.open_window()
    before = next(ticks)
    for _ in ledger.waiting(range(2000)):
        pass
    assert next(ticks) - before - 1 == 2 * 2001  # and for the end of the items
    ledger.close_window(2000, 2000, is_full=True)
    assert len(calls) == 2


def test_step_times_are_those_of_whole_steps_undisturbed_and_of_one_size() -> None:
    ledger = Ledger()
    ledger.windows = [StepWindow(2.0 * index, 2, 8, is_full=True) for index in range(11)]
    ledger.windows.append(StepWindow(1e6, 2, 8, is_full=False))
    assert ledger.step_seconds() == pytest.approx(5.0)
    quiet = [StepWindow(0.1, 10, 640, True, 0.001)] * 12
    ledger.windows = [*quiet, *[StepWindow(0.2, 10, 640, True, 0.1)] * 12]
    assert ledger.step_seconds() == pytest.approx(0.01)
    assert select_undisturbed(ledger.windows) == quiet
    ledger.windows = [*quiet, *[StepWindow(0.1, 10, 640, True, 0.1)] * 12]
    assert select_undisturbed(ledger.windows) == ledger.windows  # the waiting cost nothing
    ledger.windows = [StepWindow(1.0, *each, is_full=True) for each in ((1, 64), (2, 128), (1, 512), (1, 64))]
    assert (ledger.usual_samples, len(ledger.even_step_seconds())) == (64, 3)


# ---------------------------------------------------------------------- waiting for a processor


def test_the_wait_is_that_of_the_thread_that_waited_most_without_other_python_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, is_done = threading.get_native_id(), threading.Event()
    other = threading.Thread(target=is_done.wait)
    other.start()
    of_library = max(own, other.native_id or 0) + 1  # Python knows no such thread
    monkeypatch.setattr(clock, "_TASKS", tmp_path)

    def measure(*waits: tuple[int, int], running: int = 1000) -> float | None:
        def write(turn: int) -> None:
            for number, waited in zip((own, other.native_id, of_library), waits, strict=False):
                (tmp_path / str(number)).mkdir(exist_ok=True)
                (tmp_path / str(number) / "schedstat").write_text(f"{running} {waited[turn]} 3\n")

        write(0)
        before = read_waits()
        write(1)
        return find_longest_wait(before, read_waits())

    try:
        assert measure() is None  # the kernel does not count
        assert measure((0, 0), running=0) is None  # statistics are off
        assert measure((0, 250_000_000)) == pytest.approx(0.25)
        found = measure((0, 100_000_000), (0, 9_000_000_000), (500_000_000, 800_000_000))
        assert found == pytest.approx(0.3)
    finally:
        is_done.set()
        other.join()


@contextmanager
def busy_beside() -> Iterator[None]:
    """This thread and a busy process in a session of its own, on one processor only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    code = "print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # on a busy machine it begins late
        yield
    finally:
        process.kill()
        process.communicate()
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not Path("/proc/self/schedstat").is_file(), reason="the kernel does not count the waiting")
def test_a_thread_that_shares_its_processor_waits_for_it_and_the_ledger_records_that() -> None:
    ledger = Ledger()
    with busy_beside():
        ledger.open_window()
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            sum(range(1000))
        ledger.close_window(10, 640, is_full=True)
    (window,) = ledger.windows
    assert window.waited is not None
    assert 0.2 * window.seconds < window.waited <= window.seconds
    again = Ledger()
    again.load_state_dict(ledger.state_dict())
    assert again.windows == ledger.windows


# ---------------------------------------------------------------------- where the time of a real trial went


def train(**settings: Any) -> Ending:
    values = {"data.name": "digits", "budget.epochs": 2.0, "batch.micro": 64}
    return train_whole(make_config(values, **settings))[1]


@pytest.mark.parametrize("settings", [{}, {"regularization__ema_decay": 0.9}], ids=str)
def test_the_phases_of_a_trial_are_its_wall_clock_within_one_percent(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the processor time of this thread: other processes cannot interrupt it between two phases, and the threads of
    # native libraries, which wait busily for the next operation, do not count
    monkeypatch.setattr(time, "perf_counter", time.thread_time)
    began = time.perf_counter()
    measured = train(budget__epochs=4.0, **settings).measurements
    around = time.perf_counter() - began
    named = [name for name in PHASES if name not in ("data_wait", "step")]
    parts = measured["train_seconds"] + sum(measured[f"{name}_seconds"] for name in named)
    assert 0.99 <= parts / measured["total_seconds"] <= 1.000001
    assert 0.9 * around <= measured["total_seconds"] <= around


def test_compiling_is_told_from_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compiled(model: torch.nn.Module, **_options: object) -> Any:
        def first_call_is_slow(images: torch.Tensor) -> torch.Tensor:
            if not calls:
                time.sleep(0.5)
            calls.append(1)
            out: torch.Tensor = model(images)
            return out

        return first_call_is_slow

    assert train(budget__epochs=1.0).measurements["compile_seconds"] == 0.0
    monkeypatch.setattr(torch, "compile", compiled)
    measured = train(precision__compile=True, budget__epochs=1.0).measurements
    assert measured["compile_seconds"] >= 0.5
    assert measured["warmup_seconds"] > 0


def test_spans_are_the_training_without_its_evaluations() -> None:
    ending = train(budget__epochs=3.0)
    spans = ending.training_spans
    assert all(begin < end for begin, end in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))
    trained = ending.measurements["train_seconds"]
    inside = sum(end - begin for begin, end in spans)
    assert trained <= inside * 1.000001
    assert inside - trained <= ending.measurements["total_seconds"] - trained


# ---------------------------------------------------------------------- memory, device, environment


def test_peak_is_what_the_allocator_held_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        del first
        second = torch.empty(2_000_000, dtype=torch.uint8)
        third = torch.empty(500_000, dtype=torch.uint8)
        del second, third

    assert measure_step_peak(step, lambda: 300, CPU, other_bytes=0) == MemoryPeak(2_500_300, 0)
    assert capfd.readouterr().err == ""  # the profiler is silent
    tensor = torch.empty(100)
    assert count_held_bytes([tensor, tensor[:50], torch.empty(10)]) == 440  # a shared storage once


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", "", "cuda:99"])
def test_devices_that_are_unknown_or_not_there_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="cuda:99" if name == "cuda:99" else "unknown device"):
        resolve_device(name)


def test_environment_is_json_with_versions_and_allowed_variables_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("X_TOKEN", "canary-7361")
    monkeypatch.setenv("OMP_SCHEDULE", "static")
    monkeypatch.chdir(tmp_path)
    environment = describe_environment(CPU)
    text = json.dumps(environment)
    assert "canary-7361" not in text
    assert environment["variables"]["OMP_SCHEDULE"] == "static"
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["versions"]["optuna"].startswith("5.")
    assert environment["threads"] == torch.get_num_threads()
    assert environment["project_commit"] == ""
    assert environment_digest(environment) == environment_digest(json.loads(text))
    monkeypatch.setenv("OMP_SCHEDULE", "dynamic")
    assert environment_digest(describe_environment(CPU)) != environment_digest(environment)
    assert name_device_class(CPU) == f"CPU {read_cpu_model()} x{torch.get_num_threads()} threads"
    assert read_cpu_model()


def test_the_commit_of_the_users_project_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "studies").mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    monkeypatch.chdir(tmp_path / "studies")
    assert describe_environment(CPU)["project_commit"] == commit
