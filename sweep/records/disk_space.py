"""Free disk space, and how much a study requires."""

import shutil
from pathlib import Path

# SQLite's write-ahead log (4 MiB), the tables with Optuna's copy, logs, and a report with its pictures.
_SMALLEST_BYTES = 12 << 20
_TRIAL_BYTES = 16 << 10  # a trial's row, a dozen of evaluations, its copy for optuna-dashboard
_MIB = 1 << 20


def estimate_record_bytes(num_trials: int) -> int:
    """Bytes for the records of ``num_trials`` more trials, with Optuna's copy, logs and the report."""
    return _SMALLEST_BYTES + num_trials * _TRIAL_BYTES


def measure_free_bytes(folder: Path) -> int:
    """Bytes that this user can still write at ``folder``, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def describe_shortage(folder: Path, needed_bytes: int = _SMALLEST_BYTES) -> str:
    """A sentence, with a space at its end, on how much is free and how much is required."""
    free = measure_free_bytes(folder) / _MIB
    return f"{free:.1f} MiB are free in {folder.resolve()}, at least {needed_bytes / _MIB:.1f} MiB are needed. "
