"""Waiting for a processor, beside real busy processes, and the windows of a training that waited."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweep.measurement import clock as processor_wait
from sweep.measurement.clock import Ledger, StepWindow, WaitMeter, list_times, select_undisturbed

SECONDS = 0.5


@contextmanager
def one_processor() -> Iterator[int]:
    """This thread, and processes that it starts, on one processor only; its number."""
    before = os.sched_getaffinity(0)
    number = min(before)
    os.sched_setaffinity(0, {number})
    try:
        yield number
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_process() -> Iterator[None]:
    """A busy process in a session of its own, on the processors of this thread."""
    code = "print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # on a busy machine it begins late
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def compute() -> None:
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        sum(range(1000))


needs_statistics = pytest.mark.skipif(
    not Path("/proc/self/schedstat").is_file(), reason="the kernel does not count the waiting for processors"
)


def test_other_python_threads_are_no_waiting_and_threads_of_libraries_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, is_done = threading.get_native_id(), threading.Event()
    other = threading.Thread(target=is_done.wait)
    other.start()
    try:
        of_library = max(own, other.native_id or 0) + 1  # Python knows no such thread
        monkeypatch.setattr(processor_wait, "_TASKS", tmp_path)

        def write(*waits: int) -> None:
            for number, waited in zip((own, other.native_id, of_library), waits, strict=True):
                (tmp_path / str(number)).mkdir(exist_ok=True)
                (tmp_path / str(number) / "schedstat").write_text(f"1000 {waited} 3\n")

        meter = WaitMeter()
        write(0, 0, 500_000_000)
        meter.begin()
        write(100_000_000, 9_000_000_000, 800_000_000)
        assert meter.end() == pytest.approx(0.3)  # of the one that waited most, the other Python thread left out
    finally:
        is_done.set()
        other.join()


def test_without_statistics_the_waiting_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        monkeypatch.setattr(processor_wait, "_TASKS", folder)
        meter = WaitMeter()
        meter.begin()
        assert meter.end() is None
    statistics = tmp_path / str(threading.get_native_id()) / "schedstat"
    statistics.parent.mkdir()
    statistics.write_text("0 0 0\n")  # statistics are off
    meter.begin()
    assert meter.end() is None
    statistics.write_text("5000000000 1000000000 7\n")
    meter.begin()
    statistics.write_text("6000000000 1250000000 9\n")
    assert meter.end() == pytest.approx(0.25)


@needs_statistics
def test_a_thread_that_shares_its_processor_waits_for_it_and_the_ledger_records_that() -> None:
    ledger = Ledger()
    with one_processor(), busy_process():
        ledger.open_window()
        compute()
        ledger.close_window(10, 640, is_full=True)
    (window,) = ledger.windows
    assert window.waited is not None
    assert 0.2 * window.seconds < window.waited <= window.seconds
    again = Ledger()
    again.load_state_dict(ledger.state_dict())
    assert again.windows == ledger.windows


def test_step_times_are_those_of_undisturbed_windows_where_the_others_took_longer() -> None:
    ledger = Ledger()
    quiet = [StepWindow(0.1, 10, 640, True, 0.001)] * 12
    ledger.windows = [*quiet, *[StepWindow(0.2, 10, 640, True, 0.1)] * 12]
    assert ledger.step_seconds() == pytest.approx(0.01)
    assert select_undisturbed(ledger.windows) == quiet
    ledger.windows = [*quiet, *[StepWindow(0.1, 10, 640, True, 0.1)] * 12]
    assert select_undisturbed(ledger.windows) == ledger.windows  # the waiting cost nothing
    assert list_times(quiet)[2] == [0.001] * 12
