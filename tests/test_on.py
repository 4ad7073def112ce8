"""``--on``: a device, or the TOML file of an executor."""

from pathlib import Path

import pytest

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.executors.slurm import SlurmSettings
from sweep.executors.table import ExecutorSettings, read_executor


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3"])
def test_a_device_is_one_of_the_usual_executor(device: str) -> None:
    assert read_executor(device) == ExecutorSettings(device=device)


@pytest.mark.parametrize(("text", "settings"), [
    ("", ExecutorSettings()),
    ('device = "cpu"\nper_device = 4', ExecutorSettings(device="cpu", per_device=4)),
    ('executor = "inline"\ndevice = "cuda:1"', ExecutorSettings(name="inline", device="cuda:1")),
    ('executor = "ray"\naddress = "10.0.0.1:6379"', ExecutorSettings(name="ray", address="10.0.0.1:6379")),
    ('executor = "slurm"\n[sbatch]\njobs = 16\ntime = "4h"',
     ExecutorSettings(name="slurm", slurm=SlurmSettings(jobs=16, time=14400.0))),
])  # fmt: skip
def test_a_file_gives_the_executor_and_its_settings(text: str, settings: ExecutorSettings, tmp_path: Path) -> None:
    (tmp_path / "on.toml").write_text(text)
    assert read_executor(str(tmp_path / "on.toml")) == settings


@pytest.mark.parametrize(("text", "message"), [
    ('executer = "ray"', "unknown key 'executer'. Did you mean 'executor'"),
    ('executor = "magic"', "executor: give process, inline, ray or slurm (given: 'magic')"),
    ('device = "tpu"', "device: give auto, cpu, cuda or cuda:N (given: 'tpu')"),
    ("per_device = 0", "per_device: Input should be greater than or equal to 1 (given: 0)"),
    ("per_device = true", "per_device: "),
    ('executor = "inline"\nper_device = 2', 'per_device belongs to executor = "process"'),
    ('address = "head:6379"', 'address belongs to executor = "ray", and the executor is "process"'),
    ("[sbatch]\njobs = 2", 'sbatch belongs to executor = "slurm"'),
    ('executor = "slurm"\n[sbatch]\njob = 2', "unknown key 'sbatch.job'. Did you mean 'sbatch.jobs'"),
    ('executor = "slurm"\n[sbatch]\ntime = "1m"', "sbatch: notice = 120 s: it must be less than time = 60 s"),
    ('executor = "slurm"\n[sbatch]\njobs = 0', "jobs: Input should be greater than or equal to 1 (given: 0)"),
    ('executor = "slurm"\n[sbatch.sbatch]\narray = "0-3"', "sbatch: array is set by the executor itself; leave it out"),
    ('executor = "slurm"\n[sbatch.sbatch]\n"x\\ny" = 1', "sbatch"),
    ('executor = "slurm"\n[sbatch]\npartition = "a\\nb"', "partition"),
    ('executor = "slurm"\n[sbatch]\nsbatch = 3', "sbatch: give a table"),
    ("executor", "not valid TOML"),
    ("a" + ".a" * 300 + " = 1", "nested too deep"),
])  # fmt: skip
def test_a_bad_file_is_refused_with_its_key(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "on.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        read_executor(str(tmp_path / "on.toml"))
    assert str(refused.value).startswith(f"{tmp_path}/on.toml: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(("arguments", "message"), [
    (["run", "quickstart", "--on", "slurm"], "--on slurm: it is neither a device (auto, cpu, cuda, cuda:N) nor"),
    (["run", "quickstart", "--on", "absent.toml"], "absent.toml: cannot be read"),
    (["train", "--on", "ray.toml"], "one training runs on this machine"),
    (["cost", "--on", "tpu"], "--on tpu: it is neither"),
    (["ask", "--yes", "--on", "tpu"], "--on tpu: it is neither"),
])  # fmt: skip
def test_commands_refuse_what_they_cannot_run_on(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("ray.toml").write_text('executor = "ray"\n')
    assert run_app(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["ray.toml"]
