"""Clocks, windows that waited for processors, doubts of a timing, phases of real trials, memory, environment."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training_factory import CPU, ScriptedClock, make_config, train_whole

from sweep.config.errors import InputError
from sweep.measurement import clock
from sweep.measurement.clock import PHASES, Ledger, find_longest_wait, read_waits
from sweep.measurement.device import describe_environment, name_device_class, read_cpu_model, resolve_device
from sweep.measurement.memory import MemoryPeak, count_held_bytes, measure_step_peak
from sweep.measurement.quality import (
    StepWindow,
    find_reference_flags,
    find_timing_flags,
    measure_slowdown,
    measure_time_error,
    select_undisturbed,
)
from sweep.records.inputs import environment_digest
from sweep.records.messages import Ending
from sweep.records.quality import MEANINGS, find_time_doubts, name_flags


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


def windows_of(
    seconds: Sequence[float], waited: Sequence[float | None] | None = None, steps: Sequence[int] | None = None
) -> list[StepWindow]:
    """Windows of one step each, without waiting, where nothing else is given."""
    parts = zip(seconds, steps or [1] * len(seconds), waited or [0.0] * len(seconds), strict=True)
    return [StepWindow(took, count, 64 * count, True, wait) for took, count, wait in parts]


def flags(seconds: list[float], num_steps: int = 300, waited: Sequence[float | None] | None = None) -> tuple[str, ...]:
    return find_timing_flags(windows_of(seconds, waited), num_steps)


def steps(noise: float, count: int = 30, seed: int = 0) -> list[float]:
    """Step times around 10 ms with a relative deviation of ``noise``."""
    return list(0.01 * (1 + noise * np.random.default_rng(seed).standard_normal(count)))


def simulate(
    seed: int, count: int, slowdown: float = 1.0, jitter: float = 0.0, *, is_waiting_known: bool = True
) -> list[StepWindow]:
    """Windows of a trial on a shared machine: step times of 5 ms with autocorrelated noise, ``jitter`` of the single
    windows and rare hiccups; half of the windows, in one phase, take ``slowdown`` times as long, by waiting for a
    processor."""
    draws = np.random.default_rng(seed)
    noise, level = np.empty(count), 0.0
    for index in range(count):
        level = 0.6 * level + 0.02 * draws.standard_normal()
        noise[index] = level
    noise += jitter * draws.standard_normal(count)
    numbers = draws.integers(5, 21, count)
    each = 0.005 * np.exp(noise) * np.where(draws.random(count) < 0.02, 1.3, 1.0)
    length = count // 2
    begin = int(draws.integers(0, count - length + 1))
    waits = np.zeros(count)
    waits[begin : begin + length] = (slowdown - 1) * each[begin : begin + length]
    waited = (waits * numbers).tolist() if is_waiting_known else [None] * count
    return windows_of(((each + waits) * numbers).tolist(), waited, numbers.tolist())


def mean_of(windows: list[StepWindow]) -> float:
    return sum(window.seconds for window in windows) / sum(window.num_steps for window in windows)


@pytest.mark.parametrize("count", [25, 50, 200, 2000])
def test_of_twenty_idle_trials_one_at_most_is_in_doubt_and_of_twenty_disturbed_ones_nineteen_are(count: int) -> None:
    num = 200 if count < 2000 else 100

    def num_flagged(slowdown: float, first_seed: int, jitter: float = 0.0, *, is_waiting_known: bool = True) -> int:
        seeds = range(first_seed, first_seed + num)
        windows = (simulate(seed, count, slowdown, jitter, is_waiting_known=is_waiting_known) for seed in seeds)
        return sum(bool(find_time_doubts(find_timing_flags(each, num_steps=1000))) for each in windows)

    for jitter in (0.0, 0.08):  # single windows differ widely, but the mean of many is known
        assert num_flagged(1.0, 0, jitter) <= num / 20
    for slowdown, is_waiting_known in ((1.3, True), (1.5, True), (2.0, True), (1.5, False), (2.0, False)):
        assert num_flagged(slowdown, 1000, is_waiting_known=is_waiting_known) >= num * 19 / 20, slowdown


def test_the_time_of_a_disturbed_trial_is_that_of_its_undisturbed_steps() -> None:
    ratios, inside = [], 0
    for seed in range(200):
        windows = simulate(seed, 100, slowdown=1.6)
        waited = sum(window.waited or 0.0 for window in windows) / sum(window.num_steps for window in windows)
        truth = mean_of(windows) - waited
        slowdown, error = measure_slowdown(windows), measure_time_error(windows)
        assert slowdown is not None
        assert error is not None
        found = mean_of(windows) / (1 + slowdown)
        ratios.append(found / truth)
        inside += abs(found - truth) <= error * found
    assert np.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.percentile(np.abs(np.array(ratios) - 1), 95) < 0.05
    assert inside >= 0.92 * 200  # the interval is that of the undisturbed steps


def test_the_interval_of_the_mean_holds_the_truth_although_windows_are_correlated() -> None:
    inside = 0
    for seed in range(400):
        windows = simulate(seed, 100)
        error = measure_time_error(windows)
        assert error is not None
        # E[exp(noise)] of a stationary variance of 0.02^2 / (1 - 0.6^2), and the hiccups
        truth = 0.005 * np.exp(0.02**2 / (1 - 0.6**2) / 2) * (1 + 0.02 * 0.3)
        inside += abs(mean_of(windows) - truth) <= error * mean_of(windows)
    assert inside >= 0.92 * 400


def test_a_slowdown_is_known_only_from_windows_with_and_without_waiting() -> None:
    seconds, waits = [0.1] * 20 + [0.2] * 20, [0.001] * 20 + [0.1] * 20
    slowed = windows_of(seconds, waits)
    assert measure_slowdown(slowed) == pytest.approx(0.5)
    assert "slowed_by_others" in find_timing_flags(slowed, 400)
    assert measure_time_error(slowed) == pytest.approx(0.0, abs=1e-9)  # of the undisturbed steps
    assert measure_slowdown(windows_of(seconds, [None] * 40)) is None  # a kernel without statistics
    assert measure_slowdown(windows_of(seconds, [0.001] * 7 + [0.1] * 33)) is None  # too few to compare with
    assert measure_slowdown(windows_of(seconds, [0.001] * 40)) == 0.0  # slower for another reason
    # a GPU's step does not take longer because the host waited
    assert measure_slowdown(windows_of([0.1] * 40, waits)) == pytest.approx(0.0)
    assert "slowed_by_others" not in flags([0.1] * 40, 400, waits)


@pytest.mark.parametrize(("waited", "is_named"), [
    ([0.6] * 7, True), ([0.0] * 5 + [0.6] * 2, True), ([0.1] * 7, False), ([None] * 7, False),
    ([0.0] * 20 + [0.6] * 20, False),  # windows to compare with show what the waiting cost
])  # fmt: skip
def test_waiting_in_every_window_is_named_where_there_is_nothing_to_compare_with(
    waited: list[float | None], is_named: bool
) -> None:
    found = flags([1.2] * len(waited), len(waited), waited)
    assert ("processor_wait" in found, "slowed_by_others" in found) == (is_named, False)


def test_a_wide_spread_of_many_windows_is_no_doubt_about_their_mean() -> None:
    wide = steps(0.1, 200)
    assert flags(wide, 2000) == ("spread",)
    assert measure_time_error(windows_of(wide)) == pytest.approx(2 * 0.1 / 200**0.5, rel=0.5)


def test_windows_count_by_their_steps() -> None:
    # the mean over all steps: windows of many steps weigh more than those of few
    even = windows_of([1.0, 2.0, 3.0, 4.0], steps=[10, 20, 30, 40])
    assert measure_time_error(even) == pytest.approx(0.0, abs=1e-12)
    few, many = (
        measure_time_error(windows_of([1.0] * 20 + [1.5 * count], steps=[10] * 20 + [10 * count])) for count in (1, 20)
    )
    assert few is not None
    assert many is not None
    assert many > 3 * few
    assert measure_time_error(windows_of([1.0, 1.0])) is None


SLOWER = [1.0, 1.01, 0.99] * 3 + [1.05] * 3 + [1.12, 1.11, 1.13] * 3


@pytest.mark.parametrize(("seconds", "num_steps", "expected"), [
    (steps(0.02), 300, ()), (steps(0.01), 19, ("few_steps",)), (steps(0.01, 2), 300, ("few_steps",)),
    ([], 0, ("few_steps",)), ([0.95, 1.0, 1.05, 0.94, 1.0, 1.05] * 2, 300, ("spread",)),
    ([*steps(0.01), 0.02, 0.03], 300, ("uncertain_time",)),  # two windows out of 32 move no median, but the mean
    (SLOWER, 300, ("spread", "drift")), (SLOWER[::-1], 300, ("spread", "drift")),
    ([1.0, 1.02, 1.04, 1.06, 1.1, 1.12], 300, ()),  # no thirds
])  # fmt: skip
def test_the_flags_of_a_timing(seconds: list[float], num_steps: int, expected: tuple[str, ...]) -> None:
    assert flags(seconds, num_steps) == expected


def test_reference_work_is_compared_with_that_of_the_other_trials() -> None:
    others = [0.010, 0.0101, 0.0099, 0.0102, 0.010]
    found = [bool(find_reference_flags(seconds, others)) for seconds in (0.0105, 0.0111, 0.0089)]
    assert found == [False, True, True]
    assert find_reference_flags(0.0111, others[:4]) == ()
    found = [bool(find_reference_flags(seconds, others, is_probe=True)) for seconds in (0.0105, 0.0111, 0.0089)]
    assert found == [False, True, False]  # of a faster machine it is a better reference


def test_doubts_are_three_flags_and_those_of_another_version_and_every_flag_has_a_name_of_its_own() -> None:
    assert find_time_doubts(("spread", "a doubt of another version", "")) == {"a doubt of another version"}
    assert not find_time_doubts(("spread", "drift", "busy_host", "reference_drift", "throttled", "few_steps"))
    assert len(set(map(name_flags, MEANINGS))) == len(MEANINGS)
    assert name_flags("busy_host,unheard_of") == "other programs used the cores, unheard_of"
