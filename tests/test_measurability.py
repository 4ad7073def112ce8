"""Objectives that cannot be measured here are refused before anything runs, with what can be measured instead."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_calls import INLINE

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.metrics import list_objectives
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.executors.slurm import SlurmSettings
from sweep.executors.table import ExecutorSettings, check_objectives, find_unmeasurable, list_measurable

HARDWARE = {"energy_joules", "power_watts"}
CPU = ExecutorSettings(device="cpu")


def study(*objectives: str, base: dict[str, Any] | None = None, space: dict[str, Any] | None = None) -> StudySpec:
    table = {"name": "s", "question": "?", "objectives": ["val_accuracy", *objectives], "trials": 1}
    swept = {"batch.micro": {"choice": [16, 32]}} | (space or {})
    return build_study(table | {"base": base or {}, "space": swept}, "test")


def fake_driver(monkeypatch: pytest.MonkeyPatch, milliwatts: int | None, millijoules: dict[int, int]) -> list[int]:
    """A driver of two GPUs; those with ``millijoules`` have an energy counter. Returns the GPUs that were asked."""
    asked: list[int] = []

    def handle(index: int) -> int:
        asked.append(index)
        return index

    def power(_device: int) -> int:
        if milliwatts is None:
            raise RuntimeError("Not Supported")
        return milliwatts

    calls = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle, "nvmlDeviceGetPowerUsage": power,
        "nvmlDeviceGetTotalEnergyConsumption": millijoules.__getitem__, "NVMLError": RuntimeError,
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**calls))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return asked


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_no_executor_measures_energy_or_power_on_a_cpu(name: str) -> None:
    for executor in ("process", "inline", "ray", "slurm"):
        settings = ExecutorSettings(name=executor, device="cpu", address="head:6379" if executor == "ray" else None)
        assert set(find_unmeasurable(study(name), settings)) == {name}
    with pytest.raises(InputError) as refusal:
        check_objectives(study(name), CPU)
    said = str(refusal.value)
    assert f"objectives: {name} cannot be measured by this study on the CPU here" in said
    assert "requires an NVIDIA GPU with a" in said
    offered = said.partition("choose from ")[2].rstrip(".").split(", ")
    assert offered == list_measurable(study(name), CPU)
    assert {"val_accuracy", "peak_memory_bytes"} <= set(offered)
    check_objectives(study(*(offer for offer in offered if offer != "val_accuracy")), CPU)


def test_a_gpu_is_asked_for_its_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_driver(monkeypatch, 300_000, {0: 5, 1: 7})
    check_objectives(study("train_seconds"), ExecutorSettings())
    assert asked == []  # nothing depends on them
    check_objectives(study(*HARDWARE), ExecutorSettings())
    assert set(asked) == {0, 1}
    asked.clear()
    check_objectives(study(*HARDWARE), ExecutorSettings(device="cuda:1"))
    assert set(asked) == {1}


def test_one_gpu_without_an_energy_counter_suffices_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, 300_000, {0: 5})
    assert set(find_unmeasurable(study(*HARDWARE), ExecutorSettings())) == {"energy_joules"}
    assert find_unmeasurable(study(*HARDWARE), ExecutorSettings(device="cuda:0")) == {}
    with pytest.raises(InputError, match=r"on a GPU here: energy_joules requires .*energy counter"):
        check_objectives(study(*HARDWARE), ExecutorSettings(device="cuda:1"))
    fake_driver(monkeypatch, None, {0: 5, 1: 7})
    assert find_unmeasurable(study(*HARDWARE), ExecutorSettings()) == {}  # a counter gives the mean power as well
    fake_driver(monkeypatch, None, {})
    assert set(find_unmeasurable(study(*HARDWARE), ExecutorSettings())) == HARDWARE


def test_of_a_cluster_the_type_of_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_driver(monkeypatch, None, {})  # this machine has no counter
    check_objectives(study("energy_joules"), ExecutorSettings(name="slurm"))
    check_objectives(study("energy_joules"), ExecutorSettings(name="ray", address="head:6379"))
    assert asked == []
    cpus = ExecutorSettings(name="slurm", slurm=SlurmSettings(gpus_per_node=0))
    for settings in (cpus, ExecutorSettings(name="ray")):
        assert set(find_unmeasurable(study("energy_joules"), settings)) == {"energy_joules"}


def test_what_settings_do_not_measure_is_refused_with_the_setting() -> None:
    for name in ("steps_to_target", "seconds_to_target"):
        with pytest.raises(InputError, match=r"set budget\.target_accuracy in \[base\]"):
            check_objectives(study(name), CPU)
    spec = study("steps_to_target", base={"budget.target_accuracy": 0.9})
    check_objectives(spec, CPU)
    assert set(list_objectives()) - set(list_measurable(spec, CPU)) == HARDWARE
    check_objectives(study("steps_to_target", space={"budget.target_accuracy": {"float": [0.5, 0.9]}}), CPU)


STUDY = """
name = "warm"
question = "Which batch takes the least energy?"
objectives = ["val_accuracy", "energy_joules"]
trials = 2
[space]
"batch.micro" = { choice = [32, 64] }
"""


def test_run_and_dry_run_refuse_and_check_advises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warm.toml").write_text(STUDY)
    (tmp_path / "packed.toml").write_text('device = "cpu"\nper_device = 2\n')
    monkeypatch.chdir(tmp_path)
    for options in (["--on", "cpu"], ["--dry-run", "--on", "cpu"], ["--on", "packed.toml"], INLINE):
        assert run_app(["run", "warm.toml", *options]) == 2
        assert "energy_joules cannot be measured by this study on the CPU here" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # no driver's library
    assert run_app(["check", "warm.toml", "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["advice"]}
    statement = found["not_on_this_machine"]["statement"]
    assert "energy_joules cannot be measured by this study on" in statement
    assert "choose from val_accuracy" in statement
    assert run_app(["check", "warm.toml", "--set", 'objectives=["val_accuracy"]', "--json"]) == 0
    assert "not_on_this_machine" not in capsys.readouterr().out
