"""The executors by name: how each is made, on which devices it trains, and what its trials can measure."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, Self, final

from pydantic import Field, ValidationError, field_validator, model_validator

from sweep.config.errors import InputError, describe_unknown, explain_refusal
from sweep.config.metrics import METRICS, Requirement, Sensor, list_objectives
from sweep.config.sections import Section
from sweep.config.study import StudySpec
from sweep.config.study_file import read_toml
from sweep.config.trial import flatten_config
from sweep.executors.base import Executor
from sweep.executors.devices import limit_spinning, list_devices, select_gpus
from sweep.executors.inline import InlineExecutor
from sweep.executors.monitored import SENSORS, find_sensors
from sweep.executors.process import ProcessExecutor
from sweep.executors.ray import MAX_GPUS, RayExecutor, check_ray
from sweep.executors.slurm import SlurmExecutor, SlurmSettings, check_slurm


@final
@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Which executor runs trials, on which devices, and the settings that one executor alone has.

    Attributes:
        name: ``process``, ``inline``, ``ray`` or ``slurm``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        slurm: settings of the jobs of Slurm.
        address: of a Ray cluster; without one this machine becomes one.
        per_device: trials at a time on each device.
    """

    name: str = "process"
    device: str = "auto"
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    address: str | None = None
    per_device: int | None = None

    @property
    def is_packed(self) -> bool:
        """Whether trials share a device."""
        return (self.per_device or 1) > 1


_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@final
class _OnFile(Section):
    """The file of ``--on``."""

    executor: Literal["process", "inline", "ray", "slurm"] = "process"
    device: str = "auto"
    per_device: Annotated[int, Field(ge=1)] | None = None
    address: str | None = None
    sbatch: SlurmSettings = SlurmSettings()

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("give auto, cpu, cuda or cuda:N")
        return device

    @model_validator(mode="after")
    def _refuse_settings_of_another_executor(self) -> Self:
        owners = {"per_device": "process", "address": "ray", "sbatch": "slurm"}
        for key, owner in owners.items():
            if key in self.model_fields_set and self.executor != owner:
                raise ValueError(
                    f'{key} belongs to executor = "{owner}", and the executor is "{self.executor}"; leave it out'
                )
        return self


def read_executor(on: str) -> ExecutorSettings:
    """The settings that ``--on`` gives: a device, or the path of a TOML file.

    Raises:
        InputError: it is neither; the file cannot be read, or has an unknown key or a bad value. The message has the
            file, the key, the value, the rule and the remedy.
    """
    if _DEVICE.fullmatch(on):
        return ExecutorSettings(device=on)
    if not on.endswith(".toml"):
        raise InputError(
            f"--on {on}: it is neither a device (auto, cpu, cuda, cuda:N) nor a .toml file; for another executor write "
            'a file, such as executor = "slurm".'
        )
    try:
        given = _OnFile.model_validate(read_toml(Path(on)))
    except ValidationError as error:
        known = [*_OnFile.model_fields, *(f"sbatch.{name}" for name in SlurmSettings.model_fields)]
        raise InputError(explain_refusal(error, on, known)) from None
    except RecursionError:
        raise InputError(f"{on}: its tables are nested too deep; it has two levels.") from None
    return ExecutorSettings(
        name=given.executor,
        device=given.device,
        slurm=given.sbatch,
        address=given.address,
        per_device=given.per_device,
    )


@final
@dataclass(frozen=True, kw_only=True)
class _ExecutorEntry:
    """How an executor is made (see :func:`make_executor`) and what is known of it before that."""

    make: Callable[[ExecutorSettings, Path | None, int, Path], Executor]
    # As listed by :func:`list_devices`; no cluster is contacted.
    devices: Callable[[ExecutorSettings], list[str]] = lambda _settings: list_devices()
    check: Callable[[ExecutorSettings], None] = lambda _settings: None  # raises InputError where it cannot work here
    is_remote: Callable[[ExecutorSettings], bool] = lambda _settings: False  # whether it trains on other machines


def make_executor(
    settings: ExecutorSettings, log_dir: Path | None = None, world_size: int = 1, root: Path = Path("runs")
) -> Executor:
    """The executor for ``settings``; on the device ``auto`` it uses every GPU, or the CPU where there is none.

    Without ``log_dir`` what trials print is not kept, and the files of a cluster's jobs are written under ``root``, the
    folder of all studies. A GPU trial has ``world_size`` GPUs to itself, the most that any trial of the study needs.
    """
    return EXECUTORS[settings.name].make(settings, log_dir, world_size, root)


def check_executor(settings: ExecutorSettings) -> None:
    """Checks that the executor exists, can work here, can share a device if that is requested, and has the device.

    Raises:
        InputError: one of these does not hold; the message names the valid values.
    """
    limit_spinning()  # before the first check that imports torch
    if settings.name not in EXECUTORS:
        raise InputError(describe_unknown("executor", settings.name, EXECUTORS))
    if settings.per_device is not None and settings.per_device < 1:
        raise InputError(f"per_device = {settings.per_device}: give 1 or more.")
    if settings.is_packed and settings.name != "process":
        raise InputError(
            f'per_device = {settings.per_device}: executor = "{settings.name}" trains one trial on a device; leave it '
            "out, or choose process."
        )
    EXECUTORS[settings.name].check(settings)
    present = EXECUTORS[settings.name].devices(settings)
    valid = {"auto", "cpu", *present} | ({"cuda"} if present != ["cpu"] else set())
    if settings.device not in valid:
        raise InputError(f"--on: {describe_unknown('device', settings.device, valid)}")


def check_ranks(settings: ExecutorSettings, world_size: int) -> None:
    """Raises ``InputError`` where the device does not name as many GPUs as a trial has ranks; a CPU is shared."""
    gpus = select_gpus(settings.device, world_size, EXECUTORS[settings.name].devices(settings))
    if gpus and len(gpus) < world_size:
        raise InputError(
            f"distributed.world_size = {world_size} requires {world_size} GPUs, and the device {settings.device} has "
            f"{len(gpus)} here; lower it, or train on the CPU with --on cpu."
        )


def device_type(settings: ExecutorSettings) -> str:
    """``cuda`` where trials run on a GPU, else ``cpu``."""
    return "cuda" if select_gpus(settings.device, 1, EXECUTORS[settings.name].devices(settings)) else "cpu"


def _read_sensors(settings: ExecutorSettings) -> frozenset[Sensor]:
    """The sensors that every device of the executor has. No cluster is contacted: its GPUs are taken to have all."""
    executor = EXECUTORS[settings.name]
    devices = executor.devices(settings)
    gpus = select_gpus(settings.device, len(devices), devices)
    if not gpus:
        return frozenset()
    if executor.is_remote(settings):
        return SENSORS
    return frozenset.intersection(*map(find_sensors, gpus))


def _make_process(settings: ExecutorSettings, log_dir: Path | None, world_size: int, _root: Path) -> Executor:
    gpus = select_gpus(settings.device, world_size, list_devices())
    starts = range(0, len(gpus) - world_size + 1, world_size)
    groups = [",".join(gpus[start : start + world_size]) for start in starts]
    return ProcessExecutor(devices=groups or ["cpu"], log_dir=log_dir)


def _make_inline(settings: ExecutorSettings, _log_dir: Path | None, _world_size: int, _root: Path) -> Executor:
    limit_spinning()
    return InlineExecutor(settings.device)


def _make_slurm(settings: ExecutorSettings, log_dir: Path | None, _world_size: int, root: Path) -> Executor:
    # A forecast or a probe has no folder of a study; every machine of the cluster must see the root.
    folder = log_dir.parent / "slurm" if log_dir else root / f".slurm-{os.getpid()}"
    name = f"sweep-{log_dir.parent.name}" if log_dir else "sweep"
    return SlurmExecutor(folder, name, settings.slurm, settings.device, log_dir)


def _slurm_devices(settings: ExecutorSettings) -> list[str]:
    return [f"cuda:{index}" for index in range(settings.slurm.gpus_per_node)] or ["cpu"]


def _make_ray(settings: ExecutorSettings, log_dir: Path | None, world_size: int, _root: Path) -> Executor:
    limit_spinning()
    return RayExecutor(settings.device, log_dir, world_size, settings.address)


def _ray_devices(settings: ExecutorSettings) -> list[str]:
    # The devices of a cluster are known once it is contacted; the executor refuses what it does not have.
    remote = ["cpu", *(f"cuda:{index}" for index in range(MAX_GPUS))]
    return list_devices() if settings.address is None else remote


EXECUTORS: dict[str, _ExecutorEntry] = {
    "process": _ExecutorEntry(make=_make_process),
    "inline": _ExecutorEntry(make=_make_inline),
    "ray": _ExecutorEntry(
        make=_make_ray,
        devices=_ray_devices,
        check=lambda settings: check_ray(settings.address),
        is_remote=lambda settings: settings.address is not None,
    ),
    "slurm": _ExecutorEntry(
        make=_make_slurm,
        devices=_slurm_devices,
        check=lambda _settings: check_slurm(),
        is_remote=lambda _settings: True,
    ),
}


# ---------------------------------------------------------------------- what trials can measure


def check_objectives(spec: StudySpec, settings: ExecutorSettings) -> None:
    """Checks that trials of ``spec`` can measure each of its objectives on the devices of ``settings``.

    Raises:
        InputError: one cannot be measured; the message has what it requires, and what can be measured instead.
    """
    if lacking := find_unmeasurable(spec, settings):
        device = "a GPU" if device_type(settings) == "cuda" else "the CPU"
        reasons = "; ".join(f"{name} requires {requirement.text}" for name, requirement in lacking.items())
        raise InputError(
            f"objectives: {', '.join(lacking)} cannot be measured by this study on {device} here: {reasons}; "
            f"{suggest_remedy(lacking.values())}, or choose from {', '.join(list_measurable(spec, settings))}."
        )


def suggest_remedy(lacking: Iterable[Requirement]) -> str:
    """What to do so that the metrics that require ``lacking`` are measured."""
    remedies = dict.fromkeys(f"set {item.text} in [base]" if item.key else f"train on {item.text}" for item in lacking)
    return " and ".join(remedies)


def find_unmeasurable(spec: StudySpec, settings: ExecutorSettings) -> dict[str, Requirement]:
    """The objectives that trials of ``spec`` cannot measure, each with what it requires."""
    return _find_lacking(spec.objectives, spec, settings)


def list_measurable(spec: StudySpec, settings: ExecutorSettings) -> list[str]:
    """Every metric that could be an objective of ``spec`` on the devices of ``settings``."""
    lacking = _find_lacking(list_objectives(), spec, settings)
    return [name for name in list_objectives() if name not in lacking]


def _find_lacking(names: Iterable[str], spec: StudySpec, settings: ExecutorSettings) -> dict[str, Requirement]:
    sensors = cache(partial(_read_sensors, settings))  # a GPU is queried only where an objective depends on it

    def is_met(requirement: Requirement) -> bool:
        if requirement.sensor:
            return requirement.sensor in sensors()
        # A key must be set in every trial: values that are swept may replace the required one.
        section = requirement.key.partition(".")[0]
        return all(flatten_config(config)[requirement.key] is not None for config in spec.corners.of(section))

    required = {name: requirement for name in names if (requirement := METRICS[name].requires)}
    return {name: requirement for name, requirement in required.items() if not is_met(requirement)}
