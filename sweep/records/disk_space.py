"""Free space on the disk, and how much a study wants."""

import shutil
from pathlib import Path

# SQLite's write-ahead log (4 MiB), the tables with Optuna's copy, logs, and a report with its pictures.
_SMALLEST_BYTES = 12 << 20
_TRIAL_BYTES = 16 << 10  # a trial's row, a dozen of evaluations, its copy for optuna-dashboard
_MIB = 1 << 20


def estimate_record_bytes(num_trials: int) -> int:
    """Room for the records of so many further trials, with what is written beside them."""
    return _SMALLEST_BYTES + num_trials * _TRIAL_BYTES


def measure_free_bytes(folder: Path) -> int:
    """What this user can still write where ``folder`` is or will be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def describe_shortage(folder: Path, needed_bytes: int = _SMALLEST_BYTES) -> str:
    """How much is free and how much is needed, as a sentence with a space behind it."""
    free = measure_free_bytes(folder) / _MIB
    return f"{free:.1f} MiB are free in {folder.resolve()}, at least {needed_bytes / _MIB:.1f} MiB are needed. "
