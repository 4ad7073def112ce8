"""Where a trial ran: device, driver, versions, threads, and an allow-list of environment variables."""

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sweep.measurement.device import identify_gpu, name_device_class, reach_gpu, read_cpu_model, resolve_device
from sweep.measurement.nvml import read_driver_version, read_power_limit, read_process_bytes

_PACKAGES = ("torch", "torchvision", "optuna", "numpy", "batch-sweep")
_OWN_CHECKOUT = Path(__file__).resolve().parents[2]
# Never the whole environment: it holds secrets.
_VARIABLE_PREFIXES = ("CUDA_", "OMP_", "GOMP_", "MKL_", "PYTORCH_")


def describe_machine(device: str, threads: int | None) -> dict[str, Any]:
    """The environment of a trial on ``device`` with ``threads``, for a process that trains nothing.

    Of a GPU also ``device_free_bytes``, what another such process could allocate now, and ``process_bytes``, what it
    requires beside that; 0 where the driver does not report it.

    Raises:
        DeviceFullError: other programs hold all memory of the GPU.
    """
    if threads is not None:
        torch.set_num_threads(threads)  # a CPU's class names them
    found = resolve_device(device)
    description = describe_environment(found)
    if found.type != "cuda":
        return description
    reach_gpu(found)
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(found)
    held = read_process_bytes(identify_gpu(found)) - torch.cuda.memory_reserved(found)
    return description | {"device_free_bytes": free_bytes, "process_bytes": max(held, 0)}


def describe_environment(device: torch.device) -> dict[str, Any]:
    """The facts that a timing depends on, ready for JSON; an empty string where one cannot be determined."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "device": name_device_class(device),
        "device_type": device.type,
        "device_memory_bytes": properties.total_memory if properties else 0,
        "driver": read_driver_version() if properties else "",
        "cuda": (torch.version.cuda or "") if properties else "",
        "cudnn": _cudnn_version() if properties else "",
        "power_limit_watts": read_power_limit(identify_gpu(device)) if properties else 0.0,
        "cpu": read_cpu_model(),
        "num_cpus": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _find_version(name) for name in _PACKAGES},
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLE_PREFIXES)},
        "git_commit": _git_commit(_OWN_CHECKOUT),
        "project_commit": _git_commit(_project(Path.cwd())),
    }


def _cudnn_version() -> str:
    backend: Any = torch.backends.cudnn  # torch leaves it untyped
    return str(backend.version() or "")


@cache
def _find_version(name: str) -> str:
    if name == "torch":
        return str(torch.__version__)  # with its build, such as +cu132, which the metadata may lack
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _project(folder: Path) -> Path | None:
    # the checkout that the user works in, with the study file or the plug-in
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)


@cache
def _git_commit(checkout: Path | None) -> str:
    # "" without a checkout, as for an installed package. Read from the files: a subprocess takes too long
    if checkout is None:
        return ""
    git = checkout / ".git"
    try:
        if git.is_file():  # of a worktree or a submodule
            git = (checkout / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()).resolve()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        shared = git / "commondir"  # a worktree shares its branches with its main checkout
        common = (git / shared.read_text(encoding="utf-8").strip()).resolve() if shared.is_file() else git
        if (common / reference).is_file():
            return (common / reference).read_text(encoding="utf-8").strip()
        packed = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "")
    except OSError:
        return ""
