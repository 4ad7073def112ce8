"""The executors by name."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sweep.config.errors import InputError, unknown_name
from sweep.executors.base import Executor
from sweep.executors.devices import available_devices
from sweep.executors.inline import InlineExecutor
from sweep.executors.openmp import limit_spinning
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.ray.ray_executor import MOST_GPUS, RayExecutor, check_ray
from sweep.executors.slurm.slurm_cluster import check_cluster
from sweep.executors.slurm.slurm_executor import SlurmExecutor
from sweep.executors.slurm.slurm_settings import read_settings


@final
@dataclass(frozen=True)
class Site:
    """What some executors alone ask for: where the cluster is and what may be had of it."""

    root: Path = Path("runs")  # where studies lie; a cluster's machines must all see it
    slurm: Path | None = None  # a TOML file: what to ask of Slurm
    address: str | None = None  # of a Ray cluster; without one this machine becomes one


HERE = Site()


@final
@dataclass(frozen=True)
class Kind:
    """How an executor is made from a device, a folder for logs and the ranks of a trial; what is known before."""

    make: Callable[[str, Path | None, int, Site], Executor]
    devices: Callable[[Site], list[str]]  # named as by :func:`available_devices`, without asking the cluster
    check: Callable[[Site], None] = lambda _site: None  # raises InputError where it cannot work here


def make_executor(name: str, device: str, log_dir: Path | None, world_size: int = 1, site: Site = HERE) -> Executor:
    """The executor called ``name`` for ``device`` (``auto``: every GPU, or the CPU where there is none).

    Without ``log_dir`` what trials print is not kept. A GPU trial has ``world_size`` GPUs to itself, the most that any
    trial of the study needs.
    """
    return EXECUTORS[name].make(device, log_dir, world_size, site)


def check_executor(name: str, site: Site = HERE) -> None:
    """Raises ``InputError`` where no executor has that name, with those that there are, or where it cannot work."""
    if name not in EXECUTORS:
        raise InputError(f"--executor: {unknown_name('executor', name, EXECUTORS)}")
    EXECUTORS[name].check(site)


def check_device(device: str, executor: str = "process", site: Site = HERE) -> None:
    """Raises ``InputError`` where ``executor`` has no such device (auto, cpu, cuda, cuda:N), with those it has."""
    present = EXECUTORS[executor].devices(site)
    known = {"auto", "cpu", *present} | ({"cuda"} if present != ["cpu"] else set())
    if device not in known:
        raise InputError(f"--device: {unknown_name('device', device, known)}")


def check_ranks(device: str, world_size: int, executor: str = "process", site: Site = HERE) -> None:
    """Raises ``InputError`` where ``device`` does not name as many GPUs as a trial has ranks; a CPU is shared."""
    gpus = _gpus(device, world_size, EXECUTORS[executor].devices(site))
    if gpus and len(gpus) < world_size:
        raise InputError(
            f"distributed.world_size = {world_size} needs {world_size} GPUs, and --device {device} has {len(gpus)} "
            "here; lower it, or train on the CPU with --device cpu."
        )


def device_type(device: str, executor: str = "process", site: Site = HERE) -> str:
    """``cuda`` where trials on ``device`` run on a GPU, else ``cpu``."""
    return "cuda" if _gpus(device, 1, EXECUTORS[executor].devices(site)) else "cpu"


def _gpus(device: str, world_size: int, devices: list[str]) -> list[str]:
    # "cuda" is the first one, or as many as one trial needs
    present = [name for name in devices if name != "cpu"]
    if device == "auto":
        return present
    return present[:world_size] if device == "cuda" else [device] if device.startswith("cuda:") else []


def _devices_here(_site: Site) -> list[str]:
    return available_devices()


def _process(device: str, log_dir: Path | None, world_size: int, _site: Site) -> Executor:
    gpus = _gpus(device, world_size, available_devices())
    starts = range(0, len(gpus) - world_size + 1, world_size)
    groups = [",".join(gpus[start : start + world_size]) for start in starts]
    return ProcessExecutor(devices=groups or ["cpu"], log_dir=log_dir)


def _inline(device: str, _log_dir: Path | None, _world_size: int, _site: Site) -> Executor:
    limit_spinning()
    return InlineExecutor(device)


def _slurm(device: str, log_dir: Path | None, world_size: int, site: Site) -> Executor:
    settings = read_settings(site.slurm)
    settings.nodes_for(world_size, device)
    # a forecast alone has no folder of a study
    folder = log_dir.parent / "slurm" if log_dir else site.root / f".slurm-{os.getpid()}"
    name = f"sweep-{log_dir.parent.name}" if log_dir else "sweep"
    return SlurmExecutor(folder, name, settings, device, log_dir)


def _devices_of_slurm(site: Site) -> list[str]:
    settings = read_settings(site.slurm)
    return [f"cuda:{index}" for index in range(settings.nodes * settings.gpus_per_node)] or ["cpu"]


def _check_slurm(site: Site) -> None:
    check_cluster(read_settings(site.slurm))


def _ray(device: str, log_dir: Path | None, world_size: int, site: Site) -> Executor:
    limit_spinning()
    return RayExecutor(device, log_dir, world_size, site.address)


def _devices_of_ray(site: Site) -> list[str]:
    # what a cluster has shows when it is there, and the executor refuses what it has not
    return available_devices() if site.address is None else ["cpu", *(f"cuda:{index}" for index in range(MOST_GPUS))]


def _check_ray(site: Site) -> None:
    check_ray(site.address)


EXECUTORS: dict[str, Kind] = {
    "process": Kind(_process, _devices_here),
    "packed": Kind(_process, _devices_here),  # by a wrapper, see :mod:`sweep.executors.packed.packed_executor`
    "inline": Kind(_inline, _devices_here),
    "ray": Kind(_ray, _devices_of_ray, _check_ray),
    "slurm": Kind(_slurm, _devices_of_slurm, _check_slurm),
}
