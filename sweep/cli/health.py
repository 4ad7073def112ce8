"""The checks of ``sweep doctor`` on this machine."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("torch", "torchvision", "optuna", "pandas", "matplotlib", "sqlalchemy", "nvidia-ml-py")
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Check:
    """One result. No study can run while an essential one is not ok."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    essential: bool = False
    is_noticed: bool = False  # there, and no doubt about what was measured


def check_machine() -> list[Check]:
    looks = (_check_torch, _check_vision, _check_gpu, _check_disk, _check_store, _check_dashboard)
    return [*map(_check_package, _PACKAGES), *map(_run_guarded, looks)]


def _run_guarded(look: Callable[[], Check]) -> Check:
    try:
        return look()
    except Exception as error:  # a broken installation must be reported, not raised
        name, found = look.__name__.removeprefix("_check_"), f"{type(error).__name__}: {error}"
        return Check(name=name, ok=False, found=found, remedy="reinstall: make setup", essential=True)


def _check_package(name: str) -> Check:
    try:
        return Check(name=name, ok=True, found=version(name), essential=True)
    except PackageNotFoundError:
        return Check(name=name, ok=False, found="not installed", remedy="make setup", essential=True)


def _check_torch() -> Check:
    import torch

    found, remedy = f"CPU, {torch.get_num_threads()} threads", "times hold for this CPU only"
    if torch.cuda.is_available():
        found, remedy = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}", ""
    return Check(name="device", ok=True, found=found, remedy=remedy, essential=True)


def _check_vision() -> Check:
    import sweep.training.vision

    found = f"import ({sweep.training.vision.__name__})"
    return Check(name="torchvision models", ok=True, found=found, essential=True)


def _check_gpu() -> Check:
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        remedy = "none is needed on a CPU; on a GPU machine install the driver"
        return Check(name="NVIDIA driver", ok=False, found=str(error), remedy=remedy)
    return Check(name="NVIDIA driver", ok=True, found=str(driver))


def _check_disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    is_enough = free >= _MIN_FREE_BYTES
    remedy = "" if is_enough else "free some space"
    return Check(name="disk", ok=is_enough, found=f"{free / 2**30:.1f} GiB free", remedy=remedy)


def _check_store() -> Check:
    from sweep.records.store.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder) / "study.sqlite", create=True).close()
    return Check(name="record store", ok=True, found="an SQLite file opens and commits", essential=True)


def _check_dashboard() -> Check:
    if find_spec("optuna_dashboard") is not None:
        return Check(name="optuna-dashboard", ok=True, found="installed")
    remedy = "optional: pip install 'batch-sweep[dashboard]'"
    return Check(name="optuna-dashboard", ok=False, found="not installed", remedy=remedy)
