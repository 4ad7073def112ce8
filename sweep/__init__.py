"""Measure how batch size, learning rate and other hyperparameters change accuracy, time and memory of a training.

from sweep import StudySpec, TrialConfig, load_frames, run_study, train_trial
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.config.errors import InputError
    from sweep.config.study import StudySpec
    from sweep.config.study_file import load_study
    from sweep.config.trial_config import TrialConfig
    from sweep.records.frames.frames import load_frames
    from sweep.search.loop.session import run_study
    from sweep.search.loop.single_trial import train_trial

__all__ = ["InputError", "StudySpec", "TrialConfig", "load_frames", "load_study", "run_study", "train_trial"]

# Loaded at first use: torch and Optuna take seconds, and a reader of records needs neither.
_HOMES = {
    "InputError": "sweep.config.errors",
    "StudySpec": "sweep.config.study",
    "TrialConfig": "sweep.config.trial_config",
    "load_frames": "sweep.records.frames.frames",
    "load_study": "sweep.config.study_file",
    "run_study": "sweep.search.loop.session",
    "train_trial": "sweep.search.loop.single_trial",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sweep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
