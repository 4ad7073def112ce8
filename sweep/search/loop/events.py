"""The events of a study while it runs: the command line prints them, the Python API ignores them."""

from dataclasses import dataclass

from sweep.config.trial_config import TrialConfig
from sweep.records.messages import Evaluation, Phase, Progress
from sweep.records.trial_record import TrialRecord


@dataclass(frozen=True, kw_only=True)
class TrialStarted:
    """An attempt at a trial was launched; ``attempt`` counts from 1."""

    number: int
    phase: Phase
    config: TrialConfig
    attempt: int


@dataclass(frozen=True)
class TrialAdvanced:
    """A message of a running trial."""

    number: int
    message: Progress | Evaluation


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt ended and its trial did not: it resumes from its last checkpoint, in this run or in the next."""

    number: int
    cause: str
    error: str = ""


@dataclass(frozen=True)
class Stopping:
    """No trial begins any more, and ``num_trials`` were preempted."""

    cause: str
    num_trials: int


@dataclass(frozen=True)
class TrialEnded:
    """The record of a trial is complete and durable."""

    record: TrialRecord
    error: str = ""


@dataclass(frozen=True)
class TrialReused:
    """A trial was taken from earlier records instead of being trained."""

    record: TrialRecord
    saved_seconds: float


@dataclass(frozen=True)
class Waiting:
    """Nothing happened for a moment; a listener may redraw."""


@dataclass(frozen=True)
class Stopped:
    """The study ends before all its trials are trained; the last event of its run."""

    reason: str
    is_failure: bool = False


Event = TrialStarted | TrialAdvanced | AttemptEnded | TrialEnded | TrialReused | Stopping | Waiting | Stopped
