"""What the monitor, the ledger and the verdict say of a real GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sweep.config.trial import build_config
from sweep.executors.monitored import make_source
from sweep.executors.table import ExecutorSettings
from sweep.measurement.device import identify_gpu, measure_reference_seconds
from sweep.measurement.monitor import NvmlSource
from sweep.records.messages import Ending, TrialTask
from sweep.records.store import open_store
from sweep.search.session import Options, run_study
from sweep.training.trial import run_trial
from tests.records_factory import make_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]
# Computes on the GPU until its input ends.
STRANGER = """
import sys, torch
value = torch.ones(1, device="cuda")
print("there", flush=True)
sys.stdin.read()
"""


def run(**values: object) -> Ending:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.epochs": 20.0, "optimizer.lr": 0.05}
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    *_, ending = run_trial(TrialTask(number=0, config=build_config(settings, "test"), device="cuda"))
    assert isinstance(ending, Ending)
    assert ending.outcome == "complete", ending.error
    return ending


def test_the_library_is_read_in_our_units() -> None:
    source = make_source(identify_gpu(torch.device("cuda", 0)))
    assert isinstance(source, NvmlSource)
    reading = source.read()
    assert 0.0 <= (reading.utilization or 0.0) <= 1.0
    assert 10.0 < (reading.temperature_celsius or 50.0) < 110.0
    assert 1e8 < (reading.clock_hertz or 1e9) <= (reading.max_clock_hertz or 4e9)
    assert 10.0 < (reading.power_watts or 100.0) < 2000.0


def test_another_process_on_the_gpu_is_seen() -> None:
    torch.ones(1, device="cuda")
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        source = NvmlSource(identify_gpu(torch.device("cuda", 0)), ours=lambda: {os.getpid()})
        num_others = source.read().num_others
        stranger.communicate("")
    if num_others is None:
        pytest.skip("this driver does not list processes")
    assert num_others >= 1


def test_a_studys_trial_has_power_energy_and_temperature(tmp_path: Path) -> None:
    base = {"data.name": "synthetic", "data.subset": 4096, "budget.seconds": 5.0, "model.name": "resnet18"}
    spec = make_spec(trials=1, base=base, space={"batch.micro": {"choice": [256]}}, confirm={"seeds": 0})
    folder = run_study(spec, Options(root=tmp_path, executor=ExecutorSettings(device="cuda")))
    store = open_store(folder / "study.sqlite", read_only=True)
    (record,) = store.trial_records(spec.name)
    store.close()
    measured = record.measurements
    assert record.outcome == "complete"
    assert 0.0 < measured["gpu_utilization"] <= 1.0
    if "energy_joules" in measured:
        expected = measured["power_watts"] * measured["train_seconds"]
        assert measured["energy_joules"] == pytest.approx(expected, rel=0.1)


def test_the_parts_of_a_step_are_timed_by_the_device() -> None:
    measured = run(model__name="resnet18", batch__micro=512, diagnostics__ledger="full").measurements
    laps = [measured[f"{name}_seconds"] for name in ("forward", "backward", "optimizer")]
    assert laps[1] > laps[0] > laps[2] > 0.0
    assert 0.8 * measured["train_seconds"] < sum(laps) <= 1.01 * measured["train_seconds"]


def test_small_steps_are_launch_bound_and_large_ones_are_not() -> None:
    small = run(model__name="resnet18", batch__micro=4, budget__steps=400, budget__epochs=None)
    large = run(model__name="resnet18", batch__micro=1024)
    assert (small.bottleneck, large.bottleneck) == ("launch_bound", "compute_bound")


def test_the_reference_work_leaves_nothing_behind() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    assert 0.0 < measure_reference_seconds(torch.device("cuda", 0)) < 1.0
    assert torch.cuda.memory_allocated() == before
