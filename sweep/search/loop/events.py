"""What a study tells its listeners while it runs; the command line prints it, the Python API drops it."""

from dataclasses import dataclass

from sweep.config.trial_config import TrialConfig
from sweep.records.messages import Evaluation, Phase, Progress
from sweep.records.trial_record import TrialRecord


@dataclass(frozen=True)
class TrialStarted:
    """An attempt at a trial was launched; ``attempt`` counts from 1."""

    number: int
    phase: Phase
    config: TrialConfig
    attempt: int


@dataclass(frozen=True)
class TrialAdvanced:
    """News from a running trial."""

    number: int
    news: Progress | Evaluation


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt has ended and its trial has not: it goes on from its last checkpoint, in this run or in the next."""

    number: int
    cause: str
    error: str = ""


@dataclass(frozen=True)
class Leaving:
    """Nothing new begins any more, and ``num_trials`` were asked to leave."""

    cause: str
    num_trials: int


@dataclass(frozen=True)
class TrialEnded:
    """A trial's record is complete and durable."""

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


Event = TrialStarted | TrialAdvanced | AttemptEnded | TrialEnded | TrialReused | Leaving | Waiting | Stopped
