"""What ``sweep doctor`` looks at."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("torch", "torchvision", "optuna", "pandas", "plotly", "matplotlib", "sqlalchemy", "nvidia-ml-py")
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Check:
    """One finding. An essential one that is not ok means that no study can run."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    essential: bool = False


def check_machine() -> list[Check]:
    """All findings on this machine."""
    return [*map(_package, _PACKAGES), *(_guarded(look) for look in (_torch, _vision, _gpu, _disk, _store, _dashboard))]


def _guarded(look: Callable[[], Check]) -> Check:
    # a broken installation must be reported, not raised
    try:
        return look()
    except Exception as error:
        return Check(look.__name__.strip("_"), False, f"{type(error).__name__}: {error}", "reinstall: make setup", True)


def _package(name: str) -> Check:
    try:
        return Check(name, True, version(name), essential=True)
    except PackageNotFoundError:
        return Check(name, False, "not installed", "make setup", essential=True)


def _torch() -> Check:
    import torch

    if torch.cuda.is_available():
        return Check("device", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}", essential=True)
    return Check("device", True, f"CPU, {torch.get_num_threads()} threads", "times hold for this CPU only", True)


def _vision() -> Check:
    import sweep.training.vision

    return Check("torchvision models", True, f"import ({sweep.training.vision.__name__})", essential=True)


def _gpu() -> Check:
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Check("NVIDIA driver", False, str(error), "none is needed on a CPU; on a GPU machine install the driver")
    return Check("NVIDIA driver", True, str(driver))


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    return Check(
        "disk", free >= _MIN_FREE_BYTES, f"{free / 2**30:.1f} GiB free", "" if free >= _MIN_FREE_BYTES else "make room"
    )


def _store() -> Check:
    from sweep.records.store.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder) / "study.sqlite", create=True).close()
    return Check("record store", True, "a SQLite file opens and commits", essential=True)


def _dashboard() -> Check:
    found = find_spec("optuna_dashboard") is not None
    return Check(
        "optuna-dashboard",
        found,
        "installed" if found else "not installed",
        "" if found else "optional: pip install 'batch-sweep[dashboard]'",
    )
