"""What watching a trial costs: its steps with the ledger's clock and a monitor beside them, over bare steps."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.harness import Arms, Benchmark, Setting
from sweep.config.trial_config import build_config
from sweep.measurement.clock import Ledger
from sweep.measurement.device import make_synchronizer
from sweep.training.steps.setup import TrainingSetup, prepare_training
from sweep.training.steps.step import set_lr

_WINDOW_STEPS = 10
_STEPS = 120  # of an arm, about a second: arms so short that what others do to the machine meets both of a pair
# The supervisor's part, in a process of its own as in a study. When its input ends, it says what it took.
_MONITOR = """
import sys, time
from sweep.executors.monitored import make_source
from sweep.measurement.monitor import Monitor
monitor = Monitor(make_source)
monitor.begin(0, [sys.argv[1]])
readings = monitor._watches[0][sys.argv[1]]
while not readings:
    time.sleep(0.01)
began = time.process_time()
print("looking", flush=True)
sys.stdin.read()
print((time.process_time() - began) / (len(readings) - 1))
"""


@contextmanager
def prepare_arms(setting: Setting) -> Iterator[Arms]:
    """Both arms take the same steps on the same batches; a step changes no weight. The monitor sleeps through one."""
    values: dict[str, Any] = {"model.name": "resnet8", "data.name": "digits", "batch.micro": 64}
    setup = prepare_training(build_config(values, "benchmark"), setting.device)
    set_lr(setup.step.optimizer, 0.0)
    num_steps = setting.pick(_STEPS, 20)
    name = "cuda:0" if setting.device.type == "cuda" else "cpu"
    with subprocess.Popen(
        [sys.executable, "-c", _MONITOR, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as monitor:
        assert monitor.stdout is not None
        monitor.stdout.readline()

        def ours(_pair: int) -> float:
            monitor.send_signal(signal.SIGCONT)
            return _watched_steps(setup, num_steps, setting.device)

        def theirs(_pair: int) -> float:
            monitor.send_signal(signal.SIGSTOP)
            return _bare_steps(setup, num_steps, setting.device)

        def facts() -> dict[str, Any]:
            monitor.send_signal(signal.SIGCONT)
            said, _ = monitor.communicate()
            return {"processor_seconds_a_look": float(said), "looks_a_second": 2}

        yield Arms(ours, theirs, facts, {"steps": num_steps, "steps_a_window": _WINDOW_STEPS})


def _watched_steps(setup: TrainingSetup, num_steps: int, device: torch.device) -> float:
    ledger = Ledger()
    ledger.synchronize = make_synchronizer(device)
    began = time.perf_counter()
    ledger.open_window()
    taken = samples = 0
    for window in ledger.waiting(_windows(setup, num_steps)):
        setup.step(ledger.waiting(setup.feeder.micro_batches(window)), window.samples)
        taken, samples = taken + 1, samples + window.samples
        if taken == _WINDOW_STEPS:
            ledger.close_window(taken, samples, is_full=True)
            taken = samples = 0
            ledger.open_window()
    ledger.synchronize()
    return (time.perf_counter() - began) / num_steps


def _bare_steps(setup: TrainingSetup, num_steps: int, device: torch.device) -> float:
    wait = make_synchronizer(device)
    wait()
    began = time.perf_counter()
    for window in _windows(setup, num_steps):
        setup.step(setup.feeder.micro_batches(window), window.samples)
    wait()
    return (time.perf_counter() - began) / num_steps


def _windows(setup: TrainingSetup, num_steps: int) -> Iterator[Any]:
    windows = setup.planner.windows_of_epoch(64)[:-1]  # whole ones
    for index in range(num_steps):
        if index % len(windows) == 0:
            setup.feeder.begin_epoch(index // len(windows), windows)
        yield windows[index % len(windows)]


BENCHMARK = Benchmark(
    "monitor",
    "seconds of a step with ledger and monitor over one without (digits, ResNet-8, micro batch 64)",
    "seconds",
    "lower",
    1.01,
    prepare_arms,
    num_pairs=41,
)
