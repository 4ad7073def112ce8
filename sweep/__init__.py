"""Measure how batch size, learning rate and other hyperparameters change accuracy, time and memory of a training.

from sweep import StudySpec, TrialConfig, load_frames, recommend, run_study, train_trial
In a training script of your own: trial = sweep.trial(batch_size=32, lr=0.1)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.analysis.answer import (
        Answer,
        BatchAnswer,
        ConfigurationEstimate,
        Fact,
        NextBest,
        Recommendation,
        Statement,
        TrainingPrice,
        TunedBatch,
        TunedModel,
        ValidationSize,
    )
    from sweep.analysis.recommendation import recommend
    from sweep.analysis.statistics import Interval
    from sweep.config.errors import InputError
    from sweep.config.study import StudySpec
    from sweep.config.study_file import load_study
    from sweep.config.trial import TrialConfig
    from sweep.executors.table import ExecutorSettings
    from sweep.foreign.foreign_records import load_foreign_frames
    from sweep.records.frames import Frames
    from sweep.records.loading import load_frames
    from sweep.records.messages import Ending, Evaluation
    from sweep.script.trial import Stop, trial
    from sweep.search.session import Options, run_study
    from sweep.search.single import train_trial
    from sweep.training.checkpoints import load_model
    from sweep.training.processes import load_plugin

__all__ = [
    "Answer",
    "BatchAnswer",
    "ConfigurationEstimate",
    "Ending",
    "Evaluation",
    "ExecutorSettings",
    "Fact",
    "Frames",
    "InputError",
    "Interval",
    "NextBest",
    "Options",
    "Recommendation",
    "Statement",
    "Stop",
    "StudySpec",
    "TrainingPrice",
    "TrialConfig",
    "TunedBatch",
    "TunedModel",
    "ValidationSize",
    "load_foreign_frames",
    "load_frames",
    "load_model",
    "load_plugin",
    "load_study",
    "recommend",
    "run_study",
    "train_trial",
    "trial",
]

# Loaded at first use: torch and Optuna take seconds, and a reader of records needs neither.
_HOMES = {
    "Answer": "sweep.analysis.answer",
    "BatchAnswer": "sweep.analysis.answer",
    "ConfigurationEstimate": "sweep.analysis.answer",
    "Ending": "sweep.records.messages",
    "Evaluation": "sweep.records.messages",
    "ExecutorSettings": "sweep.executors.table",
    "Fact": "sweep.analysis.answer",
    "Frames": "sweep.records.frames",
    "InputError": "sweep.config.errors",
    "Interval": "sweep.analysis.statistics",
    "NextBest": "sweep.analysis.answer",
    "Options": "sweep.search.session",
    "Recommendation": "sweep.analysis.answer",
    "Statement": "sweep.analysis.answer",
    "Stop": "sweep.script.trial",
    "StudySpec": "sweep.config.study",
    "TrainingPrice": "sweep.analysis.answer",
    "TrialConfig": "sweep.config.trial",
    "TunedBatch": "sweep.analysis.answer",
    "TunedModel": "sweep.analysis.answer",
    "ValidationSize": "sweep.analysis.answer",
    "load_foreign_frames": "sweep.foreign.foreign_records",
    "load_frames": "sweep.records.loading",
    "load_model": "sweep.training.checkpoints",
    "load_plugin": "sweep.training.processes",
    "load_study": "sweep.config.study_file",
    "recommend": "sweep.analysis.recommendation",
    "run_study": "sweep.search.session",
    "train_trial": "sweep.search.single",
    "trial": "sweep.script.trial",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sweep' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
