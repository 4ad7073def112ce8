"""What the monitor, the ledger and the verdict say of a real GPU."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from training_factory import make_config, train_whole

from sweep.executors.monitored import make_source
from sweep.executors.table import ExecutorSettings
from sweep.measurement.clock import Ledger
from sweep.measurement.device import identify_gpu, make_synchronizer, measure_reference_seconds
from sweep.measurement.monitor import NvmlSource
from sweep.records.messages import Ending
from sweep.records.store import open_store
from sweep.search.session import Options, run_study
from sweep.training.setup import prepare_training
from sweep.training.step import set_lr
from tests.records_factory import make_spec

pytestmark = pytest.mark.gpu
CUDA: Any = torch.cuda  # torch leaves events untyped
DEVICE = torch.device("cuda", 0)
# Computes on the GPU until its input ends.
STRANGER = """
import sys, torch
value = torch.ones(1, device="cuda")
print("there", flush=True)
sys.stdin.read()
"""


def run(**values: object) -> Ending:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.epochs": 20.0, "optimizer.lr": 0.05}
    return train_whole(make_config(settings, **values), device="cuda")[1]


def test_the_library_is_read_in_our_units() -> None:
    source = make_source(identify_gpu(DEVICE))
    assert isinstance(source, NvmlSource)
    reading = source.read()
    assert 0.0 <= (reading.utilization or 0.0) <= 1.0
    assert 10.0 < (reading.temperature_celsius or 50.0) < 110.0
    assert 10.0 < (reading.power_watts or 100.0) < 2000.0


def test_another_process_on_the_gpu_is_seen() -> None:
    torch.ones(1, device="cuda")
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        source = NvmlSource(identify_gpu(DEVICE), ours=lambda: {os.getpid()})
        num_others = source.read().num_others
        stranger.communicate("")
    if num_others is None:
        pytest.skip("this driver does not list processes")
    assert num_others >= 1


def test_a_studys_trial_has_power_energy_and_temperature(tmp_path: Path) -> None:
    base = {"data.name": "synthetic", "data.subset": 4096, "budget.seconds": 5.0, "model.name": "resnet18"}
    spec = make_spec(trials=1, base=base, space={"batch.micro": {"choice": [256]}}, confirm={"seeds": 0})
    folder = run_study(spec, Options(root=tmp_path, executor=ExecutorSettings(device="cuda")))
    with closing(open_store(folder, read_only=True)) as store:
        (record,) = store.trial_records(spec.name)
    measured = record.measurements
    assert record.outcome == "complete"
    assert 0.0 < measured["gpu_utilization"] <= 1.0
    if "energy_joules" in measured:
        expected = measured["power_watts"] * measured["train_seconds"]
        assert measured["energy_joules"] == pytest.approx(expected, rel=0.1)


def test_small_steps_are_launch_bound_and_large_ones_are_not() -> None:
    small = run(model__name="resnet18", batch__micro=4, budget__steps=400, budget__epochs=None)
    large = run(model__name="resnet18", batch__micro=1024)
    assert (small.bottleneck, large.bottleneck) == ("launch_bound", "compute_bound")


def test_the_reference_work_leaves_nothing_behind() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    assert 0.0 < measure_reference_seconds(DEVICE) < 1.0
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("micro", [8, 512])  # bound by what the host launches, and by the device
def test_a_window_is_as_long_as_the_devices_events_say(micro: int) -> None:
    values = {"model.name": "resnet18", "data.name": "synthetic", "data.subset": 4096, "batch.micro": micro}
    setup = prepare_training(make_config(values), DEVICE)
    set_lr(setup.step.optimizer, 0.0)
    ledger = Ledger()
    ledger.synchronize = make_synchronizer(DEVICE)
    begin, end = (CUDA.Event(enable_timing=True) for _ in range(2))

    def take(num_steps: int) -> int:
        windows = setup.planner.windows_of_epoch(micro)
        samples = 0
        for index in range(num_steps):
            if index % len(windows) == 0:
                setup.feeder.begin_epoch(index // len(windows), windows)
            window = windows[index % len(windows)]
            setup.step(ledger.waiting(setup.feeder.micro_batches(window)), window.samples)
            samples += window.samples
        return samples

    take(10)
    ledger.open_window()
    begin.record()
    samples = take(100)
    end.record()
    ledger.close_window(100, samples, is_full=True)
    assert ledger.train_seconds == pytest.approx(begin.elapsed_time(end) / 1e3, rel=0.02)
    assert ledger.windows[-1].seconds > 0.05
