"""What the forkserver imports before the first trial, so that a trial's process starts in milliseconds.

Import only: one tensor operation here would start torch's threads, which a fork does not copy, and every child would
hang at its first parallel region. Nothing here may ask CUDA anything either, for the same reason.
"""

import gc
import traceback
from importlib import import_module

from sweep.executors.openmp import limit_spinning

MODULES = (
    "torch",
    "sweep.executors.machine",
    "sweep.training.vision",
    "sweep.training.ranks.launcher",
)


def preload(modules: tuple[str, ...] = MODULES) -> None:
    """Imports ``modules``. One that cannot be imported is named on standard error; the trial that needs it fails."""
    limit_spinning()
    for name in modules:
        try:
            import_module(name)
        except Exception:
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # children share these pages: their collector must not touch every object
