"""What a study's run needs beside the study."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.trial_record import ReusableTrial, TrialRecord
from sweep.search.forecast.memory_gate import MemoryGate
from sweep.search.loop.shutdown import Shutdown
from sweep.search.samplers.base import Sampler
from sweep.search.samplers.table import make_sampler


@dataclass(frozen=True)
class Plan:
    """What the tuner needs beside the study: how trials get their keys, and where known ones come from."""

    key_of: Callable[[TrialConfig], str]
    find: Callable[[str, frozenset[str]], ReusableTrial | None]
    deadline: float = float("inf")  # by the clock
    clock: Callable[[], float] = time.monotonic  # another one where time is simulated
    make_sampler: Callable[[StudySpec, Sequence[TrialRecord]], Sampler] = make_sampler
    prior: Sequence[TrialRecord] = ()  # of other studies, for the sampler to learn from and never on this record
    device: str = "auto"
    plugin: str | None = None
    checkpoint_root: Path | None = None  # a folder for each running trial is made there; none, no checkpoints
    checkpoint_seconds: float = 60.0
    gate: MemoryGate | None = None  # holds back what will not fit
    departure: Shutdown = field(default_factory=Shutdown)
    leave_seconds: float = 30.0  # that a trial has for its step and its checkpoint when it is asked to leave

    @property
    def why_leave(self) -> str:
        """The cause for which nothing may go on; empty while there is none."""
        return self.departure.cause or ("study_timeout" if self.clock() >= self.deadline else "")

    def checkpoint_dir(self, number: int) -> str | None:
        """Where trial ``number`` writes its checkpoints; None where there are none."""
        return None if self.checkpoint_root is None else str((self.checkpoint_root / str(number)).absolute())
