"""The settings of executors, how each is made, on which devices it trains, and what its trials can measure."""

import os
import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Self, final

from pydantic import Field, ValidationError, field_validator, model_validator

from sweep.config.errors import InputError, describe_unknown, explain_refusal
from sweep.config.metrics import METRICS, Requirement, Sensor, list_objectives
from sweep.config.sections import Section
from sweep.config.study import StudySpec
from sweep.config.study_file import read_toml
from sweep.config.trial import flatten_config
from sweep.executors.base import Executor
from sweep.executors.devices import limit_spinning, list_devices, list_nvml_names, select_gpus
from sweep.executors.inline import InlineExecutor
from sweep.executors.monitored import SENSORS, read_sensors
from sweep.executors.process import ProcessExecutor
from sweep.executors.ray import MAX_GPUS, RayExecutor, check_ray
from sweep.executors.slurm import SlurmExecutor, SlurmSettings, check_slurm

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_OWNERS = {"per_device": "process", "address": "ray", "sbatch": "slurm"}  # of keys of one executor alone


@final
class ExecutorSettings(Section):
    """Which executor runs trials, on which devices, and the settings that one executor alone has: the file of ``--on``.

    Attributes:
        name: ``process``, ``inline``, ``ray`` or ``slurm``; ``executor`` in a file.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        per_device: trials at a time on each device.
        address: of a Ray cluster; without one this machine becomes one.
        slurm: settings of the jobs of Slurm; ``sbatch`` in a file.
    """

    name: str = Field("process", validation_alias="executor")
    device: str = "auto"
    per_device: Annotated[int, Field(ge=1)] | None = None
    address: str | None = None
    slurm: SlurmSettings = Field(SlurmSettings(), validation_alias="sbatch")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in ("process", "inline", "ray", "slurm"):
            raise ValueError("give process, inline, ray or slurm")
        return name

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("give auto, cpu, cuda or cuda:N")
        return device

    @model_validator(mode="after")
    def _refuse_settings_of_another_executor(self) -> Self:
        given = {"per_device": self.per_device, "address": self.address, "sbatch": self.slurm}
        for key, owner in _OWNERS.items():
            if given[key] not in (None, SlurmSettings()) and self.name != owner:
                raise ValueError(
                    f'{key} belongs to executor = "{owner}", and the executor is "{self.name}"; leave it out'
                )
        return self

    @property
    def is_packed(self) -> bool:
        """Whether trials share a device."""
        return (self.per_device or 1) > 1


def read_executor(on: str) -> ExecutorSettings:
    """The settings that ``--on`` gives: a device, or the path of a TOML file. Raises ``InputError``: it is neither; the
    file cannot be read, or has an unknown key or a bad value. The message has the file, the key, the value, the rule
    and the remedy."""
    if _DEVICE.fullmatch(on):
        return ExecutorSettings(device=on)
    if not on.endswith(".toml"):
        raise InputError(
            f"--on {on}: it is neither a device (auto, cpu, cuda, cuda:N) nor a .toml file; for another executor write "
            'a file, such as executor = "slurm".'
        )
    try:
        return ExecutorSettings.model_validate(read_toml(Path(on)))
    except ValidationError as error:
        known = ["executor", "device", *_OWNERS, *(f"sbatch.{name}" for name in SlurmSettings.model_fields)]
        raise InputError(explain_refusal(error, on, known)) from None


def make_executor(
    settings: ExecutorSettings, log_dir: Path | None = None, world_size: int = 1, root: Path = Path("runs")
) -> Executor:
    """The executor for ``settings``; on the device ``auto`` it uses every GPU, or the CPU where there is none.

    Without ``log_dir`` what trials print is not kept, and the files of a cluster's jobs are written under ``root``, the
    folder of all studies. A GPU trial has ``world_size`` GPUs to itself, the most that any trial of the study needs.
    """
    if settings.name == "slurm":
        # A forecast or a probe has no folder of a study; every machine of the cluster must see the root.
        folder = log_dir.parent / "slurm" if log_dir else root / f".slurm-{os.getpid()}"
        name = f"sweep-{log_dir.parent.name}" if log_dir else "sweep"
        return SlurmExecutor(folder, name, settings.slurm, settings.device, log_dir)
    if settings.name == "process":
        gpus = select_gpus(settings.device, world_size, list_devices())
        starts = range(0, len(gpus) - world_size + 1, world_size)
        groups = [",".join(gpus[start : start + world_size]) for start in starts]
        return ProcessExecutor(devices=groups or ["cpu"], log_dir=log_dir)
    limit_spinning()
    if settings.name == "ray":
        return RayExecutor(settings.device, log_dir, world_size, settings.address)
    return InlineExecutor(settings.device)


def check_executor(settings: ExecutorSettings) -> None:
    """Raises ``InputError`` if the executor cannot work here or does not have the device."""
    limit_spinning()  # before the first check that imports torch
    if settings.name == "slurm":
        check_slurm()
    if settings.name == "ray":
        check_ray(settings.address)
    present = _list_devices(settings)
    valid = {"auto", "cpu", *present} | ({"cuda"} if present != ["cpu"] else set())
    if settings.device not in valid:
        raise InputError(f"--on: {describe_unknown('device', settings.device, valid)}")


def check_ranks(settings: ExecutorSettings, world_size: int) -> None:
    """Raises ``InputError`` where the device does not name as many GPUs as a trial has ranks; a CPU is shared."""
    gpus = select_gpus(settings.device, world_size, _list_devices(settings))
    if gpus and len(gpus) < world_size:
        raise InputError(
            f"distributed.world_size = {world_size} requires {world_size} GPUs, and the device {settings.device} has "
            f"{len(gpus)} here; lower it, or train on the CPU with --on cpu."
        )


def device_type(settings: ExecutorSettings) -> str:
    """``cuda`` where trials run on a GPU, else ``cpu``."""
    return "cuda" if select_gpus(settings.device, 1, _list_devices(settings)) else "cpu"


def _list_devices(settings: ExecutorSettings) -> list[str]:
    """As :func:`list_devices`. No cluster is contacted: its executor refuses what it does not have."""
    if settings.name == "slurm":
        return [f"cuda:{index}" for index in range(settings.slurm.gpus_per_node)] or ["cpu"]
    if settings.address is not None:
        return ["cpu", *(f"cuda:{index}" for index in range(MAX_GPUS))]
    return list_devices()


# ---------------------------------------------------------------------- what trials can measure


def check_objectives(spec: StudySpec, settings: ExecutorSettings) -> None:
    """Checks that trials of ``spec`` can measure each of its objectives on the devices of ``settings``. Raises
    ``InputError``: one cannot be measured; the message has what it requires, and what can be measured instead."""
    if lacking := find_unmeasurable(spec, settings):
        device = "a GPU" if device_type(settings) == "cuda" else "the CPU"
        reasons = "; ".join(f"{name} requires {requirement.text}" for name, requirement in lacking.items())
        remedies = [f"set {item.text} in [base]" if item.key else f"train on {item.text}" for item in lacking.values()]
        raise InputError(
            f"objectives: {', '.join(lacking)} cannot be measured by this study on {device} here: {reasons}; "
            f"{' and '.join(dict.fromkeys(remedies))}, or choose from {', '.join(list_measurable(spec, settings))}."
        )


def list_measurable(spec: StudySpec, settings: ExecutorSettings) -> list[str]:
    """Every metric that could be an objective of ``spec`` on the devices of ``settings``."""
    lacking = find_unmeasurable(spec, settings, list_objectives())
    return [name for name in list_objectives() if name not in lacking]


def find_unmeasurable(
    spec: StudySpec, settings: ExecutorSettings, names: Iterable[str] | None = None
) -> dict[str, Requirement]:
    """The objectives (or ``names``) that trials of ``spec`` cannot measure, each with what it requires."""
    sensors = cache(partial(_read_sensors, settings))  # a GPU is queried only where an objective depends on it

    def is_met(requirement: Requirement) -> bool:
        if requirement.sensor:
            return requirement.sensor in sensors()
        if requirement.key == "script":
            return spec.script is not None
        # A key must be set in every trial: values that are swept may replace the required one.
        section = requirement.key.partition(".")[0]
        return all(flatten_config(config)[requirement.key] is not None for config in spec.corners.of(section))

    required = {name: requirement for name in names or spec.objectives if (requirement := METRICS[name].requires)}
    return {name: requirement for name, requirement in required.items() if not is_met(requirement)}


def _read_sensors(settings: ExecutorSettings) -> frozenset[Sensor]:
    """The sensors that every GPU of the executor has at the moment; GPUs of a cluster are taken to have all."""
    devices = _list_devices(settings)
    gpus = select_gpus(settings.device, len(devices), devices)
    if settings.name == "slurm" or settings.address is not None:  # on other machines
        return SENSORS if gpus else frozenset()
    names = {name for gpu in gpus for name in list_nvml_names(gpu)}
    return frozenset.intersection(*map(read_sensors, names)) if names else frozenset()
