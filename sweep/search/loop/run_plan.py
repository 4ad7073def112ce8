"""What a run of a study requires besides the study."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import ExpectedData
from sweep.records.trial_record import ReusableTrial, TrialRecord
from sweep.search.forecast.memory_gate import MemoryGate
from sweep.search.forecast.prober import SoloProbes
from sweep.search.loop.shutdown import Shutdown
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """How trials get their content keys, where reusable ones are looked up, the limits and the folders of a run."""

    key_of: Callable[[TrialConfig], str]
    # of a content key and the metrics that the trial must have
    find_reusable: Callable[[str, frozenset[str]], ReusableTrial | None] = lambda _key, _required: None
    deadline: float = float("inf")  # by the clock
    search_deadline: float = float("inf")  # of the search alone, by the clock
    clock: Callable[[], float] = time.monotonic  # another one where time is simulated
    make_sampler: Callable[[StudySpec, Sequence[TrialRecord]], Sampler] = make_sampler
    prior: Sequence[TrialRecord] = ()  # of other studies: the sampler learns from them, and they are never recorded
    # the images that a trial must read
    expect_data: Callable[[TrialConfig], ExpectedData | None] = lambda _config: None
    device: str = "auto"
    plugin: str | None = None
    checkpoint_root: Path | None = None  # each running trial gets a folder in it; None: there are no checkpoints
    checkpoint_seconds: float = 60.0
    memory_gate: MemoryGate | None = None  # refuses configurations that will not fit
    solo_probes: SoloProbes | None = None  # of the shapes of disturbed trials
    shutdown: Shutdown = field(default_factory=Shutdown)
    resumed_by: str = "the same command again"  # what resumes the study, in words or as a command
    grace_seconds: float = 30.0  # that a preempted trial has for its step and its checkpoint

    @property
    def stop_cause(self) -> str:
        """Why no trial may begin or continue; empty while there is no reason."""
        return self.shutdown.cause or ("study_timeout" if self.clock() >= self.deadline else "")

    @property
    def is_search_over(self) -> bool:
        """Whether no search trial may begin any more; those that run may end."""
        return self.clock() >= self.search_deadline

    def checkpoint_dir(self, number: int) -> str | None:
        """The folder for the checkpoints of trial ``number``; None where there are none."""
        return None if self.checkpoint_root is None else str((self.checkpoint_root / str(number)).absolute())
